import type { Request, Response } from 'express';
import { address } from '../../api/http/rate-limits.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Services } from '../../services.ts';
import type { Caller } from '../limits/fair-semaphore.ts';
import type { Allowance, Answer } from '../limits/reads.ts';
import { closingOf } from '../web/connections.ts';

/** A new object per request. The services are behind one property: spreading them cost more than the query. */
export type Context = {
  viewer: Viewer;
  requestId: string;
  services: Services;
  /** Whose work it is, where callers take turns. */
  caller: Caller;
  /** What the answer may hold of what is large; of an event, what one of its fields may. */
  allowance(info: Operation): Allowance;
  /** Aborts when the client is gone. */
  signal?: AbortSignal;
};

/** Of a request that is answered by `res`. */
export function contextOf(services: Services, req: Request, res: Response): Context {
  let signal: AbortSignal | undefined;
  return {
    viewer: req.viewer,
    requestId: req.id,
    services,
    caller: callerOf(req),
    allowance: allowanceOf(services, req, res),
    /** Few fields ask for it. Not Yoga's own, which Node does not take for an AbortSignal. */
    get signal() {
      signal ??= closingOf(res);
      return signal;
    },
  };
}

type Operation = { operation: { operation: string } };

/**
 * One for all fields of an answer. An event stream has no end that would give a place back (`reads.ts`): there, a
 * field of an event has one of its own.
 */
function allowanceOf(
  { reads }: Pick<Services, 'reads'>,
  req: Request,
  res: Answer,
): Context['allowance'] {
  let allowance: Allowance | undefined;
  return ({ operation }) => {
    if (operation.operation === 'subscription' || req.path.endsWith('/stream'))
      return reads.allowanceOfEvent();
    allowance ??= reads.allowance(callerOf(req).key, res);
    return allowance;
  };
}

function callerOf(req: Request): Caller {
  const { viewer } = req;
  return viewer.kind === 'account'
    ? { key: viewer.userId, isAnonymous: false }
    : { key: `address ${address(req)}`, isAnonymous: true };
}
