/**
 * Supervises one attempt, from the checkout to the last log line.
 *
 * The server can be killed at any step, so each step starts from stored state: a second call for the same attempt reads the
 * stored handle, asks the runner for the state of the process, and continues from there.
 */

import { isDatabaseUnavailable } from '../../platform/database/outage.ts';
import { inSpan, inTrace } from '../../platform/tracing/spans.ts';
import type { JobValues } from '../../repositories/secrets/secrets.ts';
import {
  ArtifactsLost,
  ArtifactsNotKept,
  AttemptLost,
  type Handle,
  type LogCursor,
  type Outcome,
  RESULT_FILES,
  RunnerUnavailable,
  Unstartable,
} from '../../runners/runner.ts';
import { readCaches } from '../caches/request.ts';
import { storeCheckpoint, storeCheckpointsUntilAborted } from '../checkpoints/store.ts';
import { sampleUsageUntilAborted } from '../costs/usage-sampling.ts';
import { createAttemptLogWriter } from '../logs/cap.ts';
import { createMask, type Mask } from '../logs/mask.ts';
import type { TimedMetricLine } from '../metrics/collect.ts';
import { parseMetricLine } from '../metrics/parse.ts';
import { OUTPUT_RULES, type ReadOutputs, toOutputs } from '../outputs/outputs.ts';
import type { ClaimedAttempt } from '../queue/claim.ts';
import {
  describeHold,
  holdLine,
  isHeldOnFailure,
  isReleased,
  parseHoldMark,
  plannedEnd,
} from '../record/failure-hold.ts';
import type { LogLine } from '../record/journal-pages.ts';
import type { Secrets } from '../record/secret-box.ts';
import { commitMove, PHASES, statusTopic, toProgress } from '../record/state.ts';
import { scheduleMeasurement } from '../volumes/measure.ts';
import { type Attempt, type Deps, type Hold, readAttempt, readHold } from './attempt-row.ts';
import {
  applyHold,
  type CollectedArtifacts,
  collectArtifacts,
  finishAttempt,
  hasSucceeded,
  killProcess,
  mayRunAgain,
  recordExitCode,
} from './finish.ts';
import { maskIdTokens, refreshIdTokens } from './id-tokens.ts';
import { prepare } from './prepare.ts';
import { createProgressReporter, type ProgressReporter } from './progress-reporter.ts';
import { readResultFile, storeSummaryFile, storeTests } from './result-files.ts';
import { isTransient, retry } from './retry.ts';
import { saveCaches } from './save-caches.ts';
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
  ids: AttemptIds,
  stopping: AbortSignal,
): Promise<boolean> {
  await using supervised = new SupervisedAttempt(deps, ids, stopping);
  return await supervised.run();
}

/** A started attempt. `isRecorded`: this process has recorded the start. */
type BegunAttempt = { handle: Handle; isRecorded: boolean };

const LOST: Outcome = { kind: 'lost' };

/**
 * One attempt in its four phases: prepare, start, follow, finish. Three signals end a phase early: the server stops, the job
 * has ended, or the attempt is over.
 */
class SupervisedAttempt implements AsyncDisposable {
  readonly #deps: Deps;
  readonly #ids: AttemptIds;
  readonly #stopping: AbortSignal;
  readonly #jobEnd = new AbortController();
  readonly #end = new AbortController();
  /** Aborts when the attempt no longer holds its job: it was cancelled or deleted, or the attempt was taken for lost. */
  readonly #jobEnded: AbortSignal;
  /** Aborts when nothing of the attempt is needed any more, because the job was deleted together with its artifacts. */
  readonly #over: AbortSignal;
  readonly #watching: Promise<void>;
  /** The process to signal, once there is one. */
  #handle: Handle | undefined;
  /** The cluster ended the attempt, and its checkpoint was stored before the files were gone. */
  #hasLastCheckpoint = false;
  /** Masks the secrets of the job, once they are known. */
  #mask: Mask | undefined;
  #signalToSend: 'TERM' | 'KILL' | undefined;
  #sentSignal: 'TERM' | 'KILL' | undefined;

  /** @param stopping aborts when the server stops; the other signals abort with it */
  constructor(deps: Deps, ids: AttemptIds, stopping: AbortSignal) {
    this.#deps = deps;
    this.#ids = ids;
    this.#stopping = stopping;
    this.#jobEnded = AbortSignal.any([this.#jobEnd.signal, stopping]);
    this.#over = AbortSignal.any([this.#end.signal, stopping]);
    // Before the attempt is read, so that no later change is missed.
    this.#watching = this.#watchJob();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#end.abort();
    await this.#watching;
  }

  /** @returns whether the end is recorded; false when the server stops first */
  async run(): Promise<boolean> {
    const { attemptId } = this.#ids;
    const attempt = await readAttempt(this.#deps, attemptId);
    if (!attempt) return true;
    const { job, number } = attempt;
    const isCancelled = job.status === 'cancelled';
    const hold = isReleased(job) ? 'released' : 'held';
    this.#update(job.attemptId === attemptId ? hold : isCancelled ? 'cancelled' : 'lost');
    const attributes = {
      'loam.job.id': job.id,
      'loam.attempt.id': attemptId,
      'loam.attempt.number': number,
      'loam.job.gpu': job.gpu,
      'loam.job.region': job.region,
    };
    return await inTrace('job attempt', attributes, async (span) => {
      const ended = await this.#runProcess(attempt);
      if (!ended || this.#stopping.aborted) return false;
      const outcome = await applyHold(this.#deps, attempt, ended);
      const collected = this.#handle
        ? await inSpan('collect', {}, () => this.#collect(attempt, outcome))
        : {};
      if (this.#stopping.aborted) return false;
      const notes = await this.#storeResults(attempt, outcome);
      if (this.#stopping.aborted) return false;
      notes.push(
        ...(await inSpan('save caches', {}, () => this.#saveCaches(attempt, outcome, collected))),
      );
      if (this.#stopping.aborted) return false;
      const { outputs, problems, areLost } = await this.#readOutputs(attempt, outcome);
      if (this.#stopping.aborted) return false;
      notes.push(...problems);
      const final = collected.areLost || areLost ? LOST : outcome;
      const checkpointFailure = await this.#storeLastCheckpoint(attempt, final);
      if (this.#stopping.aborted) return false;
      span.setAttributes(spanAttributes(final));
      if (checkpointFailure !== null) notes.push(checkpointFailure);
      await inSpan('finish', {}, () =>
        finishAttempt(this.#deps, attempt, final, { ...collected, outputs, notes }),
      );
      await scheduleMeasurement(this.#deps, job);
      return true;
    });
  }

  /** Reads what the last attempt of the job wrote to `$JOB_OUTPUTS`. */
  async #readOutputs(
    attempt: Attempt,
    outcome: Outcome,
  ): Promise<ReadOutputs & { areLost?: boolean }> {
    const none = { outputs: [], problems: [] };
    const handle = this.#handle;
    const mask = this.#mask;
    const signal = this.#jobEnded;
    if (outcome.kind !== 'exited' || outcome.hasResults === false) return none;
    if (!handle || !mask || signal.aborted || mayRunAgain(attempt, outcome)) return none;
    try {
      const wanted = { name: RESULT_FILES.JOB_OUTPUTS, maxBytes: OUTPUT_RULES.maxBytes };
      return toOutputs(await readResultFile(this.#deps, handle, wanted, signal), mask);
    } catch (error) {
      if (signal.aborted) return none;
      if (error instanceof ArtifactsLost && hasSucceeded(outcome))
        return { ...none, areLost: true };
      if (isDatabaseUnavailable(error) || isTransient(error)) throw error;
      const isExpected = error instanceof ArtifactsNotKept;
      if (!isExpected)
        this.#deps.log.error({ err: error, job: attempt.job.id }, 'Cannot read outputs');
      const reason = isExpected ? error.message : 'the server failed to read them';
      return { outputs: [], problems: [`The outputs were not kept: ${reason}`] };
    }
  }

  /** @returns null when the server stops first */
  async #runProcess(attempt: Attempt): Promise<Outcome | null> {
    // A job that was reported as cancelled before its start must never start. Its machine may never answer, so it is not asked.
    if (!attempt.startedAt && this.#jobEnd.signal.aborted) return LOST;
    const values = await readAttemptValues(this.#deps, attempt);
    if ('problem' in values) {
      // Without the secrets the log cannot be masked, so no line may be stored.
      await killProcess(this.#deps, attempt);
      return { kind: 'unstartable', reason: values.problem };
    }
    const mask = await createAttemptMask(this.#deps, attempt, values.secrets);
    this.#mask = mask;
    await using progress = createProgressReporter(this.#deps, attempt);
    const prepared = await this.#prepare(attempt, values, progress);
    if ('outcome' in prepared) return prepared.outcome;
    // From here on, because the start may take hours in a cluster.
    await using _ = refreshIdTokens(this.#deps, attempt, prepared.handle, this.#over);
    const begun = await inSpan('start', {}, () => this.#start(attempt, prepared.handle, progress));
    if ('outcome' in begun) return begun.outcome;
    return await inSpan('run', {}, () => this.#follow(attempt, begun, mask));
  }

  /** Prepares the attempt, unless it has started or is prepared already. */
  async #prepare(
    attempt: Attempt,
    values: JobValues,
    progress: ProgressReporter,
  ): Promise<{ handle: Handle } | { outcome: Outcome }> {
    const { runner } = this.#deps;
    const handle = attempt.handle as Handle | null;
    if (handle && (attempt.startedAt || (await runner.attach(handle)) !== 'unprepared'))
      return { handle };
    return inSpan('prepare', {}, () =>
      prepare(this.#deps, attempt, values, progress, this.#jobEnded),
    );
  }

  /**
   * Starts the process unless it runs already. In a cluster it may wait for hours, until the attempt no longer holds its job or
   * the server stops.
   */
  async #start(
    attempt: Attempt,
    prepared: Handle,
    { report }: ProgressReporter,
  ): Promise<BegunAttempt | { outcome: Outcome }> {
    const { runner } = this.#deps;
    const state = await runner.attach(prepared);
    if (state === 'gone') return { outcome: LOST };
    // The prepared attempt disappeared after the last check; or, if it is recorded as started, a power failure undid the
    // runner's own record of the start.
    if (state === 'unprepared') {
      if (attempt.startedAt) return { outcome: LOST };
      throw new RunnerUnavailable('the prepared attempt does not exist any more');
    }
    const begun = { handle: prepared, isRecorded: false };
    if (state !== 'prepared') return begun;
    const signal = this.#jobEnded;
    if (signal.aborted) return { outcome: LOST };
    // A job that was reported as cancelled before its start must never start, so the runner asks immediately before the start.
    const mayBegin = async (handle = prepared) => {
      begun.handle = handle;
      begun.isRecorded = await markRunning(this.#deps, attempt, handle);
      return begun.isRecorded;
    };
    try {
      const hasStarted = await runner.start(prepared, mayBegin, { report, signal });
      return hasStarted ? begun : { outcome: LOST };
    } catch (error) {
      if (error instanceof AttemptLost) return { outcome: { kind: 'lost', reason: error.message } };
      if (!(error instanceof Unstartable)) throw error;
      return { outcome: { kind: 'unstartable', reason: error.message } };
    }
  }

  /** Follows a started process until its log has ended. @returns null when the server stops first */
  async #follow(
    attempt: Attempt,
    { handle, isRecorded }: BegunAttempt,
    mask: Mask,
  ): Promise<Outcome | null> {
    const { runner } = this.#deps;
    const following = new AbortController();
    const signal = AbortSignal.any([this.#over, following.signal]);
    const stopOnFailure = <T>(work: Promise<T>) =>
      work.catch((error) => {
        following.abort();
        throw error;
      });
    const sampling = sampleUsageUntilAborted(this.#deps, attempt, handle, signal);
    // No log line is stored, and no signal is sent, before the job is recorded as running.
    const running = stopOnFailure(
      (isRecorded ? Promise.resolve() : markRunning(this.#deps, attempt, handle)).then(() =>
        this.#setProcess(handle),
      ),
    );
    const from = attempt.logCursor as LogCursor | null;
    const { id: attemptId, number, job } = attempt;
    const writer = createAttemptLogWriter(this.#deps, { job, attemptId, number, from });
    const copying = stopOnFailure(
      copyLog(this.#deps, attempt, { handle, mask, running, writer, from }, signal),
    );
    const note = (line: string) => writer.note(line);
    const ending = AbortSignal.any([signal, this.#jobEnded]);
    const checkpointing = running
      .then(() =>
        storeCheckpointsUntilAborted(this.#deps, attempt, handle, { note, signal: ending }),
      )
      // An error of `running` is thrown below.
      .catch(() => {});
    const onInterrupted = () => this.#storeInterrupted(attempt, handle);
    const waiting = runner.wait(handle, signal, onInterrupted).then(async (outcome) => {
      // The log of a machine that does not answer may not end.
      if (outcome.kind === 'lost' && outcome.unreachable) following.abort();
      // Not together with the end, because the last lines of the log may have to wait for disk space.
      if (this.#jobEnd.signal.aborted) await recordExitCode(this.#deps, attempt, outcome);
      return outcome;
    });
    // Waits until all have settled, so that no work for this attempt continues after the return.
    const settled = await Promise.allSettled([running, copying, waiting]);
    following.abort();
    await Promise.all([sampling, checkpointing]);
    if (this.#stopping.aborted) return null;
    // The process is killed when the attempt is removed.
    if (this.#over.aborted) return LOST;
    for (const result of settled) if (result.status === 'rejected') throw result.reason;
    return await waiting;
  }

  /** Stores the artifacts, which may take hours, unless the job is deleted together with them, or the server stops. */
  async #collect(attempt: Attempt, outcome: Outcome): Promise<CollectedArtifacts> {
    if (attempt.job.outputPath === null || outcome.kind !== 'exited' || !this.#handle) return {};
    const handle = this.#handle;
    const signal = this.#over;
    await markExited(this.#deps, attempt, outcome, PHASES.storing);
    // The output stays in the attempt's folder until there is room to store it.
    await this.#deps.space.untilFree(signal);
    if (signal.aborted) return {};
    try {
      return await collectArtifacts(this.#deps, attempt, handle, outcome, signal);
    } catch (error) {
      if (signal.aborted) return {};
      throw error;
    }
  }

  /**
   * Stores the summary and the test reports that the job has left, whatever its exit code.
   * @returns lines for the log
   */
  async #storeResults(attempt: Attempt, outcome: Outcome): Promise<string[]> {
    const handle = this.#handle;
    const mask = this.#mask;
    const signal = this.#over;
    const { testReports } = attempt.job;
    if (outcome.kind !== 'exited' || !handle || !mask || signal.aborted) return [];
    if (outcome.hasResults === false && testReports.length === 0) return [];
    try {
      await this.#deps.space.untilFree(signal);
      const source = { handle, mask, signal };
      const notes: (string | null)[] = [];
      if (outcome.hasResults !== false)
        notes.push(await storeSummaryFile(this.#deps, attempt, source));
      if (testReports.length > 0) notes.push(await storeTests(this.#deps, attempt, source));
      return notes.filter((note) => note !== null);
    } catch (error) {
      if (signal.aborted) return [];
      throw error;
    }
  }

  /** @returns lines for the log */
  async #saveCaches(
    attempt: Attempt,
    outcome: Outcome,
    collected: CollectedArtifacts,
  ): Promise<string[]> {
    const handle = this.#handle;
    const signal = this.#jobEnded;
    const isNeeded = outcome.kind === 'exited' && readCaches(attempt.job).length > 0;
    if (!handle || !isNeeded || signal.aborted) return [];
    const isSuccess = hasSucceeded(outcome) && !collected.storeFailure && !collected.areLost;
    if (isSuccess) await markExited(this.#deps, attempt, outcome, PHASES.saving);
    try {
      return await saveCaches(this.#deps, attempt, handle, isSuccess, signal);
    } catch (error) {
      if (signal.aborted) return [];
      throw error;
    }
  }

  /** Stores the checkpoint before a cluster removes the files. A failure is reported after the end of the attempt. */
  async #storeInterrupted(attempt: Attempt, handle: Handle): Promise<void> {
    const signal = this.#jobEnded;
    if (attempt.job.checkpointPath === null || signal.aborted) return;
    this.#hasLastCheckpoint =
      (await storeCheckpoint(this.#deps, attempt, handle, signal)) === null && !signal.aborted;
  }

  /**
   * Stores the checkpoint for the next attempt, unless there will be none. The files of a lost attempt may still be on the machine.
   * @returns a line for the log: why it was not stored
   */
  async #storeLastCheckpoint(attempt: Attempt, outcome: Outcome): Promise<string | null> {
    const handle = this.#handle;
    const signal = this.#jobEnded;
    if (attempt.job.checkpointPath === null || !handle || signal.aborted) return null;
    if (this.#hasLastCheckpoint) return null;
    if (!mayRunAgain(attempt, outcome)) return null;
    await markExited(this.#deps, attempt, outcome, PHASES.checkpointing);
    await this.#deps.space.untilFree(signal);
    return inSpan('checkpoint', {}, () => storeCheckpoint(this.#deps, attempt, handle, signal));
  }

  /**
   * Watches whether the attempt still holds its job. When the job is cancelled, or deleted with its artifacts kept, its process
   * gets SIGTERM, and so does a held job that is released; when the attempt was taken for lost or the job was discarded, SIGKILL. A check is retried if it fails because
   * the database is unavailable or the signal could not be sent.
   */
  async #watchJob(): Promise<void> {
    const { bus, log } = this.#deps;
    const { jobId } = this.#ids;
    const signal = this.#over;
    const check = async () => {
      this.#update(await readHold(this.#deps, this.#ids));
      await this.#signalProcess();
    };
    // The first wake needs no check: `run` reads the attempt.
    for await (const reason of bus.wakes(statusTopic(jobId), signal))
      if (reason !== 'start') await retry(`Watching job ${jobId}`, check, { bus, log, signal });
  }

  #update(hold: Hold): void {
    if (hold === 'held') return;
    if (hold === 'released') {
      this.#signalToSend ??= 'TERM';
      return;
    }
    // A job that was cancelled and then deleted keeps the rest of its grace period to write its artifacts.
    const isGraceful = hold === 'cancelled' || hold === 'deleted';
    // An earlier check may settle after a later one.
    if (this.#signalToSend !== 'KILL') this.#signalToSend = isGraceful ? 'TERM' : 'KILL';
    this.#jobEnd.abort();
    if (hold === 'discarded') this.#end.abort();
  }

  #setProcess(handle: Handle): void {
    this.#handle = handle;
    if (this.#signalToSend) this.#deps.bus.notify(statusTopic(this.#ids.jobId));
  }

  async #signalProcess(): Promise<void> {
    const signal = this.#signalToSend;
    if (!this.#handle || !signal || this.#sentSignal === signal) return;
    await this.#deps.runner.signal(this.#handle, signal);
    this.#sentSignal = signal;
  }
}

function spanAttributes(outcome: Outcome) {
  if (outcome.kind !== 'exited') return { 'loam.attempt.outcome': outcome.kind };
  const { exitCode, timedOut } = outcome;
  return {
    'loam.attempt.outcome': timedOut ? 'timed_out' : 'exited',
    'process.exit.code': exitCode,
  };
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
 * Records the end of the process before its artifacts or caches are stored. Storing them may take hours. That time is not billed, and a
 * cancellation has no process to signal.
 */
async function markExited(
  { pool }: Deps,
  { id, job }: Attempt,
  outcome: Outcome,
  phase: string,
): Promise<void> {
  if (outcome.kind !== 'exited') return;
  const { startedAt, endedAt: at, exitCode } = outcome;
  await commitMove(pool, job.id, (locked) => {
    if (locked.attemptId !== id || locked.status !== 'running') return null;
    const attempt = { id, startedAt, exited: { at, exitCode } };
    return { to: 'running', phase, attempt };
  });
}

/** Records that the command has failed and that its sandbox is held. */
async function markHeld(
  { pool }: Deps,
  { id, job }: Attempt,
  { exitCode, at }: { exitCode: number; at: Date },
): Promise<void> {
  const heldUntil = plannedEnd(at, job.holdOnFailureMinutes);
  await commitMove(pool, job.id, (locked) => {
    if (locked.attemptId !== id || locked.status !== 'running' || locked.heldAt) return null;
    const phase = describeHold(exitCode, heldUntil, job);
    return { to: 'running', phase, set: { heldAt: at, heldUntil, heldExitCode: exitCode } };
  });
}

/** Masks the secrets of the job, and the tokens that prove its identity. */
async function createAttemptMask(
  { jobTokens }: Deps,
  { id, job }: Attempt,
  secrets: Secrets,
): Promise<Mask> {
  if (job.identity === null) return createMask(secrets);
  const mask = await createMask({ ...secrets, LOAM_TOKEN: jobTokens.codeOf(id) });
  // Identity tokens first: they could contain the encoded form of a short secret.
  return Object.assign((text: string) => mask(maskIdTokens(text)), {
    inSteps: (text: string) => mask.inSteps(maskIdTokens(text)),
  });
}

/** `from`: the position in the runner's log at which the writer begins. */
type LogCopy = {
  handle: Handle;
  mask: Mask;
  running: Promise<void>;
  writer: ReturnType<typeof createAttemptLogWriter>;
  from: LogCursor | null;
};

/** Masking a longer line may take more than a few milliseconds. */
const LONG_LINE = 4_096;

/** Copies the runner's log into the journal until it ends. `running` settles when the job is recorded as running. */
async function copyLog(
  deps: Deps,
  attempt: Attempt,
  { handle, mask, running, writer, from }: LogCopy,
  stopping: AbortSignal,
): Promise<void> {
  let isHeld = attempt.job.heldAt !== null;
  for await (const { lines, cursor } of deps.runner.logs(handle, from, stopping)) {
    const shown: LogLine[] = [];
    const metrics: TimedMetricLine[] = [];
    let progress: string | undefined;
    for (const { message, stream, timestamp } of lines) {
      const heldCode = isHeldOnFailure(attempt.job) ? parseHoldMark(message) : null;
      if (heldCode !== null) {
        isHeld = true;
        await running;
        // Before the line is stored, so that a restart between the two reads the mark again.
        await markHeld(deps, attempt, { exitCode: heldCode, at: timestamp });
        const { holdOnFailureMinutes } = attempt.job;
        shown.push({ timestamp, message: holdLine(heldCode, holdOnFailureMinutes, attempt.job) });
        continue;
      }
      // PostgreSQL's text type cannot store NUL.
      const line = message.replaceAll('\0', '\uFFFD');
      const text = line.length > LONG_LINE ? await mask.inSteps(line) : mask(line);
      const isMark = stream === 'stdout' && text.startsWith('::');
      const printed = isMark ? PROGRESS.exec(text)?.[1] : undefined;
      const metric = isMark ? parseMetricLine(text) : null;
      if (metric) metrics.push({ ...metric, timestamp });
      else if (printed === undefined) shown.push({ timestamp, message: text });
      else progress = toProgress(printed.trim());
    }
    await running;
    // Storing lines needs disk space. Until there is enough, the runner keeps the log.
    await deps.space.untilFree(stopping);
    // False if the job was deleted, or another worker stores this log.
    // The text of a held job stays.
    if (isHeld) progress = undefined;
    const stored = await writer.append({ lines: shown, metrics, to: cursor, progress });
    if (!stored) return;
    deps.metrics.logLinesStored(shown.length);
    deps.metrics.metricPointsStored(stored.points);
  }
}
