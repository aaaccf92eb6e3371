/**
 * Samples the resource usage of running jobs. The last sample and the peaks are stored in the job's row, and the usage over
 * time in `usage-history.ts`.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import type { Logger } from '../../base/log.ts';
import type { Db } from '../../platform/database/client.ts';
import { runLoop } from '../../platform/loop.ts';
import type { Handle, Runner, Usage } from '../../runners/runner.ts';
import { cancelLockedJobs } from '../record/cancel.ts';
import { addIdleTime, describeIdleTimeout, type IdleTime } from '../record/limits.ts';
import { isOver, type LockedJob, withLockedJobs } from '../record/state.ts';
import { clampPercent, openUsageHistory, type UsageHistoryWriter } from './usage-history.ts';

type UsagePeaks = { peakMemoryBytes: number; peakDiskBytes: number };
type StoredUsage = Usage & UsagePeaks & { idle?: IdleTime };

/** Waits before the first samples. They are shorter, so that short jobs are measured too. */
const FIRST_INTERVALS_MS = [500, 1_500, 3_000];
const INTERVAL_MS = 5_000;
const GIB = 2 ** 30;

type SampledAttempt = {
  id: string;
  /** `idleTimeoutMinutes`: null if the GPUs of the job may be idle. */
  job: { id: string; gpu: string; gpuCount: number; idleTimeoutMinutes: number | null };
};

/**
 * Takes samples until `signal` aborts, and cancels the job when its GPUs were idle for too long. A sample that fails is
 * skipped. A retried job keeps its peaks.
 */
export async function sampleUsageUntilAborted(
  { db, pool, runner, log }: { db: Db; pool: pg.Pool; log: Logger; runner: Runner },
  { id: attemptId, job: { id: jobId, gpu, gpuCount, ...job } }: SampledAttempt,
  handle: Handle,
  signal: AbortSignal,
): Promise<void> {
  const idleTimeoutMinutes = gpu === 'none' ? null : job.idleTimeoutMinutes;
  let stored: StoredUsage | null | undefined;
  let peaks: UsagePeaks | undefined;
  let idle: IdleTime | undefined;
  let lastAt: number | undefined;
  let history: UsageHistoryWriter | undefined;
  const firstIntervals = [...FIRST_INTERVALS_MS];
  await runLoop(
    {
      name: `Recording the resource usage of job ${jobId}`,
      every: () => firstIntervals.shift() ?? INTERVAL_MS,
      waitsFirst: true,
      signal,
      log,
    },
    async () => {
      const sample = await runner.stats(handle);
      if (!sample) return;
      stored = stored === undefined ? await readStored(db, jobId) : stored;
      peaks ??= {
        peakMemoryBytes: stored?.peakMemoryBytes ?? 0,
        peakDiskBytes: stored?.peakDiskBytes ?? 0,
      };
      peaks.peakMemoryBytes = Math.max(peaks.peakMemoryBytes, sample.memoryBytes);
      peaks.peakDiskBytes = Math.max(peaks.peakDiskBytes, sample.diskBytes);
      if (idleTimeoutMinutes !== null) {
        const now = performance.now();
        const sinceMs = lastAt === undefined ? null : now - lastAt;
        lastAt = now;
        const { gpuPercent } = sample;
        idle = addIdleTime(idle ?? stored?.idle, attemptId, { gpuPercent, gpuCount, sinceMs });
      }
      const usage: StoredUsage = { ...sample, ...peaks, ...(idle && { idle }) };
      // Unlike `update`, this does not fail if the job was deleted.
      await db.job.updateMany({
        where: { id: jobId },
        data: { usage: usage as Prisma.InputJsonObject },
      });
      history ??= await openUsageHistory(pool, attemptId);
      await history.add({ ...sample, gpuPercent: sample.gpuPercent ?? 0, time: new Date() });
      if (idle && idleTimeoutMinutes !== null && idle.ms >= idleTimeoutMinutes * 60_000)
        await cancelIdleJob(pool, { jobId, attemptId, idleTimeoutMinutes });
    },
  );
  await history?.end().catch((error) => {
    log.warn({ err: error, job: jobId }, 'Cannot record the resource usage of the job');
  });
}

async function readStored(db: Pick<Db, 'job'>, jobId: string): Promise<StoredUsage | null> {
  const row = await db.job.findUnique({ where: { id: jobId }, select: { usage: true } });
  return (row?.usage ?? null) as StoredUsage | null;
}

/** Cancels the job unless its process has ended, or its sandbox is held: a hold has an end of its own. */
async function cancelIdleJob(
  pool: pg.Pool,
  {
    jobId,
    attemptId,
    idleTimeoutMinutes,
  }: { jobId: string; attemptId: string; idleTimeoutMinutes: number },
): Promise<void> {
  const reason = () => describeIdleTimeout(idleTimeoutMinutes);
  const cancel = async (client: pg.PoolClient, jobs: LockedJob[]) => {
    const running = jobs.filter(
      (job) => job.attemptId === attemptId && job.status === 'running' && job.heldAt === null,
    );
    await cancelLockedJobs(client, running, { reason, leavesExited: true });
  };
  await withLockedJobs(pool, [jobId], cancel, { isWaiting: true });
}

type Analytics = {
  gpuUtilizationPercent: number;
  cpuUtilizationPercent: number;
  memoryUsedGb: number;
  diskUsedGb: number;
};

/**
 * Converts the stored usage for the API: the last sample, and for a finished job the peaks of memory and disk. All values are 0
 * before the first sample. As everywhere in the API, 1 GB is 2^30 bytes.
 */
export function toAnalytics({ usage, status }: { usage: unknown; status: JobStatus }): Analytics {
  const sample = usage as StoredUsage | null;
  const hasEnded = isOver(status);
  const memory = (hasEnded ? sample?.peakMemoryBytes : sample?.memoryBytes) ?? 0;
  const disk = (hasEnded ? sample?.peakDiskBytes : sample?.diskBytes) ?? 0;
  return {
    gpuUtilizationPercent: clampPercent(sample?.gpuPercent ?? 0),
    cpuUtilizationPercent: clampPercent(sample?.cpuPercent),
    memoryUsedGb: Math.round(memory / GIB),
    diskUsedGb: Math.round(disk / GIB),
  };
}
