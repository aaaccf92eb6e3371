/**
 * Cross-origin requests: pages anywhere may call us, because credentials come in headers that a page must
 * have been given. The cookie of a session, which a browser sends along, counts for our own pages alone
 * (`session-cookie.ts`), and browsers show no other page an answer to a request that carries it.
 *
 * The package `cors` was tried: it answers every OPTIONS as a preflight, with a Content-Length that a 204 must not
 * have, and answers that Express never sees would need these headers a second time.
 */
import type { RequestHandler } from 'express';

const METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS';
const REQUEST_HEADERS =
  'Authorization, Content-Type, Accept, Idempotency-Key, If-None-Match, Last-Event-ID, Range, X-Request-Id';
/** Browsers show a page no other header of an answer than these and the few safe ones. */
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

/** For every answer. */
export const CORS_HEADERS = {
  'Access-Control-Allow-Origin': '*',
  'Access-Control-Expose-Headers': EXPOSED,
};

export const cors: RequestHandler = (_req, res, next) => {
  for (const [name, value] of Object.entries(CORS_HEADERS)) res.setHeader(name, value);
  next();
};

/** Answers preflights, whatever the path; `counted` puts the rate headers on them. */
export function preflights(counted: RequestHandler): RequestHandler {
  return async (req, res, next) => {
    if (req.method !== 'OPTIONS' || !req.headers['access-control-request-method']) return next();
    await counted(req, res, () => {});
    res.setHeader('Access-Control-Allow-Methods', METHODS);
    res.setHeader('Access-Control-Allow-Headers', REQUEST_HEADERS);
    res.setHeader('Access-Control-Max-Age', PREFLIGHT_SECONDS);
    res.status(204).end();
  };
}
