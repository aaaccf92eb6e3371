/**
 * Draws the consequences of changed jobs: unblocks jobs whose needs are met and whose groups have a free slot, cancels those that
 * can never start, and tells runs about their jobs.
 *
 * Every change of a watched job adds a row to `job_changes` in its own transaction. The loop deletes a page of these rows and
 * writes all consequences in one transaction, so none is lost or drawn twice, whatever happens to servers. The consequences
 * depend only on what the tables say now, not on the order of the rows, so a job with several rows is handled once. A
 * consequence for another job that is not in the page (a job that needs one of the page) becomes a row for it. So a
 * transaction has a bounded size, whatever the number of dependent jobs.
 *
 * A lock in each transaction makes sure that one server at a time does this: two could fill the same free slot. A server
 * that does not get the lock has nothing to do, because the holder looks again after its commit. If the holder is killed between,
 * another server looks within a second.
 */
import type pg from 'pg';
import type { PrismaClient } from '../../../prisma/generated/client.ts';
import { JOB_CHANGES_LOCK } from '../../base/advisory-locks.ts';
import type { Logger } from '../../base/log.ts';
import { type Db, retryConflicts } from '../../platform/database/client.ts';
import { runStatement } from '../../platform/database/statement.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { startLoop } from '../../platform/loop.ts';
import { settleJobs } from './settle.ts';

/** Maximum number of changed jobs in one transaction. */
const PAGE = 200;
const IDLE_MS = 1_000;
/** While a user creates an array of 10,000 jobs, a needed job stays locked for seconds. */
const TRANSACTION = { maxWait: 10_000, timeout: 60_000 };

/**
 * Called in the transaction that handles changes of jobs, with the ids of jobs that were inserted, changed their status or were
 * deleted, or whose attempt ended after they did.
 */
type OnJobsChanged = (tx: Db, jobIds: readonly string[]) => Promise<void>;

type Deps = { db: PrismaClient; pool: pg.Pool; bus: Bus; log: Logger; onChanged: OnJobsChanged };

/** Runs until disposed. */
export function startDependencyLoop(deps: Deps): AsyncDisposable {
  const { bus, log } = deps;
  return startLoop(
    {
      name: 'Unblocking jobs',
      every: IDLE_MS,
      wakes: (signal, everyMs) => bus.wakes('job-changes', signal, everyMs),
      log,
    },
    async () => (await retryConflicts(() => settlePage(deps))) > 0,
  );
}

/** @returns the number of changes that were handled; 0 also if another server does it */
async function settlePage({
  db,
  pool,
  onChanged,
}: Pick<Deps, 'db' | 'pool' | 'onChanged'>): Promise<number> {
  // Without a transaction while there is nothing to do.
  const [any] = await db.$queryRaw<object[]>`select 1 from job_changes limit 1`;
  if (!any) return 0;
  return db.$transaction(async (tx) => {
    const [lock] = await runStatement<{ taken: boolean }>(
      tx,
      `select pg_try_advisory_xact_lock(${JOB_CHANGES_LOCK}) as taken`,
      [],
    );
    if (!lock?.taken) return 0;
    const rows = await runStatement<{ jobId: string }>(tx, TAKE_CHANGES, [PAGE]);
    if (rows.length === 0) return 0;
    const ids = [...new Set(rows.map(({ jobId }) => jobId))];
    await settleJobs(pool, tx, ids, () => onChanged(tx, ids));
    return rows.length;
  }, TRANSACTION);
}

const TAKE_CHANGES = `
  delete from job_changes where id in (select id from job_changes order by id limit $1)
  returning job_id as "jobId"`;
