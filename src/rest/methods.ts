/** What a known path says to a method it has no use for. */
import type { RequestHandler } from 'express';
import { AppError } from '../errors.ts';

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
