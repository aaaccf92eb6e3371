/** How a container stands with its engine, and how its attempt ended. */
import { text } from 'node:stream/consumers';
import type { Outcome } from '../runner.ts';
import { tellOutOfMemory } from '../supervisor/proc.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';
import type { AttemptRecord, Refused, Stop } from './place.ts';
import type { RecordedExit } from './recorder.ts';

export type ContainerState = {
  /** Of the engine, which gives none twice. */
  id: string;
  /** Name of the program that runs it. */
  runtime: string;
  status: 'created' | 'running' | 'ended';
  /** On the engine's machine, while it runs. */
  pid: number;
  exitCode: number;
  /**
   * A process of it was killed because it was out of memory; the container itself may have ended with 0. With control
   * groups of version 1 an engine says so of all containers of a server where these together had no memory left.
   */
  outOfMemory: boolean;
  /** How many processes were, where that was counted in the container. */
  oomKills?: number | undefined;
  startedAt: number;
  endedAt: number;
  /** The exit code is surely that of the command. */
  known?: boolean;
  /** It was to be recorded, and nobody was there to hear how it ended. */
  unheard?: boolean | undefined;
};

/** Null: there is none. @throws RunnerAway */
export async function stateOf(engine: Engine, container: string): Promise<ContainerState | null> {
  try {
    const {
      Id: id,
      State: state,
      HostConfig: { Runtime: runtime = '' },
    } = await engine.call((docker) => docker.getContainer(container).inspect());
    const { Status, Running, Pid, ExitCode, OOMKilled, StartedAt, FinishedAt } = state;
    return {
      ...{ id, runtime },
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
/** Of a container that the engine found dead, and of which it does not know more. */
const UNKNOWN = [0, 255];
/** Of a container that the engine ended when it was stopped or started: TERM, KILL. */
const BY_ENGINE = [143, KILLED];
const WITH_ENGINE = [...BY_ENGINE, 255];

/**
 * Whether a container may have ended with its engine, and not by itself: by its exit code, which nobody asked for. An
 * engine that keeps containers running while it is restarted (`live-restore`) does not end them.
 */
export function mayBeLost(state: ContainerState): boolean {
  return WITH_ENGINE.includes(state.exitCode) && !state.known && !state.outOfMemory;
}

/**
 * Whether a container that ended at its gate did so by itself, and not with its engine.
 * @param startedNow the engine was there all the time since its start
 */
export function endedByItself(exitCode: number, startedNow: boolean): boolean {
  return !WITH_ENGINE.includes(exitCode) && (startedNow || !UNKNOWN.includes(exitCode));
}

/**
 * How a recorded container ended (`recorder.ts`). An engine that was killed just when a container ended says later that
 * this ended with 0 (Docker 20.10) or 255, when the engine was back: then it was as the parent of its command said. All
 * else the engine knows better, because what is said may be the job's own words.
 *
 * Neither of the two sees the end before it is there, so the first who saw it is right. When it was said does not count.
 * @param exit without a code: the parent was killed itself, and said nothing
 * @param seen the exit code that the running engine saw, where nobody listened (`seenExit`)
 * @returns null: nobody knows how it ended
 */
export function withRecorded(
  state: ContainerState,
  { exitCode: said, oomKills, unheard, goneAt = state.endedAt }: RecordedExit = {},
  seen?: number,
): ContainerState | null {
  const isUnknown = UNKNOWN.includes(state.exitCode);
  if (isUnknown && unheard && seen === undefined) return null;
  const exitCode = isUnknown ? (said ?? seen ?? KILLED) : state.exitCode;
  const known = seen === exitCode || (exitCode === said && !BY_ENGINE.includes(exitCode));
  const outOfMemory = oomKills === undefined ? state.outOfMemory : oomKills > 0;
  const endedAt = Math.min(state.endedAt, goneAt);
  return { ...state, exitCode, outOfMemory, oomKills, endedAt, known, unheard };
}

/** A minute more than the clocks of the engine and of its containers differ. */
const EVENTS_BEFORE_S = 60;

/**
 * The exit code of a container that the engine has seen end since it was started itself; undefined: it has not, or has
 * forgotten. It remembers 256 events, in memory alone. @throws RunnerAway
 */
export async function seenExit(
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
  const codes = events
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => Number(JSON.parse(line).Actor.Attributes.exitCode));
  return codes.at(-1);
}

/**
 * Whether the engine was started again since the container was. It makes its own network anew at each start, unless it
 * has found containers running. @throws RunnerAway
 */
export async function restartedSince(
  engine: Engine,
  { startedAt }: ContainerState,
): Promise<boolean> {
  try {
    const { Created } = await engine.call((docker) => docker.getNetwork('bridge').inspect());
    return Date.parse(Created) > startedAt;
  } catch (error) {
    // It has none; who saw it go away knows better.
    if (isStatus(error, 404)) return false;
    throw error;
  }
}

const UNHEARD =
  'What the job printed last may be missing: the process that kept its log had ended before it.';

export type Ended = {
  record: AttemptRecord;
  state: ContainerState;
  /** When its command began; null: it did not. */
  openedAt: number | null;
  stop: Stop | undefined;
  refused: Refused | undefined;
};

/** Of a container that has ended, or never could start. */
export function outcomeOf({ record, state, openedAt, stop, refused }: Ended): Outcome {
  if (refused) return { kind: 'unstartable', reason: refused.reason };
  // Nobody opened the gate for an hour: its server was gone.
  if (openedAt === null && !stop) return { kind: 'lost' };
  const startedAt = openedAt ?? state.startedAt;
  const endedAt = Math.max(startedAt, record.remote ? onOurClock(startedAt, state) : state.endedAt);
  const timedOut = stop?.why === 'timeout' || (!stop && overran(record, state, openedAt));
  const outOfMemory = state.outOfMemory || undefined;
  const killed = outOfMemory && tellOutOfMemory(state.oomKills ?? 1, record.memoryBytes);
  const note = stop?.note ?? killed ?? (state.unheard ? UNHEARD : undefined);
  return {
    kind: 'exited',
    // What was ended for what it keeps has failed, even if it ended by itself at the same moment.
    exitCode: stop?.why === 'disk' ? state.exitCode || KILLED : state.exitCode,
    timedOut,
    startedAt: new Date(startedAt),
    endedAt: new Date(endedAt),
    ...(note !== undefined && { note }),
    ...(outOfMemory && { outOfMemory }),
  };
}

/** Of a container that began with its job: the clock of the engine's machine may differ from ours. */
function onOurClock(startedAt: number, state: ContainerState): number {
  return startedAt + state.endedAt - state.startedAt;
}

/** A server that is there tells a job sooner, and the watchdog later. */
const OVERRUN_MS = 1_000;

/**
 * Whether it ran beyond its timeout without being told to end: no server was there. Its watchdog has ended it, or
 * it ended by itself before that.
 */
export function overran(
  { timeoutMs, remote }: AttemptRecord,
  state: ContainerState,
  openedAt: number | null,
): boolean {
  if (openedAt === null) return false;
  const endedAt = remote ? onOurClock(openedAt, state) : state.endedAt;
  return endedAt - openedAt >= timeoutMs + OVERRUN_MS;
}

/** Why the engine refused to start a container, for the job's user; null when it is no affair of the job. */
export function whyNotStarted(error: unknown): string | null {
  if (!(error instanceof EngineError)) return null;
  if (/could not select device driver/.test(error.message))
    return 'The container engine of this server cannot give GPUs to containers: it has no driver for them';
  // It was removed by others, or is half made.
  if (/No such container/i.test(error.message)) return null;
  // A bad request is the image's fault: it has no /bin/sh, or one for other processors.
  return [400, 404].includes(error.status) ? `The image cannot be run: ${error.message}` : null;
}
