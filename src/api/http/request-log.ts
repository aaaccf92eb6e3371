/**
 * A line for each request in the log: at `debug` when it is over, at `error` when the server failed. Nothing is made of a
 * request whose line would not be written: what pino-http prepares for each took a twentieth of a read's CPU.
 */
import type { Request, RequestHandler, Response } from 'express';
import type { Logger } from '../../base/log.ts';

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
