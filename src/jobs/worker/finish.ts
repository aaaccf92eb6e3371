/** What comes after the end: the artifacts, and where the job goes from there. */

import { posix } from 'node:path';
import type { Prisma } from '../../../prisma/generated/client.ts';
import { AppError } from '../../base/errors.ts';
import {
  DISK_FULL_MESSAGE,
  isDatabaseAway,
  isDiskFull,
  isResourceExhausted,
} from '../../platform/database/outage.ts';
import { endOfMillisecond } from '../../platform/database/times.ts';
import { wake } from '../../platform/events/outbox.ts';
import { demandRoom } from '../../platform/limits/quotas.ts';
import type { AttemptOutcome } from '../../platform/metrics/metrics.ts';
import { StorageAway } from '../../platform/storage/storage.ts';
import {
  type Handle,
  type LogCursor,
  MAX_OUTPUT_ENTRIES,
  type Outcome,
  TooLarge,
  WORKING_DIR,
} from '../../runners/runner.ts';
import { keepLate } from '../artifacts/kept.ts';
import { removeArtifacts, removeOtherArtifacts, storeArtifacts } from '../artifacts/store.ts';
import { appendLines } from '../logs/append.ts';
import { foldAtEnd } from '../logs/fold.ts';
import { ranUntil, secondsBetween } from '../runtime.ts';
import { commitMove, type LockedJob, MAX_PROGRESS, type Move, moveJob, PHASES } from '../state.ts';
import type { Attempt, Deps } from './attempt-row.ts';

/** Of a job that failed, and not by its command: it could not be started, or what it made could not be kept. */
const NOT_ITS_OWN = 125;
const MAX_PAUSE_S = 60;

/**
 * Takes what stands at `output_path`, however the attempt ended.
 * @throws what passes by itself but for a full disk, and the reason of `signal` when it aborts
 */
export async function collect(
  deps: Deps,
  { id, job }: Attempt,
  handle: Handle,
  outcome: Outcome,
  signal: AbortSignal,
): Promise<Collected> {
  if (job.outputPath === null || outcome.kind !== 'exited') return {};
  const owner = { id: job.namespaceId, plan: job.namespace.plan };
  try {
    const tar = await deps.runner.artifacts(handle, job.outputPath);
    if (!tar) return {};
    const key = { namespaceId: job.namespaceId, jobId: job.id, attemptId: id };
    const { files, sizeBytes, leftOut } = await storeArtifacts(deps, key, tar, {
      folder: posix.resolve(WORKING_DIR, job.outputPath),
      maxBytes: job.diskGb * 2 ** 30,
      maxEntries: MAX_OUTPUT_ENTRIES,
      async demandRoom(size) {
        // The floor is there for the database, which ends itself on a full disk.
        if (deps.space.low) throw Object.assign(new Error(DISK_FULL_MESSAGE), { code: 'ENOSPC' });
        await demandRoom(deps, owner, 'storageBytes', size);
      },
      signal,
    });
    const stored = { artifactFiles: files, artifactBytes: BigInt(sizeBytes), artifactsOf: id };
    return leftOut > 0 ? { stored, note: tellLeftOut(leftOut) } : { stored };
  } catch (error) {
    const full = isDiskFull(error);
    const passes = isDatabaseAway(error) || error instanceof StorageAway;
    if (signal.aborted || passes || (isResourceExhausted(error) && !full)) throw error;
    const expected = error instanceof TooLarge || error instanceof AppError;
    if (!expected) deps.log.error({ err: error, job: job.id }, 'artifacts were not stored');
    const why = expected
      ? error.message
      : full
        ? 'the disk of the server is full'
        : 'the server failed to store them';
    return { notKept: `the artifacts were not kept: ${why}` };
  }
}

function tellLeftOut(count: number): string {
  const what = count === 1 ? '1 entry was' : `${count} entries were`;
  return `${what} left out of the artifacts: links that lead outside, devices, FIFOs, sockets, or what cannot be read`;
}

export type Collected = {
  stored?: { artifactFiles: number; artifactBytes: bigint; artifactsOf: string };
  /** A last line for the log. */
  note?: string;
  /** Why nothing was stored of what is there; the job has failed then, whatever its command says. */
  notKept?: string;
};

/** Ends the attempt and moves its job on, if the job is still its. */
export async function finish(
  deps: Deps,
  attempt: Attempt,
  outcome: Outcome,
  collected: Collected = {},
): Promise<void> {
  const { id, job } = attempt;
  const { stored, note, notKept } = collected;
  const why = outcome.kind === 'unstartable' ? outcome.reason : undefined;
  const notes = [
    outcome.kind === 'exited' ? outcome.note : why,
    note,
    notKept && sentence(notKept),
  ];
  await addLines(
    deps,
    id,
    notes.filter((line) => line !== undefined),
  );
  const moved = await recordEnd(deps, attempt, outcome, collected);
  deps.metrics.attemptEnded(endOf(outcome, moved !== null));
  await foldAtEnd(deps, job.id, moved?.nextSeq);
  if (!stored && moved) return;
  const deleted = !moved && (await deps.db.job.count({ where: { id: job.id } })) === 0;
  const kept = !deleted || (await keepLate(deps, job.id, stored ?? null));
  if (!stored) return;
  const key = { namespaceId: job.namespaceId, jobId: job.id };
  const removing = kept
    ? removeOtherArtifacts(deps, { ...key, attemptId: stored.artifactsOf })
    : removeArtifacts(deps, key);
  // What stays goes with the job.
  await removing.catch((error) =>
    deps.log.error({ err: error, job: job.id }, 'artifacts that do not count were not removed'),
  );
}

/** @returns the job as it was, if it was still the attempt's, and is moved on; that of a lost one is not said to be */
async function recordEnd(
  { db, pool }: Deps,
  { id, job, startedAt, exitedAt }: Attempt,
  outcome: Outcome,
  collected: Collected,
): Promise<LockedJob | null> {
  if (outcome.kind === 'lost') {
    await loseAttempt({ db }, { attemptId: id, jobId: job.id });
    return null;
  }
  const exited = outcome.kind === 'exited' ? outcome : null;
  const ended = {
    at: exited?.endedAt ?? exitedAt ?? new Date(),
    outcome: outcome.kind,
    exitCode: exited?.exitCode ?? NOT_ITS_OWN,
  };
  const begun = exited && startedAt ? { startedAt: exited.startedAt } : {};
  const attempt = { id, ...begun, ended };
  // One that is given up when its artifacts cannot be stored has run all the same.
  const ran = exitedAt ? ranUntil({ startedAt, exitedAt }, exitedAt) : undefined;
  const before = await commitMove(pool, job.id, (locked) =>
    locked.attemptId === id ? { ran, ...nextMove(locked, outcome, collected), attempt } : null,
  );
  if (before) return before;
  // An attempt that does not hold its job any more never will again.
  await db.$transaction(async (tx) => {
    await recordLateEnd(tx, job.id, outcome, collected.stored);
    const { at: endedAt, ...how } = ended;
    await tx.jobAttempt.updateMany({ where: { id }, data: { ...begun, endedAt, ...how } });
    // A follower of a cancelled job waits for this, and nothing else wakes it.
    await wake(tx, `job:${job.id}`);
  });
  return null;
}

/** A command that goes on without what the kernel has killed has not done its work (decisions, section 4). */
function hasSucceeded({ exitCode, outOfMemory }: Extract<Outcome, { kind: 'exited' }>): boolean {
  return exitCode === 0 && !outOfMemory;
}

/** `moved`: whether the job was still the attempt's. */
function endOf(outcome: Outcome, moved: boolean): AttemptOutcome {
  if (outcome.kind === 'lost') return 'lost';
  if (!moved) return 'cancelled';
  if (outcome.kind === 'unstartable') return 'unstartable';
  if (outcome.timedOut) return 'timed_out';
  return hasSucceeded(outcome) ? 'succeeded' : 'failed';
}

/** Ends an attempt that cannot be gone on with, and its process if it has one. */
export async function abandon(deps: Deps, attempt: Attempt, reason: string): Promise<void> {
  const { runner, log } = deps;
  // Removing what the runner made for it, which comes next, ends it too, and is repeated until it succeeds.
  if (attempt.handle)
    await runner
      .signal(attempt.handle as Handle, 'KILL')
      .catch((error) => log.error({ err: error, job: attempt.job.id }, 'no signal was sent'));
  await finish(deps, attempt, { kind: 'unstartable', reason });
}

function nextMove(
  job: LockedJob,
  outcome: Exclude<Outcome, { kind: 'lost' }>,
  { stored, notKept }: Collected,
): Move {
  if (outcome.kind === 'unstartable')
    return {
      to: 'failed',
      phase: `failed: ${outcome.reason}`.slice(0, MAX_PROGRESS),
      set: { exitCode: NOT_ITS_OWN },
    };
  const { exitCode, timedOut, startedAt, endedAt } = outcome;
  const succeeded = hasSucceeded(outcome);
  const ran = { from: startedAt, seconds: secondsBetween(startedAt, endedAt) };
  const set = { exitCode, ...stored };
  if (timedOut) return { to: 'timed_out', phase: PHASES.timed_out, ran, set };
  // Not tried again: the command has done its work, and would do it twice.
  if (succeeded && notKept !== undefined)
    return {
      to: 'failed',
      phase: `failed: ${notKept}`.slice(0, MAX_PROGRESS),
      ran,
      set: { ...set, exitCode: NOT_ITS_OWN },
    };
  if (succeeded) return { to: 'succeeded', phase: PHASES.succeeded, ran, set };
  if (job.retryCount >= job.retries) {
    const how = outcome.outOfMemory ? ': out of memory' : '';
    return { to: 'failed', phase: `failed with exit code ${exitCode}${how}`, ran, set };
  }
  const pause = Math.min(MAX_PAUSE_S, 2 ** job.retryCount);
  const retryCount = job.retryCount + 1;
  return {
    to: 'queued',
    phase: `waiting to try again (retry ${retryCount} of ${job.retries})`,
    ran,
    set: { ...set, exitCode: null, retryCount, availableAt: new Date(Date.now() + pause * 1000) },
  };
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A job that was cancelled has ended in the meantime: how, and what it left, is kept all the same. */
async function recordLateEnd(
  db: Prisma.TransactionClient,
  jobId: string,
  outcome: Outcome,
  stored: Collected['stored'],
): Promise<void> {
  if (outcome.kind !== 'exited') return;
  await db.job.updateMany({
    where: { id: jobId, status: 'cancelled' },
    data: { exitCode: outcome.exitCode, ...stored },
  });
}

/** Of a job that was cancelled, before its log and what it left are stored. */
export function recordExitCode(
  { db }: Pick<Deps, 'db'>,
  { job }: Attempt,
  outcome: Outcome,
): Promise<void> {
  return recordLateEnd(db, job.id, outcome, undefined);
}

/** Lines of our own at the end of an attempt's log; once, however often the end is recorded. */
async function addLines(
  deps: Pick<Deps, 'db' | 'pool'>,
  attemptId: string,
  messages: readonly string[],
): Promise<void> {
  if (messages.length === 0) return;
  const row = await deps.db.jobAttempt.findUnique({
    where: { id: attemptId },
    select: { jobId: true, logCursor: true, job: { select: { logUntil: true } } },
  });
  const from = (row?.logCursor ?? null) as LogCursor | null;
  if (!row || from?.noted) return;
  const lines = messages.map((message) => ({ timestamp: new Date(), message }));
  const { jobId, job } = row;
  const after = job.logUntil && endOfMillisecond(job.logUntil);
  await appendLines(deps, { jobId, attemptId, lines, after, from, to: { ...from, noted: 1 } });
}

/** Losses beyond this fail the job (decisions section 4). */
const MAX_LOSSES = 3;

/**
 * Ends an attempt whose machine is gone; its job is queued again, without using a retry.
 * @returns whether it had not ended @throws Error where somebody holds the job for long, since other lost ones wait meanwhile
 */
export function loseAttempt(
  { db }: Pick<Deps, 'db'>,
  { attemptId, jobId }: { attemptId: string; jobId: string },
): Promise<boolean> {
  return db.$transaction(async (tx) => {
    await tx.$executeRaw`set local lock_timeout = '2s'`;
    await moveJob(tx, jobId, (job) => {
      if (job.attemptId !== attemptId) return null;
      const lossCount = job.lossCount + 1;
      const set = { lossCount };
      if (lossCount <= MAX_LOSSES)
        return { to: 'queued', phase: 'waiting for capacity: the machine was lost', set };
      return { to: 'failed', phase: `failed: the machine was lost ${lossCount} times`, set };
    });
    // Also where the job is not the attempt's any more: a follower of a cancelled one waits for this.
    await wake(tx, `job:${jobId}`);
    return endAsLost(tx, attemptId);
  });
}

/** @returns whether it had not ended */
async function endAsLost(tx: Prisma.TransactionClient, attemptId: string): Promise<boolean> {
  const { count } = await tx.jobAttempt.updateMany({
    where: { id: attemptId, endedAt: null },
    data: { endedAt: new Date(), outcome: 'lost' },
  });
  return count > 0;
}

/**
 * Gives back a job that has not begun, because what it was to run on does not answer. That is no loss: such a machine is
 * offered no jobs, so it cannot take the same one again and again. @returns whether it had not begun
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
    await endAsLost(tx, attemptId);
    return true;
  });
}
