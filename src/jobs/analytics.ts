/**
 * What jobs use of their hardware: measured while they run, with the peaks kept for afterwards. The samples before the
 * last one are in `usage-history.ts`.
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

export type StoredUsage = Usage & { peakMemoryBytes: number; peakDiskBytes: number };

/** The first samples come soon, so that a short job is measured too. Milliseconds between them. */
const FIRST_INTERVALS_MS = [500, 1_500, 3_000];
const INTERVAL_MS = 5_000;
const GIB = 2 ** 30;

/** Measures until `signal` aborts. A sample that fails is left out; a retried job keeps its peaks. */
export async function sampleUsage(
  { db, pool, runner, log }: { db: Db; pool: pg.Pool; log: Logger } & { runner: Runner },
  { jobId, attemptId }: { jobId: string; attemptId: string },
  handle: Handle,
  signal: AbortSignal,
): Promise<void> {
  let peaks: { memory: number; disk: number } | undefined;
  let history: UsageHistory | undefined;
  const logFailure = (error: unknown) => log.warn({ err: error, job: jobId }, 'a job was not measured');
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
  const before = row?.usage as StoredUsage | null | undefined;
  return { memory: before?.peakMemoryBytes ?? 0, disk: before?.peakDiskBytes ?? 0 };
}

export type Analytics = {
  gpuUtilizationPercent: number;
  cpuUtilizationPercent: number;
  memoryUsedGb: number;
  diskUsedGb: number;
};

/** The last sample; of a job that is over, with the peaks of memory and disk. Zeros before the first one. */
export function analyticsOf({ usage, status }: { usage: unknown; status: JobStatus }): Analytics {
  const sample = usage as StoredUsage | null;
  const over = isOver(status);
  const memory = (over ? sample?.peakMemoryBytes : sample?.memoryBytes) ?? 0;
  const disk = (over ? sample?.peakDiskBytes : sample?.diskBytes) ?? 0;
  return {
    gpuUtilizationPercent: toPercent(sample?.gpuPercent),
    cpuUtilizationPercent: toPercent(sample?.cpuPercent),
    memoryUsedGb: Math.round(memory / GIB),
    diskUsedGb: Math.round(disk / GIB),
  };
}
