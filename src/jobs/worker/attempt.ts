/**
 * Looking after one attempt, from the checkout to the last line.
 *
 * Every step can be the one at which the server dies, so each begins from what is stored: called again for
 * the same attempt, it finds the handle, asks the runner how far things got, and goes on from there.
 */

import { ServerAway } from '../../cluster/cluster.ts';
import { DISK_FULL_MESSAGE, isDiskFull } from '../../platform/database/outage.ts';
import { StorageAway } from '../../platform/storage/storage.ts';
import { inSpan, inTrace, type Span } from '../../platform/tracing/spans.ts';
import { type Handle, type LogCursor, type Outcome, RunnerAway } from '../../runners/runner.ts';
import { sampleUsage } from '../analytics.ts';
import { openAttemptLog } from '../logs/cap.ts';
import type { LogLine } from '../logs/pages.ts';
import { masker, type Secrets } from '../secrets.ts';
import { commitMove, MAX_PROGRESS, PHASES, statusTopic } from '../state.ts';
import { type Attempt, type Deps, findAttempt, type Hold, holdOf } from './attempt-row.ts';
import type { Claim } from './claim.ts';
import { abandon, type Collected, collect, finish, recordExitCode } from './finish.ts';
import { openSecrets, prepare } from './prepare.ts';
import { retry } from './retry.ts';

const PROGRESS = /^::progress::(.*)$/s;

type Ids = Pick<Claim, 'attemptId' | 'jobId'>;

/**
 * Sees an attempt through, as far as its end is recorded; what the runner made for it is then to be removed.
 * @returns whether it is over; false when `stopping` aborts first, and the work goes on without us
 * @throws what a step throws: called again, it goes on from there
 */
export async function superviseAttempt(
  deps: Deps,
  { attemptId, jobId }: Ids,
  stopping: AbortSignal,
): Promise<boolean> {
  // Before it is read: of what happens after that the watch hears.
  await using watch = watchForEnd(deps, { attemptId, jobId }, stopping);
  const attempt = await findAttempt(deps, attemptId);
  if (!attempt) return true;
  const { job, number } = attempt;
  const isCancelled = job.status === 'cancelled';
  watch.see(job.attemptId === attemptId ? 'held' : isCancelled ? 'cancelled' : 'lost');
  const attributes = {
    'loam.job.id': job.id,
    'loam.attempt.id': attemptId,
    'loam.attempt.number': number,
    'loam.job.gpu': job.gpu,
    'loam.job.region': job.region,
  };
  return await inTrace('job attempt', attributes, (span) =>
    seeThrough(deps, attempt, watch, stopping, span),
  );
}

async function seeThrough(
  deps: Deps,
  attempt: Attempt,
  watch: Watch,
  stopping: AbortSignal,
  span: Span,
): Promise<boolean> {
  const secrets = openSecrets(deps, attempt);
  if (!secrets) {
    // Its lines cannot be masked any more, so none of them is taken either.
    await abandon(
      deps,
      attempt,
      'The secrets of the job cannot be opened: the key that sealed them is gone',
    );
    return true;
  }
  // Whoever is told that a job was cancelled before it started can rely on it, and what it waits for may never answer.
  if (!attempt.startedAt && watch.ended.aborted && !stopping.aborted) {
    await finish(deps, attempt, { kind: 'lost' });
    return true;
  }
  const kept = await stillPrepared(deps, attempt);
  const made = kept
    ? { handle: kept }
    : await inSpan('prepare', {}, () => prepare(deps, attempt, secrets, watch.ended));
  if (stopping.aborted) return false;
  if ('outcome' in made) {
    span.setAttributes(attributesOf(made.outcome));
    await finish(deps, attempt, made.outcome);
    return true;
  }
  const { handle } = made;
  const outcome = await inSpan('run', {}, () =>
    oversee(deps, attempt, handle, secrets, watch, stopping),
  );
  if (!outcome || stopping.aborted) return false;
  span.setAttributes(attributesOf(outcome));
  if (attempt.job.outputPath !== null) {
    await markExited(deps, attempt, outcome);
    // What it leaves stays in its folder until there is room for it.
    await deps.space.untilFree(AbortSignal.any([watch.discarded, stopping]));
  }
  if (stopping.aborted) return false;
  const collected = await inSpan('collect', {}, () =>
    collectUnlessDiscarded(deps, attempt, handle, outcome, watch, stopping),
  );
  if (stopping.aborted) return false;
  await inSpan('finish', {}, () => finish(deps, attempt, outcome, collected));
  return true;
}

function attributesOf(outcome: Outcome) {
  if (outcome.kind !== 'exited') return { 'loam.attempt.outcome': outcome.kind };
  const { exitCode, timedOut } = outcome;
  return {
    'loam.attempt.outcome': timedOut ? 'timed_out' : 'exited',
    'process.exit.code': exitCode,
  };
}

/** Storing them may take hours, and ends when nobody wants them any more, or the server stops. */
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
    return await collect(deps, attempt, handle, outcome, signal);
  } catch (error) {
    if (signal.aborted) return {};
    throw error;
  }
}

/** Ends an attempt that fails again and again for reasons of its own: its job fails, and its process ends. */
export async function giveUp(deps: Deps, attemptId: string, error: unknown): Promise<void> {
  const attempt = await findAttempt(deps, attemptId);
  const reason = isDiskFull(error)
    ? DISK_FULL_MESSAGE
    : error instanceof StorageAway
      ? 'The storage for artifacts could not be reached'
      : error instanceof ServerAway
        ? 'The repository could not be cloned: no server that has it could be reached'
        : 'The server failed to look after this attempt, again and again; its log says why';
  if (attempt) await abandon(deps, attempt, reason);
}

/** The handle, unless there is none, or what it stood for is gone and never began: then it is made again. */
async function stillPrepared({ runner }: Deps, attempt: Attempt): Promise<Handle | null> {
  const handle = attempt.handle as Handle | null;
  if (!handle || attempt.startedAt) return handle;
  return (await runner.attach(handle)) === 'unprepared' ? null : handle;
}

/** Starts the work unless it runs already, and sees it through to the end of its log. */
async function oversee(
  deps: Deps,
  attempt: Attempt,
  handle: Handle,
  secrets: Secrets,
  watch: Watch,
  stopping: AbortSignal,
): Promise<Outcome | null> {
  const { runner } = deps;
  const state = await runner.attach(handle);
  if (state === 'gone') return { kind: 'lost' };
  // Between two looks; or it was taken for started, and a loss of power has undone what said that it may begin.
  if (state === 'unprepared') {
    if (attempt.startedAt) return { kind: 'lost' };
    throw new RunnerAway('what was prepared is gone');
  }
  let marked: Promise<boolean> | undefined;
  const mark = () => {
    marked ??= markRunning(deps, attempt, handle);
    return marked;
  };
  if (state === 'prepared') {
    if (watch.ended.aborted) return { kind: 'lost' };
    // Whoever is told that a job was cancelled before it started can rely on it.
    if (!(await runner.start(handle, mark))) return { kind: 'lost' };
  }
  const over = new AbortController();
  const sampling = sampleUsage(
    deps,
    { jobId: attempt.job.id, attemptId: attempt.id },
    handle,
    AbortSignal.any([over.signal, stopping]),
  );
  const trouble = new AbortController();
  const signal = AbortSignal.any([stopping, trouble.signal]);
  const orStop = <T>(work: Promise<T>) =>
    work.catch((error) => {
      trouble.abort();
      throw error;
    });
  // No line of it is stored before.
  const running = orStop(
    mark().then(() => {
      // Only a process that was started can be signalled.
      watch.tell(handle);
    }),
  );
  const unreachable = new AbortController();
  const waiting = runner.wait(handle, signal).then((outcome) => {
    if (outcome.kind === 'lost' && outcome.unreachable) unreachable.abort();
    return outcome;
  });
  // Its last lines may wait for space on the disk, and nobody else would.
  const telling = waiting.then((outcome) => {
    if (watch.ended.aborted && !stopping.aborted) return recordExitCode(deps, attempt, outcome);
  });
  const reading = AbortSignal.any([signal, unreachable.signal]);
  // All are waited for, so that nothing of ours is under way when we return.
  const [begun, ended, stored, told] = await Promise.allSettled([
    running,
    waiting,
    orStop(storeLog(deps, attempt, { handle, secrets, running }, reading)),
    telling,
  ]);
  over.abort();
  await sampling;
  if (stopping.aborted) return null;
  if (begun.status === 'rejected') throw begun.reason;
  if (stored.status === 'rejected') throw stored.reason;
  if (ended.status === 'rejected') throw ended.reason;
  if (told.status === 'rejected') throw told.reason;
  return ended.value;
}

/** Records that the work begins, and its handle, by which it is found again. @returns whether it may: the job is the attempt's */
async function markRunning(
  { pool, runner }: Deps,
  { id, job }: Attempt,
  handle: Handle,
): Promise<boolean> {
  let isOurs = false;
  const begun = { handle, runner: String(handle.runner ?? runner.name) };
  await commitMove(pool, job.id, (locked, now) => {
    isOurs = locked.attemptId === id;
    if (!isOurs || locked.status !== 'queued') return null;
    const set = { startedAt: locked.startedAt ?? now };
    return { to: 'running', phase: PHASES.running, attempt: { id, startedAt: now, begun }, set };
  });
  return isOurs;
}

/** What comes now may take hours, in which nothing runs that could be paid for or be cancelled. */
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
  /** Aborts when the attempt does not hold its job any more, and when the server stops. */
  ended: AbortSignal;
  /** Aborts when the job is deleted, and nothing of it is to be kept. */
  discarded: AbortSignal;
  see(hold: Hold): void;
  /** From now on there is a process to be signalled. */
  tell(handle: Handle): void;
};

/**
 * Hears that a job was cancelled (its process is asked to end), or that nobody wants what its process does any more (that is
 * killed). It lasts as long as the attempt: a look that fails, because the database is away or the signal was not sent, is
 * repeated.
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

  function see(hold: Hold): void {
    if (hold === 'held') return;
    // One that is cancelled and then deleted has the rest of its grace for what it leaves.
    verdict = hold === 'cancelled' || hold === 'deleted' ? 'TERM' : 'KILL';
    if (hold === 'discarded') discarded.abort();
    ended.abort();
  }

  async function look(): Promise<void> {
    see(await holdOf(deps, { attemptId, jobId }));
    if (!handle || !verdict || sent === verdict) return;
    await runner.signal(handle, verdict);
    sent = verdict;
  }

  const watching = (async () => {
    // What was before is read with the attempt.
    for await (const why of bus.wakes(topic, signal))
      if (why !== 'start') await retry(`watching job ${jobId}`, look, { bus, log, signal });
  })();
  return {
    ended: AbortSignal.any([ended.signal, stopping]),
    discarded: discarded.signal,
    see,
    tell(started) {
      handle = started;
      if (verdict) bus.notify(topic);
    },
    async [Symbol.asyncDispose]() {
      closing.abort();
      await watching;
    },
  };
}

/** Copies the runner's log into the journal until it ends. `running` settles when the job is recorded to run. */
async function storeLog(
  deps: Deps,
  attempt: Attempt,
  { handle, secrets, running }: { handle: Handle; secrets: Secrets; running: Promise<void> },
  stopping: AbortSignal,
): Promise<void> {
  const mask = masker(secrets);
  const from = attempt.logCursor as LogCursor | null;
  const log = openAttemptLog(deps, { job: attempt.job, attemptId: attempt.id, from });
  for await (const { lines, cursor } of deps.runner.logs(handle, from, stopping)) {
    const shown: LogLine[] = [];
    let progress: string | undefined;
    for (const { message, stream, timestamp } of lines) {
      // PostgreSQL's text holds every character but this one.
      const text = mask(message.replaceAll('\0', '\uFFFD'));
      const said = stream === 'stdout' ? PROGRESS.exec(text)?.[1] : undefined;
      if (said === undefined) shown.push({ timestamp, message: text });
      else progress = said.trim().slice(0, MAX_PROGRESS).toWellFormed();
    }
    await running;
    // The runner keeps what it printed; here it would take room that is not there.
    await deps.space.untilFree(stopping);
    // Refused: the job was deleted, and its lines with it.
    if (!(await log.append({ lines: shown, to: cursor, progress }))) return;
    deps.metrics.logLinesStored(shown.length);
  }
}
