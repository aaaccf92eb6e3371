/** Response to methods that a path of the API does not support. */
import type { RequestHandler } from 'express';
import { AppError } from '../../base/errors.ts';

/** Answers `OPTIONS`; Express handles `HEAD` as `GET`; every other method gets 405 with the supported methods. */
export function refuseOtherMethods(methods: string[]): RequestHandler {
  const allow = [...(methods.includes('GET') ? ['HEAD'] : []), ...methods, 'OPTIONS'].join(', ');
  return (req, res) => {
    if (req.method !== 'OPTIONS')
      throw new AppError(
        'invalid_request',
        `${req.method} is not allowed at this path; use ${allow}`,
        {
          status: 405,
          headers: { Allow: allow },
        },
      );
    res.setHeader('Allow', allow);
    res.status(204).end();
  };
}
