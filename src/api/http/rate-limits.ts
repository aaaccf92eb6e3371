/**
 * Rate limits: two buckets per caller, one per minute, which the headers show, and one per second. A caller is a
 * credential with the limits of its plan, or an address with those of the free plan. Invalid credentials count per
 * address, in separate buckets with the limits of the team plan.
 *
 * With Redis, all servers share the counts (shared-counts.ts). Without it each process counts alone: with n servers a
 * caller may get up to n times its rate. That was preferred to a database write for each request.
 */

import type { RequestHandler } from 'express';
import type { Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { UNLIMITED } from '../../base/config/plans.ts';
import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { needsCredentials } from '../../identity/http/viewer.ts';
import { addressNetwork, clientAddress } from '../../platform/web/client-address.ts';
import { type Counter, localCounter, openSharedCounts } from './shared-counts.ts';

const WINDOW_SECONDS = 60;

/** Where the rate limit headers are set. */
type HeaderTarget = { setHeader(name: string, value: number): unknown };

type Buckets = { perMinute: Counter; perSecond: Counter };

export type RateLimits = AsyncDisposable & {
  /** For every route: refuses requests with invalid credentials with 401, or with 429 above the rate. */
  refuseInvalidCredentials: RequestHandler;
  /** For the API: counts the request, sets the rate limit headers, and responds with 429 above the rate. */
  countRequest: RequestHandler;
  /** The number of requests that got a 429, by plan. */
  readonly refusalsByPlan: ReadonlyMap<Plan, number>;
  /** The rate limit headers for an address whose data was no valid HTTP request; counted like a preflight. */
  headersFor(address: string): Promise<Record<string, number>>;
};

export async function openRateLimits(
  { rateLimits, redis }: Pick<Config, 'rateLimits' | 'redis'>,
  log: Logger,
): Promise<RateLimits> {
  const table = rateLimits === 'off' ? undefined : rateLimits;
  const shared = table && redis && (await openSharedCounts(redis, log));
  const counter = (name: string, seconds: number) =>
    shared ? shared.counter(name, seconds) : localCounter(seconds);
  const buckets = new Map<Plan, Buckets>();
  const refusals = new Map<Plan, number>();
  for (const plan of Object.keys(table ?? {}) as Plan[])
    buckets.set(plan, {
      perMinute: counter(`${plan}:minute`, WINDOW_SECONDS),
      perSecond: counter(`${plan}:second`, 1),
    });

  /** Counts a request and sets the rate limit headers. @throws AppError 429 above the rate, unless `mayRefuse` is false */
  async function countAndCheck(
    res: HeaderTarget,
    key: string,
    plan: Plan,
    mayRefuse = true,
  ): Promise<void> {
    const limits = table?.[plan];
    const own = buckets.get(plan);
    if (!limits || !own) return setRateHeaders(res, UNLIMITED, UNLIMITED, WINDOW_SECONDS * 1_000);
    // Per second first: a request that this bucket refuses must not use up the minute.
    const second = await own.perSecond.consume(key);
    const isBurst = second.consumedPoints > limits.perSecond;
    const minute = await (isBurst && mayRefuse
      ? own.perMinute.get(key)
      : own.perMinute.consume(key));
    const used = minute?.consumedPoints ?? 0;
    const resetMs = minute?.msBeforeNext ?? WINDOW_SECONDS * 1_000;
    setRateHeaders(res, limits.perMinute, Math.max(0, limits.perMinute - used), resetMs);
    if (!mayRefuse || (!isBurst && used <= limits.perMinute)) return;
    // The next request must pass both buckets, whichever of them refused this one.
    const waits = [
      second.consumedPoints >= limits.perSecond ? second.msBeforeNext : 0,
      used >= limits.perMinute ? resetMs : 0,
    ];
    refusals.set(plan, (refusals.get(plan) ?? 0) + 1);
    throw tooMany(Math.max(...waits));
  }

  return {
    refusalsByPlan: refusals,
    async refuseInvalidCredentials(req, res, next) {
      const { viewer } = req;
      if (viewer.kind === 'account' || !viewer.failure) return next();
      await countAndCheck(res, `refused ${clientAddress(req)}`, 'team');
      throw viewer.failure;
    },
    async countRequest(req, res, next) {
      const { viewer } = req;
      if (viewer.kind === 'account') await countAndCheck(res, viewer.credential.id, viewer.plan);
      else if (needsCredentials(req) && req.method !== 'OPTIONS')
        await countAndCheck(res, clientAddress(req), 'free');
      // Monitors and preflights carry no credentials. They are never refused, and count in buckets of their own, so that
      // they do not use up the rate of their address.
      else await countAndCheck(res, `open ${clientAddress(req)}`, 'free', false);
      next();
    },
    async headersFor(peer) {
      const headers: Record<string, number> = {};
      const setHeader = (name: string, value: number) => {
        headers[name] = value;
      };
      await countAndCheck({ setHeader }, `open ${addressNetwork(peer)}`, 'free', false);
      return headers;
    },
    async [Symbol.asyncDispose]() {
      await shared?.[Symbol.asyncDispose]();
    },
  };
}

function setRateHeaders(
  res: HeaderTarget,
  limit: number,
  remaining: number,
  resetMs: number,
): void {
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
