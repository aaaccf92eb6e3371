/**
 * Cross-origin requests. Any page may call the API, because it must send its credentials in a header. The session
 * cookie, which browsers send by themselves, is accepted from our own pages only (`session-cookie.ts`), and browsers
 * hide the response to a request with a cookie from other pages.
 *
 * Not the package `cors`: it answers every OPTIONS request as a preflight, with a Content-Length that a 204 must not
 * have, and responses that bypass Express would need the headers a second time.
 */
import type { RequestHandler } from 'express';

const METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS';
const REQUEST_HEADERS =
  'Authorization, Content-Type, Accept, Idempotency-Key, If-None-Match, Last-Event-ID, Range, X-Request-Id';
/** Browsers let a page read only these response headers, beside the few that are always safe. */
const EXPOSED = [
  'X-Request-Id',
  'X-RateLimit-Limit',
  'X-RateLimit-Remaining',
  'X-RateLimit-Reset',
  'Retry-After',
  'ETag',
  'Link',
  'Allow',
  'Idempotency-Replayed',
  'WWW-Authenticate',
  'Content-Disposition',
  'Content-Range',
].join(', ');
const PREFLIGHT_SECONDS = '86400';

/** Set on every response. */
export const CORS_HEADERS = {
  'Access-Control-Allow-Origin': '*',
  'Access-Control-Expose-Headers': EXPOSED,
};

export const cors: RequestHandler = (_req, res, next) => {
  for (const [name, value] of Object.entries(CORS_HEADERS)) res.setHeader(name, value);
  next();
};

/** Answers preflights for every path; `countRequest` sets the rate limit headers. */
export function answerPreflights(countRequest: RequestHandler): RequestHandler {
  return async (req, res, next) => {
    if (req.method !== 'OPTIONS' || !req.headers['access-control-request-method']) return next();
    await countRequest(req, res, () => {});
    res.setHeader('Access-Control-Allow-Methods', METHODS);
    res.setHeader('Access-Control-Allow-Headers', REQUEST_HEADERS);
    res.setHeader('Access-Control-Max-Age', PREFLIGHT_SECONDS);
    res.status(204).end();
  };
}
