/**
 * Every failure that a client may see. Domain code throws `AppError`; `platform/web/error-response.ts` decides what
 * REST, GraphQL and git clients receive.
 */

/** Error code → HTTP status. The codes and statuses are part of the API contract. */
export const HTTP_STATUS = {
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

export type ErrorCode = keyof typeof HTTP_STATUS;

type Details = {
  /** Overrides the status of the code: `invalid_request` is 422 for a combination, 405 for a method. */
  status?: number;
  /** The input field at fault. */
  field?: string;
  /** Seconds; only with `rate_limit_exceeded`. */
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
    this.status = details.status ?? HTTP_STATUS[code];
    this.field = details.field;
    this.retryAfter = details.retryAfter;
    this.headers = details.headers;
  }
}

/** 400. The message begins with the field's name if there is a field. */
export function invalid(field: string | null, problem: string): AppError {
  return new AppError('invalid_request', field ? `${field}: ${problem}` : problem, {
    ...(field && { field }),
  });
}

/** Names the job in an error about one of several jobs. */
export function inJob(name: string, error: unknown): unknown {
  if (!(error instanceof AppError) || error.field === undefined) return error;
  const { code, message, status, field } = error;
  return new AppError(code, `${name}: ${message}`, { status, field });
}

/** 422: each value is allowed, their combination is not. */
export function unprocessable(field: string, problem: string): AppError {
  return new AppError('invalid_request', `${field}: ${problem}`, { field, status: 422 });
}

/**
 * 404.
 * @param what a noun such as "Repository" or "Job"
 * @param name what the request called it; left out of the message if no object can have this name
 */
export function notFound(what: string, name?: string | null): AppError {
  const isShown = name != null && /^[\p{L}\p{M}\p{N}_./@+-]{1,150}$/u.test(name);
  return new AppError('not_found', isShown ? `${what} ${name} not found` : `${what} not found`);
}

const NO_CREDENTIALS = 'No credentials were sent; send the header "Authorization: Bearer <token>"';

/** 401 with the accepted authentication schemes. */
export function unauthenticated(message = NO_CREDENTIALS): AppError {
  return new AppError('authentication_failed', message, {
    headers: { 'WWW-Authenticate': 'Bearer realm="loam", API-Key realm="loam"' },
  });
}

export function forbidden(message: string): AppError {
  return new AppError('permission_denied', message);
}

/** 503 with `Retry-After`: the request is valid and may succeed when it is retried. */
export function busy(problem: string, retryAfter = 5): AppError {
  return new AppError('internal_error', `${problem}; try again in ${retryAfter} s`, {
    status: 503,
    headers: { 'Retry-After': `${retryAfter}` },
  });
}

/** 500, because only the operator can fix it: the disk is full, or its free space is below LOAM_DISK_FLOOR. */
export function diskFull(): AppError {
  return new AppError(
    'internal_error',
    "The server's disk is nearly full, so nothing was changed: its operator has to free space",
  );
}
