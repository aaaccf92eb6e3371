/** Computes the runtime of a job and its cost. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { costOf } from '../../base/hardware.ts';

/** Returns whole seconds, at least 0. */
export function secondsBetween(start: Date, end: Date): number {
  return Math.max(0, Math.round((end.getTime() - start.getTime()) / 1000));
}

/** Computes the runtime of all attempts. A running attempt counts until now, or until the end of its process. */
export function computeRuntimeSeconds(job: {
  runtimeSeconds: number;
  status: JobStatus;
  attempts: { startedAt: Date | null; exitedAt: Date | null }[];
}): number {
  const attempt = job.status === 'running' ? job.attempts[0] : undefined;
  return job.runtimeSeconds + (runSpanUntil(attempt, new Date())?.seconds ?? 0);
}

/** Computes the billed time of an open attempt: from the start of its process to the end of the process, or to `now`. */
export function runSpanUntil(
  attempt: { startedAt: Date | null; exitedAt: Date | null } | null | undefined,
  now: Date,
): { from: Date; seconds: number } | undefined {
  const from = attempt?.startedAt;
  return from ? { from, seconds: secondsBetween(from, attempt.exitedAt ?? now) } : undefined;
}

/** The columns that `computeRuntimeSeconds` needs. Only the last attempt can be open. */
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

export function computeTotalCost(
  job: Parameters<typeof computeRuntimeSeconds>[0] & { costPerHour: Prisma.Decimal },
) {
  return costOf(job.costPerHour.toString(), computeRuntimeSeconds(job));
}
