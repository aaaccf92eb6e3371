/**
 * Context of resolvers. Each feature adds the services of its resolvers to `ContextServices` by declaration merging in its
 * `graphql/context.ts`, and identity adds the viewer, so this file depends on no feature.
 */
import type pg from 'pg';
import type { Logger } from '../../base/log.ts';
import type { Urls } from '../../base/urls.ts';
import type { Db } from '../database/client.ts';
import type { IdempotentEffect } from '../database/idempotent-effects.ts';
import type { Bus } from '../events/bus.ts';
import type { Caller } from '../limits/fair-semaphore.ts';
import type { Allowance, ResponseLimiter } from '../limits/reads.ts';
import type { DiskSpace } from '../storage/disk-space.ts';

export interface ContextServices {
  db: Db;
  pool: pg.Pool;
  bus: Bus;
  log: Logger;
  urls: Urls;
  reads: ResponseLimiter;
  space: DiskSpace;
}

/** One object per request. The services are one property, because copying them takes longer than executing a small query. */
export interface Context {
  requestId: string;
  services: ContextServices;
  /** Set for a request with an `Idempotency-Key`. */
  idempotency?: Omit<IdempotentEffect, 'field'> | undefined;
  /** The account or address under which fair semaphores count this client. */
  caller: Caller;
  /** Memory allowance of the response; in an event stream, of one field of an event. */
  allowance(info: OperationInfo): Allowance;
  /** Aborts when the client disconnects. */
  signal?: AbortSignal;
}

/** The part of `GraphQLResolveInfo` with the kind of the operation. */
type OperationInfo = { operation: { operation: string } };
