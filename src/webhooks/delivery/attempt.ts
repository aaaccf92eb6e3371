/** One attempt of a delivery: a POST request to the endpoint and its response, within 15 seconds in total. */

import { createHmac } from 'node:crypto';
import type { Dispatcher } from 'undici';
import { inTrace } from '../../platform/tracing/spans.ts';
import type { Connector } from './connector.ts';
import {
  type AttemptRecord,
  classifyError,
  NoResponseError,
  type Outcome,
  readTlsReason,
} from './outcomes.ts';
import { readRetryAfter } from './schedule.ts';

/** The beginning of the response body that is recorded, for debugging. */
const RECORDED_BODY_BYTES = 1_024;
/** A response body is read to its end, so that the connection can be reused. After a larger body the connection is closed. */
const MAX_BODY_BYTES = 64 * 1_024;

export type AttemptDeps = {
  connector: Connector;
  userAgent: string;
  /** Timeout of the whole attempt, including DNS lookup and response; default: 15 seconds. */
  timeoutMs?: number;
};
const TIMEOUT_MS = 15_000;

export type OutgoingMessage = {
  webhookId: string;
  url: string;
  /** The current secret, and the previous secret during its grace period. */
  secrets: readonly string[];
  /** The id of the event, sent as `webhook-id`. */
  id: string;
  body: string;
};

export type Attempt = AttemptRecord & {
  /** Milliseconds of the response's `Retry-After`. */
  retryAfter: number | null;
};

/**
 * Sends the message. A failure of the endpoint is a result, not an error. Redirects are not followed, because they lead to an
 * endpoint that no user has chosen.
 * @throws Error if this machine is out of a resource; `signal.reason` on abort. Then the caller must not record an attempt
 */
export function attemptDelivery(
  deps: AttemptDeps,
  message: OutgoingMessage,
  signal: AbortSignal,
): Promise<Attempt> {
  const { webhookId, id, url } = message;
  const attributes = {
    'loam.webhook.id': webhookId,
    'loam.event.id': id,
    'http.request.method': 'POST',
    // Only the host name: the rest of the URL may be a credential of the receiver.
    'server.address': new URL(url).hostname,
  };
  return inTrace('webhook attempt', attributes, async (span) => {
    const attempt = await send(deps, message, signal);
    span.setAttributes({
      'loam.webhook.outcome': attempt.outcome,
      ...(attempt.status !== null && { 'http.response.status_code': attempt.status }),
    });
    return attempt;
  });
}

async function send(
  { connector, userAgent, timeoutMs = TIMEOUT_MS }: AttemptDeps,
  { webhookId, url, secrets, id, body: text }: OutgoingMessage,
  signal: AbortSignal,
): Promise<Attempt> {
  const { origin, pathname, search } = new URL(url);
  const dispatcher = await connector.getDispatcher(webhookId, origin);
  const startedAt = Date.now();
  const body = Buffer.from(text);
  const request = {
    method: 'POST' as const,
    path: `${pathname}${search}`,
    headers: {
      'User-Agent': userAgent,
      'Content-Type': 'application/json',
      ...signatureHeaders({ id, body, at: Math.floor(startedAt / 1_000) }, secrets),
    },
    body,
  };
  const { status, responseText, retryAfter, error } = await exchange(
    dispatcher,
    request,
    timeoutMs,
    signal,
  );
  signal.throwIfAborted();
  const outcome: Outcome = status === null ? classifyError(error) : `status_${status}`;
  const reason = status === null ? readTlsReason(error) : undefined;
  return {
    at: new Date(startedAt).toISOString(),
    took: Date.now() - startedAt,
    outcome,
    status,
    // PostgreSQL text cannot contain NUL.
    answer: status === null ? null : responseText.replaceAll('\0', '\ufffd'),
    ...(reason !== undefined && { reason }),
    retryAfter,
  };
}

type Exchange = {
  /** Null without a response; then `error` is set. */
  status: number | null;
  responseText: string;
  retryAfter: number | null;
  error: unknown;
};

/**
 * Sends the request and reads the response. Resolves when the response is read up to the limit, at the latest after the
 * timeout. A body that is cut off is harmless, because the status decides the result.
 */
function exchange(
  dispatcher: Dispatcher,
  request: Omit<Dispatcher.DispatchOptions, 'origin'>,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<Exchange> {
  const { promise, resolve } = Promise.withResolvers<Exchange>();
  let connection: Dispatcher.DispatchController | undefined;
  let isOver = false;
  let status: number | null = null;
  let retryAfter: number | null = null;
  const recorded: Buffer[] = [];
  let bytes = 0;

  const end = (error?: unknown) => {
    if (isOver) return;
    isOver = true;
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
    const responseText = Buffer.concat(recorded).subarray(0, RECORDED_BODY_BYTES).toString();
    resolve({ status, responseText, retryAfter, error });
  };
  const cutOff = (reason: Error) => {
    end(reason);
    // If there is no connection yet, `onRequestStart` aborts the request.
    connection?.abort(reason);
  };
  const onAbort = () => cutOff(new NoResponseError('timeout', 'the server stops'));
  const timer = setTimeout(
    () => cutOff(new NoResponseError('timeout', 'the endpoint took too long')),
    timeoutMs,
  );
  signal.addEventListener('abort', onAbort);
  if (signal.aborted) onAbort();

  dispatcher.dispatch(request, {
    onRequestStart(controller) {
      connection = controller;
      if (isOver) controller.abort(new NoResponseError('timeout', 'the attempt has ended'));
    },
    onResponseStart(_controller, code, headers) {
      // Interim responses (1xx) come before the response.
      if (code < 200) return;
      status = code;
      retryAfter = readRetryAfter(headers['retry-after']);
    },
    onResponseData(_controller, chunk) {
      if (bytes < RECORDED_BODY_BYTES)
        recorded.push(Buffer.from(chunk.subarray(0, RECORDED_BODY_BYTES - bytes)));
      bytes += chunk.length;
      if (bytes > MAX_BODY_BYTES)
        cutOff(new NoResponseError('bad_answer', 'the response is too long'));
    },
    onResponseEnd: () => end(),
    onResponseError: (_controller, error) => end(error),
  });
  return promise;
}

/*
 * Signature headers. Standard Webhooks (https://www.standardwebhooks.com) has libraries in many languages. The REST
 * specification requires `X-Service-Signature`, an HMAC of the body alone.
 */

/** Standard Webhooks recommends 24 to 64 bytes; any number is accepted. */
const WHSEC = /^whsec_((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)$/;

/** The key for Standard Webhooks: the bytes that `whsec_…` encodes, otherwise the bytes of the text. */
function signingKey(secret: string): Buffer {
  const [, encoded] = WHSEC.exec(secret) ?? [];
  return encoded ? Buffer.from(encoded, 'base64') : Buffer.from(secret);
}

/**
 * @param secrets the current secret, and the previous secret during its grace period; empty: no signature
 * @param at seconds since 1970
 */
function signatureHeaders(
  { id, body, at }: { id: string; body: Buffer; at: number },
  secrets: readonly string[],
): Record<string, string> {
  const headers: Record<string, string> = { 'webhook-id': id, 'webhook-timestamp': `${at}` };
  const [secret, former] = secrets;
  if (secret === undefined) return headers;
  headers['webhook-signature'] = secrets
    .map((signing) => signStandardWebhooks(signing, { id, body, at }))
    .join(' ');
  headers['X-Service-Signature'] = signBody(secret, body);
  if (former !== undefined) headers['X-Service-Signature-Former'] = signBody(former, body);
  return headers;
}

function signStandardWebhooks(
  secret: string,
  { id, body, at }: { id: string; body: Buffer; at: number },
) {
  const hmac = createHmac('sha256', signingKey(secret)).update(`${id}.${at}.`).update(body);
  return `v1,${hmac.digest('base64')}`;
}

function signBody(secret: string, body: Buffer): string {
  return `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`;
}
