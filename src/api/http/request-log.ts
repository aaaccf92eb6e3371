import { randomUUID } from 'node:crypto';
import type { Request, RequestHandler, Response } from 'express';
import type { Logger } from '../../base/log.ts';

declare global {
  namespace Express {
    interface Request {
      /** Also in the answer, as `X-Request-Id`. */
      id: string;
    }
  }
}

/** Kept from the client when it is sane, so that one id runs through a chain of services. */
export const requestId: RequestHandler = (req, res, next) => {
  const given = req.get('x-request-id');
  req.id = given && /^[A-Za-z0-9._-]{1,128}$/.test(given) ? given : randomUUID();
  res.setHeader('X-Request-Id', req.id);
  next();
};

/**
 * A line for each request in the log: at `debug` when it is over, at `error` when the server failed. Nothing is made of a
 * request whose line would not be written: what pino-http prepares for each took a twentieth of a read's CPU.
 */
export function requestLog(log: Logger): RequestHandler {
  return (req, res, next) => {
    const begun = performance.now();
    let failure: Error | null = null;
    res.on('error', (error) => {
      failure ??= error;
    });
    res.once('close', () => {
      const err = failure ?? (res.statusCode >= 500 ? failed(res) : null);
      const level = err ? 'error' : 'debug';
      if (!log.isLevelEnabled(level)) return;
      const responseTime = Math.round(performance.now() - begun);
      const said = { ...described(req), res: { statusCode: res.statusCode }, responseTime };
      log[level](err ? { ...said, err } : said, err ? 'request errored' : ending(res));
    });
    next();
  };
}

function failed({ statusCode }: Response): Error {
  return new Error(`failed with status code ${statusCode}`);
}

function ending({ writableFinished }: Response): string {
  return writableFinished ? 'request completed' : 'request aborted';
}

/** Without what stands after a `?`, because links are signed there. */
function described({ id, method, originalUrl, ip, traceId }: Request): object {
  const req = { id, method, url: originalUrl.split('?')[0], address: ip };
  return traceId ? { req, trace_id: traceId } : { req };
}
