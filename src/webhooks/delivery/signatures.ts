/**
 * The headers by which a receiver knows that a message is ours and unchanged: those of Standard Webhooks
 * (https://www.standardwebhooks.com), which libraries of many languages verify, and those of the specification
 * (section 6), an HMAC of the body alone.
 */
import { createHmac } from 'node:crypto';

/** 24 to 64 bytes are what Standard Webhooks recommends; we take any. */
const ENCODED = /^whsec_((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)$/;

/** The bytes that Standard Webhooks signs with: those that `whsec_…` encodes, else those of the secret's text. */
function keyOf(secret: string): Buffer {
  const [, encoded] = ENCODED.exec(secret) ?? [];
  return encoded ? Buffer.from(encoded, 'base64') : Buffer.from(secret);
}

/**
 * @param secrets the present one first, then the one before while it still signs; none: nothing is signed
 * @param at seconds since 1970
 */
export function signatureHeaders(
  { id, body, at }: { id: string; body: Buffer; at: number },
  secrets: readonly string[],
): Record<string, string> {
  const headers: Record<string, string> = { 'webhook-id': id, 'webhook-timestamp': `${at}` };
  const [secret, former] = secrets;
  if (secret === undefined) return headers;
  headers['webhook-signature'] = secrets.map((one) => standard(one, { id, body, at })).join(' ');
  headers['X-Service-Signature'] = ofBody(secret, body);
  if (former !== undefined) headers['X-Service-Signature-Former'] = ofBody(former, body);
  return headers;
}

function standard(secret: string, { id, body, at }: { id: string; body: Buffer; at: number }) {
  const hmac = createHmac('sha256', keyOf(secret)).update(`${id}.${at}.`).update(body);
  return `v1,${hmac.digest('base64')}`;
}

function ofBody(secret: string, body: Buffer): string {
  return `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`;
}
