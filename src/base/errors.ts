/**
 * Every failure a client may see. Domain code throws `AppError`; REST, GraphQL and git show what `toPublic` makes of
 * whatever reaches them: the one place that decides what is shown.
 */

import { isUnstorableText } from '../platform/database/client.ts';
import { isDatabaseAway, isDiskFull } from '../platform/database/outage.ts';
import { StorageAway } from '../platform/storage/storage.ts';

/** Code → status (spec section 7, decisions section 2). */
export const STATUS = {
  invalid_request: 400,
  authentication_failed: 401,
  permission_denied: 403,
  quota_exceeded: 403,
  not_found: 404,
  already_exists: 409,
  conflict: 409,
  rate_limit_exceeded: 429,
  internal_error: 500,
} as const;

export type ErrorCode = keyof typeof STATUS;

type Details = {
  /** Only where one code has several: `invalid_request` is 422 for a combination, 405 for a method. */
  status?: number;
  /** The input field at fault. */
  field?: string;
  /** Seconds; with `rate_limit_exceeded` alone. */
  retryAfter?: number;
  headers?: Record<string, string>;
};

export class AppError extends Error {
  override name = 'AppError';
  readonly code: ErrorCode;
  readonly status: number;
  readonly field?: string;
  readonly retryAfter?: number;
  readonly headers?: Record<string, string>;

  constructor(code: ErrorCode, message: string, details: Details = {}) {
    super(message);
    this.code = code;
    this.status = details.status ?? STATUS[code];
    this.field = details.field;
    this.retryAfter = details.retryAfter;
    this.headers = details.headers;
  }
}

/** 400. The message begins with the field's name when there is one. */
export function invalid(field: string | null, problem: string): AppError {
  return new AppError('invalid_request', field ? `${field}: ${problem}` : problem, {
    ...(field && { field }),
  });
}

/** 422: each value is allowed, their combination is not. */
export function unprocessable(field: string, problem: string): AppError {
  return new AppError('invalid_request', `${field}: ${problem}`, { field, status: 422 });
}

/** 404. `what` as in "Repository", "Job". */
export function notFound(what: string): AppError {
  return new AppError('not_found', `${what} not found`);
}

const NO_CREDENTIALS = 'No credentials were sent; send the header "Authorization: Bearer <token>"';

/** 401 with the schemes we take. */
export function unauthenticated(message = NO_CREDENTIALS): AppError {
  return new AppError('authentication_failed', message, {
    headers: { 'WWW-Authenticate': 'Bearer realm="loam", API-Key realm="loam"' },
  });
}

export function forbidden(message: string): AppError {
  return new AppError('permission_denied', message);
}

/** Whether a failure is to be logged: whoever throws an `AppError` for a fault of the server has logged it. */
export function isUnexpected(error: unknown): boolean {
  if (!(error instanceof AppError)) return toPublic(error).status >= 500;
  return error.cause !== undefined && error.status >= 500;
}

/** 503 with `Retry-After`: nothing is wrong with the request, and the same one may pass in a moment. */
export function busy(problem: string, retryAfter = 5): AppError {
  return new AppError('internal_error', `${problem}; try again in ${retryAfter} s`, {
    status: 503,
    headers: { 'Retry-After': `${retryAfter}` },
  });
}

/** 500, because nobody but the operator can mend it: below the floor of free disk, and on a full one. */
export function diskFull(): AppError {
  return new AppError(
    'internal_error',
    "The server's disk is nearly full, so nothing was changed: its operator has to free space",
  );
}

/** The REST error body (spec section 7): 429 carries `retry_after` in place of `request_id`. */
export type ErrorBody = {
  error:
    | { code: ErrorCode; message: string; request_id: string }
    | { code: ErrorCode; message: string; retry_after: number };
};

/** What clients may see of any thrown value: what they can mend as it is, all else as a bare 500. */
export function toPublic(error: unknown): AppError {
  if (error instanceof AppError) return error;
  // Express's own error for a path that does not decode.
  if (error instanceof URIError || (error as { status?: number } | null)?.status === 400)
    return invalid(null, 'The path is not valid percent-encoded UTF-8');
  if (isUnstorableText(error))
    return invalid(
      null,
      'A text holds a character that cannot be stored (NUL, or half of a surrogate pair)',
    );
  if (isDiskFull(error)) return diskFull();
  if (isDatabaseAway(error)) return busy('The database does not answer at the moment', 1);
  if (error instanceof StorageAway) return busy('The storage does not answer at the moment');
  return new AppError(
    'internal_error',
    'Something went wrong on our side. The request id helps us find it.',
  );
}

function errorBody(error: AppError, requestId: string): ErrorBody {
  const { code } = error;
  const message = inSnakeCase(error);
  return code === 'rate_limit_exceeded'
    ? { error: { code, message, retry_after: error.retryAfter ?? 1 } }
    : { error: { code, message, request_id: requestId } };
}

/** An error as an HTTP answer: `headers` are those that the error brings. */
export function answerOf(error: AppError, requestId: string) {
  const headers: Record<string, string | number> = { ...error.headers };
  if (error.retryAfter) headers['Retry-After'] = error.retryAfter;
  return { status: error.status, headers, body: errorBody(error, requestId) };
}

/** The message with its field as REST calls it: the domain's names are GraphQL's. Headers keep theirs. */
function inSnakeCase({ message, field }: AppError): string {
  if (!field || field.includes('-') || !message.startsWith(field)) return message;
  const snake = field.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return snake + message.slice(field.length);
}
