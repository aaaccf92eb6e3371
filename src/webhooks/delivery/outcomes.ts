/** What came of an attempt, as a fact that is recorded and shown. */
import { isResourceExhausted } from '../../platform/database/outage.ts';

export type Outcome =
  | `status_${number}`
  /** The name of the host has no address, or its servers do not answer. */
  | 'dns_failed'
  /** The host has an address that webhooks are not sent to. Nothing was contacted. */
  | 'refused_address'
  | 'connect_failed'
  /** No agreement on TLS, or a certificate that does not prove the host. */
  | 'tls_failed'
  /** The attempt took longer than an attempt may. */
  | 'timeout'
  /** The connection broke before there was an answer. */
  | 'reset'
  /** The answer was not HTTP. */
  | 'bad_answer';

/** An attempt, as `Delivery.tries` keeps it. */
export type AttemptRecord = {
  /** When it began, in ISO 8601. */
  at: string;
  /** Milliseconds. */
  took: number;
  outcome: Outcome;
  status: number | null;
  /** The first kilobyte of the answer's body. */
  answer: string | null;
  /** What was wrong with TLS, as the library says it; absent for every other outcome. */
  reason?: string;
};

/** An attempt that ended without an answer, for a reason that is known where it is thrown. */
export class NoAnswerError extends Error {
  readonly outcome: Outcome;
  constructor(outcome: Outcome, message: string, cause?: unknown) {
    super(message, { cause });
    this.outcome = outcome;
  }
}

export function isSuccess(status: number | null): boolean {
  return status !== null && status >= 200 && status < 300;
}

/** Of a certificate a message may list all its names. */
const MAX_REASON = 300;

/**
 * Of TLS alone: of other outcomes it could tell what the operator's network looks like. As PostgreSQL can keep it: names
 * in a certificate are a stranger's.
 */
export function readTlsReason(error: unknown): string | undefined {
  if (!(error instanceof NoAnswerError) || error.outcome !== 'tls_failed') return undefined;
  return error.message.replaceAll('\0', '\ufffd').slice(0, MAX_REASON).toWellFormed();
}

/** By the codes that Node and undici give to errors of a connection that was there. */
const RESET_CODE = /^(?:ECONNRESET|EPIPE|ECONNABORTED|UND_ERR_SOCKET|ERR_SSL_\w+|ERR_STREAM_\w+)$/;

/**
 * What an error means that an attempt ended with before it had a status.
 * @throws the error when it is about this machine, which has no file descriptors or no memory left: the endpoint
 *   has failed nothing then
 */
export function classifyError(error: unknown): Outcome {
  if (error instanceof NoAnswerError) return error.outcome;
  if (isResourceExhausted(error)) throw error;
  const { code, message } = error as { code?: unknown; message?: unknown };
  // undici has one code for a connection that was closed, and for an answer that makes no sense, such as 100 and 101.
  const isNonsense = /^bad (?:upgrade|response)$/.test(String(message));
  return RESET_CODE.test(String(code)) && !isNonsense ? 'reset' : 'bad_answer';
}
