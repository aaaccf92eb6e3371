/**
 * Supervises one attempt, from the checkout to the last log line.
 *
 * The server can be killed at any step, so each step starts from stored state: a second call for the same attempt reads the
 * stored handle, asks the runner for the state of the process, and continues from there.
 */

import { ServerUnavailable } from '../../cluster/cluster.ts';
import { DISK_FULL_MESSAGE, isDiskFull } from '../../platform/database/outage.ts';
import { StorageUnavailable } from '../../platform/storage/storage.ts';
import { inSpan, inTrace, type Span } from '../../platform/tracing/spans.ts';
import {
  AttemptLost,
  type Handle,
  type LogCursor,
  type Outcome,
  RunnerUnavailable,
  Unstartable,
} from '../../runners/runner.ts';
import type { JobValues } from '../../secrets/secrets.ts';
import { createAttemptLogWriter } from '../logs/cap.ts';
import { createMask } from '../logs/mask.ts';
import type { LogLine } from '../logs/pages.ts';
import type { Secrets } from '../secrets.ts';
import { commitMove, PHASES, statusTopic, toProgress } from '../state.ts';
import { sampleUsageUntilAborted } from '../usage-sampling.ts';
import { type Attempt, type Deps, type Hold, readAttempt, readHold } from './attempt-row.ts';
import type { ClaimedAttempt } from './claim.ts';
import {
  type CollectedArtifacts,
  collectArtifacts,
  finishAttempt,
  killAndFail,
  recordExitCode,
} from './finish.ts';
import { maskIdTokens, refreshIdTokens } from './id-tokens.ts';
import { prepare } from './prepare.ts';
import { createProgressReporter, type ProgressReporter } from './progress-reporter.ts';
import { retry } from './retry.ts';
import { readAttemptValues } from './values.ts';

/** A line by which a program sets the `progress` of its job. */
const PROGRESS = /^::progress::(.*)$/s;

type AttemptIds = Pick<ClaimedAttempt, 'attemptId' | 'jobId'>;

/**
 * Supervises an attempt until its end is recorded. The caller then removes the attempt from the runner.
 * @returns whether the attempt has ended; false when `stopping` aborts first, and the process continues unsupervised
 * @throws the error of a failed step; the next call continues from that step
 */
export async function superviseAttempt(
  deps: Deps,
  { attemptId, jobId }: AttemptIds,
  stopping: AbortSignal,
): Promise<boolean> {
  // Started before the attempt is read, so that no later change is missed.
  await using watch = watchHold(deps, { attemptId, jobId }, stopping);
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
  watch: HoldWatch,
  stopping: AbortSignal,
  span: Span,
): Promise<boolean> {
  // A job that was reported as cancelled before its start must never start. Its machine may never answer, so it is not asked.
  if (!attempt.startedAt && watch.ended.aborted && !stopping.aborted) {
    await finishAttempt(deps, attempt, { kind: 'lost' });
    return true;
  }
  const values = await readAttemptValues(deps, attempt);
  if ('problem' in values) {
    // Without the secrets the log cannot be masked, so no line may be stored.
    await killAndFail(deps, attempt, values.problem);
    return true;
  }
  await using refreshing = new AsyncDisposableStack();
  const begun = await beginAttempt(deps, attempt, values, watch, (handle) =>
    refreshing.use(refreshIdTokens(deps, attempt, handle, stopping)),
  );
  if (stopping.aborted) return false;
  if ('outcome' in begun) {
    span.setAttributes(spanAttributes(begun.outcome));
    await finishAttempt(deps, attempt, begun.outcome);
    return true;
  }
  const { handle } = begun;
  const outcome = await inSpan('run', {}, () =>
    superviseRun(deps, attempt, begun, values.secrets, watch, stopping),
  );
  await refreshing.disposeAsync();
  if (!outcome || stopping.aborted) return false;
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
  const final: Outcome = collected.areLost ? { kind: 'lost' } : outcome;
  span.setAttributes(spanAttributes(final));
  await inSpan('finish', {}, () => finishAttempt(deps, attempt, final, collected));
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
  watch: HoldWatch,
  stopping: AbortSignal,
): Promise<CollectedArtifacts> {
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

/** @returns the stored handle; null if the attempt has not started and is not prepared, so that it must be prepared */
async function findPreparedHandle({ runner }: Deps, attempt: Attempt): Promise<Handle | null> {
  const handle = attempt.handle as Handle | null;
  if (!handle || attempt.startedAt) return handle;
  return (await runner.attach(handle)) === 'unprepared' ? null : handle;
}

/** A started attempt. `isRecorded`: this process has recorded the start. */
type BegunAttempt = { handle: Handle; isRecorded: boolean };

/**
 * Prepares the attempt and starts it, unless that has been done.
 * @param onPrepared called before the start, which may take hours in a cluster
 * @returns its outcome if it cannot start
 */
async function beginAttempt(
  deps: Deps,
  attempt: Attempt,
  values: JobValues,
  watch: HoldWatch,
  onPrepared: (handle: Handle) => void,
): Promise<BegunAttempt | { outcome: Outcome }> {
  await using progress = createProgressReporter(deps, attempt);
  const existing = await findPreparedHandle(deps, attempt);
  const prepared = existing
    ? { handle: existing }
    : await inSpan('prepare', {}, () => prepare(deps, attempt, values, progress, watch.ended));
  if ('outcome' in prepared) return prepared;
  const { handle } = prepared;
  onPrepared(handle);
  return inSpan('start', {}, () => startProcess(deps, attempt, handle, watch, progress));
}

/**
 * Starts the process unless it runs already. In a cluster it may wait for hours, until the attempt no longer holds its job or
 * the server stops.
 */
async function startProcess(
  deps: Deps,
  attempt: Attempt,
  prepared: Handle,
  watch: HoldWatch,
  { report }: ProgressReporter,
): Promise<BegunAttempt | { outcome: Outcome }> {
  const { runner } = deps;
  const state = await runner.attach(prepared);
  if (state === 'gone') return { outcome: { kind: 'lost' } };
  // The prepared attempt disappeared after the last check; or, if it is recorded as started, a power failure undid the
  // runner's own record of the start.
  if (state === 'unprepared') {
    if (attempt.startedAt) return { outcome: { kind: 'lost' } };
    throw new RunnerUnavailable('the prepared attempt does not exist any more');
  }
  const begun = { handle: prepared, isRecorded: false };
  if (state !== 'prepared') return begun;
  if (watch.ended.aborted) return { outcome: { kind: 'lost' } };
  // A job that was reported as cancelled before its start must never start, so the runner asks immediately before the start.
  const mayBegin = async (handle = prepared) => {
    begun.handle = handle;
    begun.isRecorded = await markRunning(deps, attempt, handle);
    return begun.isRecorded;
  };
  try {
    const hasStarted = await runner.start(prepared, mayBegin, { report, signal: watch.ended });
    return hasStarted ? begun : { outcome: { kind: 'lost' } };
  } catch (error) {
    if (error instanceof AttemptLost) return { outcome: { kind: 'lost', reason: error.message } };
    if (!(error instanceof Unstartable)) throw error;
    return { outcome: { kind: 'unstartable', reason: error.message } };
  }
}

/** Supervises a started process until its log has ended. @returns null when the server stops first */
async function superviseRun(
  deps: Deps,
  attempt: Attempt,
  { handle, isRecorded }: BegunAttempt,
  secrets: Secrets,
  watch: HoldWatch,
  stopping: AbortSignal,
): Promise<Outcome | null> {
  const { runner } = deps;
  const finished = new AbortController();
  const { gpu, gpuCount, idleTimeoutMinutes } = attempt.job;
  const sampling = sampleUsageUntilAborted(
    deps,
    {
      jobId: attempt.job.id,
      attemptId: attempt.id,
      gpuCount,
      idleTimeoutMinutes: gpu === 'none' ? null : idleTimeoutMinutes,
    },
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
  const recording = isRecorded ? Promise.resolve(true) : markRunning(deps, attempt, handle);
  const running = stopOnFailure(
    recording.then(() => {
      // Only a started process can be signalled.
      watch.setHandle(handle);
    }),
  );
  const unreachable = new AbortController();
  const waiting = runner.wait(handle, signal).then((outcome) => {
    if (outcome.kind === 'lost' && outcome.unreachable) unreachable.abort();
    return outcome;
  });
  // Recorded separately, because the last lines of the log may have to wait for disk space.
  const recordingExit = waiting.then((outcome) => {
    if (watch.ended.aborted && !stopping.aborted) return recordExitCode(deps, attempt, outcome);
  });
  const reading = AbortSignal.any([signal, unreachable.signal]);
  // Waits until all have settled, so that no work for this attempt continues after the return.
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
 * Records the start, and the handle with which the process is found again.
 * @returns whether the process may start, because the attempt holds the job
 */
async function markRunning(
  { pool, runner }: Deps,
  { id, job }: Attempt,
  handle: Handle,
): Promise<boolean> {
  let holdsJob = false;
  const started = { handle, runner: String(handle.runner ?? runner.name) };
  await commitMove(pool, job.id, (locked, now) => {
    holdsJob = locked.attemptId === id;
    if (!holdsJob || locked.status !== 'queued') return null;
    const set = { startedAt: locked.startedAt ?? now };
    return { to: 'running', phase: PHASES.running, attempt: { id, startedAt: now, started }, set };
  });
  return holdsJob;
}

/**
 * Records the end of the process before its artifacts are stored. Storing them may take hours. That time is not billed, and a
 * cancellation has no process to signal.
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

type HoldWatch = AsyncDisposable & {
  /** Aborts when the attempt no longer holds its job, and when the server stops. */
  ended: AbortSignal;
  /** Aborts when the job is deleted together with its artifacts. */
  discarded: AbortSignal;
  update(hold: Hold): void;
  /** Tells the watch that there is a process to signal. */
  setHandle(handle: Handle): void;
};

/**
 * Watches whether the attempt still holds its job. When the job is cancelled, or deleted with its artifacts kept, its process
 * gets SIGTERM; when the attempt was taken for lost or the job was discarded, SIGKILL. A check is retried if it fails because
 * the database is unavailable or the signal could not be sent.
 */
function watchHold(deps: Deps, { attemptId, jobId }: AttemptIds, stopping: AbortSignal): HoldWatch {
  const { bus, runner, log } = deps;
  const topic = statusTopic(jobId);
  const ended = new AbortController();
  const discarded = new AbortController();
  const closing = new AbortController();
  const signal = AbortSignal.any([closing.signal, stopping]);
  let handle: Handle | undefined;
  let signalToSend: 'TERM' | 'KILL' | undefined;
  let sentSignal: typeof signalToSend;

  function update(hold: Hold): void {
    if (hold === 'held') return;
    // A job that was cancelled and then deleted keeps the rest of its grace period to write its artifacts.
    signalToSend = hold === 'cancelled' || hold === 'deleted' ? 'TERM' : 'KILL';
    if (hold === 'discarded') discarded.abort();
    ended.abort();
  }

  async function check(): Promise<void> {
    update(await readHold(deps, { attemptId, jobId }));
    if (!handle || !signalToSend || sentSignal === signalToSend) return;
    await runner.signal(handle, signalToSend);
    sentSignal = signalToSend;
  }

  const watching = (async () => {
    // The first wake needs no check: the caller reads the attempt and calls `update`.
    for await (const reason of bus.wakes(topic, signal))
      if (reason !== 'start') await retry(`Watching job ${jobId}`, check, { bus, log, signal });
  })();
  return {
    ended: AbortSignal.any([ended.signal, stopping]),
    discarded: discarded.signal,
    update,
    setHandle(started) {
      handle = started;
      if (signalToSend) bus.notify(topic);
    },
    async [Symbol.asyncDispose]() {
      closing.abort();
      await watching;
    },
  };
}

/** Masks the secrets of the job, and the tokens that prove its identity. */
function createAttemptMask(
  { jobTokens }: Deps,
  { id, job }: Attempt,
  secrets: Secrets,
): (text: string) => string {
  if (job.identity === null) return createMask(secrets);
  const mask = createMask({ ...secrets, LOAM_TOKEN: jobTokens.codeOf(id) });
  // Identity tokens first: they could contain the encoded form of a short secret.
  return (text) => mask(maskIdTokens(text));
}

/** Copies the runner's log into the journal until it ends. `running` settles when the job is recorded as running. */
async function copyLog(
  deps: Deps,
  attempt: Attempt,
  { handle, secrets, running }: { handle: Handle; secrets: Secrets; running: Promise<void> },
  stopping: AbortSignal,
): Promise<void> {
  const mask = createAttemptMask(deps, attempt, secrets);
  const from = attempt.logCursor as LogCursor | null;
  const writer = createAttemptLogWriter(deps, { job: attempt.job, attemptId: attempt.id, from });
  for await (const { lines, cursor } of deps.runner.logs(handle, from, stopping)) {
    const shown: LogLine[] = [];
    let progress: string | undefined;
    for (const { message, stream, timestamp } of lines) {
      // PostgreSQL's text type cannot store NUL.
      const text = mask(message.replaceAll('\0', '\uFFFD'));
      const printed = stream === 'stdout' ? PROGRESS.exec(text)?.[1] : undefined;
      if (printed === undefined) shown.push({ timestamp, message: text });
      else progress = toProgress(printed.trim());
    }
    await running;
    // Storing lines needs disk space. Until there is enough, the runner keeps the log.
    await deps.space.untilFree(stopping);
    // False if the job was deleted, or another worker stores this log.
    if (!(await writer.append({ lines: shown, to: cursor, progress }))) return;
    deps.metrics.logLinesStored(shown.length);
  }
}
