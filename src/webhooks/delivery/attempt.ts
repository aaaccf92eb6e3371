/** One attempt to tell an endpoint: POST, and what it answers, within 15 seconds in all. */

import { createHmac } from 'node:crypto';
import type { Dispatcher } from 'undici';
import { inTrace } from '../../platform/tracing/spans.ts';
import type { Connector } from './connector.ts';
import { type Outcome, classifyError, readTlsReason, type AttemptRecord, NoAnswerError } from './outcomes.ts';
import { readRetryAfter } from './schedule.ts';

/** Of the answer's body, to show to who looks for what went wrong. */
const KEPT_ANSWER_BYTES = 1_024;
/** Read to its end so that the connection can be used again; when there is more it is closed. */
const MAX_BODY_BYTES = 64 * 1_024;

/** How attempts are made. */
export type AttemptDeps = {
  connector: Connector;
  userAgent: string;
  /** For all of an attempt, lookup and answer included; unset: 15 seconds (decisions, section 5). */
  timeoutMs?: number;
};
const TIMEOUT_MS = 15_000;

export type Message = {
  webhookId: string;
  url: string;
  /** The present one, then the one before while it still signs. */
  secrets: readonly string[];
  /** The event's: sent as `webhook-id`. */
  id: string;
  body: string;
};

export type Attempt = AttemptRecord & {
  /** For how long, in milliseconds, the endpoint asked to be left alone. */
  retryAfter: number | null;
};

/**
 * Sends the message. That an endpoint fails is a result, not an error. Redirects are not followed: they would lead to
 * an endpoint that nobody chose.
 * @throws Error when this machine is short of something, and `signal.reason` when it aborts: nothing is to be recorded
 */
export function attempt(means: AttemptDeps, message: Message, signal: AbortSignal): Promise<Attempt> {
  const { webhookId, id, url } = message;
  const attributes = {
    'loam.webhook.id': webhookId,
    'loam.event.id': id,
    'http.request.method': 'POST',
    // Of the URL this alone: what follows may be the credential of a receiver.
    'server.address': new URL(url).hostname,
  };
  return inTrace('webhook attempt', attributes, async (span) => {
    const tried = await send(means, message, signal);
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
    // PostgreSQL keeps no NUL in a text.
    answer: status === null ? null : answer.replaceAll('\0', '\ufffd'),
    ...(reason !== undefined && { reason }),
    retryAfter,
  };
}

type Answer = {
  /** Null without an answer; then there is an error. */
  status: number | null;
  answer: string;
  retryAfter: number | null;
  error: unknown;
};

/**
 * Settles when the answer is read, as far as it is, and never later than an attempt may take. What follows the status
 * may be cut off without harm: by its status the endpoint has said what became of the message.
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
    // Before there is a connection there is nothing to cut; the request is dropped when there is one.
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
      // 1xx come before the answer.
      if (code < 200) return;
      status = code;
      retryAfter = readRetryAfter(headers['retry-after']);
    },
    onResponseData(_controller, chunk) {
      if (bytes < KEPT_ANSWER_BYTES) kept.push(Buffer.from(chunk.subarray(0, KEPT_ANSWER_BYTES - bytes)));
      bytes += chunk.length;
      if (bytes > MAX_BODY_BYTES) cut(new NoAnswerError('bad_answer', 'the answer is too long'));
    },
    onResponseEnd: () => end(),
    onResponseError: (_controller, error) => end(error),
  });
  return promise;
}

/*
 * The headers by which a receiver knows that a message is ours and unchanged: those of Standard Webhooks
 * (https://www.standardwebhooks.com), which libraries of many languages verify, and those of the specification
 * (section 6), an HMAC of the body alone.
 */

/** 24 to 64 bytes are what Standard Webhooks recommends; we take any. */
const WHSEC = /^whsec_((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)$/;

/** The bytes that Standard Webhooks signs with: those that `whsec_…` encodes, else those of the secret's text. */
function signingKey(secret: string): Buffer {
  const [, encoded] = WHSEC.exec(secret) ?? [];
  return encoded ? Buffer.from(encoded, 'base64') : Buffer.from(secret);
}

/**
 * @param secrets the present one first, then the one before while it still signs; none: nothing is signed
 * @param at seconds since 1970
 */
function signatureHeaders(
  { id, body, at }: { id: string; body: Buffer; at: number },
  secrets: readonly string[],
): Record<string, string> {
  const headers: Record<string, string> = { 'webhook-id': id, 'webhook-timestamp': `${at}` };
  const [secret, former] = secrets;
  if (secret === undefined) return headers;
  headers['webhook-signature'] = secrets.map((one) => signStandardWebhooks(one, { id, body, at })).join(' ');
  headers['X-Service-Signature'] = signBody(secret, body);
  if (former !== undefined) headers['X-Service-Signature-Former'] = signBody(former, body);
  return headers;
}

function signStandardWebhooks(secret: string, { id, body, at }: { id: string; body: Buffer; at: number }) {
  const hmac = createHmac('sha256', signingKey(secret)).update(`${id}.${at}.`).update(body);
  return `v1,${hmac.digest('base64')}`;
}

function signBody(secret: string, body: Buffer): string {
  return `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`;
}
