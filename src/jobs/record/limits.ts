/**
 * The limits that end an attempt before its timeout: the maximum cost of its job, and the idle timeout of its GPUs. Jobs that
 * reach a limit are cancelled, with the reason in `progress` and in the log.
 */
import { Decimal } from 'decimal.js';
import { formatMoney } from '../../base/money.ts';

type LimitedJob = {
  maxCost: { toString(): string } | null;
  costPerHour: { toString(): string };
  /** Of the attempts before. */
  runtimeSeconds: number;
  timeoutMinutes: number;
};

/** An attempt that starts just before its job reaches the maximum cost. */
const MIN_ATTEMPT_MS = 1_000;

/** Milliseconds until the job reaches its maximum cost, if it runs from now on; null without a maximum. */
function msUntilMaxCost({ maxCost, costPerHour, runtimeSeconds }: LimitedJob): Decimal | null {
  if (maxCost === null) return null;
  const seconds = new Decimal(maxCost.toString()).times(3_600).div(costPerHour.toString());
  return Decimal.max(seconds.minus(runtimeSeconds).times(1_000), MIN_ATTEMPT_MS);
}

/** The runner enforces the maximum cost as a timeout, so it also holds while no server runs. */
export function attemptTimeoutMs(job: LimitedJob): number {
  const timeoutMs = job.timeoutMinutes * 60_000;
  const ms = msUntilMaxCost(job);
  return ms === null ? timeoutMs : Decimal.min(ms.round(), timeoutMs).toNumber();
}

/** @returns why an attempt that exceeded its timeout ended, if this was its maximum cost */
export function describeMaxCost(job: LimitedJob): string | null {
  if (job.maxCost === null || attemptTimeoutMs(job) === job.timeoutMinutes * 60_000) return null;
  return `cancelled: reached its maximum cost of ${formatMoney(job.maxCost)}`;
}

export function describeIdleTimeout(minutes: number): string {
  const time = minutes === 1 ? '1 minute' : `${minutes} minutes`;
  return `cancelled: its GPUs were idle for ${time}`;
}

/** Utilization in percent up to which a GPU is idle. */
const IDLE_PERCENT = 5;
/** Time between two samples that counts at most, because nothing is known of the time between them. */
const MAX_GAP_MS = 30_000;

/** How long the GPUs of an attempt have been idle. It is stored with each sample and continued by the next worker process. */
export type IdleTime = { attemptId: string; ms: number };

/**
 * @param sample `gpuPercent`: average of all GPUs of the attempt; null if it cannot be measured, which never counts as idle.
 *   `sinceMs`: time since the last sample of this process; null for the first
 */
export function addIdleTime(
  before: IdleTime | null | undefined,
  attemptId: string,
  {
    gpuPercent,
    gpuCount,
    sinceMs,
  }: { gpuPercent: number | null; gpuCount: number; sinceMs: number | null },
): IdleTime {
  // Above this sum, one of the GPUs may be above the limit.
  if (gpuPercent === null || gpuPercent * gpuCount > IDLE_PERCENT) return { attemptId, ms: 0 };
  const ms = before?.attemptId === attemptId ? before.ms : 0;
  return { attemptId, ms: ms + Math.min(sinceMs ?? 0, MAX_GAP_MS) };
}
