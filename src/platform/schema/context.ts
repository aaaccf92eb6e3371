/**
 * What resolvers are given. This file knows no feature: each adds the services that its resolvers need to
 * `ContextServices` in its `graphql/context.ts`, by declaration merging, and identity adds the viewer.
 */
import type pg from 'pg';
import type { Logger } from '../../base/log.ts';
import type { Urls } from '../../base/urls.ts';
import type { Db } from '../database/client.ts';
import type { Bus } from '../events/bus.ts';
import type { Caller } from '../limits/fair-semaphore.ts';
import type { Allowance, Reads } from '../limits/reads.ts';
import type { DiskSpace } from '../storage/disk-space.ts';

export interface ContextServices {
  db: Db;
  pool: pg.Pool;
  bus: Bus;
  log: Logger;
  urls: Urls;
  reads: Reads;
  space: DiskSpace;
}

/** One object per request. The services are behind one property, because spreading them cost more than a query. */
export interface Context {
  requestId: string;
  services: ContextServices;
  /** Whose work it is, where callers take turns. */
  caller: Caller;
  /** What the answer may hold of what is large; of an event, what one of its fields may. */
  allowance(info: Operation): Allowance;
  /** Aborts when the client is gone. */
  signal?: AbortSignal;
}

export type Operation = { operation: { operation: string } };
