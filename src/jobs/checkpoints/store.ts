/**
 * Stores checkpoints, in the form of artifacts, and puts them into the working directory of the next attempt. A row names each
 * checkpoint before its first object is in the storage. It becomes the current one of the job in one transaction, if the attempt
 * that has stored it still holds the job. So an attempt that was taken for lost never replaces the checkpoint of a later one,
 * and after a crash the current checkpoint is complete, and the objects of all others are found.
 */
import { posix } from 'node:path';
import type { Plan } from '../../../prisma/generated/enums.ts';
import { sleep } from '../../base/backoff.ts';
import type { Config } from '../../base/config/config.ts';
import { AppError } from '../../base/errors.ts';
import { newId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { DISK_FULL_MESSAGE, isDiskFull } from '../../platform/database/outage.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { requireQuota } from '../../platform/limits/quotas.ts';
import { runLoop } from '../../platform/loop.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import type { Storage } from '../../platform/storage/storage.ts';
import {
  ArtifactsNotKept,
  type Handle,
  MAX_OUTPUT_ENTRIES,
  type Runner,
  UnchangedFiles,
  WORKING_DIR,
} from '../../runners/runner.ts';
import { TarFingerprint } from '../../runners/supervisor/tar-format.ts';
import { removeArchive, storeArtifacts } from '../artifacts/store.ts';
import { isOver } from '../record/state.ts';

type Deps = {
  db: Db;
  config: Config;
  storage: Storage;
  space: DiskSpace;
  runner: Runner;
  metrics: Metrics;
  log: Logger;
};

type CheckpointedAttempt = {
  id: string;
  number: number;
  startedAt: Date | null;
  job: {
    id: string;
    namespaceId: string;
    namespace: { plan: Plan };
    checkpointPath: string | null;
    checkpointMinutes: number | null;
    diskGb: number;
  };
};

/** Pauses before further tries, because a program may write to the folder for a moment. */
const RETRY_MS = [1_000, 4_000];
const MINUTE_MS = 60_000;
/** The longest time of a timer. */
const NEVER_MS = 2 ** 31 - 1;

/** A notification makes the worker store a checkpoint now. */
export function checkpointTopic(jobId: string): `job:${string}` {
  return `job:${jobId}/checkpoint`;
}

/**
 * Stores a checkpoint every `checkpointMinutes` while the command runs.
 * @param note appends a line to the log of the job
 */
export async function storeCheckpointsUntilAborted(
  deps: Deps & { bus: Bus },
  attempt: CheckpointedAttempt,
  handle: Handle,
  { note, signal }: { note(line: string): Promise<unknown>; signal: AbortSignal },
): Promise<void> {
  const { job } = attempt;
  if (job.checkpointPath === null || signal.aborted) return;
  const periodMs = (job.checkpointMinutes ?? 0) * MINUTE_MS;
  let last = (await readCurrent(deps, job.id).catch(() => null))?.createdAt.getTime() ?? 0;
  last = Math.max(last, attempt.startedAt?.getTime() ?? Date.now());
  let noted: string | null = null;
  await runLoop(
    {
      name: `Storing checkpoints of job ${job.id}`,
      // The period begins at the last checkpoint or the start of the attempt, not at the start of this server. Otherwise a server
      // that restarts often would never store a checkpoint.
      every: () => (periodMs === 0 ? NEVER_MS : Math.max(0, last + periodMs - Date.now())),
      waitsFirst: true,
      wakes: (stop, everyMs) => deps.bus.wakes(checkpointTopic(job.id), stop, everyMs),
      signal,
      log: deps.log,
    },
    async () => {
      last = Date.now();
      const problem = await storeCheckpoint(deps, attempt, handle, signal);
      if (problem !== null && problem !== noted) await note(problem);
      noted = problem ?? noted;
    },
  );
}

/**
 * Stores the content of the folder, if it has changed, in place of the current checkpoint.
 * @returns why it was not stored, as a line for the log of the job
 */
export async function storeCheckpoint(
  deps: Deps,
  attempt: CheckpointedAttempt,
  handle: Handle,
  signal: AbortSignal,
): Promise<string | null> {
  const { log, metrics } = deps;
  const { job } = attempt;
  for (let tries = 0; ; tries++) {
    try {
      const bytes = await tryStore(deps, attempt, handle, signal);
      if (bytes !== null) metrics.checkpointStored(bytes);
      return null;
    } catch (error) {
      if (signal.aborted) return null;
      const isExpected = error instanceof ArtifactsNotKept || error instanceof AppError;
      const pauseMs = RETRY_MS[tries];
      if (!isExpected && pauseMs !== undefined) {
        log.debug({ err: error, job: job.id }, 'Cannot store the checkpoint yet');
        await sleep(pauseMs, signal);
        continue;
      }
      metrics.checkpointFailed();
      if (!isExpected) log.warn({ err: error, job: job.id }, 'Cannot store the checkpoint');
      const reason = isExpected
        ? error.message
        : isDiskFull(error)
          ? 'the disk of the server is full'
          : 'they could not be read, or changed while they were read';
      return `The files in ${job.checkpointPath} were not stored as a checkpoint: ${reason}`;
    }
  }
}

/** @returns the bytes of the new checkpoint; null if there is nothing new to store */
async function tryStore(
  deps: Deps,
  { id: attemptId, number, job }: CheckpointedAttempt,
  handle: Handle,
  signal: AbortSignal,
): Promise<number | null> {
  const { db, runner, space } = deps;
  const { id: jobId, namespaceId, namespace, checkpointPath: path } = job;
  if (path === null) return null;
  const current = await readCurrent({ db }, jobId);
  const createdAt = new Date();
  const fingerprint = new TarFingerprint();
  const snapshot = { unless: current?.fingerprint ?? null };
  const reading = runner.artifacts(handle, path, { snapshot }).catch((error) => {
    if (error instanceof UnchangedFiles) return null;
    throw error;
  });
  const tar = await untilAborted(reading, signal);
  if (!tar) return null;
  const key = { namespaceId, checkpointId: newId('ckp') };
  let isStored = false;
  try {
    await removeUnused(deps, { jobId, isCurrent: false });
    await db.checkpoint.create({
      data: { id: key.checkpointId, namespaceId, jobId, attemptId, attempt: number, createdAt },
    });
    const stored = await storeArtifacts(deps, key, tar, {
      folder: posix.join(WORKING_DIR, path),
      maxBytes: job.diskGb * 2 ** 30,
      maxEntries: MAX_OUTPUT_ENTRIES,
      async requireRoom(size) {
        if (space.low) throw Object.assign(new Error(DISK_FULL_MESSAGE), { code: 'ENOSPC' });
        // The current checkpoint is removed when this one has replaced it.
        const adding = size - Number(current?.sizeBytes ?? 0);
        const owner = { id: namespaceId, plan: namespace.plan };
        await requireQuota(deps, owner, 'storageBytes', Math.max(0, adding));
      },
      fingerprint,
      signal,
    });
    const { files, sizeBytes } = stored;
    // An empty folder is most likely one that the program is about to fill again.
    isStored =
      files > 0 &&
      (await makeCurrent({ db }, { jobId, attemptId }, key.checkpointId, {
        files,
        sizeBytes: BigInt(sizeBytes),
        fingerprint: fingerprint.digest(),
      }));
    return isStored ? sizeBytes : null;
  } finally {
    tar.destroy();
    // Either the new checkpoint or the previous one. What remains is removed next time, or by maintenance.
    await removeUnused(deps, { jobId, isCurrent: false })
      .then(() => (isStored ? undefined : removeWithoutRow(deps, key)))
      .catch(() => {});
  }
}

function readCurrent({ db }: { db: Db }, jobId: string) {
  return db.checkpoint.findFirst({
    where: { jobId, isCurrent: true },
    select: { id: true, sizeBytes: true, fingerprint: true, createdAt: true },
  });
}

/** @returns whether the attempt still holds the job, and so the checkpoint is the current one of the job now */
function makeCurrent(
  { db }: { db: Db },
  { jobId, attemptId }: { jobId: string; attemptId: string },
  id: string,
  stored: { files: number; sizeBytes: bigint; fingerprint: string | null },
): Promise<boolean> {
  return inTransaction(db, async (tx) => {
    const held = await tx.$executeRaw`
      select from jobs where id = ${jobId} and attempt_id = ${attemptId} for update`;
    const unused = await tx.$executeRaw`
      select from checkpoints where id = ${id} and job_id = ${jobId} for update`;
    const isCurrent = { jobId, isCurrent: true };
    // Ids sort by time: a process of this server that was taken for dead may store an older one late. Those of an earlier attempt
    // are older, even if the clock of its server was ahead.
    const newer = await tx.checkpoint.count({ where: { ...isCurrent, attemptId, id: { gt: id } } });
    if (held === 0 || unused === 0 || newer > 0) return false;
    await tx.checkpoint.updateMany({ where: isCurrent, data: { isCurrent: false } });
    await tx.checkpoint.update({ where: { id }, data: { ...stored, isCurrent: true } });
    return true;
  });
}

/** Finds where the checkpoint that the next attempt gets is stored; null if there is none. */
export async function findCheckpoint(
  { db }: { db: Db },
  { id, namespaceId }: { id: string; namespaceId: string },
): Promise<{ namespaceId: string; checkpointId: string } | null> {
  const current = await readCurrent({ db }, id);
  return current && { namespaceId, checkpointId: current.id };
}

type UnusedRows = { jobId: string; isCurrent?: false } | { id: { in: string[] } };

async function removeUnused(
  { db, storage }: Pick<Deps, 'db' | 'storage'>,
  where: UnusedRows,
): Promise<void> {
  const select = { id: true, namespaceId: true, isCurrent: true } as const;
  const rows = await db.checkpoint.findMany({ where, select });
  for (const { id, namespaceId, isCurrent } of rows) {
    // Without a job it cannot become the current one any more. It may have become it just now, by a commit whose answer was lost.
    const data = { jobId: null, isCurrent: false };
    const { count } = await db.checkpoint.updateMany({ where: { id, isCurrent }, data });
    if (count === 0) continue;
    await removeArchive({ storage }, { namespaceId, checkpointId: id });
    await db.checkpoint.deleteMany({ where: { id } });
  }
}

/** Removes the objects of a checkpoint whose row is gone: a later attempt has taken it for left by a dead server. */
async function removeWithoutRow(
  { db, storage }: Pick<Deps, 'db' | 'storage'>,
  key: { namespaceId: string; checkpointId: string },
): Promise<void> {
  const where = { id: key.checkpointId, isCurrent: true };
  if ((await db.checkpoint.count({ where })) === 0) await removeArchive({ storage }, key);
}

/** Removes the checkpoints of a job that has ended or was deleted. Maintenance removes what cannot be removed now. */
export async function removeCheckpointsOfEnded(
  deps: Pick<Deps, 'db' | 'storage' | 'log'>,
  jobId: string,
): Promise<void> {
  try {
    const job = await deps.db.job.findUnique({ where: { id: jobId }, select: { status: true } });
    if (job && isOver(job.status)) await removeUnused(deps, { jobId });
  } catch (error) {
    deps.log.warn({ err: error, job: jobId }, 'Cannot remove the checkpoints of the job now');
  }
}

const BATCH = 100;

/**
 * For `maintenance.ts`: removes checkpoints of jobs that have ended or were deleted, and what attempts that have ended did not
 * store completely.
 * @returns whether there may be more
 */
export async function removeUnusedCheckpoints({
  db,
  storage,
}: {
  db: Db;
  storage: Storage;
}): Promise<boolean> {
  const rows = await db.$queryRaw<{ id: string }[]>`
    select c.id from checkpoints c left join jobs j on j.id = c.job_id
      left join job_attempts a on a.id = c.attempt_id
    where j.id is null or j.status not in ('queued', 'running')
      or (not c.is_current and (a.id is null or a.ended_at is not null))
    limit ${BATCH}`;
  await removeUnused({ db, storage }, { id: { in: rows.map(({ id }) => id) } });
  return rows.length === BATCH;
}

/** Rejects when `signal` aborts first. A stream that comes later is destroyed. */
export async function untilAborted<T extends { destroy(): unknown } | null>(
  reading: Promise<T>,
  signal: AbortSignal,
): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  const onAbort = () => {
    reject(signal.reason);
    reading.then(
      (late) => late?.destroy(),
      () => {},
    );
  };
  signal.addEventListener('abort', onAbort, { once: true });
  if (signal.aborted) onAbort();
  try {
    return await Promise.race([reading, promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}
