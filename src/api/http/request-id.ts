import { randomUUID } from 'node:crypto';
import type { RequestHandler } from 'express';

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
