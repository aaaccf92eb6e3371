/**
 * Rate limits (spec section 8, decisions section 2): two buckets a caller, one of a minute, which the headers
 * show, and one of a second. A caller is a credential, on its plan; without one it is an address, on the free
 * plan; and an address whose credentials are refused has buckets of the team plan for that.
 *
 * Counts are those of all servers where there is a Redis for them (shared-counts.ts). Else they are this process's
 * own: with n servers a caller may get up to n times its rate, which was judged better than a write to the database
 * per request.
 */

import type { RequestHandler } from 'express';
import type { Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { UNLIMITED } from '../../base/config/plans.ts';
import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { needsCredentials } from '../../identity/http/viewer.ts';
import { addressNetwork, clientAddress } from '../../platform/web/client-address.ts';
import { type Counter, openSharedCounts, ownCounter } from './shared-counts.ts';

const WINDOW_SECONDS = 60;

/** What rates are shown on. */
type Answer = { setHeader(name: string, value: number): unknown };

type Buckets = { perMinute: Counter; perSecond: Counter };

export type RateLimits = AsyncDisposable & {
  /** For every route: credentials that were given and refused end here, with 401, or with 429 past the rate. */
  refused: RequestHandler;
  /** For the API: counts the request, shows the count in the headers, refuses past the rate. */
  counted: RequestHandler;
  /** Requests that were refused, by the plan whose rate they were past. */
  readonly refusals: ReadonlyMap<Plan, number>;
  /** The rate headers for an address that sent what is no request: counted like a preflight. */
  of(address: string): Promise<Record<string, number>>;
};

export async function openRateLimits(
  { rateLimits, redis }: Pick<Config, 'rateLimits' | 'redis'>,
  log: Logger,
): Promise<RateLimits> {
  const table = rateLimits === 'off' ? undefined : rateLimits;
  const shared = table && redis && (await openSharedCounts(redis, log));
  const counter = (name: string, seconds: number) =>
    shared ? shared.counter(name, seconds) : ownCounter(seconds);
  const buckets = new Map<Plan, Buckets>();
  const refusals = new Map<Plan, number>();
  for (const plan of Object.keys(table ?? {}) as Plan[])
    buckets.set(plan, {
      perMinute: counter(`${plan}:minute`, WINDOW_SECONDS),
      perSecond: counter(`${plan}:second`, 1),
    });

  async function admit(res: Answer, key: string, plan: Plan, mayRefuse = true): Promise<void> {
    const limits = table?.[plan];
    const own = buckets.get(plan);
    if (!limits || !own) return show(res, UNLIMITED, UNLIMITED, WINDOW_SECONDS * 1_000);
    // The second first: what it refuses must not use up the minute.
    const burst = await own.perSecond.consume(key);
    const late = burst.consumedPoints > limits.perSecond;
    const minute = await (late && mayRefuse ? own.perMinute.get(key) : own.perMinute.consume(key));
    const used = minute?.consumedPoints ?? 0;
    const resetMs = minute?.msBeforeNext ?? WINDOW_SECONDS * 1_000;
    show(res, limits.perMinute, Math.max(0, limits.perMinute - used), resetMs);
    if (!mayRefuse || (!late && used <= limits.perMinute)) return;
    // The next request must pass both, whichever of them has refused this one.
    const waits = [
      burst.consumedPoints >= limits.perSecond ? burst.msBeforeNext : 0,
      used >= limits.perMinute ? resetMs : 0,
    ];
    refusals.set(plan, (refusals.get(plan) ?? 0) + 1);
    throw tooMany(Math.max(...waits));
  }

  return {
    refusals,
    async refused(req, res, next) {
      const { viewer } = req;
      if (viewer.kind === 'account' || !viewer.failure) return next();
      await admit(res, `refused ${clientAddress(req)}`, 'team');
      throw viewer.failure;
    },
    async counted(req, res, next) {
      const { viewer } = req;
      if (viewer.kind === 'account') await admit(res, viewer.credential.id, viewer.plan);
      else if (needsCredentials(req) && req.method !== 'OPTIONS')
        await admit(res, clientAddress(req), 'free');
      // With buckets of their own, so that a monitor or a browser's preflights, which carry no credentials,
      // never use up what their address may ask. These are always answered.
      else await admit(res, `open ${clientAddress(req)}`, 'free', false);
      next();
    },
    async of(peer) {
      const headers: Record<string, number> = {};
      const setHeader = (name: string, value: number) => {
        headers[name] = value;
      };
      await admit({ setHeader }, `open ${addressNetwork(peer)}`, 'free', false);
      return headers;
    },
    async [Symbol.asyncDispose]() {
      await shared?.[Symbol.asyncDispose]();
    },
  };
}

function show(res: Answer, limit: number, remaining: number, resetMs: number): void {
  res.setHeader('X-RateLimit-Limit', limit);
  res.setHeader('X-RateLimit-Remaining', remaining);
  res.setHeader('X-RateLimit-Reset', Math.ceil((Date.now() + resetMs) / 1_000));
}

function tooMany(waitMs: number): AppError {
  const retryAfter = Math.max(1, Math.ceil(waitMs / 1_000));
  return new AppError('rate_limit_exceeded', `Too many requests: try again in ${retryAfter} s`, {
    retryAfter,
  });
}
