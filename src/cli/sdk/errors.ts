/** Error code of the API → HTTP status, for errors of GraphQL and of streams, whose answers have 200. */
export const HTTP_STATUS: Readonly<Record<string, number>> = {
  invalid_request: 400,
  authentication_failed: 401,
  permission_denied: 403,
  quota_exceeded: 403,
  not_found: 404,
  already_exists: 409,
  conflict: 409,
  rate_limit_exceeded: 429,
  internal_error: 500,
};

/** A failed request. Every call of this library that reaches the server throws it. */
export class LoamError extends Error {
  override name = 'LoamError';
  /**
   * A code of the API in lower case, such as `not_found` or `permission_denied`; `unreachable` when no answer came;
   * `bad_answer` when the answer is not one of Loam.
   */
  readonly code: string;
  /** The HTTP status; 0 when no answer came. */
  readonly status: number;
  /** The input field at fault. */
  readonly field: string | undefined;
  /** The id under which the server's log has the request. */
  readonly requestId: string | undefined;
  /** Seconds to wait before the request is sent again. */
  readonly retryAfter: number | undefined;

  constructor(
    code: string,
    message: string,
    details: {
      status?: number;
      field?: string | undefined;
      requestId?: string | undefined;
      retryAfter?: number | undefined;
      cause?: unknown;
    } = {},
  ) {
    super(message, { cause: details.cause });
    this.code = code;
    this.status = details.status ?? 0;
    this.field = details.field;
    this.requestId = details.requestId;
    this.retryAfter = details.retryAfter;
  }

  /** Whether the same request may succeed later: no connection, a failure of the server, or an answer that says when. */
  get isTemporary(): boolean {
    return this.code === 'unreachable' || this.status >= 500 || this.retryAfter !== undefined;
  }
}
