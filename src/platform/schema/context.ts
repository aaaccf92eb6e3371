/**
 * Context of resolvers. This file knows no feature: each feature adds the services of its resolvers to `ContextServices` by
 * declaration merging in its `graphql/context.ts`, and identity adds the viewer.
 */
import type pg from 'pg';
import type { Logger } from '../../base/log.ts';
import type { Urls } from '../../base/urls.ts';
import type { Db } from '../database/client.ts';
import type { Bus } from '../events/bus.ts';
import type { Caller } from '../limits/fair-semaphore.ts';
import type { Allowance, AnswerLimiter } from '../limits/reads.ts';
import type { DiskSpace } from '../storage/disk-space.ts';

export interface ContextServices {
  db: Db;
  pool: pg.Pool;
  bus: Bus;
  log: Logger;
  urls: Urls;
  reads: AnswerLimiter;
  space: DiskSpace;
}

/** One object per request. The services are one property, because copying them cost more than a query. */
export interface Context {
  requestId: string;
  services: ContextServices;
  /** Key of the client for fair limits. */
  caller: Caller;
  /** Memory allowance of the answer; for a subscription, of one field of an event. */
  allowance(info: Operation): Allowance;
  /** Aborts when the client disconnects. */
  signal?: AbortSignal;
}

type Operation = { operation: { operation: string } };
