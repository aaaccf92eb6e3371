/**
 * Cancels, reruns and deletes many jobs of a namespace: those that meet a filter, or have given names.
 *
 * A call takes the newest jobs first, in transactions of at most `BATCH` jobs, each of which changes its jobs completely or not
 * at all. It ends after `MAX_JOBS` jobs or `MAX_MS`, and returns a cursor with which the next call continues. The order makes
 * sure that a rerun does not meet its own new jobs.
 */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { AppError, busy, type ErrorCode, invalid } from '../../base/errors.ts';
import {
  type Account,
  type Action,
  anyTargetIn,
  demand,
  demandAccount,
  type Viewer,
} from '../../identity/permissions.ts';
import { retryConflicts } from '../../platform/database/client.ts';
import {
  buildPageSql,
  decodeCursor,
  type Sorting,
  toCursorPage,
} from '../../platform/database/keyset.ts';
import { isRolledBackByConflict } from '../../platform/database/outage.ts';
import { FairSemaphore, QueueTimeout } from '../../platform/limits/fair-semaphore.ts';
import { removeDeletedPages } from '../logs/removal.ts';
import { auditCancelled, cancelLockedJobs } from '../record/cancel.ts';
import { isOver, type LockedJob, withLockedJobs } from '../record/state.ts';
import { visibleSql } from '../record/visibility.ts';
import { buildConditions, type Filter } from './filter.ts';
import { deleteLockedJobs, findNamespace } from './jobs.ts';
import { checkJobName } from './request.ts';
import { type RerunDeps as BulkDeps, rerunJob } from './rerun.ts';

export type BulkInput = {
  namespace: string;
  /** At least one of `filter` and `names` is required, so that a forgotten variable does not select all jobs. */
  filter?: Filter | null;
  names?: readonly string[] | null;
  /** Whether to count only. */
  dryRun?: boolean | null;
  /** The cursor of the call before. */
  after?: string | null;
};

export const SKIP_REASONS = {
  not_found: 'No job with this name meets the filter, or it was deleted meanwhile.',
  not_permitted: 'The viewer may not do this to the job.',
  wrong_status:
    'The status of the job does not allow this: an ended job cannot be cancelled, and a queued or running job cannot be deleted.',
  quota_exceeded:
    'The namespace has as many queued and running jobs as its plan allows, or its budget is used up.',
  not_repeatable:
    'The job cannot run again, for example because its commit is no longer in the repository.',
} as const satisfies Record<string, string>;
export type SkipReason = keyof typeof SKIP_REASONS;

export type SkippedJobs = {
  reason: SkipReason;
  count: number;
  /** Of some of these jobs. */
  names: string[];
  /** Why the first was skipped. */
  message: string;
};

export type BulkResult = {
  matched: number;
  done: number;
  skipped: SkippedJobs[];
  endCursor: string | null;
};

/** Maximum number of jobs in one call. */
const MAX_JOBS = 10_000;
/** Maximum number of names in one call. */
export const MAX_NAMES = 1_000;
/** A call starts no batch after this time. */
const MAX_MS = 20_000;
/**
 * Maximum number of jobs in one transaction, which takes about 50 ms. Meanwhile, a claim passes over these jobs, and waits for
 * the counts of their namespace only during the commit.
 */
const BATCH = 100;
const MAX_SKIPPED_NAMES = 10;
const RERUNS_AT_ONCE = 4;

type Row = {
  id: string;
  name: string;
  status: JobStatus;
  createdById: string | null;
  namespaceId: string;
  repositoryId: string | null;
  createdAt: Date;
};

/** Cancels queued and running jobs. @throws AppError 400, 401, 403, 404 */
export function cancelJobs(
  services: BulkDeps,
  viewer: Viewer,
  input: BulkInput,
): Promise<BulkResult> {
  return runBulk(services, viewer, input, {
    action: 'job.cancel',
    wrongStatus: 'It has ended.',
    demandPermission: (job) => demand(viewer, 'job.cancel', job),
    statuses: ['queued', 'running'],
    run: (author, jobs, tally) =>
      changeLocked(
        services,
        jobs,
        tally,
        (status) => !isOver(status),
        (client, locked) => cancelLockedJobs(client, locked, { audit: auditCancelled(author) }),
      ),
  });
}

/**
 * Cancels jobs that the caller has chosen and authorized, in transactions of at most `BATCH` jobs, without audit entries.
 * @returns the number of jobs that had not ended
 */
export async function cancelInBatches(
  services: Pick<BulkDeps, 'pool'>,
  jobs: readonly { id: string; name: string }[],
): Promise<number> {
  const tally = new BulkTally();
  for (let at = 0; at < jobs.length; at += BATCH)
    await changeLocked(
      services,
      jobs.slice(at, at + BATCH),
      tally,
      (status) => !isOver(status),
      (client, locked) => cancelLockedJobs(client, locked, {}),
    );
  return tally.done;
}

/** Deletes jobs that have ended, with their logs. @throws AppError 400, 401, 403, 404 */
export function deleteJobs(
  services: BulkDeps,
  viewer: Viewer,
  { deleteArtifacts, ...input }: BulkInput & { deleteArtifacts: boolean },
): Promise<BulkResult> {
  const { userId } = demandAccount(viewer);
  return runBulk(services, viewer, input, {
    action: 'job.deleteOwn',
    wrongStatus: 'It is queued or running: cancel it first.',
    demandPermission: (job) =>
      demand(viewer, job.createdById === userId ? 'job.deleteOwn' : 'job.deleteAny', job),
    statuses: ['succeeded', 'failed', 'cancelled', 'timed_out'],
    async run(author, jobs, tally) {
      await changeLocked(services, jobs, tally, isOver, (client, locked) =>
        deleteLockedJobs(client, locked, { by: author, deleteArtifacts }),
      );
      // Maintenance removes the rest of long logs, and the files of artifacts.
      await removeDeletedPages(services).catch((error) =>
        services.log.error({ err: error }, 'Cannot remove logs now; maintenance retries it'),
      );
    },
  });
}

/** Creates a job with the settings of each job. @throws AppError 400, 401, 403, 404 */
export function rerunJobs(
  services: BulkDeps,
  viewer: Viewer,
  { newestCommit, ...input }: BulkInput & { newestCommit?: boolean | null },
): Promise<BulkResult> {
  return runBulk(services, viewer, input, {
    action: 'job.create',
    demandPermission: (job) => demand(viewer, 'job.create', job),
    statuses: null,
    async run(_author, jobs, tally) {
      const { namespace } = input;
      const rerun = async ({ name }: Row) => {
        if (tally.isOverQuota) return tally.skip('quota_exceeded', name);
        const settings = { namespace, name, newestCommit };
        try {
          await rerunJob(services, viewer, settings, { id: true });
          tally.done += 1;
        } catch (error) {
          if (!(error instanceof AppError)) throw error;
          tally.skip(RERUN_REASONS[error.code] ?? 'not_repeatable', name, error.message);
        }
      };
      for (let at = 0; at < jobs.length; at += RERUNS_AT_ONCE) {
        const running = jobs.slice(at, at + RERUNS_AT_ONCE).map(rerun);
        for (const result of await Promise.allSettled(running))
          if (result.status === 'rejected') throw result.reason;
      }
    },
  });
}

const RERUN_REASONS: Partial<Record<ErrorCode, SkipReason>> = {
  quota_exceeded: 'quota_exceeded',
  permission_denied: 'not_permitted',
};

type BulkAction = {
  /** What the viewer must be allowed to do to some jobs of the namespace. */
  action: Action;
  /** Why jobs with other statuses are skipped. */
  wrongStatus?: string;
  /** @throws AppError 403 */
  demandPermission(job: Row): void;
  /** The statuses of jobs that match, unless they are selected by name; null: any. */
  statuses: readonly JobStatus[] | null;
  run(author: Account, jobs: readonly Row[], tally: BulkTally): Promise<void>;
};

async function runBulk(
  services: BulkDeps,
  viewer: Viewer,
  input: BulkInput,
  { action, wrongStatus, demandPermission, statuses, run }: BulkAction,
): Promise<BulkResult> {
  const author = demandAccount(viewer);
  const namespace = await findNamespace(services, input.namespace);
  demand(viewer, action, anyTargetIn(viewer, namespace.id));
  checkInput(input);
  return limitCalls(services.pool, author.userId, async () => {
    const stopAt = Date.now() + MAX_MS;
    const { items, hasNextPage } = await select(services, viewer, namespace.id, input, statuses);
    const tally = new BulkTally(wrongStatus);
    let at = 0;
    while (at < items.length && Date.now() < stopAt) {
      const batch = items.slice(at, at + BATCH).map(({ node }) => node);
      at += batch.length;
      const possible = batch.filter((job) => {
        try {
          demandPermission(job);
        } catch (error) {
          tally.skip('not_permitted', job.name, (error as Error).message);
          return false;
        }
        const isPossible = statuses?.includes(job.status) ?? true;
        if (!isPossible) tally.skip('wrong_status', job.name);
        return isPossible;
      });
      if (input.dryRun) tally.done += possible.length;
      else if (possible.length > 0) await run(author, possible, tally);
    }
    if (input.names && input.after == null) {
      const found = new Set(items.map(({ node }) => node.name));
      for (const name of new Set(input.names)) if (!found.has(name)) tally.skip('not_found', name);
    }
    const isComplete = at === items.length && !hasNextPage;
    const endCursor = isComplete ? null : (items[at - 1]?.cursor ?? null);
    return { matched: at, done: tally.done, skipped: tally.skipped, endCursor };
  });
}

function checkInput({ filter, names }: BulkInput): void {
  if (filter == null && names == null)
    throw invalid(null, 'filter or names is required; an empty filter selects all jobs');
  if (names && names.length > MAX_NAMES)
    throw invalid('names', `must not have more than ${MAX_NAMES} entries`);
  for (const name of names ?? []) checkJobName('names', name);
}

/** Limits the calls that run at once: one for each user. Each takes a connection of the pool. */
const semaphores = new WeakMap<pg.Pool, FairSemaphore>();

async function limitCalls<T>(pool: pg.Pool, key: string, work: () => Promise<T>): Promise<T> {
  const make = () => new FairSemaphore(3, { perKey: 1, maxWaiting: 100 });
  const semaphore = semaphores.getOrInsertComputed(pool, make);
  return semaphore.run(work, { key }).catch((error) => {
    throw error instanceof QueueTimeout
      ? busy('Too many changes of many jobs are under way')
      : error;
  });
}

/** Cursors of job lists in this order are valid here, too. */
const NEWEST: Sorting = { name: 'created_at', column: 'createdAt', type: 'time', order: 'desc' };

async function select(
  services: BulkDeps,
  viewer: Viewer,
  namespaceId: string,
  { filter, names, after }: BulkInput,
  possible: readonly JobStatus[] | null,
) {
  const { sql, join } = Prisma;
  const { gpus, where, statuses } = await buildConditions(services, viewer, filter ?? {});
  if (gpus) where.push(sql`r.gpu = any(${[...gpus]})`);
  // Jobs that are selected by name are reported with the reason why they are skipped.
  const wanted = names ? statuses : intersect(statuses, possible);
  if (wanted) where.push(sql`r.status = any(${[...wanted]}::"JobStatus"[])`);
  if (names) where.push(sql`r.name = any(${[...names]})`);
  const range = { first: MAX_JOBS, after };
  const { branches } = buildPageSql(NEWEST, decodeCursor(NEWEST, after));
  const [page] = branches as [(typeof branches)[number]];
  const { text, values } = sql`
    select r.id, r.name, r.status, r.created_by_id as "createdById", r.namespace_id as "namespaceId",
      r.repository_id as "repositoryId", r.created_at as "createdAt"
    from jobs r where r.namespace_id = ${namespaceId} and ${visibleSql(viewer)}
      and ${join([sql`true`, ...where], ' and ')} and ${page.where}
    order by ${page.orderBy} limit ${MAX_JOBS + 1}`;
  const { rows } = await services.pool.query<Row>(text, values);
  return toCursorPage(NEWEST, range, rows, () => rows.length);
}

function intersect(
  a: readonly JobStatus[] | null,
  b: readonly JobStatus[] | null,
): readonly JobStatus[] | null {
  return a && b ? a.filter((status) => b.includes(status)) : (a ?? b);
}

/** Counts the changed jobs, and the skipped ones by reason. */
class BulkTally {
  done = 0;
  readonly #skipped = new Map<SkipReason, SkippedJobs>();
  readonly #messages: Readonly<Record<SkipReason, string>>;

  constructor(wrongStatus: string = SKIP_REASONS.wrong_status) {
    this.#messages = { ...SKIP_REASONS, wrong_status: wrongStatus };
  }

  skip(reason: SkipReason, name: string, message = this.#messages[reason]): void {
    const none = { reason, message, count: 0, names: [] };
    const skipped = this.#skipped.getOrInsert(reason, none);
    skipped.count += 1;
    if (skipped.names.length < MAX_SKIPPED_NAMES) skipped.names.push(name);
  }

  get isOverQuota(): boolean {
    return this.#skipped.has('quota_exceeded');
  }

  get skipped(): SkippedJobs[] {
    return [...this.#skipped.values()];
  }
}

/**
 * Changes jobs in one transaction, and then each job that was locked by another transaction in one of its own.
 * @param isPossible whether the status of the locked job allows the change
 */
async function changeLocked(
  { pool }: Pick<BulkDeps, 'pool'>,
  jobs: readonly { id: string; name: string }[],
  tally: BulkTally,
  isPossible: (status: JobStatus) => boolean,
  change: (client: pg.PoolClient, jobs: LockedJob[]) => Promise<unknown>,
): Promise<void> {
  const commit = async (ids: readonly string[], isWaiting: boolean) => {
    let impossible: LockedJob[] = [];
    const left = await withLockedJobs(
      pool,
      ids,
      async (client, locked) => {
        impossible = locked.filter(({ status }) => !isPossible(status));
        const possible = locked.filter(({ status }) => isPossible(status));
        if (possible.length > 0) await change(client, possible);
      },
      { isWaiting },
    );
    for (const { name } of impossible) tally.skip('wrong_status', name);
    tally.done += ids.length - left.length - impossible.length;
    return left;
  };
  const ids = jobs.map(({ id }) => id);
  const left = await commit(ids, false).catch((error) => {
    if (isRolledBackByConflict(error)) return ids;
    throw error;
  });
  const names = new Map(jobs.map(({ id, name }) => [id, name]));
  for (const id of left) {
    const missing = await retryConflicts(() => commit([id], true));
    if (missing.length > 0) tally.skip('not_found', names.get(id) ?? '');
  }
}
