/**
 * Supervises a container until it ends: enforces its timeout and the grace period after SIGTERM, and ends it when its log
 * cannot be written.
 *
 * All decisions follow from stored facts (when the start barrier was opened, when and why a stop was requested), so a
 * restarted server continues the supervision. The engine reports the end at once. The engine is polled every few seconds as
 * well, because the request that waits for the end never settles when the engine dies.
 */
import { jitter, sleep } from '../../base/backoff.ts';
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
import { type BarrierOpening, markStopRequested, readBarrierOpening } from './start-barrier.ts';

const POLL_MS = 5_000;
/** Interval after SIGKILL, which is repeated: a process in the middle of a slow write dies late. */
const KILLED_POLL_MS = 500;
/** Longest pause before the next request to an engine that does not answer. */
const RETRY_MS = 500;
/** An engine that is upgraded answers again within this time. */
export const ENGINE_TIMEOUT_MS = 60_000;

export type SupervisedContainer = {
  attempt: string;
  engine: Engine;
  container: string;
  attemptDir: string;
  graceMs: number;
  /** How long the engine may be unavailable before attempts that have certainly ended or were cancelled count as lost. */
  engineTimeoutMs: number;
  /** Whether the container's processes run on this machine; false until that is known. */
  isLocal(): boolean;
  recordings: Recordings;
};

/** Settles when a stop is requested, or when `signal` aborts. */
type WaitForRequest = (signal: AbortSignal) => Promise<void>;

/**
 * Waits for the end of the container, and ends it at its timeout or after a stop request.
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
  let wasEngineUnavailable = false;
  let unavailableSince = Number.POSITIVE_INFINITY;
  for (;;) {
    signal.throwIfAborted();
    try {
      const observed = await observe(supervised);
      unavailableSince = Number.POSITIVE_INFINITY;
      if (!observed) return { kind: 'lost' };
      if (observed.refused || observed.state.status === 'ended')
        return await determineOutcome(
          supervised,
          record,
          { ...observed, wasEngineUnavailable },
          signal,
        );
      await stopOrWait(supervised, record, observed, waitForRequest, signal);
    } catch (error) {
      if (!(error instanceof RunnerUnavailable)) throw error;
      wasEngineUnavailable = true;
      unavailableSince = Math.min(unavailableSince, Date.now());
      const isTimeoutOver = Date.now() - unavailableSince > engineTimeoutMs;
      if (isTimeoutOver && (await canBeGivenUp(supervised, record)))
        return { kind: 'lost', unreachable: true };
      await sleep(jitter(RETRY_MS), signal);
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
  const opening = await readBarrierOpening(attemptDir);
  return state && { state, refused, stop, opening };
}

/**
 * For a container that has ended, or can never start.
 * @param wasEngineUnavailable the engine was unavailable at some time during the supervision
 */
async function determineOutcome(
  { attempt, engine, recordings }: SupervisedContainer,
  record: AttemptRecord,
  {
    state,
    refused,
    stop,
    opening,
    wasEngineUnavailable,
  }: Observation & { wasEngineUnavailable: boolean },
  signal: AbortSignal,
): Promise<Outcome> {
  const exit = opening?.recorded ? await recordings.finish(attempt, signal) : undefined;
  const mayMissEnd = exit?.unheard ?? false;
  const isRecorded = opening?.recorded && (mayMissEnd || !recordings.recordedNothing(attempt));
  const codeFromEvents = mayMissEnd ? await readExitCodeFromEvents(engine, state) : undefined;
  const ended = isRecorded ? mergeRecordedExit(state, exit, codeFromEvents) : state;
  if (!ended) return { kind: 'lost' };
  const openedAt = opening?.at ?? null;
  const isOverdue = exceededTimeout(record, ended, openedAt);
  const mayBeLost = !refused && !stop && mayHaveDiedWithEngine(ended) && !isOverdue;
  if (mayBeLost && (wasEngineUnavailable || (await hasEngineRestartedSince(engine, state))))
    return { kind: 'lost' };
  return buildOutcome({ record, state: ended, openedAt, stop, refused });
}

/** Takes the next step to stop a running container if that is due; otherwise waits for a change. */
async function stopOrWait(
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
  const opening = await readBarrierOpening(attemptDir);
  const isUnwanted = stop?.why === 'asked' && Date.now() > stop.at + graceMs;
  // Twice the grace period: on a remote engine the watchdog waits for one before its own SIGTERM (`start-barrier.ts`).
  const latestEnd =
    (opening?.at ?? Number.POSITIVE_INFINITY) + timeoutMs + 2 * graceMs + engineTimeoutMs;
  return isUnwanted || Date.now() > latestEnd;
}

/** The latest write, by attempt folder. Writes are serialised: timeout, full disk and cancellation may coincide. */
const pendingWrites = new Map<string, Promise<void>>();

/** Stores the stop request, then sends the signal. The first reason stays; KILL replaces TERM. */
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
 * Sends SIGTERM to every process of the container if this server can signal them, and otherwise through the engine.
 * @param state the container's state, if the caller has read it
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

/** Settles when the container has ended, when a stop is requested, or after `ms`. */
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
    // The caller repeats the request; without a pause it would repeat it without end while the engine is unavailable.
    .catch(() => sleep(jitter(RETRY_MS), abortSignal));
  await Promise.race([ended, waitForRequest(abortSignal), sleep(ms, abortSignal)])
    .catch(() => {})
    .finally(() => over.abort());
}
