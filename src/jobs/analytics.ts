/**
 * Measures the resource usage of running jobs. The job's row has the last sample and the peaks; `usage-history.ts` has the
 * samples over time.
 */

import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import type { Logger } from '../base/log.ts';
import type { Db } from '../platform/database/client.ts';
import type { Handle, Runner, Usage } from '../runners/runner.ts';
import { isOver } from './state.ts';
import { openUsageHistory, toPercent, type UsageHistory } from './usage-history.ts';

type StoredUsage = Usage & { peakMemoryBytes: number; peakDiskBytes: number };

/** Milliseconds before the first samples, which come early so that short jobs are measured too. */
const FIRST_INTERVALS_MS = [500, 1_500, 3_000];
const INTERVAL_MS = 5_000;
const GIB = 2 ** 30;

/** Takes samples until `signal` aborts. A failed sample is skipped; a retried job keeps its peaks. */
export async function sampleUsage(
  { db, pool, runner, log }: { db: Db; pool: pg.Pool; log: Logger } & { runner: Runner },
  { jobId, attemptId }: { jobId: string; attemptId: string },
  handle: Handle,
  signal: AbortSignal,
): Promise<void> {
  let peaks: { memory: number; disk: number } | undefined;
  let history: UsageHistory | undefined;
  const logFailure = (error: unknown) =>
    log.warn({ err: error, job: jobId }, 'Cannot measure the job');
  for (let i = 0; !signal.aborted; i++) {
    await delay(FIRST_INTERVALS_MS[i] ?? INTERVAL_MS, undefined, { signal }).catch(() => {});
    if (signal.aborted) break;
    try {
      const sample = await runner.stats(handle);
      if (!sample) continue;
      peaks ??= await readPeaks(db, jobId);
      peaks.memory = Math.max(peaks.memory, sample.memoryBytes);
      peaks.disk = Math.max(peaks.disk, sample.diskBytes);
      const { memory: peakMemoryBytes, disk: peakDiskBytes } = peaks;
      const usage: StoredUsage = { ...sample, peakMemoryBytes, peakDiskBytes };
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

async function readPeaks(db: Pick<Db, 'job'>, jobId: string) {
  const row = await db.job.findUnique({ where: { id: jobId }, select: { usage: true } });
  const previous = row?.usage as StoredUsage | null | undefined;
  return { memory: previous?.peakMemoryBytes ?? 0, disk: previous?.peakDiskBytes ?? 0 };
}

type Analytics = {
  gpuUtilizationPercent: number;
  cpuUtilizationPercent: number;
  memoryUsedGb: number;
  diskUsedGb: number;
};

/** The last sample; for a finished job, with the peaks of memory and disk. All values are 0 before the first sample. */
export function analyticsOf({ usage, status }: { usage: unknown; status: JobStatus }): Analytics {
  const sample = usage as StoredUsage | null;
  const hasEnded = isOver(status);
  const memory = (hasEnded ? sample?.peakMemoryBytes : sample?.memoryBytes) ?? 0;
  const disk = (hasEnded ? sample?.peakDiskBytes : sample?.diskBytes) ?? 0;
  return {
    gpuUtilizationPercent: toPercent(sample?.gpuPercent),
    cpuUtilizationPercent: toPercent(sample?.cpuPercent),
    memoryUsedGb: Math.round(memory / GIB),
    diskUsedGb: Math.round(disk / GIB),
  };
}
