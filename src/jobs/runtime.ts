/** How long a job has run, and what that costs. */
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { costOf } from '../base/hardware.ts';

/** Whole seconds. */
export function secondsBetween(start: Date, end: Date): number {
  return Math.max(0, Math.round((end.getTime() - start.getTime()) / 1000));
}

/** Seconds of all attempts; of a running one until its process ended, or now. */
export function runtimeOf(job: {
  runtimeSeconds: number;
  status: JobStatus;
  attempts: { startedAt: Date | null; exitedAt: Date | null }[];
}): number {
  const attempt = job.status === 'running' ? job.attempts[0] : undefined;
  return job.runtimeSeconds + (runSpanUntil(attempt, new Date())?.seconds ?? 0);
}

/** What counts of an attempt that has not ended: from the start of its process, if it has one, to its end, or `now`. */
export function runSpanUntil(
  attempt: { startedAt: Date | null; exitedAt: Date | null } | null | undefined,
  now: Date,
): { from: Date; seconds: number } | undefined {
  const from = attempt?.startedAt;
  return from ? { from, seconds: secondsBetween(from, attempt.exitedAt ?? now) } : undefined;
}

/** The columns that `runtimeOf` needs: the open attempt is the last one. */
export const runtimeColumns = {
  runtimeSeconds: true,
  status: true,
  attempts: {
    select: { startedAt: true, exitedAt: true },
    where: { endedAt: null },
    orderBy: { number: 'desc' },
    take: 1,
  },
} as const satisfies Prisma.JobSelect;

export function totalCostOf(
  job: Parameters<typeof runtimeOf>[0] & { costPerHour: Prisma.Decimal },
) {
  return costOf(job.costPerHour.toString(), runtimeOf(job));
}
