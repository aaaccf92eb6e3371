/**
 * Supervises one attempt, from the checkout to the last log line.
 *
 * The server can die at any step, so each step starts from stored state: called again for the same attempt, it finds the
 * stored handle, asks the runner for the state of the process, and continues from there.
 */

import { ServerUnavailable } from '../../cluster/cluster.ts';
import { DISK_FULL_MESSAGE, isDiskFull } from '../../platform/database/outage.ts';
import { StorageUnavailable } from '../../platform/storage/storage.ts';
import { inSpan, inTrace, type Span } from '../../platform/tracing/spans.ts';
import { type Handle, type LogCursor, type Outcome, RunnerAway } from '../../runners/runner.ts';
import { sampleUsage } from '../analytics.ts';
import { openAttemptLog } from '../logs/cap.ts';
import type { LogLine } from '../logs/pages.ts';
import { createMask, type Secrets } from '../secrets.ts';
import { commitMove, MAX_PROGRESS, PHASES, statusTopic } from '../state.ts';
import { type Attempt, type Deps, type Hold, readAttempt, readHold } from './attempt-row.ts';
import type { Claim } from './claim.ts';
import {
  type Collected,
  collectArtifacts,
  finishAttempt,
  killAndFail,
  recordExitCode,
} from './finish.ts';
import { prepare, unsealSecrets } from './prepare.ts';
import { retry } from './retry.ts';

const PROGRESS = /^::progress::(.*)$/s;

type Ids = Pick<Claim, 'attemptId' | 'jobId'>;

/**
 * Supervises an attempt until its end is recorded. The caller then removes the attempt from the runner.
 * @returns whether the attempt is over; false when `stopping` aborts first, and the process continues unsupervised
 * @throws the error of a failed step; the next call continues from that step
 */
export async function superviseAttempt(
  deps: Deps,
  { attemptId, jobId }: Ids,
  stopping: AbortSignal,
): Promise<boolean> {
  // Opened before the attempt is read, so that no later change is missed.
  await using watch = watchForEnd(deps, { attemptId, jobId }, stopping);
  const attempt = await readAttempt(deps, attemptId);
  if (!attempt) return true;
  const { job, number } = attempt;
  const isCancelled = job.status === 'cancelled';
  watch.update(job.attemptId === attemptId ? 'held' : isCancelled ? 'cancelled' : 'lost');
  const attributes = {
    'loam.job.id': job.id,
    'loam.attempt.id': attemptId,
    'loam.attempt.number': number,
    'loam.job.gpu': job.gpu,
    'loam.job.region': job.region,
  };
  return await inTrace('job attempt', attributes, (span) =>
    runAttempt(deps, attempt, watch, stopping, span),
  );
}

async function runAttempt(
  deps: Deps,
  attempt: Attempt,
  watch: Watch,
  stopping: AbortSignal,
  span: Span,
): Promise<boolean> {
  const secrets = unsealSecrets(deps, attempt);
  if (!secrets) {
    // Without its secrets its log cannot be masked, so no line of it may be stored.
    await killAndFail(
      deps,
      attempt,
      'The secrets of the job cannot be decrypted: the key that encrypted them is gone',
    );
    return true;
  }
  // A job that was reported as cancelled before its start must never start. Its machine may never answer, so do not wait.
  if (!attempt.startedAt && watch.ended.aborted && !stopping.aborted) {
    await finishAttempt(deps, attempt, { kind: 'lost' });
    return true;
  }
  const existing = await findPreparedHandle(deps, attempt);
  const prepared = existing
    ? { handle: existing }
    : await inSpan('prepare', {}, () => prepare(deps, attempt, secrets, watch.ended));
  if (stopping.aborted) return false;
  if ('outcome' in prepared) {
    span.setAttributes(spanAttributes(prepared.outcome));
    await finishAttempt(deps, attempt, prepared.outcome);
    return true;
  }
  const { handle } = prepared;
  const outcome = await inSpan('run', {}, () =>
    superviseRun(deps, attempt, handle, secrets, watch, stopping),
  );
  if (!outcome || stopping.aborted) return false;
  span.setAttributes(spanAttributes(outcome));
  if (attempt.job.outputPath !== null) {
    await markExited(deps, attempt, outcome);
    // The output stays in the attempt's folder until there is room to store it.
    await deps.space.untilFree(AbortSignal.any([watch.discarded, stopping]));
  }
  if (stopping.aborted) return false;
  const collected = await inSpan('collect', {}, () =>
    collectUnlessDiscarded(deps, attempt, handle, outcome, watch, stopping),
  );
  if (stopping.aborted) return false;
  await inSpan('finish', {}, () => finishAttempt(deps, attempt, outcome, collected));
  return true;
}

function spanAttributes(outcome: Outcome) {
  if (outcome.kind !== 'exited') return { 'loam.attempt.outcome': outcome.kind };
  const { exitCode, timedOut } = outcome;
  return {
    'loam.attempt.outcome': timedOut ? 'timed_out' : 'exited',
    'process.exit.code': exitCode,
  };
}

/** Storing artifacts may take hours, so it stops when the job is deleted with its artifacts, or the server stops. */
async function collectUnlessDiscarded(
  deps: Deps,
  attempt: Attempt,
  handle: Handle,
  outcome: Outcome,
  watch: Watch,
  stopping: AbortSignal,
): Promise<Collected> {
  const signal = AbortSignal.any([watch.discarded, stopping]);
  if (signal.aborted) return {};
  try {
    return await collectArtifacts(deps, attempt, handle, outcome, signal);
  } catch (error) {
    if (signal.aborted) return {};
    throw error;
  }
}

/** Ends an attempt that failed too often: kills its process and fails its job. */
export async function failAttempt(deps: Deps, attemptId: string, error: unknown): Promise<void> {
  const attempt = await readAttempt(deps, attemptId);
  const reason = isDiskFull(error)
    ? DISK_FULL_MESSAGE
    : error instanceof StorageUnavailable
      ? 'The storage for artifacts could not be reached'
      : error instanceof ServerUnavailable
        ? 'The repository could not be cloned: no server that has it could be reached'
        : 'The server repeatedly failed to supervise this attempt; see the log of the server';
  if (attempt) await killAndFail(deps, attempt, reason);
}

/** @returns the stored handle; null if the attempt must be prepared (again), because it never started and is not prepared */
async function findPreparedHandle({ runner }: Deps, attempt: Attempt): Promise<Handle | null> {
  const handle = attempt.handle as Handle | null;
  if (!handle || attempt.startedAt) return handle;
  return (await runner.attach(handle)) === 'unprepared' ? null : handle;
}

/** Starts the process unless it runs already, and supervises it until its log has ended. */
async function superviseRun(
  deps: Deps,
  attempt: Attempt,
  handle: Handle,
  secrets: Secrets,
  watch: Watch,
  stopping: AbortSignal,
): Promise<Outcome | null> {
  const { runner } = deps;
  let recording: Promise<boolean> | undefined;
  const recordStart = () => {
    recording ??= markRunning(deps, attempt, handle);
    return recording;
  };
  if (!(await startProcess(deps, attempt, handle, watch, recordStart))) return { kind: 'lost' };
  const finished = new AbortController();
  const sampling = sampleUsage(
    deps,
    { jobId: attempt.job.id, attemptId: attempt.id },
    handle,
    AbortSignal.any([finished.signal, stopping]),
  );
  const failed = new AbortController();
  const signal = AbortSignal.any([stopping, failed.signal]);
  const stopOnFailure = <T>(work: Promise<T>) =>
    work.catch((error) => {
      failed.abort();
      throw error;
    });
  // No log line is stored before the job is recorded as running.
  const running = stopOnFailure(
    recordStart().then(() => {
      // Only a started process can be signalled.
      watch.setHandle(handle);
    }),
  );
  const unreachable = new AbortController();
  const waiting = runner.wait(handle, signal).then((outcome) => {
    if (outcome.kind === 'lost' && outcome.unreachable) unreachable.abort();
    return outcome;
  });
  // Recorded apart from the log: the last lines of the log may wait for disk space, and the exit code need not.
  const recordingExit = waiting.then((outcome) => {
    if (watch.ended.aborted && !stopping.aborted) return recordExitCode(deps, attempt, outcome);
  });
  const reading = AbortSignal.any([signal, unreachable.signal]);
  // All must settle, so that no work for this attempt continues after the return.
  const [started, ended, copied, recorded] = await Promise.allSettled([
    running,
    waiting,
    stopOnFailure(copyLog(deps, attempt, { handle, secrets, running }, reading)),
    recordingExit,
  ]);
  finished.abort();
  await sampling;
  if (stopping.aborted) return null;
  if (started.status === 'rejected') throw started.reason;
  if (copied.status === 'rejected') throw copied.reason;
  if (ended.status === 'rejected') throw ended.reason;
  if (recorded.status === 'rejected') throw recorded.reason;
  return ended.value;
}

/**
 * Starts the process unless it runs already.
 * @param recordStart called by the runner before the start, which is refused if it returns false: a job that was reported as
 *   cancelled before its start must never start
 * @returns false if the attempt is lost, or may not start any more
 */
async function startProcess(
  { runner }: Deps,
  attempt: Attempt,
  handle: Handle,
  watch: Watch,
  recordStart: () => Promise<boolean>,
): Promise<boolean> {
  const state = await runner.attach(handle);
  if (state === 'gone') return false;
  // It vanished since the last check. Or it is recorded as started, but a power failure undid the runner's start record.
  if (state === 'unprepared') {
    if (attempt.startedAt) return false;
    throw new RunnerAway('the prepared attempt is gone');
  }
  if (state !== 'prepared') return true;
  return !watch.ended.aborted && (await runner.start(handle, recordStart));
}

/** Records the start and the handle, by which the process is found again. @returns whether it may start: it holds the job */
async function markRunning(
  { pool, runner }: Deps,
  { id, job }: Attempt,
  handle: Handle,
): Promise<boolean> {
  let isOurs = false;
  const started = { handle, runner: String(handle.runner ?? runner.name) };
  await commitMove(pool, job.id, (locked, now) => {
    isOurs = locked.attemptId === id;
    if (!isOurs || locked.status !== 'queued') return null;
    const set = { startedAt: locked.startedAt ?? now };
    return { to: 'running', phase: PHASES.running, attempt: { id, startedAt: now, started }, set };
  });
  return isOurs;
}

/**
 * Records the end of the process. Storing the artifacts may take hours, in which no process runs: that time costs nothing, and
 * a cancellation has nothing to signal.
 */
async function markExited({ pool }: Deps, { id, job }: Attempt, outcome: Outcome): Promise<void> {
  if (outcome.kind !== 'exited') return;
  const { startedAt, endedAt: at, exitCode } = outcome;
  await commitMove(pool, job.id, (locked) => {
    if (locked.attemptId !== id || locked.status !== 'running') return null;
    const attempt = { id, startedAt, exited: { at, exitCode } };
    return { to: 'running', phase: PHASES.storing, attempt };
  });
}

type Watch = AsyncDisposable & {
  /** Aborts when the attempt no longer holds its job, and when the server stops. */
  ended: AbortSignal;
  /** Aborts when the job is deleted together with its artifacts. */
  discarded: AbortSignal;
  update(hold: Hold): void;
  /** From now on there is a process to signal. */
  setHandle(handle: Handle): void;
};

/**
 * Watches whether the attempt still holds its job. When the job is cancelled, its process gets SIGTERM; when the attempt was
 * taken for lost or the job is discarded, SIGKILL. A check that fails because the database is unavailable or the signal was
 * not sent is retried.
 */
function watchForEnd(deps: Deps, { attemptId, jobId }: Ids, stopping: AbortSignal): Watch {
  const { bus, runner, log } = deps;
  const topic = statusTopic(jobId);
  const ended = new AbortController();
  const discarded = new AbortController();
  const closing = new AbortController();
  const signal = AbortSignal.any([closing.signal, stopping]);
  let handle: Handle | undefined;
  let verdict: 'TERM' | 'KILL' | undefined;
  let sent: typeof verdict;

  function update(hold: Hold): void {
    if (hold === 'held') return;
    // A job that was cancelled and then deleted keeps the rest of its grace period to write its artifacts.
    verdict = hold === 'cancelled' || hold === 'deleted' ? 'TERM' : 'KILL';
    if (hold === 'discarded') discarded.abort();
    ended.abort();
  }

  async function check(): Promise<void> {
    update(await readHold(deps, { attemptId, jobId }));
    if (!handle || !verdict || sent === verdict) return;
    await runner.signal(handle, verdict);
    sent = verdict;
  }

  const watching = (async () => {
    // The first wake needs no check: the caller reads the attempt and calls `update`.
    for await (const why of bus.wakes(topic, signal))
      if (why !== 'start') await retry(`Watching job ${jobId}`, check, { bus, log, signal });
  })();
  return {
    ended: AbortSignal.any([ended.signal, stopping]),
    discarded: discarded.signal,
    update,
    setHandle(started) {
      handle = started;
      if (verdict) bus.notify(topic);
    },
    async [Symbol.asyncDispose]() {
      closing.abort();
      await watching;
    },
  };
}

/** Copies the runner's log into the journal until it ends. `running` settles when the job is recorded as running. */
async function copyLog(
  deps: Deps,
  attempt: Attempt,
  { handle, secrets, running }: { handle: Handle; secrets: Secrets; running: Promise<void> },
  stopping: AbortSignal,
): Promise<void> {
  const mask = createMask(secrets);
  const from = attempt.logCursor as LogCursor | null;
  const log = openAttemptLog(deps, { job: attempt.job, attemptId: attempt.id, from });
  for await (const { lines, cursor } of deps.runner.logs(handle, from, stopping)) {
    const shown: LogLine[] = [];
    let progress: string | undefined;
    for (const { message, stream, timestamp } of lines) {
      // PostgreSQL's text type cannot store NUL.
      const text = mask(message.replaceAll('\0', '\uFFFD'));
      const said = stream === 'stdout' ? PROGRESS.exec(text)?.[1] : undefined;
      if (said === undefined) shown.push({ timestamp, message: text });
      else progress = said.trim().slice(0, MAX_PROGRESS).toWellFormed();
    }
    await running;
    // The runner keeps the log meanwhile; storing it here needs disk space.
    await deps.space.untilFree(stopping);
    // False when the job was deleted, or another worker stores this log.
    if (!(await log.append({ lines: shown, to: cursor, progress }))) return;
    deps.metrics.logLinesStored(shown.length);
  }
}
