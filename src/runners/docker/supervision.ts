/**
 * Supervises a container until it ends. Without a shim (`shim.ts`) this server enforces its timeout and the grace period after
 * SIGTERM.
 *
 * All decisions follow from stored facts (when the command began, when and why a stop was requested), so a restarted server
 * continues the supervision. The engine reports the end at once. The engine is polled every few seconds as
 * well, because the request that waits for the end never settles when the engine dies.
 */
import { jitter, sleep } from '../../base/backoff.ts';
import { MAX_WAIT_S } from '../container/wrapper.ts';
import { type Outcome, RunnerUnavailable } from '../runner.ts';
import { buildOutcome as buildRecordedOutcome } from '../supervisor/attempt-folder.ts';
import type { Ending } from '../supervisor/supervise.ts';
import {
  type AttemptRecord,
  beginWithoutShim,
  type Opening,
  readRecord,
  type StartRefusal,
  type StopRequest,
  writeRecord,
} from './attempt-dir.ts';
import { listContainerProcesses, sendSigterm } from './container-processes.ts';
import type { ContainerShims } from './container-shims.ts';
import { type Engine, isStatus } from './engine.ts';
import {
  buildOutcome,
  type ContainerState,
  describeEarlyExit,
  exceededTimeout,
  hasEngineRestartedSince,
  mayHaveDiedWithEngine,
  mergeRecordedExit,
  readContainerState,
  readExitCodeFromEvents,
} from './outcome.ts';

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
  shims: ContainerShims;
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
      const recorded = await readExitWithoutEngine(supervised, observed);
      if (recorded) return recorded;
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
  opening: Opening | undefined;
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
  const opening = await readRecord(attemptDir, 'opening');
  return state && { state, refused, stop, opening };
}

/**
 * The outcome of an end that the shim has recorded and the engine does not know: the container was removed, was started again
 * by somebody, or counts as running long after its first process has ended.
 */
async function readExitWithoutEngine(
  supervised: SupervisedContainer,
  observed: Observation | null,
): Promise<Outcome | undefined> {
  const exit = await supervised.shims.readExit(supervised.attempt);
  if (!exit || exit.unstartable || exit.exitCode === null) return undefined;
  if (observed && observed.state.status !== 'running') return undefined;
  if (observed && Date.now() - exit.endedAt < POLL_MS) return undefined;
  if (observed) await sendSignal(supervised, 'KILL', observed.state);
  return buildRecordedOutcome({ ...exit, exitCode: exit.exitCode });
}

/**
 * For a container that has ended, or can never start.
 * @param wasEngineUnavailable the engine was unavailable at some time during the supervision
 */
async function determineOutcome(
  { attempt, engine, attemptDir, shims }: SupervisedContainer,
  record: AttemptRecord,
  {
    state,
    refused,
    stop: requested,
    opening,
    wasEngineUnavailable,
  }: Observation & { wasEngineUnavailable: boolean },
  signal: AbortSignal,
): Promise<Outcome> {
  const exit = opening?.hasShim ? await shims.waitForExit(attempt, signal) : undefined;
  const ending = await readRecord(attemptDir, 'ending');
  if (ending?.reason?.isLoss) return { kind: 'lost', reason: ending.reason.reason };
  const stop = mergeStops(requested, ending);
  const mayMissEnd = exit?.exitCode === null && shims.wasReplaced(attempt);
  const codeFromEvents = mayMissEnd ? await readExitCodeFromEvents(engine, state) : undefined;
  if (exit?.unstartable && !stop && !refused) {
    const hasWaited = state.endedAt - state.startedAt >= MAX_WAIT_S * 1_000;
    const isLost =
      hasWaited || wasEngineUnavailable || (await hasEngineRestartedSince(engine, state));
    return isLost
      ? { kind: 'lost' }
      : { kind: 'unstartable', reason: describeEarlyExit(state.exitCode) };
  }
  const ended =
    exit && !exit.unstartable ? mergeRecordedExit(state, exit, mayMissEnd, codeFromEvents) : state;
  if (!ended) return { kind: 'lost' };
  const openedAt = opening?.at ?? null;
  const isOverdue = exceededTimeout(record, ended, openedAt);
  const mayBeLost = !refused && !stop && mayHaveDiedWithEngine(ended) && !isOverdue;
  if (mayBeLost && (wasEngineUnavailable || (await hasEngineRestartedSince(engine, state))))
    return { kind: 'lost' };
  return buildOutcome({ record, state: ended, openedAt, stop, refused });
}

/** Why the container was ended. A shim ends it at the timeout, or when its log cannot be written. */
function mergeStops(
  requested: StopRequest | undefined,
  ending: Ending | undefined,
): StopRequest | undefined {
  if (ending?.timedOut) return { how: ending.how, why: 'timeout', at: ending.at };
  if (requested || !ending?.reason) return requested;
  return { how: ending.how, why: 'disk', at: ending.at, note: ending.reason.reason };
}

/** Takes the next step to stop a running container if that is due; otherwise waits for a change. */
async function stopOrWait(
  supervised: SupervisedContainer,
  record: AttemptRecord,
  { state, stop, opening }: Observation,
  waitForRequest: WaitForRequest,
  signal: AbortSignal,
): Promise<void> {
  const { attempt, graceMs, shims } = supervised;
  if (opening?.hasShim) {
    await shims.ensure(attempt);
    return waitForChange(supervised, waitForRequest, POLL_MS, signal);
  }
  // The server that has recorded the opening may have been killed before it let the command begin.
  if (opening && !record.remote) await beginWithoutShim(supervised.attemptDir);
  const now = Date.now();
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
  const opening = await readRecord(attemptDir, 'opening');
  const isUnwanted = stop?.why === 'asked' && Date.now() > stop.at + graceMs;
  // Twice the grace period: a watchdog in the container waits for one before its own SIGTERM (`../container/wrapper.ts`).
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
  const opening = await readRecord(attemptDir, 'opening');
  if (opening?.hasShim) await supervised.shims.signal(supervised.attempt, stop.how);
  // Rejects while the engine is unavailable, and then the caller repeats the request.
  const state = await readContainerState(supervised.engine, supervised.container);
  if (state && !opening?.hasShim) await sendSignal(supervised, stop.how, state);
}

async function storeStop(attemptDir: string, stop: StopRequest): Promise<void> {
  const before = await readRecord(attemptDir, 'stop');
  if (!before || (before.how === 'TERM' && stop.how === 'KILL'))
    await writeRecord(attemptDir, 'stop', before ? { ...before, how: stop.how } : stop);
}

/**
 * Sends SIGTERM to every process of the container if this server can signal them, and otherwise through the engine.
 */
async function sendSignal(
  { engine, container, isLocal }: SupervisedContainer,
  how: 'TERM' | 'KILL',
  state: ContainerState,
): Promise<void> {
  if (how === 'TERM') {
    const canSignal = isLocal() && process.getuid?.() === 0;
    const pids = canSignal ? listContainerProcesses(state.pid) : [];
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
