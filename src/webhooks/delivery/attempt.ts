/** One attempt of a delivery: a POST to the endpoint and its response, within 15 seconds in total. */

import { createHmac } from 'node:crypto';
import type { Dispatcher } from 'undici';
import { inTrace } from '../../platform/tracing/spans.ts';
import type { Connector } from './connector.ts';
import {
  type AttemptRecord,
  classifyError,
  NoAnswerError,
  type Outcome,
  readTlsReason,
} from './outcomes.ts';
import { readRetryAfter } from './schedule.ts';

/** Kept of the response body, for debugging. */
const KEPT_ANSWER_BYTES = 1_024;
/** A response body is read to its end so that the connection can be reused; above this the connection is closed. */
const MAX_BODY_BYTES = 64 * 1_024;

export type AttemptDeps = {
  connector: Connector;
  userAgent: string;
  /** For the whole attempt, including DNS lookup and response; unset: 15 seconds. */
  timeoutMs?: number;
};
const TIMEOUT_MS = 15_000;

export type Message = {
  webhookId: string;
  url: string;
  /** The current secret, then the previous one while it still signs. */
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
 * Sends the message. A failure of the endpoint is a result, not an error. Redirects are not followed: they would lead to an
 * endpoint that nobody chose.
 * @throws Error when this machine is out of a resource, `signal.reason` when it aborts; then nothing must be recorded
 */
export function attemptDelivery(
  deps: AttemptDeps,
  message: Message,
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
    const tried = await send(deps, message, signal);
    span.setAttributes({
      'loam.webhook.outcome': tried.outcome,
      ...(tried.status !== null && { 'http.response.status_code': tried.status }),
    });
    return tried;
  });
}

async function send(
  { connector, userAgent, timeoutMs = TIMEOUT_MS }: AttemptDeps,
  { webhookId, url, secrets, id, body: text }: Message,
  signal: AbortSignal,
): Promise<Attempt> {
  const { origin, pathname, search } = new URL(url);
  const dispatcher = await connector.to(webhookId, origin);
  const started = Date.now();
  const body = Buffer.from(text);
  const request = {
    method: 'POST' as const,
    path: `${pathname}${search}`,
    headers: {
      'User-Agent': userAgent,
      'Content-Type': 'application/json',
      ...signatureHeaders({ id, body, at: Math.floor(started / 1_000) }, secrets),
    },
    body,
  };
  const { status, answer, retryAfter, error } = await readAnswer(
    dispatcher,
    request,
    timeoutMs,
    signal,
  );
  signal.throwIfAborted();
  const outcome: Outcome = status === null ? classifyError(error) : `status_${status}`;
  const reason = status === null ? readTlsReason(error) : undefined;
  return {
    at: new Date(started).toISOString(),
    took: Date.now() - started,
    outcome,
    status,
    // PostgreSQL text cannot contain NUL.
    answer: status === null ? null : answer.replaceAll('\0', '\ufffd'),
    ...(reason !== undefined && { reason }),
    retryAfter,
  };
}

type Answer = {
  /** Null without a response; then `error` is set. */
  status: number | null;
  answer: string;
  retryAfter: number | null;
  error: unknown;
};

/**
 * Settles when the response is read up to the limit, and never later than the timeout. The body may be cut off without
 * harm, because the status decides the result.
 */
function readAnswer(
  dispatcher: Dispatcher,
  request: Omit<Dispatcher.DispatchOptions, 'origin'>,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<Answer> {
  const { promise, resolve } = Promise.withResolvers<Answer>();
  let connection: Dispatcher.DispatchController | undefined;
  let isOver = false;
  let status: number | null = null;
  let retryAfter: number | null = null;
  const kept: Buffer[] = [];
  let bytes = 0;

  const end = (error?: unknown) => {
    if (isOver) return;
    isOver = true;
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
    const answer = Buffer.concat(kept).subarray(0, KEPT_ANSWER_BYTES).toString();
    resolve({ status, answer, retryAfter, error });
  };
  const cut = (why: Error) => {
    end(why);
    // Without a connection yet, `onRequestStart` aborts the request.
    connection?.abort(why);
  };
  const onAbort = () => cut(new NoAnswerError('timeout', 'the server stops'));
  const timer = setTimeout(
    () => cut(new NoAnswerError('timeout', 'the endpoint took too long')),
    timeoutMs,
  );
  signal.addEventListener('abort', onAbort);
  if (signal.aborted) onAbort();

  dispatcher.dispatch(request, {
    onRequestStart(controller) {
      connection = controller;
      if (isOver) controller.abort(new NoAnswerError('timeout', 'the attempt has ended'));
    },
    onResponseStart(_controller, code, headers) {
      // Interim responses (1xx) come before the response.
      if (code < 200) return;
      status = code;
      retryAfter = readRetryAfter(headers['retry-after']);
    },
    onResponseData(_controller, chunk) {
      if (bytes < KEPT_ANSWER_BYTES)
        kept.push(Buffer.from(chunk.subarray(0, KEPT_ANSWER_BYTES - bytes)));
      bytes += chunk.length;
      if (bytes > MAX_BODY_BYTES) cut(new NoAnswerError('bad_answer', 'the answer is too long'));
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
 * @param secrets the current secret, then the previous one while it still signs; empty: no signature
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
    .map((one) => signStandardWebhooks(one, { id, body, at }))
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
