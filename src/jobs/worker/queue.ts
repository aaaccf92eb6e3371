/**
 * The queue: which job is next, and who gets it.
 *
 * Every statement here walks a partial index that holds waiting or held jobs alone (`jobs_waiting`,
 * `jobs_held`), so a claim costs the same however many jobs have ever run.
 */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { newId } from '../../ids.ts';
import type { Services } from '../../services.ts';
import { REGIONS } from '../hardware.ts';
import { WORKER_SILENCE_S } from '../offers.ts';
import type { Machine } from '../runners/runner.ts';
import { PHASES } from '../state.ts';

export type Claim = {
  jobId: string;
  attemptId: string;
  machine: string;
  gpu: string;
  gpuCount: number;
};
/** `waited`: seconds since it could have been claimed. */
export type Claimed = Claim & { region: string; waited: number };

type ClaimInput = {
  workerId: string;
  runner: string;
  machine: string;
  /** A worker serves this model in every region. */
  gpu: string;
  /** How many of it the machine has: what asks for more waits for another worker. */
  gpuTotal: number;
  /** How many are free: the next in line waits for them, and those behind it with it, or it would starve. */
  gpuFree: number;
};

/**
 * Takes the next job for a worker and opens an attempt for it.
 *
 * Within a namespace and pool the oldest job is next. Between namespaces, that one is next which holds the
 * fewest jobs, and of equals the one that was served longest ago, so nobody who waits is passed over forever.
 *
 * `waiting` is a loose index scan: it jumps from namespace to namespace, so a thousand waiting jobs of one
 * cost as much as one. `for update skip locked` makes two workers take two jobs instead of waiting for each
 * other; it stands in the lateral join, whose outer rows come in order, so that `limit 1` locks one row.
 */
export async function claimNext(
  { db }: { db: Pick<Services['db'], never> & Transacting },
  { workerId, runner, machine, gpu, gpuTotal, gpuFree }: ClaimInput,
): Promise<Claimed | null> {
  return db.$transaction(async (tx) => {
    const [next] = await tx.$queryRaw<
      {
        id: string;
        namespaceId: string;
        gpuCount: number;
        repo: string | null;
        region: string;
        waited: number;
      }[]
    >`
      with recursive pools as (
        select unnest(${[...REGIONS]}::text[]) as region
      ), waiting as (
        select region, (
          select namespace_id from jobs
          where gpu = ${gpu} and region = pools.region and status = 'queued' and attempt_id is null
          order by namespace_id limit 1
        ) as namespace_id
        from pools
        union all
        select region, (
          select namespace_id from jobs
          where gpu = ${gpu} and region = waiting.region and status = 'queued' and attempt_id is null
            and namespace_id > waiting.namespace_id
          order by namespace_id limit 1
        )
        from waiting where namespace_id is not null
      ), line as (
        select region, namespace_id
        from (select region, namespace_id from waiting where namespace_id is not null) w
        left join queue_turns using (namespace_id)
        left join lateral (
          select count(*) as held from jobs
          where jobs.namespace_id = w.namespace_id and attempt_id is not null
        ) share on true
        order by held, served_at nulls first, namespace_id, region
      )
      select next.id, next.namespace_id as "namespaceId", next.gpu_count as "gpuCount", next.repo,
        line.region, extract(epoch from now() - next.available_at)::float8 as waited
      from line cross join lateral (
        select id, namespace_id, gpu_count, repo, available_at from jobs
        where gpu = ${gpu} and region = line.region and namespace_id = line.namespace_id
          and status = 'queued' and attempt_id is null
          and available_at <= now() and (${gpu} = 'none' or gpu_count <= ${gpuTotal}::bigint)
        order by id limit 1
        for update skip locked
      ) next
      limit 1`;
    if (!next || (gpu !== 'none' && next.gpuCount > gpuFree)) return null;

    const attemptId = newId('att');
    const last = await tx.jobAttempt.aggregate({
      where: { jobId: next.id },
      _max: { number: true, endedAt: true },
    });
    await tx.jobAttempt.create({
      data: {
        id: attemptId,
        jobId: next.id,
        number: (last._max.number ?? 0) + 1,
        runner,
        machine,
        workerId,
      },
      select: { id: true },
    });
    await tx.job.update({
      where: { id: next.id },
      data: { attemptId, progress: next.repo ? PHASES.cloning : PHASES.preparing },
      select: { id: true },
    });
    await tx.$executeRaw`
      insert into queue_turns (namespace_id, served_at) values (${next.namespaceId}, clock_timestamp())
      on conflict (namespace_id) do update set served_at = excluded.served_at`;
    // One that was lost is due at once, and so keeps the time from which it was due before.
    const { endedAt } = last._max;
    const waited = Math.min(next.waited, endedAt ? (Date.now() - +endedAt) / 1_000 : Infinity);
    const { region, gpuCount } = next;
    return { jobId: next.id, attemptId, machine, gpu, gpuCount, region, waited };
  });
}

type Transacting = {
  $transaction<T>(work: (tx: Prisma.TransactionClient) => Promise<T>): Promise<T>;
};

/** Milliseconds until the next job that waits for its time may start; null: none does. */
export async function nextDue(
  { db }: Pick<Services, 'db'>,
  gpus: readonly string[],
): Promise<number | null> {
  const [row] = await db.$queryRaw<{ ms: number | null }[]>`
    select (extract(epoch from min(available_at) - now()) * 1000)::float8 as ms from jobs
    where status = 'queued' and attempt_id is null and gpu = any(${[...gpus]})
      and available_at > now()`;
  return row?.ms ?? null;
}

/**
 * Says that a worker and the attempts it looks after are alive. An attempt belongs to a worker and a kind of
 * runner: those that the worker had under another kind are not looked after, and their heartbeat grows old.
 */
export async function heartbeat(
  { db }: Pick<Services, 'db'>,
  worker: { id: string; runner: string; kinds: readonly string[]; machines: readonly Machine[] },
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
  { db }: Pick<Services, 'db'>,
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
export async function removeGoneWorkers({ pool }: Pick<Services, 'pool'>): Promise<boolean> {
  await pool.query(
    `delete from workers w where heartbeat_at < now() - make_interval(days => $1)
       and not exists (select from job_attempts a where a.worker_id = w.id and a.ended_at is null)`,
    [WORKER_KEPT_DAYS],
  );
  return false;
}
