/** Reads the state of a container from its engine, and determines how an attempt ended. */
import { text } from 'node:stream/consumers';
import type { Outcome } from '../runner.ts';
import { describeOutOfMemory } from '../supervisor/proc.ts';
import type { AttemptExit } from '../supervisor/supervise.ts';
import type { AttemptRecord, StartRefusal, StopRequest } from './attempt-dir.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';

export type ContainerState = {
  /** The engine never reuses an id. */
  id: string;
  /** Name of the runtime. */
  runtime: string;
  status: 'created' | 'running' | 'ended';
  /** Pid of the init on the engine's machine, while it runs. */
  pid: number;
  exitCode: number;
  /**
   * The kernel killed a process of the container for lack of memory; the container itself may have ended with 0. With version
   * 1 of control groups the engine reports this for all containers of a server that ran out of memory together.
   */
  outOfMemory: boolean;
  /** Number of processes killed for lack of memory, if it was counted in the container. */
  oomKills?: number | undefined;
  startedAt: number;
  endedAt: number;
  /** The exit code is certainly that of the command. */
  isExitCodeCertain?: boolean;
  /** There was a time without a shim, in which output and the report of the end may have been lost. */
  mayMissEnd?: boolean | undefined;
};

/**
 * @returns null when the container does not exist
 * @throws RunnerUnavailable
 */
export async function readContainerState(
  engine: Engine,
  container: string,
): Promise<ContainerState | null> {
  try {
    const {
      Id: id,
      State: state,
      HostConfig: { Runtime: runtime = '' },
    } = await engine.call((docker) => docker.getContainer(container).inspect());
    const { Status, Running, Pid, ExitCode, OOMKilled, StartedAt, FinishedAt } = state;
    return {
      id,
      runtime,
      status: Status === 'created' ? 'created' : Running ? 'running' : 'ended',
      pid: Pid,
      exitCode: ExitCode,
      outOfMemory: OOMKilled,
      startedAt: Date.parse(StartedAt),
      endedAt: Date.parse(FinishedAt),
    };
  } catch (error) {
    if (isStatus(error, 404)) return null;
    throw error;
  }
}

/** 128 + SIGKILL. */
const KILLED = 137;
/** Exit codes that the engine reports for a container that it found dead, without knowing how it ended. */
const UNKNOWN_EXIT_CODES = [0, 255];
/** Exit codes of containers that the engine ended when it was stopped or started: 128 + SIGTERM, 128 + SIGKILL. */
const ENGINE_STOP_CODES = [143, KILLED];
/** The above, and the code of a container that was found dead after its engine had died. */
const ENGINE_DEATH_CODES = [...ENGINE_STOP_CODES, 255];

/**
 * Whether a container may have ended because its engine ended, judged by its exit code. The caller has checked that there is
 * no stop request. An engine with `live-restore` keeps containers running while it restarts.
 */
export function mayHaveDiedWithEngine(state: ContainerState): boolean {
  const { exitCode, isExitCodeCertain, outOfMemory } = state;
  return ENGINE_DEATH_CODES.includes(exitCode) && !isExitCodeCertain && !outOfMemory;
}

/**
 * Whether a container that ended at the start barrier ended by itself, and not because its engine ended.
 * @param isFirstStart the engine has not restarted since it started the container
 */
export function exitedOnItsOwn(exitCode: number, isFirstStart: boolean): boolean {
  const isKnown = isFirstStart || !UNKNOWN_EXIT_CODES.includes(exitCode);
  return isKnown && !ENGINE_DEATH_CODES.includes(exitCode);
}

/**
 * Combines the engine's state of an ended container with the recorded exit. An engine that was killed just when the
 * container ended reports 0 (Docker 20.10) or 255; then the recorded exit code is used. Otherwise the engine's exit code is
 * used, because the job itself may have written the recorded one. Of the two end times the earlier is used, because neither
 * can precede the end.
 * @param exit has no exit code when the command's parent was killed and reported nothing
 * @param mayMissEnd no end was reported, and a shim was replaced
 * @param codeFromEvents the result of `readExitCodeFromEvents`, read if `mayMissEnd`
 * @returns null when it is unknown how the container ended
 */
export function mergeRecordedExit(
  state: ContainerState,
  { exitCode: recorded, oomKills, endedAt: goneAt }: AttemptExit,
  mayMissEnd: boolean,
  codeFromEvents: number | undefined,
): ContainerState | null {
  const isUnknown = UNKNOWN_EXIT_CODES.includes(state.exitCode);
  if (isUnknown && mayMissEnd && codeFromEvents === undefined) return null;
  const exitCode = isUnknown ? (recorded ?? codeFromEvents ?? KILLED) : state.exitCode;
  const isExitCodeCertain =
    codeFromEvents === exitCode || (exitCode === recorded && !ENGINE_STOP_CODES.includes(exitCode));
  const outOfMemory = oomKills === undefined ? state.outOfMemory : oomKills > 0;
  const endedAt = Math.min(state.endedAt, goneAt);
  return { ...state, exitCode, outOfMemory, oomKills, endedAt, isExitCodeCertain, mayMissEnd };
}

/** Tolerates a difference of one minute between the clocks of the engine and of its containers. */
const EVENTS_BEFORE_S = 60;

/**
 * Reads the exit code of a container from the events that the engine has seen since its own start. The engine keeps 256
 * events, in memory only.
 * @returns undefined when the engine has no event of the end
 * @throws RunnerUnavailable
 */
export async function readExitCodeFromEvents(
  engine: Engine,
  { id, startedAt }: ContainerState,
): Promise<number | undefined> {
  const options = {
    since: Math.floor(startedAt / 1000) - EVENTS_BEFORE_S,
    until: (Date.now() / 1000).toFixed(3),
    filters: { container: [id], event: ['die'] },
  };
  const events = await engine.call(async (docker) =>
    text(await docker.getEvents(options as object)),
  );
  const exitCodes = events
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => Number(JSON.parse(line).Actor.Attributes.exitCode));
  return exitCodes.at(-1);
}

/**
 * Whether the engine was restarted since the container started. An engine creates its default network again at each start,
 * unless it finds running containers.
 * @throws RunnerUnavailable
 */
export async function hasEngineRestartedSince(
  engine: Engine,
  { startedAt }: ContainerState,
): Promise<boolean> {
  try {
    const { Created } = await engine.call((docker) => docker.getNetwork('bridge').inspect());
    return Date.parse(Created) > startedAt;
  } catch (error) {
    // An engine without a default network. Then only the caller can notice that the engine is unavailable.
    if (isStatus(error, 404)) return false;
    throw error;
  }
}

const MISSING_LINES_NOTE =
  'The last lines of the log may be missing: the process that records it ended before the job.';

type EndedAttempt = {
  record: AttemptRecord;
  state: ContainerState;
  /** When the command began; null if it did not. */
  openedAt: number | null;
  stop: StopRequest | undefined;
  refused: StartRefusal | undefined;
};

/** Builds the outcome of a container that has ended, or can never start. */
export function buildOutcome({ record, state, openedAt, stop, refused }: EndedAttempt): Outcome {
  if (refused) return { kind: 'unstartable', reason: refused.reason };
  // No server let the command begin, and the container gave up after waiting for an hour.
  if (openedAt === null && !stop) return { kind: 'lost' };
  const startedAt = openedAt ?? state.startedAt;
  const endedAt = Math.max(
    startedAt,
    record.remote ? toServerClock(startedAt, state) : state.endedAt,
  );
  const timedOut = stop?.why === 'timeout' || (!stop && exceededTimeout(record, state, openedAt));
  const outOfMemory = state.outOfMemory || undefined;
  const memoryNote = outOfMemory && describeOutOfMemory(state.oomKills ?? 1, record.memoryBytes);
  const note = stop?.note ?? memoryNote ?? (state.mayMissEnd ? MISSING_LINES_NOTE : undefined);
  return {
    kind: 'exited',
    // A job that exceeded its disk limit has failed, even if it exited with 0 at the same moment.
    exitCode: stop?.why === 'disk' ? state.exitCode || KILLED : state.exitCode,
    timedOut,
    startedAt: new Date(startedAt),
    endedAt: new Date(endedAt),
    ...(note !== undefined && { note }),
    ...(outOfMemory && { outOfMemory }),
  };
}

/** Converts the end time of a remote container, because its engine's clock may differ. The job starts with the container. */
function toServerClock(startedAt: number, state: ContainerState): number {
  return startedAt + state.endedAt - state.startedAt;
}

/** Longer than a running server takes to act on a timeout, and shorter than the watchdog waits. */
const OVERRUN_MS = 1_000;

/**
 * Whether the job ran beyond its timeout without a stop request, because no server was running. Either its watchdog has ended
 * the job, or the job ended by itself before.
 */
export function exceededTimeout(
  { timeoutMs, remote }: AttemptRecord,
  state: ContainerState,
  openedAt: number | null,
): boolean {
  if (openedAt === null) return false;
  const endedAt = remote ? toServerClock(openedAt, state) : state.endedAt;
  return endedAt - openedAt >= timeoutMs + OVERRUN_MS;
}

/** The reason of an attempt whose container has ended before the command began. */
export function describeEarlyExit(exitCode: number): string {
  return `The command could not begin: /bin/sh of the image exited before running it, with exit code ${exitCode}`;
}

/** @returns why the engine refused to start a container, for the job's user; null when the job is not the cause */
export function explainStartFailure(error: unknown): string | null {
  if (!(error instanceof EngineError)) return null;
  if (/could not select device driver/.test(error.message))
    return 'The container engine of this server cannot give GPUs to containers: it has no device driver for them';
  // The container is incomplete, or another program removed it.
  if (/No such container/i.test(error.message)) return null;
  // The image causes 400 and 404: it has no /bin/sh, or one for another processor architecture.
  return [400, 404].includes(error.status) ? `The image cannot be run: ${error.message}` : null;
}
