/** What workers tell each other through the database: who is alive with which machines, and which attempts are lost. */
import type pg from 'pg';
import type { Db } from '../../platform/database/client.ts';
import { WORKER_SILENCE_S, type WorkerCapacity } from '../worker-capacity.ts';

/** Milliseconds until the next job that waits for its time may start; null: none does. */
export async function nextDue(
  { pool }: { pool: pg.Pool },
  gpus: readonly string[],
): Promise<number | null> {
  // By hand: it is asked after each claim.
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
 * Says that a worker and the attempts it looks after are alive. An attempt belongs to a worker and a kind of
 * runner: those that the worker had under another kind are not looked after, and their heartbeat grows old.
 */
export async function heartbeat(
  { db }: { db: Db },
  worker: {
    id: string;
    runner: string;
    kinds: readonly string[];
    machines: readonly WorkerCapacity[];
  },
): Promise<void> {
  const { id, runner, kinds } = worker;
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
 * Attempts that nobody has looked after for a minute and that cannot run any more: of other workers, and of this
 * one under another kind of runner. One that was never started is over at once, because its worker must store
 * the handle first and will be refused. A started one goes on under its shim even when its server is gone for
 * good, so it counts as lost only when its timeout has surely ended it, two minutes being for the 30 s of grace
 * and clocks that differ: no job ever runs twice at once.
 */
export async function findLost(
  { db }: { db: Db },
  worker: { id: string; kinds: readonly string[] },
): Promise<{ attemptId: string; jobId: string }[]> {
  return db.$queryRaw`
    select a.id as "attemptId", a.job_id as "jobId"
    from job_attempts a join jobs j on j.id = a.job_id
    where a.ended_at is null and (a.worker_id <> ${worker.id} or a.runner <> all(${[...worker.kinds]}))
      and a.heartbeat_at < now() - make_interval(secs => ${WORKER_SILENCE_S})
      and (a.handle is null
        or a.heartbeat_at < now() - make_interval(mins => j.timeout_minutes + 2))
    limit 100`;
}

/** A worker that has been silent for so long will not come back as it was. */
const WORKER_KEPT_DAYS = 7;

/** Forgets workers that are gone and hold no attempt. There are as many as data folders, so all in one go. */
export async function removeGoneWorkers({ pool }: { pool: pg.Pool }): Promise<boolean> {
  await pool.query(
    `delete from workers w where heartbeat_at < now() - make_interval(days => $1)
       and not exists (select from job_attempts a where a.worker_id = w.id and a.ended_at is null)`,
    [WORKER_KEPT_DAYS],
  );
  return false;
}
