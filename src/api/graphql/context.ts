/** The context of resolvers: the caller, the request, and the limits of its response. */
import type { Request, Response } from 'express';
import type { Caller } from '../../platform/limits/fair-semaphore.ts';
import type { Allowance, LimitedResponse, ResponseLimiter } from '../../platform/limits/reads.ts';
import type { Context, ContextServices } from '../../platform/schema/context.ts';
import { clientAddress } from '../../platform/web/client-address.ts';
import { closeSignal } from '../../platform/web/connections.ts';

export function createContext(services: ContextServices, req: Request, res: Response): Context {
  let signal: AbortSignal | undefined;
  return {
    viewer: req.viewer,
    requestId: req.id,
    services,
    idempotency: req.idempotency,
    caller: callerOf(req),
    allowance: allowanceOf(services, req, res),
    /** Created on demand, because few fields use it. Node does not accept Yoga's own signal as an AbortSignal. */
    get signal() {
      signal ??= closeSignal(res);
      return signal;
    },
  };
}

/**
 * All fields of a response share one allowance. An event stream would never give it back (`reads.ts`), so there each
 * field of an event gets its own.
 */
function allowanceOf(
  { reads }: { reads: ResponseLimiter },
  req: Request,
  res: LimitedResponse,
): Context['allowance'] {
  let allowance: Allowance | undefined;
  return ({ operation }) => {
    if (operation.operation === 'subscription' || req.path.endsWith('/stream'))
      return reads.createEventAllowance();
    allowance ??= reads.createAllowance(callerOf(req).key, res);
    return allowance;
  };
}

function callerOf(req: Request): Caller {
  const { viewer } = req;
  return viewer.kind === 'account'
    ? { key: viewer.userId, isAnonymous: false }
    : { key: `address ${clientAddress(req)}`, isAnonymous: true };
}
