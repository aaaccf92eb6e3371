import type { Request, Response } from 'express';
import type { Caller } from '../../platform/limits/fair-semaphore.ts';
import type { Allowance, Answer, AnswerLimiter } from '../../platform/limits/reads.ts';
import type { Context, ContextServices } from '../../platform/schema/context.ts';
import { clientAddress } from '../../platform/web/client-address.ts';
import { closeSignal } from '../../platform/web/connections.ts';

/** Of a request that is answered by `res`. */
export function contextOf(services: ContextServices, req: Request, res: Response): Context {
  let signal: AbortSignal | undefined;
  return {
    viewer: req.viewer,
    requestId: req.id,
    services,
    caller: callerOf(req),
    allowance: allowanceOf(services, req, res),
    /** Few fields ask for it. Not Yoga's own, which Node does not take for an AbortSignal. */
    get signal() {
      signal ??= closeSignal(res);
      return signal;
    },
  };
}

/**
 * One for all fields of an answer. An event stream has no end that would give a place back (`reads.ts`): there, a
 * field of an event has one of its own.
 */
function allowanceOf(
  { reads }: { reads: AnswerLimiter },
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
    : { key: `address ${clientAddress(req)}`, isAnonymous: true };
}
