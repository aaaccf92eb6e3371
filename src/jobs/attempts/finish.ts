/** Ends an attempt: stores its artifacts, records its outcome, and moves its job to the next status. */

import { posix } from 'node:path';
import { AppError } from '../../base/errors.ts';
import { ServerUnavailable } from '../../cluster/cluster.ts';
import type { Db } from '../../platform/database/client.ts';
import { DISK_FULL_MESSAGE, isDiskFull } from '../../platform/database/outage.ts';
import { endOfMillisecond } from '../../platform/database/times.ts';
import { notifyReaders } from '../../platform/events/outbox.ts';
import { requireQuota } from '../../platform/limits/quotas.ts';
import type { AttemptOutcome } from '../../platform/metrics/metrics.ts';
import { StorageUnavailable } from '../../platform/storage/storage.ts';
import {
  ArtifactsLost,
  ArtifactsNotKept,
  type Handle,
  type LogCursor,
  MAX_OUTPUT_ENTRIES,
  type Outcome,
  WORKING_DIR,
} from '../../runners/runner.ts';
import { recordLateArtifacts } from '../artifacts/kept.ts';
import { removeArtifacts, removeOtherArtifacts, storeArtifacts } from '../artifacts/store.ts';
import { removeCheckpointsOfEnded } from '../checkpoints/store.ts';
import { appendLines } from '../logs/append.ts';
import { compactEndedLog } from '../logs/compaction.ts';
import { type CheckResult, decideChecks, describeFailedChecks } from '../metrics/checks.ts';
import { compactEndedMetrics } from '../metrics/compaction.ts';
import type { Output } from '../outputs/outputs.ts';
import { isHeldOnFailure } from '../record/failure-hold.ts';
import { describeMaxCost } from '../record/limits.ts';
import { runSpanUntil, secondsBetween } from '../record/runtime.ts';
import {
  commitMove,
  type LockedJob,
  type Move,
  moveJob,
  noteAttemptEnd,
  PHASES,
  toProgress,
  toStorable,
} from '../record/state.ts';
import { type Attempt, type Deps, readAttempt } from './attempt-row.ts';
import { isStoredLater } from './retry.ts';

/** Exit code of a job that failed although its command did not: it could not be started, its artifacts not stored, or a check failed. */
const SYSTEM_FAILURE_EXIT_CODE = 125;
const MAX_RETRY_DELAY_S = 60;

type ExitedOutcome = Extract<Outcome, { kind: 'exited' }>;

/**
 * Stores the files at `output_path` as artifacts, whatever the exit code.
 * @throws transient errors, but not for a full disk; and the reason of `signal` when it aborts
 */
export async function collectArtifacts(
  deps: Deps,
  { id, job }: Attempt,
  handle: Handle,
  outcome: ExitedOutcome,
  signal: AbortSignal,
): Promise<CollectedArtifacts> {
  if (job.outputPath === null) return {};
  const owner = { id: job.namespaceId, plan: job.namespace.plan };
  try {
    const tar = await deps.runner.artifacts(handle, job.outputPath);
    if (!tar) return {};
    const key = { namespaceId: job.namespaceId, jobId: job.id, attemptId: id };
    const { files, sizeBytes, leftOut } = await storeArtifacts(deps, key, tar, {
      folder: posix.resolve(WORKING_DIR, job.outputPath),
      maxBytes: job.diskGb * 2 ** 30,
      maxEntries: MAX_OUTPUT_ENTRIES,
      async requireRoom(size) {
        // The last free space is reserved for the database, which shuts down on a full disk.
        if (deps.space.low) throw Object.assign(new Error(DISK_FULL_MESSAGE), { code: 'ENOSPC' });
        await requireQuota(deps, owner, 'storageBytes', size);
      },
      signal,
    });
    const stored = { artifactFiles: files, artifactBytes: BigInt(sizeBytes), artifactsOf: id };
    return leftOut > 0 ? { stored, note: describeLeftOut(leftOut) } : { stored };
  } catch (error) {
    if (signal.aborted || isStoredLater(error)) throw error;
    if (error instanceof ArtifactsLost && hasSucceeded(outcome)) return { areLost: true };
    const isExpected = error instanceof ArtifactsNotKept || error instanceof AppError;
    if (!isExpected) deps.log.error({ err: error, job: job.id }, 'Cannot store the artifacts');
    const reason = isExpected
      ? error.message
      : isDiskFull(error)
        ? 'the disk of the server is full'
        : 'the server failed to store them';
    return { storeFailure: `the artifacts were not kept: ${reason}` };
  }
}

function describeLeftOut(count: number): string {
  const subject = count === 1 ? '1 entry was' : `${count} entries were`;
  return `${subject} left out of the artifacts: links to paths outside, devices, FIFOs, sockets, or unreadable files`;
}

export type CollectedArtifacts = {
  stored?: { artifactFiles: number; artifactBytes: bigint; artifactsOf: string };
  /** A line to append to the log. */
  note?: string;
  /** Further such lines. */
  notes?: readonly string[];
  /** What the command wrote to `$JOB_OUTPUTS`. */
  outputs?: readonly Output[];
  /** Why the files at `output_path` were not stored. The job then fails, whatever its exit code. */
  storeFailure?: string;
  /** The machine was lost with the files of a command that has succeeded: the attempt counts as lost. */
  areLost?: true;
};

/** Whether the job will probably run again after this end of its attempt, so that it needs a checkpoint. */
export function mayRunAgain({ job }: Attempt, outcome: Outcome): boolean {
  if (outcome.kind === 'lost') return !outcome.unreachable;
  if (outcome.kind === 'unstartable' || outcome.timedOut || hasSucceeded(outcome)) return false;
  return job.retryCount < job.retries;
}

/** Ends the attempt, and moves its job to the next status if the attempt still holds the job. */
export async function finishAttempt(
  deps: Deps,
  attempt: Attempt,
  outcome: Outcome,
  collected: CollectedArtifacts = {},
): Promise<void> {
  const { id, job } = attempt;
  const { stored, note, storeFailure, notes: more = [] } = collected;
  const reason = outcome.kind === 'exited' ? undefined : outcome.reason;
  // It also completes the job's progress.
  const lost = reason && capitalize(reason);
  const stopReason =
    outcome.kind === 'exited' && outcome.timedOut ? (describeMaxCost(job) ?? undefined) : undefined;
  const checks =
    outcome.kind === 'exited' && hasSucceeded(outcome)
      ? await decideChecks(deps, job, attempt.number)
      : [];
  const failedChecks = describeFailedChecks(checks);
  const notes = [
    outcome.kind === 'exited' ? outcome.note : outcome.kind === 'lost' ? lost : reason,
    stopReason && capitalize(stopReason),
    note,
    storeFailure && capitalize(storeFailure),
    ...more,
    failedChecks && `A check has failed: ${failedChecks}`,
  ];
  await appendNotes(
    deps,
    id,
    notes.filter((line) => line != null),
  );
  const moved = await recordEnd(deps, attempt, outcome, { ...collected, checks });
  deps.metrics.attemptEnded(toMetricOutcome(outcome, moved !== null));
  await compactEndedLog(deps, job.id, moved?.nextSeq);
  await compactEndedMetrics(deps, job.id);
  if (job.checkpointPath !== null) await removeCheckpointsOfEnded(deps, job.id);
  if (!stored && moved) return;
  const deleted = !moved && (await deps.db.job.count({ where: { id: job.id } })) === 0;
  const kept = !deleted || (await recordLateArtifacts(deps, job.id, stored ?? null));
  if (!stored) return;
  const key = { namespaceId: job.namespaceId, jobId: job.id };
  const removal = kept
    ? removeOtherArtifacts(deps, { ...key, attemptId: stored.artifactsOf })
    : removeArtifacts(deps, key);
  // Files that cannot be removed now are removed with the job.
  await removal.catch((error) =>
    deps.log.error({ err: error, job: job.id }, 'Cannot remove superseded artifacts'),
  );
}

/** @returns the job before the move; null if the attempt no longer held the job or is lost */
async function recordEnd(
  { db, pool }: Deps,
  { id, job, startedAt, exitedAt }: Attempt,
  outcome: Outcome,
  collected: CollectedArtifacts & { checks: readonly CheckResult[] },
): Promise<LockedJob | null> {
  if (outcome.kind === 'lost') {
    await endLostAttempt({ db }, { ...outcome, attemptId: id, jobId: job.id });
    return null;
  }
  const exited = outcome.kind === 'exited' ? outcome : null;
  const ended = {
    at: exited?.endedAt ?? exitedAt ?? new Date(),
    outcome: outcome.kind,
    exitCode: exited?.exitCode ?? SYSTEM_FAILURE_EXIT_CODE,
  };
  const begun = exited && startedAt ? { startedAt: exited.startedAt } : {};
  const attempt = { id, ...begun, ended };
  // An attempt that fails because its artifacts cannot be stored has still run, and its time counts.
  const ran = exitedAt ? runSpanUntil({ startedAt, exitedAt }, exitedAt) : undefined;
  const moved = await commitMove(pool, job.id, (locked) =>
    locked.attemptId === id ? { ran, ...decideMove(locked, outcome, collected), attempt } : null,
  );
  if (moved) return moved;
  const ending = await db.job.findUnique({ where: { id: job.id }, select: { stopReason: true } });
  if (ending?.stopReason) await appendNotes({ db, pool }, id, [capitalize(ending.stopReason)], 2);
  // An attempt that has lost its job never gets the job back.
  await db.$transaction(async (tx) => {
    await recordLateEnd(tx, job.id, outcome, collected.stored);
    const { at: endedAt, ...how } = ended;
    await tx.jobAttempt.updateMany({ where: { id }, data: { ...begun, endedAt, ...how } });
    await noteAttemptEnd(tx, job.id);
    // Followers of a cancelled job wait for the end of its attempt. No other notification wakes them.
    await notifyReaders(tx, `job:${job.id}`);
  });
  return null;
}

/** Exit code 0 is not a success if the kernel killed a process of the job because it had no memory left. */
export function hasSucceeded({ exitCode, timedOut, outOfMemory }: ExitedOutcome): boolean {
  return exitCode === 0 && !timedOut && !outOfMemory;
}

/** @param hadJob whether the attempt still held the job */
function toMetricOutcome(outcome: Outcome, hadJob: boolean): AttemptOutcome {
  if (outcome.kind === 'lost') return 'lost';
  if (!hadJob) return 'cancelled';
  if (outcome.kind === 'unstartable') return 'unstartable';
  if (outcome.timedOut) return 'timed_out';
  return hasSucceeded(outcome) ? 'succeeded' : 'failed';
}

/** Ends an attempt that failed too often: kills its process and fails its job. */
export async function failAttempt(deps: Deps, attemptId: string, error: unknown): Promise<void> {
  const attempt = await readAttempt(deps, attemptId);
  if (!attempt) return;
  const reason = isDiskFull(error)
    ? DISK_FULL_MESSAGE
    : error instanceof StorageUnavailable
      ? 'The storage for artifacts could not be reached'
      : error instanceof ServerUnavailable
        ? 'The repository could not be cloned: no server that has it could be reached'
        : 'The server repeatedly failed to supervise this attempt; see the log of the server';
  await killProcess(deps, attempt);
  await finishAttempt(deps, attempt, { kind: 'unstartable', reason });
}

/** Kills the process of an attempt that cannot continue, if there is one. */
export async function killProcess({ runner, log }: Deps, { handle, job }: Attempt): Promise<void> {
  // A failure is only logged: the removal that follows also kills the process, and is retried until it succeeds.
  if (handle)
    await runner
      .signal(handle as Handle, 'KILL')
      .catch((error) => log.error({ err: error, job: job.id }, 'Cannot kill the process'));
}

function decideMove(
  job: LockedJob,
  outcome: Exclude<Outcome, { kind: 'lost' }>,
  {
    stored,
    storeFailure,
    checks,
    outputs,
  }: CollectedArtifacts & { checks: readonly CheckResult[] },
): Move {
  if (outcome.kind === 'unstartable')
    return {
      to: 'failed',
      phase: toProgress(`failed: ${outcome.reason}`),
      set: { exitCode: SYSTEM_FAILURE_EXIT_CODE },
    };
  const { exitCode, timedOut, startedAt, endedAt } = outcome;
  const succeeded = hasSucceeded(outcome);
  const ran = { from: startedAt, seconds: secondsBetween(startedAt, endedAt) };
  const checkResults = checks.length > 0 && { checkResults: JSON.stringify(checks) };
  const set = {
    exitCode,
    ...stored,
    ...checkResults,
    ...(outputs && outputs.length > 0 && { outputs: JSON.stringify(outputs) }),
  };
  if (timedOut) {
    const stopReason = describeMaxCost(job);
    if (stopReason !== null)
      return { to: 'cancelled', phase: stopReason, ran, set: { ...set, stopReason } };
    return { to: 'timed_out', phase: PHASES.timed_out, ran, set };
  }
  // No retry: the command has succeeded, and a retry would do its work twice.
  const failure = storeFailure ?? describeFailedChecks(checks);
  if (succeeded && failure !== null)
    return {
      to: 'failed',
      phase: toProgress(`failed: ${failure}`),
      ran,
      set: { ...set, exitCode: SYSTEM_FAILURE_EXIT_CODE },
    };
  if (succeeded) return { to: 'succeeded', phase: PHASES.succeeded, ran, set };
  if (job.retryCount >= job.retries) {
    const how = outcome.outOfMemory ? ': out of memory' : '';
    return { ...moveToFailed(exitCode, how), ran, set };
  }
  const delayS = Math.min(MAX_RETRY_DELAY_S, 2 ** job.retryCount);
  const retryCount = job.retryCount + 1;
  return {
    to: 'queued',
    phase: `waiting for retry ${retryCount} of ${job.retries}`,
    ran,
    set: { ...set, exitCode: null, retryCount, availableAt: new Date(Date.now() + delayS * 1000) },
  };
}

function moveToFailed(exitCode: number, how = ''): Move {
  return { to: 'failed', phase: `failed with exit code ${exitCode}${how}`, set: { exitCode } };
}

/**
 * Replaces the outcome of a held attempt: however the hold ended, the job has failed with the exit code of its command
 * (`record/failure-hold.ts`).
 */
export async function applyHold(
  { db }: Pick<Deps, 'db'>,
  { job }: Attempt,
  outcome: Outcome,
): Promise<Outcome> {
  if (!isHeldOnFailure(job) || outcome.kind !== 'exited') return outcome;
  const row = await db.job.findUnique({ where: { id: job.id }, select: { heldExitCode: true } });
  if (row?.heldExitCode == null) return outcome;
  const limit = describeMaxCost(job) === null ? 'timeout' : 'maximum cost';
  const note = outcome.timedOut ? `The hold ended at the ${limit} of the job.` : outcome.note;
  const held = { ...outcome, exitCode: row.heldExitCode, timedOut: false };
  return note === undefined ? held : { ...held, note };
}

function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Adds the exit code and artifacts to a cancelled job, whose status is already final. */
async function recordLateEnd(
  db: Db,
  jobId: string,
  outcome: Outcome,
  stored: CollectedArtifacts['stored'],
): Promise<void> {
  if (outcome.kind !== 'exited') return;
  await db.job.updateMany({
    where: { id: jobId, status: 'cancelled' },
    data: { exitCode: outcome.exitCode, ...stored },
  });
}

/** Records the exit code of a cancelled job before its remaining log and artifacts are stored. */
export function recordExitCode(
  { db }: Pick<Deps, 'db'>,
  { job }: Attempt,
  outcome: Outcome,
): Promise<void> {
  return recordLateEnd(db, job.id, outcome, undefined);
}

/**
 * Appends messages of the server to the log. A retry appends nothing: the cursor stores the last step whose messages were
 * appended.
 */
async function appendNotes(
  deps: Pick<Deps, 'db' | 'pool'>,
  attemptId: string,
  messages: readonly string[],
  step = 1,
): Promise<void> {
  if (messages.length === 0) return;
  const row = await deps.db.jobAttempt.findUnique({
    where: { id: attemptId },
    select: { jobId: true, logCursor: true, job: { select: { logUntil: true } } },
  });
  const from = (row?.logCursor ?? null) as LogCursor | null;
  if (!row || Number(from?.noted ?? 0) >= step) return;
  const lines = messages.map((message) => ({
    timestamp: new Date(),
    message: toStorable(message),
  }));
  const { jobId, job } = row;
  const newestTime = job.logUntil && endOfMillisecond(job.logUntil);
  const to = { ...from, noted: step };
  await appendLines(deps, { jobId, attemptId, lines, newestTime, from, to });
}

/** A job is queued again after this many lost attempts. After one more, it fails. */
const MAX_LOSSES = 3;

type LostAttempt = {
  attemptId: string;
  jobId: string;
  /** Why, for the job's user. */
  reason?: string | undefined;
  /** An operator has taken the attempt from its machine, which does not count as a loss. */
  isMove?: boolean | undefined;
};

/**
 * Ends an attempt whose machine was lost, and queues its job again without using a retry.
 * @returns whether the attempt was still open
 * @throws Error if the job stays locked for two seconds: the caller has other lost attempts to end
 */
export function endLostAttempt(
  { db }: Pick<Deps, 'db'>,
  { attemptId, jobId, reason, isMove = false }: LostAttempt,
): Promise<boolean> {
  return db.$transaction(async (tx) => {
    await tx.$executeRaw`set local lock_timeout = '2s'`;
    await moveJob(tx, jobId, (job) => {
      if (job.attemptId !== attemptId) return null;
      // The command has failed, and must not run again because its held sandbox was lost.
      if (job.heldExitCode !== null) return moveToFailed(job.heldExitCode);
      const lossCount = job.lossCount + (isMove ? 0 : 1);
      const set = { lossCount };
      const queued = `waiting for capacity: ${reason ?? 'the machine was lost'}`;
      if (lossCount <= MAX_LOSSES) return { to: 'queued', phase: toProgress(queued), set };
      const failed = `failed: its machine or its supervising process was lost ${lossCount} times`;
      const phase = reason === undefined ? failed : `${failed}, at last: ${reason}`;
      return { to: 'failed', phase: toProgress(phase), set };
    });
    // Needed even if the attempt no longer holds the job: followers of a cancelled job wait for this notification.
    await notifyReaders(tx, `job:${jobId}`);
    return markLost(tx, { attemptId, jobId });
  });
}

/** @returns whether the attempt was still open */
async function markLost(
  tx: Db,
  { attemptId, jobId }: { attemptId: string; jobId: string },
): Promise<boolean> {
  const { count } = await tx.jobAttempt.updateMany({
    where: { id: attemptId, endedAt: null },
    data: { endedAt: new Date(), outcome: 'lost' },
  });
  if (count > 0) await noteAttemptEnd(tx, jobId);
  return count > 0;
}

/**
 * Queues a job that has not started again, because its machine does not answer. This does not count as a loss: no jobs are
 * placed on a machine that does not answer, so the job cannot return to it again and again.
 * @returns whether the job was still waiting to start
 */
export function returnToQueue(
  { db }: Pick<Deps, 'db'>,
  { attemptId, jobId }: { attemptId: string; jobId: string },
): Promise<boolean> {
  return db.$transaction(async (tx) => {
    const moved = await moveJob(tx, jobId, (job) =>
      job.attemptId === attemptId && job.status === 'queued'
        ? { to: 'queued', phase: 'waiting for capacity: its machine does not answer' }
        : null,
    );
    if (!moved) return false;
    await markLost(tx, { attemptId, jobId });
    return true;
  });
}
