/**
 * Supervises a container until it ends: its timeout, the grace period after SIGTERM, problems of its log.
 *
 * All decisions follow from stored facts (when the start barrier was opened, when and why the job was told to end), so a
 * restarted server continues them. The engine reports the end at once. It is polled every few seconds as well, because the
 * request that waits for the end never settles when the engine dies.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type Outcome, RunnerUnavailable } from '../runner.ts';
import {
  type AttemptRecord,
  readRecord,
  type StartRefusal,
  type StopRequest,
  writeRecord,
} from './attempt-dir.ts';
import { listContainerProcesses, sendSigterm } from './container-processes.ts';
import { type Engine, isStatus } from './engine.ts';
import {
  buildOutcome,
  type ContainerState,
  exceededTimeout,
  hasEngineRestartedSince,
  mayHaveDiedWithEngine,
  mergeRecordedExit,
  readContainerState,
  readExitCodeFromEvents,
} from './outcome.ts';
import type { Recordings } from './recordings.ts';
import { type BarrierOpening, markStopRequested, readOpening } from './start-barrier.ts';

const POLL_MS = 5_000;
/** After SIGKILL: a process in the middle of a slow write dies late. */
const KILLED_POLL_MS = 500;
/** Pause before the next request to an engine that does not answer. */
const RETRY_MS = 500;
/** An engine that is upgraded answers again within this time. */
export const ENGINE_TIMEOUT_MS = 60_000;

export type SupervisedContainer = {
  attempt: string;
  engine: Engine;
  container: string;
  attemptDir: string;
  graceMs: number;
  /** How long the engine may be unavailable before attempts that are certainly over or unwanted are given up. */
  engineTimeoutMs: number;
  /** Whether the container's processes run on this machine; false until that is known. */
  isLocal(): boolean;
  recordings: Recordings;
};

/** Settles when a stop was requested, or when `signal` aborts. */
type WaitForRequest = (signal: AbortSignal) => Promise<void>;

/**
 * Waits for the end of the container, and ends it when that is due.
 * @throws the reason of `signal` when it aborts
 */
export async function superviseContainer(
  supervised: SupervisedContainer,
  waitForRequest: WaitForRequest,
  signal: AbortSignal,
): Promise<Outcome> {
  const { attemptDir, engineTimeoutMs } = supervised;
  const record = await readRecord(attemptDir, 'attempt');
  if (!record) return { kind: 'lost' };
  let wasAway = false;
  let awaySince = Number.POSITIVE_INFINITY;
  for (;;) {
    signal.throwIfAborted();
    try {
      const observed = await observe(supervised);
      awaySince = Number.POSITIVE_INFINITY;
      if (!observed) return { kind: 'lost' };
      if (observed.refused || observed.state.status === 'ended')
        return await determineOutcome(supervised, record, { ...observed, wasAway }, signal);
      await endOrWait(supervised, record, observed, waitForRequest, signal);
    } catch (error) {
      if (!(error instanceof RunnerUnavailable)) throw error;
      wasAway = true;
      awaySince = Math.min(awaySince, Date.now());
      if (Date.now() - awaySince > engineTimeoutMs && (await canBeGivenUp(supervised, record)))
        return { kind: 'lost', unreachable: true };
      await delay(RETRY_MS, undefined, { signal });
    }
  }
}

type Observation = {
  state: ContainerState;
  refused: StartRefusal | undefined;
  stop: StopRequest | undefined;
  opening: BarrierOpening | null;
};

/** @returns null when the container does not exist @throws RunnerUnavailable */
async function observe({
  engine,
  container,
  attemptDir,
}: SupervisedContainer): Promise<Observation | null> {
  const state = await readContainerState(engine, container);
  const refused = await readRecord(attemptDir, 'unstartable');
  const stop = await readRecord(attemptDir, 'stop');
  const opening = await readOpening(attemptDir);
  return state && { state, refused, stop, opening };
}

/**
 * For a container that has ended, or can never start.
 * @param wasAway the engine was unavailable at some time during this wait
 */
async function determineOutcome(
  { attempt, engine, recordings }: SupervisedContainer,
  record: AttemptRecord,
  { state, refused, stop, opening, wasAway }: Observation & { wasAway: boolean },
  signal: AbortSignal,
): Promise<Outcome> {
  const exit = opening?.recorded ? await recordings.finish(attempt, signal) : undefined;
  const mayMissEnd = exit?.unheard ?? false;
  const isRecorded = opening?.recorded && (mayMissEnd || !recordings.isUnused(attempt));
  const seenByEngine = mayMissEnd ? await readExitCodeFromEvents(engine, state) : undefined;
  const ended = isRecorded ? mergeRecordedExit(state, exit, seenByEngine) : state;
  if (!ended) return { kind: 'lost' };
  const openedAt = opening?.at ?? null;
  const isOverdue = exceededTimeout(record, ended, openedAt);
  const mayBeLost = !refused && !stop && mayHaveDiedWithEngine(ended) && !isOverdue;
  if (mayBeLost && (wasAway || (await hasEngineRestartedSince(engine, state))))
    return { kind: 'lost' };
  return buildOutcome({ record, state: ended, openedAt, stop, refused });
}

/** Takes the next step to end a running container if that is due; otherwise waits for a change. */
async function endOrWait(
  supervised: SupervisedContainer,
  record: AttemptRecord,
  { state, stop, opening }: Observation,
  waitForRequest: WaitForRequest,
  signal: AbortSignal,
): Promise<void> {
  const { attempt, graceMs, recordings } = supervised;
  const now = Date.now();
  const failure = opening?.recorded ? await recordings.readFailure(attempt) : undefined;
  if (failure && !stop)
    await requestStop(supervised, { how: 'KILL', why: 'disk', at: now, note: failure.reason });
  const dueAt = stop
    ? stop.at + (stop.how === 'KILL' ? 0 : graceMs)
    : (opening?.at ?? Number.POSITIVE_INFINITY) + record.timeoutMs;
  if (now >= dueAt && stop) {
    await sendSignal(supervised, 'KILL', state);
    await waitForChange(supervised, waitForRequest, KILLED_POLL_MS, signal);
  } else if (now >= dueAt) {
    await requestStop(supervised, { how: 'TERM', why: 'timeout', at: now });
  } else await waitForChange(supervised, waitForRequest, Math.min(POLL_MS, dueAt - now), signal);
}

/**
 * Whether an attempt on an unavailable engine may be reported as lost: it was cancelled, or its own watchdog has certainly
 * ended it. Otherwise it may still run, and must not run twice. Its container is removed when the engine answers again.
 */
async function canBeGivenUp(
  { attemptDir, graceMs, engineTimeoutMs }: SupervisedContainer,
  { timeoutMs }: AttemptRecord,
): Promise<boolean> {
  const stop = await readRecord(attemptDir, 'stop');
  const opening = await readOpening(attemptDir);
  const isUnwanted = stop?.why === 'asked' && Date.now() > stop.at + graceMs;
  // Twice the grace: on a remote engine the watchdog waits for one before its own SIGTERM (`start-barrier.ts`).
  const latestEnd =
    (opening?.at ?? Number.POSITIVE_INFINITY) + timeoutMs + 2 * graceMs + engineTimeoutMs;
  return isUnwanted || Date.now() > latestEnd;
}

/** The latest write of each attempt: a timeout, a full disk and a cancellation may come at the same time. */
const pendingWrites = new Map<string, Promise<void>>();

/** Tells the container to end: stores the request, then sends the signal. The first reason stays; KILL replaces TERM. */
export async function requestStop(
  supervised: SupervisedContainer,
  stop: StopRequest,
): Promise<void> {
  const { attemptDir } = supervised;
  const before = pendingWrites.get(attemptDir) ?? Promise.resolve();
  const stored = before.catch(() => {}).then(() => storeStop(attemptDir, stop));
  pendingWrites.set(attemptDir, stored);
  try {
    await stored;
  } finally {
    if (pendingWrites.get(attemptDir) === stored) pendingWrites.delete(attemptDir);
  }
  await markStopRequested(attemptDir);
  await sendSignal(supervised, stop.how);
}

async function storeStop(attemptDir: string, stop: StopRequest): Promise<void> {
  const before = await readRecord(attemptDir, 'stop');
  if (!before || (before.how === 'TERM' && stop.how === 'KILL'))
    await writeRecord(attemptDir, 'stop', before ? { ...before, how: stop.how } : stop);
}

/**
 * SIGTERM goes to every process where this server can reach them, and through the engine otherwise.
 * @param state if it is known already
 */
async function sendSignal(
  { engine, container, isLocal }: SupervisedContainer,
  how: 'TERM' | 'KILL',
  state?: ContainerState,
): Promise<void> {
  if (how === 'TERM') {
    const current = state ?? (await readContainerState(engine, container));
    const canSignal = isLocal() && process.getuid?.() === 0;
    const pids = canSignal ? listContainerProcesses(current?.pid ?? 0) : [];
    if (pids.length > 0) return sendSigterm(pids);
  }
  try {
    await engine.call((docker) => docker.getContainer(container).kill({ signal: `SIG${how}` }));
  } catch (error) {
    // The container is gone, or has ended.
    if (!isStatus(error, 404, 409)) throw error;
  }
}

/** Settles when the container has ended, a stop was requested, or after `ms`. */
async function waitForChange(
  { engine, container }: SupervisedContainer,
  waitForRequest: WaitForRequest,
  ms: number,
  signal: AbortSignal,
): Promise<void> {
  const over = new AbortController();
  const abortSignal = AbortSignal.any([signal, over.signal]);
  const ended = engine.docker
    .getContainer(container)
    .wait({ condition: 'not-running', abortSignal } as object)
    // The caller repeats the request; without a pause it would loop while the engine is unavailable.
    .catch(() => delay(RETRY_MS, undefined, { signal: abortSignal }).catch(() => {}));
  await Promise.race([
    ended,
    waitForRequest(abortSignal),
    delay(ms, undefined, { signal: abortSignal }),
  ])
    .catch(() => {})
    .finally(() => over.abort());
}
