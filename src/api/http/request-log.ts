/** The id of each request, and its line in the log. */
import { randomUUID } from 'node:crypto';
import type { Request, RequestHandler, Response } from 'express';
import type { Logger } from '../../base/log.ts';
import { hasSwitchedProtocols } from '../../platform/web/websockets.ts';

declare global {
  namespace Express {
    interface Request {
      /** Also in the response, as `X-Request-Id`. */
      id: string;
    }
  }
}

/** Uses the client's id if it is valid, so that one id identifies a request in a chain of services. */
export const requestId: RequestHandler = (req, res, next) => {
  const given = req.get('x-request-id');
  req.id = given && /^[A-Za-z0-9._-]{1,128}$/.test(given) ? given : randomUUID();
  res.setHeader('X-Request-Id', req.id);
  next();
};

/**
 * Logs each request when it ends: at `error` when the server failed, otherwise at `debug`. Prepares nothing for a line
 * that the level excludes. Not pino-http: its preparation took 5% of the CPU time of a read.
 */
export function requestLog(log: Logger): RequestHandler {
  return (req, res, next) => {
    const startedAt = performance.now();
    let failure: Error | null = null;
    res.on('error', (error) => {
      failure ??= error;
    });
    res.once('close', () => {
      const err = failure ?? (res.statusCode >= 500 ? statusError(res) : null);
      const level = err ? 'error' : 'debug';
      if (!log.isLevelEnabled(level)) return;
      const responseTime = Math.round(performance.now() - startedAt);
      const fields = { ...requestFields(req), res: { statusCode: res.statusCode }, responseTime };
      const isWhole = res.writableFinished || hasSwitchedProtocols(res);
      const message = isWhole ? 'request completed' : 'request aborted';
      log[level](err ? { ...fields, err } : fields, err ? 'request errored' : message);
    });
    next();
  };
}

function statusError({ statusCode }: Response): Error {
  return new Error(`failed with status code ${statusCode}`);
}

/** Omits the query string, because it holds the signatures of signed links. */
function requestFields({ id, method, originalUrl, ip, traceId }: Request): object {
  const req = { id, method, url: originalUrl.split('?')[0], address: ip };
  return traceId ? { req, trace_id: traceId } : { req };
}
