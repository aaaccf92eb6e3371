/** The signature of webhooks (Standard Webhooks). */

/** The headers of a request: of `fetch`, of Node, or a plain object in any case. */
export type HeadersLike = Headers | Record<string, string | string[] | undefined>;

/** A request that is not a message of the webhook, or too old to accept. */
export class WebhookError extends Error {
  override name = 'WebhookError';
}

const TOLERANCE_SECONDS = 300;

/**
 * Checks that a request comes from Loam, and returns its payload.
 * @param body exactly as it was received
 * @param secret of the webhook: the key as text, or in base64 after `whsec_`
 * @throws WebhookError
 */
export async function verifyWebhook(
  headers: HeadersLike,
  body: string | Uint8Array,
  secret: string,
  { now = new Date() }: { now?: Date } = {},
): Promise<unknown> {
  const id = headerOf(headers, 'webhook-id');
  const timestamp = headerOf(headers, 'webhook-timestamp');
  const signatures = headerOf(headers, 'webhook-signature');
  const age = now.getTime() / 1_000 - Number(timestamp);
  if (!/^\d+$/.test(timestamp) || Math.abs(age) > TOLERANCE_SECONDS)
    throw new WebhookError('webhook-timestamp: the request is too old, or from the future');
  const text = typeof body === 'string' ? body : new TextDecoder().decode(body);
  const encoder = new TextEncoder();
  const algorithm = { name: 'HMAC', hash: 'SHA-256' };
  const [, encoded] = /^whsec_(.*)$/s.exec(secret) ?? [];
  const bytes = encoded === undefined ? encoder.encode(secret) : decodeBase64(encoded, 'secret');
  const key = await crypto.subtle.importKey('raw', bytes, algorithm, false, ['verify']);
  const signed = encoder.encode(`${id}.${timestamp}.${text}`);
  for (const signature of signatures.split(' ')) {
    const [version, value = ''] = signature.split(',');
    if (version !== 'v1') continue;
    const given = decodeBase64(value, 'webhook-signature');
    if (await crypto.subtle.verify(algorithm, key, given, signed)) return JSON.parse(text);
  }
  throw new WebhookError('webhook-signature: no signature of this secret');
}

/** @throws WebhookError */
function headerOf(headers: HeadersLike, name: string): string {
  const value =
    headers instanceof Headers
      ? headers.get(name)
      : Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
  if (typeof value !== 'string' || value === '') throw new WebhookError(`${name}: missing`);
  return value;
}

/** @throws WebhookError */
function decodeBase64(text: string, what: string): Uint8Array<ArrayBuffer> {
  try {
    return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  } catch {
    throw new WebhookError(`${what}: must be base64`);
  }
}
