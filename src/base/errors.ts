/**
 * Every failure that a client may see. Domain code throws `AppError`; `platform/web/error-response.ts` decides what
 * REST, GraphQL and git show of it.
 */

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
