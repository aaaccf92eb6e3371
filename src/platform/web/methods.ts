/** The answer to a method that a path of the API does not have: 405. */
import type { RequestHandler } from 'express';
import { AppError } from '../../base/errors.ts';

/** `OPTIONS` is answered, `HEAD` comes as `GET`, all else is refused with what there is. */
export function otherMethod(methods: string[]): RequestHandler {
  const allow = [...(methods.includes('GET') ? ['HEAD'] : []), ...methods, 'OPTIONS'].join(', ');
  return (req, res) => {
    if (req.method !== 'OPTIONS')
      throw new AppError(
        'invalid_request',
        `${req.method} is not allowed at this path; it takes ${allow}`,
        {
          status: 405,
          headers: { Allow: allow },
        },
      );
    res.setHeader('Allow', allow);
    res.status(204).end();
  };
}
