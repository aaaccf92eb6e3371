/**
 * The message of a webhook, as the server sends it (docs/webhooks.md, "Requests to the endpoint"): the same body, headers
 * and signatures. Only the address may be a local one without TLS.
 */
import { createHmac, randomBytes } from 'node:crypto';
import type { RequestOptions } from 'node:http';
import { UsageError } from './exit.ts';
import { VERSION } from './version.ts';

/** The endpoint must answer within this time, as for the server. */
const TIMEOUT_MS = 15_000;
/** The rest of an answer is not read. */
const MAX_ANSWER_BYTES = 64 * 2 ** 10;

export type WebhookEvent = {
  id: string;
  /** Such as `job.completed`. */
  type: string;
  /** ISO 8601, in UTC. */
  timestamp: string;
  namespace: string | null;
  data: unknown;
};

export type Delivery = {
  /** The status of the answer; null without one. */
  status: number | null;
  /** Why there was no answer. */
  error: string | null;
  milliseconds: number;
};

/** Posts an event once. A failure is a result, not an error. @throws the reason of `signal` */
export async function deliver(
  url: URL,
  event: WebhookEvent,
  secret: string,
  signal: AbortSignal,
): Promise<Delivery> {
  const { id, type, timestamp, namespace, data } = event;
  const body = Buffer.from(JSON.stringify({ id, type, timestamp, namespace, data }));
  const startedAt = Date.now();
  const headers = {
    'User-Agent': `Loam/${VERSION}`,
    'Content-Type': 'application/json',
    'Content-Length': body.length,
    ...signatureHeaders({ id, body, at: Math.floor(startedAt / 1_000) }, secret),
  };
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const options = { method: 'POST', headers, signal: AbortSignal.any([signal, timeout]) };
  const result = await post(url, options, body).catch((error: NodeJS.ErrnoException) => {
    signal.throwIfAborted();
    return { status: null, error: timeout.aborted ? 'timeout' : (error.code ?? error.message) };
  });
  return { ...result, milliseconds: Date.now() - startedAt };
}

/** Not `fetch`, which adds headers that the server does not send. Redirects are not followed. */
async function post(url: URL, options: RequestOptions, body: Buffer) {
  const { request } =
    url.protocol === 'https:' ? await import('node:https') : await import('node:http');
  return new Promise<{ status: number; error: null }>((resolve, reject) => {
    const outgoing = request(url, options, (response) => {
      let bytes = 0;
      const end = () => resolve({ status: response.statusCode ?? 0, error: null });
      // Only the status counts: the rest of an answer may break off.
      response.once('end', end).once('error', end).once('close', end);
      response.on('data', (chunk: Buffer) => {
        bytes += chunk.length;
        if (bytes > MAX_ANSWER_BYTES) response.destroy();
      });
    });
    outgoing.once('error', reject);
    outgoing.end(body);
  });
}

/** Standard Webhooks recommends 24 to 64 bytes. */
export function generateSecret(): string {
  return `whsec_${randomBytes(24).toString('base64')}`;
}

const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** Checks a secret by the rules of the server. @throws UsageError */
export function checkSecret(secret: string): string {
  const encoded = secret.startsWith(PREFIX) ? secret.slice(PREFIX.length) : null;
  if (!/^[\x20-\x7e]{1,256}$/.test(secret) || encoded === '' || (encoded && !BASE64.test(encoded)))
    throw new UsageError(
      'A secret has 1 to 256 printable ASCII characters; after whsec_ it is base64.',
    );
  return secret;
}

const PREFIX = 'whsec_';

/** The key for Standard Webhooks: the bytes that `whsec_…` encodes, otherwise the bytes of the text. */
function signingKey(secret: string): Buffer {
  return secret.startsWith(PREFIX)
    ? Buffer.from(secret.slice(PREFIX.length), 'base64')
    : Buffer.from(secret);
}

/** @param at seconds since 1970 */
function signatureHeaders(
  { id, body, at }: { id: string; body: Buffer; at: number },
  secret: string,
): Record<string, string> {
  const signature = createHmac('sha256', signingKey(secret)).update(`${id}.${at}.`).update(body);
  const ofBody = createHmac('sha256', secret).update(body);
  return {
    'webhook-id': id,
    'webhook-timestamp': `${at}`,
    'webhook-signature': `v1,${signature.digest('base64')}`,
    'X-Service-Signature': `sha256=${ofBody.digest('hex')}`,
  };
}
