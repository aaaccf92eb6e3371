/**
 * Samples the resource usage of running jobs. The last sample and the peaks are stored in the job's row, and the usage over
 * time in `usage-history.ts`.
 */

import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import type { Logger } from '../base/log.ts';
import type { Db } from '../platform/database/client.ts';
import type { Handle, Runner, Usage } from '../runners/runner.ts';
import { isOver } from './state.ts';
import { clampPercent, openUsageHistory, type UsageHistoryWriter } from './usage-history.ts';

type UsagePeaks = { peakMemoryBytes: number; peakDiskBytes: number };
type StoredUsage = Usage & UsagePeaks;

/** Waits before the first samples. They are shorter, so that short jobs are measured too. */
const FIRST_INTERVALS_MS = [500, 1_500, 3_000];
const INTERVAL_MS = 5_000;
const GIB = 2 ** 30;

/** Takes samples until `signal` aborts. A sample that fails is skipped. A retried job keeps its peaks. */
export async function sampleUsageUntilAborted(
  { db, pool, runner, log }: { db: Db; pool: pg.Pool; log: Logger; runner: Runner },
  { jobId, attemptId }: { jobId: string; attemptId: string },
  handle: Handle,
  signal: AbortSignal,
): Promise<void> {
  let peaks: UsagePeaks | undefined;
  let history: UsageHistoryWriter | undefined;
  const logFailure = (error: unknown) =>
    log.warn({ err: error, job: jobId }, 'Cannot record the resource usage of the job');
  for (let i = 0; !signal.aborted; i++) {
    await delay(FIRST_INTERVALS_MS[i] ?? INTERVAL_MS, undefined, { signal }).catch(() => {});
    if (signal.aborted) break;
    try {
      const sample = await runner.stats(handle);
      if (!sample) continue;
      peaks ??= await readPeaks(db, jobId);
      peaks.peakMemoryBytes = Math.max(peaks.peakMemoryBytes, sample.memoryBytes);
      peaks.peakDiskBytes = Math.max(peaks.peakDiskBytes, sample.diskBytes);
      const usage: StoredUsage = { ...sample, ...peaks };
      // Unlike `update`, this does not fail if the job was deleted.
      await db.job.updateMany({
        where: { id: jobId },
        data: { usage: usage as Prisma.InputJsonObject },
      });
      history ??= await openUsageHistory(pool, attemptId);
      await history.add({ ...sample, time: new Date() });
    } catch (error) {
      logFailure(error);
    }
  }
  await history?.end().catch(logFailure);
}

async function readPeaks(db: Pick<Db, 'job'>, jobId: string): Promise<UsagePeaks> {
  const row = await db.job.findUnique({ where: { id: jobId }, select: { usage: true } });
  const previous = row?.usage as StoredUsage | null | undefined;
  return {
    peakMemoryBytes: previous?.peakMemoryBytes ?? 0,
    peakDiskBytes: previous?.peakDiskBytes ?? 0,
  };
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
    gpuUtilizationPercent: clampPercent(sample?.gpuPercent),
    cpuUtilizationPercent: clampPercent(sample?.cpuPercent),
    memoryUsedGb: Math.round(memory / GIB),
    diskUsedGb: Math.round(disk / GIB),
  };
}
