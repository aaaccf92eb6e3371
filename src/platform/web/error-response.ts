/** Decides which part of an error clients see, for REST, GraphQL, git and SSH. `toErrorResponse` is for REST only. */
import { AppError, busy, diskFull, type ErrorCode, invalid } from '../../base/errors.ts';
import { isRowDeleted, isUnstorableText } from '../database/client.ts';
import { isDatabaseUnavailable, isDiskFull } from '../database/outage.ts';
import { StorageUnavailable } from '../storage/storage.ts';

/**
 * Whether to log the error. Code that throws an `AppError` for a fault of the server has already logged the reason, except
 * authentication, whose `AppError` has the reason as its `cause`.
 */
export function shouldLog(error: unknown): boolean {
  if (!(error instanceof AppError)) return toClientError(error).status >= 500;
  return error.cause !== undefined && error.status >= 500;
}

/** The REST error body. By the API contract, the rate limit error has `retry_after` instead of `request_id`. */
type ErrorBody = {
  error:
    | { code: ErrorCode; message: string; request_id: string }
    | { code: ErrorCode; message: string; retry_after: number };
};

/** Converts any thrown value: errors that clients can fix keep their details, all others become a plain 500. */
export function toClientError(error: unknown): AppError {
  if (error instanceof AppError) return error;
  // Express's error for a path that cannot be decoded. Its other source, body parsers, only serves requests of other servers.
  if (error instanceof URIError || (error as { status?: number } | null)?.status === 400)
    return invalid(null, 'The path is not valid percent-encoded UTF-8');
  if (isUnstorableText(error))
    return invalid(
      null,
      'A text contains a character that cannot be stored (NUL, or half of a surrogate pair)',
    );
  if (isRowDeleted(error))
    return new AppError('not_found', 'Something that the request refers to has just been deleted');
  if (isDiskFull(error)) return diskFull();
  if (isDatabaseUnavailable(error)) return busy('The database does not answer at the moment', 1);
  if (error instanceof StorageUnavailable) return busy('The storage does not answer at the moment');
  return new AppError(
    'internal_error',
    'Something went wrong on our side. The request id helps us find it.',
  );
}

function errorBody(error: AppError, requestId: string): ErrorBody {
  const { code } = error;
  const message = toRestMessage(error);
  return code === 'rate_limit_exceeded'
    ? { error: { code, message, retry_after: error.retryAfter ?? 1 } }
    : { error: { code, message, request_id: requestId } };
}

/** Status, headers and body of the REST response for an error. */
export function toErrorResponse(error: AppError, requestId: string) {
  const headers: Record<string, string | number> = { ...error.headers };
  if (error.retryAfter) headers['Retry-After'] = error.retryAfter;
  return { status: error.status, headers, body: errorBody(error, requestId) };
}

/** Replaces the field's name in GraphQL by its name in REST, in snake case. Names with a hyphen are headers and kept. */
function toRestMessage({ message, field }: AppError): string {
  if (!field || field.includes('-') || !message.startsWith(field)) return message;
  const snake = field.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return snake + message.slice(field.length);
}
