/**
 * The state that workers share through the database: their heartbeats, the attempts that lost their worker, and the time at
 * which the next delayed job is due.
 */
import type pg from 'pg';
import type { Db } from '../../platform/database/client.ts';
import { WORKER_SILENCE_S, type WorkerCapacity } from './worker-capacity.ts';

/** Reads the milliseconds until the next delayed job may start; null when no job is delayed. */
export async function msUntilNextDue(
  { pool }: { pool: pg.Pool },
  gpus: readonly string[],
): Promise<number | null> {
  // A prepared statement instead of Prisma, because it runs up to four times a second. The condition with `created_at` is that
  // of the partial index `jobs_postponed`.
  const { rows } = await pool.query<{ ms: number | null }>({
    name: 'loam-next-due',
    text: `
      select (extract(epoch from min(available_at) - now()) * 1000)::float8 as ms from jobs
      where status = 'queued' and attempt_id is null and available_at > created_at
        and available_at > now() and gpu = any($1::text[])`,
    values: [[...gpus]],
  });
  return rows[0]?.ms ?? null;
}

/**
 * Records that a worker and the attempts that it supervises are alive. An attempt belongs to a worker and a kind of runner
 * (`kindsOf`): a worker that was restarted with another runner does not supervise its old attempts, so their heartbeats
 * expire.
 */
export async function writeHeartbeat(
  { db }: { db: Db },
  worker: {
    id: string;
    runner: string;
    kinds: readonly string[];
    machines: readonly WorkerCapacity[];
  },
): Promise<void> {
  const { id, runner, kinds } = worker;
  // Prisma's type for JSON columns does not accept a readonly array.
  const machines = [...worker.machines];
  const now = new Date();
  await db.worker.upsert({
    where: { id },
    create: { id, runner, machines },
    update: { runner, machines, heartbeatAt: now },
    select: { id: true },
  });
  await db.jobAttempt.updateMany({
    where: { workerId: id, runner: { in: [...kinds] }, endedAt: null },
    data: { heartbeatAt: now },
  });
}

/**
 * Minutes after its timeout at which a started attempt without a heartbeat certainly does not run: 30 s of grace period between
 * SIGTERM and SIGKILL, and clock skew.
 */
const LOST_AFTER_TIMEOUT_MINUTES = 2;

/**
 * Finds lost attempts: attempts of other workers, or of this worker under another kind of runner, that have had no heartbeat
 * for `WORKER_SILENCE_S` and certainly do not run. An attempt that has not started is lost at once, because its worker must
 * store the handle before it starts the process, and that write will be refused. A started process continues even if its
 * server never returns. It counts as lost only after its timeout, so that a job never runs twice at the same time.
 * @returns at most 100 attempts; the next call finds the others
 */
export async function findLostAttempts(
  { db }: { db: Db },
  worker: { id: string; kinds: readonly string[] },
): Promise<{ attemptId: string; jobId: string }[]> {
  return db.$queryRaw`
    select a.id as "attemptId", a.job_id as "jobId"
    from job_attempts a join jobs j on j.id = a.job_id
    where a.ended_at is null and (a.worker_id <> ${worker.id} or a.runner <> all(${[...worker.kinds]}))
      and a.heartbeat_at < now() - make_interval(secs => ${WORKER_SILENCE_S})
      and (a.handle is null
        or a.heartbeat_at < now() - make_interval(mins => j.timeout_minutes + ${LOST_AFTER_TIMEOUT_MINUTES}::int))
    limit 100`;
}

/** Days after the last heartbeat of a worker, when it is not expected to return. */
const WORKER_KEPT_DAYS = 7;

/**
 * Removes the rows of dead workers without open attempts, and those of their shells. They are few, one for each data folder, so
 * one statement removes all.
 * @returns whether there may be more rows to remove: never
 */
export async function removeDeadWorkers({ pool }: { pool: pg.Pool }): Promise<boolean> {
  await pool.query(
    `with dead as (
       delete from workers w where heartbeat_at < now() - make_interval(days => $1)
         and not exists (select from job_attempts a where a.worker_id = w.id and a.ended_at is null)
       returning id)
     delete from job_shells where worker_id in (select id from dead)`,
    [WORKER_KEPT_DAYS],
  );
  return false;
}
