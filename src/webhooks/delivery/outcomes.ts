/** Outcomes of attempts, as they are recorded and shown to users. */
import { isResourceExhausted } from '../../platform/database/outage.ts';

export type Outcome =
  | `status_${number}`
  /** The host name has no address, or its name servers do not answer. */
  | 'dns_failed'
  /** The host has a refused address (`guard.ts`). No connection was opened. */
  | 'refused_address'
  | 'connect_failed'
  /** The TLS handshake failed, or the certificate is not valid for the host. */
  | 'tls_failed'
  /** The attempt took longer than its timeout. */
  | 'timeout'
  /** The connection broke before a response. */
  | 'reset'
  /** The response was not valid HTTP. */
  | 'bad_answer';

/** An attempt as stored in `Delivery.tries`. The names are those of the stored JSON; `graphql/deliveries.ts` renames them. */
export type AttemptRecord = {
  /** When the attempt began, in ISO 8601. */
  at: string;
  /** Milliseconds. */
  took: number;
  outcome: Outcome;
  status: number | null;
  /** The first kilobyte of the response body. */
  answer: string | null;
  /** The TLS library's message for `tls_failed`; otherwise absent. */
  reason?: string;
};

/** Ends an attempt without a complete response, with a known outcome. */
export class NoResponseError extends Error {
  readonly outcome: Outcome;
  constructor(outcome: Outcome, message: string, cause?: unknown) {
    super(message, { cause });
    this.outcome = outcome;
  }
}

export function isSuccess(status: number | null): boolean {
  return status !== null && status >= 200 && status < 300;
}

/** In characters, because a message about a certificate may list all its names. */
const MAX_REASON_LENGTH = 300;

/**
 * The message of a TLS error. Messages of other outcomes are not shown, because they could reveal the operator's network.
 * Names in a certificate are untrusted, so characters that PostgreSQL cannot store are replaced.
 */
export function readTlsReason(error: unknown): string | undefined {
  if (!(error instanceof NoResponseError) || error.outcome !== 'tls_failed') return undefined;
  return error.message.replaceAll('\0', '\ufffd').slice(0, MAX_REASON_LENGTH).toWellFormed();
}

/** Codes of Node and undici for errors of an open connection. */
const RESET_CODE = /^(?:ECONNRESET|EPIPE|ECONNABORTED|UND_ERR_SOCKET|ERR_SSL_\w+|ERR_STREAM_\w+)$/;

/**
 * Classifies the error of an attempt without a status.
 * @throws the error itself if this machine is out of file descriptors or memory, because the endpoint did not fail
 */
export function classifyError(error: unknown): Outcome {
  if (error instanceof NoResponseError) return error.outcome;
  if (isResourceExhausted(error)) throw error;
  const { code, message } = error as { code?: unknown; message?: unknown };
  // undici uses one code both for a closed connection and for an invalid response, such as an unexpected 100 or 101.
  const isInvalid = /^bad (?:upgrade|response)$/.test(String(message));
  return RESET_CODE.test(String(code)) && !isInvalid ? 'reset' : 'bad_answer';
}
