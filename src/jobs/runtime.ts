/** How long a job has run, and what that costs. */
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { costOf } from './hardware.ts';

/** Whole seconds. */
export function secondsBetween(start: Date, end: Date): number {
  return Math.max(0, Math.round((end.getTime() - start.getTime()) / 1000));
}

/** Seconds of all attempts; of a running one until now. */
export function runtimeOf(job: {
  runtimeSeconds: number;
  status: JobStatus;
  attempts: { startedAt: Date | null }[];
}): number {
  const startedAt = job.status === 'running' ? job.attempts[0]?.startedAt : undefined;
  return job.runtimeSeconds + (startedAt ? secondsBetween(startedAt, new Date()) : 0);
}

/** The columns that `runtimeOf` needs: the open attempt is the last one. */
export const runtimeColumns = {
  runtimeSeconds: true,
  status: true,
  attempts: {
    select: { startedAt: true },
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
