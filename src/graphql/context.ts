import type { Viewer } from '../auth/permissions.ts';
import type { Allowance, Answer } from '../limits/reads.ts';
import type { Services } from '../services.ts';

/** A new object per request. The services are behind one property: spreading them cost more than the query. */
export type Context = {
  viewer: Viewer;
  requestId: string;
  services: Services;
  /** What the answer may hold of what is large; of an event, what one of its fields may. */
  allowance(info: Operation): Allowance;
  /** Aborts when the client is gone. */
  signal?: AbortSignal;
};

type Operation = { operation: { operation: string } };

/**
 * One for all fields of an answer. An event stream has no end that would give a place back (`reads.ts`): there, a
 * field of an event has one of its own.
 */
export function allowanceOf(
  { reads }: Pick<Services, 'reads'>,
  req: { viewer: Viewer; ip?: string; path: string },
  res: Answer,
): Context['allowance'] {
  const caller = req.viewer.kind === 'account' ? req.viewer.userId : `address ${req.ip}`;
  let allowance: Allowance | undefined;
  return ({ operation }) => {
    if (operation.operation === 'subscription' || req.path.endsWith('/stream'))
      return reads.allowanceOfEvent();
    allowance ??= reads.allowance(caller, res);
    return allowance;
  };
}
