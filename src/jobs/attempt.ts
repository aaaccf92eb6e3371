/**
 * Looking after one attempt, from the checkout to the last line.
 *
 * Every step can be the one at which the server dies, so each begins from what is stored: called again for
 * the same attempt, it finds the handle, asks the runner how far things got, and goes on from there.
 */
import { collect, finish } from './ending.ts';
import { ATTEMPT, type Attempt, type Deps } from './held.ts';
import { appendLines, type Line } from './logs.ts';
import { openSecrets, prepare } from './preparation.ts';
import type { Handle, LogCursor, Outcome } from './runner.ts';
import { masker, type Secrets } from './secrets.ts';
import { MAX_PROGRESS, moveJob, PHASES, statusTopic } from './state.ts';
import { sampleUsage } from './usage.ts';

const PROGRESS = /^::progress::(.*)$/s;

/** Returns when the attempt is over and removed, or when `stopping` aborts; the work then goes on without us. */
export async function lookAfter(
  deps: Deps,
  attemptId: string,
  stopping: AbortSignal,
): Promise<void> {
  const { db, runner } = deps;
  const attempt = await db.jobAttempt.findUnique({ where: { id: attemptId }, select: ATTEMPT });
  if (!attempt || attempt.endedAt) return runner.remove({ attempt: attemptId });
  const secrets = openSecrets(deps, attempt);
  await using watch = watchForEnd(deps, attempt, stopping);

  const made = attempt.handle
    ? { handle: attempt.handle as Handle }
    : await prepare(deps, attempt, secrets, watch.ended);
  if (stopping.aborted) return;
  if ('outcome' in made) {
    await finish(deps, attempt, made.outcome);
    return runner.remove({ attempt: attemptId });
  }
  const { handle } = made;
  const outcome = await oversee(deps, attempt, handle, secrets, watch, stopping);
  if (!outcome || stopping.aborted) return;
  const collected = watch.deleted ? {} : await collect(deps, attempt, handle, outcome);
  await finish(deps, attempt, outcome, collected);
  await runner.remove(handle);
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
  if (state === 'prepared') {
    if (watch.ended.aborted) return { kind: 'lost' };
    await runner.start(handle);
  }
  await markRunning(deps, attempt);
  // Only now may the process be told: it has to be there to hear it.
  watch.tell(handle);
  const over = new AbortController();
  const sampling = sampleUsage(
    deps,
    attempt.job.id,
    handle,
    AbortSignal.any([over.signal, stopping]),
  );
  const trouble = new AbortController();
  const signal = AbortSignal.any([stopping, trouble.signal]);
  // Both are waited for, so that nothing of ours is under way when we return.
  const [ended, stored] = await Promise.allSettled([
    runner.wait(handle, signal),
    storeLog(deps, attempt, handle, secrets, signal).catch((error) => {
      trouble.abort();
      throw error;
    }),
  ]);
  over.abort();
  await sampling;
  if (stopping.aborted) return null;
  if (stored.status === 'rejected') throw stored.reason;
  if (ended.status === 'rejected') throw ended.reason;
  return ended.value;
}

async function markRunning({ db }: Deps, { id, job }: Attempt): Promise<void> {
  await db.$transaction(async (tx) => {
    const now = new Date();
    const moved = await moveJob(tx, job.id, (locked) =>
      locked.attemptId === id && locked.status === 'queued'
        ? { to: 'running', phase: PHASES.running, set: { startedAt: locked.startedAt ?? now } }
        : null,
    );
    if (moved) await tx.jobAttempt.update({ where: { id }, data: { startedAt: now } });
  });
}

type Watch = AsyncDisposable & {
  /** Aborts when the job is cancelled, deleted or another's, and when the server stops. */
  ended: AbortSignal;
  readonly deleted: boolean;
  /** From now on there is a process to be told. */
  tell(handle: Handle): void;
};

/** Hears that a job was cancelled (its process is asked to end) or deleted (it is made to). */
function watchForEnd(
  { db, bus, runner, log }: Deps,
  { id, job }: Attempt,
  stopping: AbortSignal,
): Watch {
  const ended = new AbortController();
  const closing = new AbortController();
  let handle: Handle | undefined;
  let verdict: 'TERM' | 'KILL' | undefined;
  const act = async () => {
    if (handle && verdict) await runner.signal(handle, verdict);
  };
  const watching = (async () => {
    const signal = AbortSignal.any([closing.signal, stopping]);
    for await (const _ of bus.wakes(statusTopic(job.id), signal)) {
      const row = await db.job.findUnique({
        where: { id: job.id },
        select: { status: true, attemptId: true },
      });
      if (row?.attemptId === id) continue;
      verdict = row ? 'TERM' : 'KILL';
      ended.abort();
      await act();
      if (!row) return;
    }
  })().catch((error) => log.error({ err: error, job: job.id }, 'a job is not watched any more'));
  return {
    ended: AbortSignal.any([ended.signal, stopping]),
    get deleted() {
      return verdict === 'KILL';
    },
    tell(started) {
      handle = started;
      void act().catch((error) => log.error({ err: error, job: job.id }, 'no signal was sent'));
    },
    async [Symbol.asyncDispose]() {
      closing.abort();
      await watching;
    },
  };
}

/** Copies the runner's log into the journal until it ends. */
async function storeLog(
  deps: Deps,
  attempt: Attempt,
  handle: Handle,
  secrets: Secrets,
  stopping: AbortSignal,
): Promise<void> {
  const mask = masker(secrets);
  let from = attempt.logCursor as LogCursor | null;
  for await (const { lines, cursor } of deps.runner.logs(handle, from, stopping)) {
    const shown: Line[] = [];
    let progress: string | undefined;
    for (const { message, stream, timestamp } of lines) {
      // PostgreSQL's text holds every character but this one.
      const text = mask(message.replaceAll('\0', '\uFFFD'));
      const said = stream === 'stdout' ? PROGRESS.exec(text)?.[1] : undefined;
      if (said === undefined) shown.push({ timestamp, message: text });
      else progress = said.trim().slice(0, MAX_PROGRESS).toWellFormed();
    }
    const ids = { jobId: attempt.job.id, attemptId: attempt.id };
    // Refused: the job was deleted, and its lines with it.
    if (!(await appendLines(deps, { ...ids, lines: shown, from, to: cursor, progress }))) return;
    from = cursor;
  }
}
