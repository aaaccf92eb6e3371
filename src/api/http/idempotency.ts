/** `Idempotency-Key` on the POSTs of REST. */

import type { RequestHandler, Response } from 'express';
import type pg from 'pg';
import type { Logger } from '../../base/log.ts';
import { claimKey, IDEMPOTENCY_KEY } from './kept-answers.ts';

/** For requests that are authenticated and whose body is in `req.rawBody`. */
export function idempotency(services: { pool: pg.Pool; log: Logger }): RequestHandler {
  return async (req, res, next) => {
    if (req.get(IDEMPOTENCY_KEY) === undefined) return next();
    const claim = await claimKey(services, req);
    if ('replayed' in claim) {
      const { status, headers, body } = claim.replayed;
      for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
      return void res.status(status).end(body);
    }
    answering(res, async (body) => {
      if (res.statusCode >= 500) return claim.release();
      const given = Object.entries(res.getHeaders()).map(([name, value]) => [name, String(value)]);
      await claim.keep({ status: res.statusCode, headers: Object.fromEntries(given), body });
    });
    next();
  };

  /** Runs `store` with the whole body before any of it is sent; REST answers in one piece. */
  function answering(res: Response, store: (body: Buffer) => Promise<void>): void {
    const end = res.end.bind(res) as (...args: unknown[]) => Response;
    res.end = ((...args: unknown[]) => {
      res.end = end as typeof res.end;
      const [chunk, encoding] = args;
      const body =
        typeof chunk === 'string'
          ? Buffer.from(chunk, encoding as BufferEncoding)
          : Buffer.from((chunk as Uint8Array) ?? '');
      store(body)
        // The work is done: better an answer that cannot be replayed than none.
        .catch((error) =>
          services.log.error({ err: error }, 'an answer was not kept for its Idempotency-Key'),
        )
        .then(() => end(...args));
      return res;
    }) as typeof res.end;
  }
}
