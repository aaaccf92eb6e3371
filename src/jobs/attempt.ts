/**
 * Looking after one attempt, from the checkout to the last line.
 *
 * Every step can be the one at which the server dies, so each begins from what is stored: called again for
 * the same attempt, it finds the handle, asks the runner how far things got, and goes on from there.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import { AppError } from '../errors.ts';
import { wake } from '../events.ts';
import { checkout } from '../repos/repos.ts';
import type { Services } from '../services.ts';
import { storeArtifacts, TooLarge } from './artifacts.ts';
import { secondsBetween } from './jobs.ts';
import { appendLines, type Line } from './logs.ts';
import { loseAttempt } from './queue.ts';
import {
  type AttemptSpec,
  type Handle,
  type LogCursor,
  type Outcome,
  type Runner,
  Unstartable,
} from './runner.ts';
import { masker, type Secrets } from './secrets.ts';
import { type LockedJob, type Move, moveJob, PHASES, statusTopic } from './state.ts';
import { sampleUsage } from './usage.ts';

export type Deps = Omit<Services, 'db'> & { db: Prisma.DefaultPrismaClient; runner: Runner };

/** `failed`, exit code 125 (decisions section 4). */
const UNSTARTABLE = 125;
const MAX_PAUSE_S = 60;
const PROGRESS = /^::progress::(.*)$/s;
const MAX_PROGRESS = 1_000;

const ATTEMPT = {
  id: true,
  number: true,
  handle: true,
  logCursor: true,
  startedAt: true,
  endedAt: true,
  job: {
    select: {
      id: true,
      name: true,
      namespaceId: true,
      namespace: { select: { name: true } },
      status: true,
      attemptId: true,
      command: true,
      image: true,
      repo: true,
      repositoryId: true,
      commitSha: true,
      env: true,
      secrets: true,
      outputPath: true,
      timeoutMinutes: true,
      gpu: true,
      gpuCount: true,
      cpu: true,
      memoryGb: true,
      diskGb: true,
      region: true,
    },
  },
} as const satisfies Prisma.JobAttemptSelect;
type Attempt = Prisma.JobAttemptGetPayload<{ select: typeof ATTEMPT }>;

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

/** Makes the place for the work and stores its handle, before anything starts. */
async function prepare(
  deps: Deps,
  attempt: Attempt,
  secrets: Secrets,
  ended: AbortSignal,
): Promise<{ handle: Handle } | { outcome: Outcome }> {
  const { db, runner, log } = deps;
  const { id, job } = attempt;
  if (ended.aborted) return { outcome: { kind: 'lost' } };
  try {
    const handle = await runner.prepare(specOf(deps, attempt, secrets), ended);
    const { count } = await db.jobAttempt.updateMany({
      where: { id, endedAt: null, job: { attemptId: id } },
      data: { handle, heartbeatAt: new Date() },
    });
    return count === 1 ? { handle } : { outcome: { kind: 'lost' } };
  } catch (error) {
    if (ended.aborted) return { outcome: { kind: 'lost' } };
    const expected = error instanceof Unstartable || error instanceof AppError;
    if (!expected) log.error({ err: error, job: job.id }, 'a job could not be prepared');
    const what = job.repo ? 'The repository could not be cloned' : 'The job could not be prepared';
    const reason = expected ? error.message : `${what}. The server's log says why.`;
    return { outcome: { kind: 'unstartable', reason } };
  }
}

function specOf(deps: Deps, { id, number, job }: Attempt, secrets: Secrets): AttemptSpec {
  const { repositoryId, commitSha, outputPath, gpu, gpuCount, cpu, memoryGb } = job;
  const source = job.repo === null ? null : { repositoryId, commitSha };
  return {
    id,
    command: job.command,
    image: job.image,
    hardware: job,
    timeoutMs: job.timeoutMinutes * 60_000,
    env: {
      ...(job.env as Record<string, string>),
      ...secrets,
      JOB_ID: job.id,
      JOB_NAME: job.name,
      JOB_NAMESPACE: job.namespace.name,
      JOB_ATTEMPT: String(number),
      JOB_COMMIT_SHA: commitSha ?? '',
      JOB_OUTPUT_PATH: outputPath ?? '',
      GPU_COUNT: String(gpu === 'none' ? 0 : gpuCount),
      CPU_CORES: String(cpu),
      MEMORY_GB: String(memoryGb),
      CI: 'true',
    },
    checkout:
      source &&
      (async (dir, signal) => {
        const { repositoryId, commitSha } = source;
        if (!repositoryId || !commitSha)
          throw new Unstartable(`The repository ${job.repo} is gone`);
        await checkout(deps, { repositoryId, commitSha, dir, signal });
      }),
  };
}

function openSecrets({ secretBox }: Deps, { job }: Attempt): Secrets {
  return job.secrets ? secretBox.open(job.id, job.secrets) : {};
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

/** Takes what stands at `output_path`, however the attempt ended. */
async function collect(
  deps: Deps,
  { job }: Attempt,
  handle: Handle,
  outcome: Outcome,
): Promise<Collected> {
  if (job.outputPath === null || outcome.kind !== 'exited') return {};
  try {
    const tar = await deps.runner.artifacts(handle, job.outputPath);
    if (!tar) return {};
    const key = { namespaceId: job.namespaceId, jobId: job.id };
    const { files, sizeBytes } = await storeArtifacts(deps, key, tar, job.diskGb * 2 ** 30);
    return { stored: { artifactFiles: files, artifactBytes: BigInt(sizeBytes) } };
  } catch (error) {
    deps.log.error({ err: error, job: job.id }, 'artifacts were not stored');
    const why = error instanceof TooLarge ? error.message : 'the server failed to store them';
    return { note: `The artifacts were not kept: ${why}` };
  }
}

type Collected = {
  stored?: { artifactFiles: number; artifactBytes: bigint };
  /** A last line for the log. */
  note?: string;
};

/** Ends the attempt and moves its job on, if the job is still its. */
async function finish(
  { db, pool }: Deps,
  { id, job, startedAt }: Attempt,
  outcome: Outcome,
  { stored = undefined, note }: Collected = {},
): Promise<void> {
  const line = note ?? (outcome.kind === 'unstartable' ? outcome.reason : null);
  if (line) await addLine({ db, pool }, id, line);
  await db.$transaction(async (tx) => {
    const now = new Date();
    if (outcome.kind === 'lost') {
      await loseAttempt(tx, { attemptId: id, jobId: job.id });
    } else {
      const ran =
        outcome.kind === 'exited' ? secondsBetween(outcome.startedAt, outcome.endedAt) : 0;
      const moved = await moveJob(tx, job.id, (locked) =>
        locked.attemptId === id ? nextMove(locked, outcome, ran, stored) : null,
      );
      if (!moved) await recordLateEnd(tx, job.id, outcome, stored);
      await tx.jobAttempt.updateMany({
        where: { id },
        data: {
          endedAt: outcome.kind === 'exited' ? outcome.endedAt : now,
          ...(outcome.kind === 'exited' && startedAt && { startedAt: outcome.startedAt }),
          outcome: outcome.kind,
          exitCode: outcome.kind === 'exited' ? outcome.exitCode : UNSTARTABLE,
        },
      });
    }
    // A follower of a cancelled job waits for this, and nothing else tells.
    await wake(tx, `job:${job.id}`);
  });
}

function nextMove(
  job: LockedJob,
  outcome: Exclude<Outcome, { kind: 'lost' }>,
  ran: number,
  stored: Collected['stored'],
): Move {
  if (outcome.kind === 'unstartable')
    return {
      to: 'failed',
      phase: `failed: ${outcome.reason}`.slice(0, MAX_PROGRESS),
      set: { exitCode: UNSTARTABLE },
    };
  const { exitCode, timedOut } = outcome;
  const set = { exitCode, runtimeSeconds: job.runtimeSeconds + ran, ...stored };
  if (timedOut) return { to: 'timed_out', phase: PHASES.timed_out, set };
  if (exitCode === 0) return { to: 'succeeded', phase: PHASES.succeeded, set };
  if (job.retryCount >= job.retries)
    return { to: 'failed', phase: `failed with exit code ${exitCode}`, set };
  const pause = Math.min(MAX_PAUSE_S, 2 ** job.retryCount);
  const retryCount = job.retryCount + 1;
  return {
    to: 'queued',
    phase: `waiting to try again (retry ${retryCount} of ${job.retries})`,
    set: { ...set, exitCode: null, retryCount, availableAt: new Date(Date.now() + pause * 1000) },
  };
}

/** A job that was cancelled has ended in the meantime: how, and what it left, is kept all the same. */
async function recordLateEnd(
  tx: Prisma.TransactionClient,
  jobId: string,
  outcome: Outcome,
  stored: Collected['stored'],
): Promise<void> {
  if (outcome.kind !== 'exited') return;
  await tx.job.updateMany({
    where: { id: jobId, status: 'cancelled' },
    data: { exitCode: outcome.exitCode, ...stored },
  });
}

/** A line of our own at the end of an attempt's log; once, however often the end is recorded. */
async function addLine(
  deps: Pick<Deps, 'db' | 'pool'>,
  attemptId: string,
  message: string,
): Promise<void> {
  const row = await deps.db.jobAttempt.findUnique({
    where: { id: attemptId },
    select: { jobId: true, logCursor: true },
  });
  const from = (row?.logCursor ?? null) as LogCursor | null;
  if (!row || from?.noted) return;
  const lines = [{ timestamp: new Date(), message }];
  await appendLines(deps, { jobId: row.jobId, attemptId, lines, from, to: { ...from, noted: 1 } });
}
