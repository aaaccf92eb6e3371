/**
 * Starting a container and opening its gate, and removing a container.
 *
 * The gate alone lets the command begin. What becomes of a container before, because the engine dies in the middle of
 * starting it for example, is made anew: then nothing has run.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { RunnerAway } from '../runner.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';
import { type ContainerNetwork, HalfConnected } from './network.ts';
import { endedByItself, stateOf, whyNotStarted } from './outcome.ts';
import type { Overseen } from './oversight.ts';
import { readRecord, writeRecord } from './place.ts';
import { killOf } from './processes.ts';
import { isOnThisKernel } from './recordings.ts';
import { openGate, opening } from './start-barrier.ts';

/** For the engine to remove a container whose processes have all got SIGKILL. */
const REMOVED_MS = 10_000;

type Begun = Overseen & {
  network: ContainerNetwork;
  /** Holds all containers together to what jobs have. */
  hold(): Promise<void>;
  /** Counts that it is made anew because it ended. @returns whether it has not been too often */
  mayRemake(): boolean;
  /** Asked before the gate is opened; where there is none, before the container is started. */
  mayBegin(): Promise<boolean>;
};

/**
 * Called again, it goes on where it was left.
 * @returns whether it may begin @throws RunnerAway also when the container is to be made anew
 */
export async function begin({
  attempt,
  engine,
  container,
  place,
  recordings,
  network,
  hold,
  mayRemake,
  mayBegin,
}: Begun): Promise<boolean> {
  const remote = (await readRecord(place, 'attempt'))?.remote;
  if (!remote && (await opening(place))) return true;
  // Beside the engine, which takes longer.
  const recorder = recordings.canBegin(attempt) ? recordings.begin(attempt) : null;
  recorder?.catch(() => {});
  const made = await stateOf(engine, container);
  if (!made) throw new RunnerAway('the container is gone');
  const startedNow = made.status === 'created';
  if (startedNow) {
    // Noted before: it has no gate, so it may be over before we know that it was started.
    if (remote && !(await openGate(place, { recorded: false }, mayBegin))) return false;
    await hold();
    try {
      await engine.call((docker) => docker.getContainer(container).start());
    } catch (error) {
      const reason = whyNotStarted(error);
      if (reason !== null) {
        await writeRecord(place, 'unstartable', { reason });
        return true;
      }
      // Without a gate nobody knows whether the command has begun.
      if (remote || !(error instanceof EngineError)) throw error;
      await discard(engine, container, made.id);
      throw isHalfStarted(error) ? new RunnerAway(`it is made anew: ${error}`) : error;
    }
  }
  if (remote) return true;
  try {
    await network.connect(container);
  } catch (error) {
    if (!(error instanceof HalfConnected && mayRemake())) throw error;
    await discard(engine, container, made.id);
    throw new RunnerAway(`it is made anew: ${error.message}`);
  }
  const state = await stateOf(engine, container);
  if (!state) throw new RunnerAway('the container is gone');
  if (state.status === 'ended') {
    if (!endedByItself(state.exitCode, startedNow) && mayRemake())
      throw new RunnerAway('the container ended with its engine: it is made anew');
    // What does not wait at the gate is no shell. Nothing of the command has run; what was told to end has no other reason.
    const reason = `The command could not begin: /bin/sh of the image ended before it, with exit code ${state.exitCode}`;
    if (!(await readRecord(place, 'stop'))) {
      await writeRecord(place, 'unstartable', { reason });
      return true;
    }
  }
  const recorded = recorder !== null && isOnThisKernel(state);
  if (recorded) {
    await recorder;
    recordings.noteInit(attempt, state.pid);
  } else await recordings.end(attempt);
  return openGate(place, { recorded }, mayBegin);
}

/**
 * Of a container that cannot be started: an engine that was killed while it started it may have left processes of it that
 * it knows nothing of, at a gate that is never opened.
 */
async function discard(engine: Engine, container: string, id: string): Promise<void> {
  if (process.getuid?.() === 0) await killOf(id);
  await removeContainer(engine, container);
}

/**
 * Of an attempt that never began: the engine may have been killed while it started the container, which is then `created`
 * for it as before, whatever runs of it.
 */
export async function removeUnbegun(engine: Engine, container: string): Promise<void> {
  const state = await stateOf(engine, container);
  if (state?.status === 'created') await discard(engine, container, state.id);
  else await removeContainer(engine, container);
}

/** By its name or its id; it need not be there. */
export async function removeContainer(engine: Engine, container: string): Promise<void> {
  for (const deadline = Date.now() + REMOVED_MS; ; await delay(50)) {
    try {
      await engine.call((docker) =>
        docker.getContainer(container).remove({ force: true, v: true }),
      );
    } catch (error) {
      if (isStatus(error, 404)) return;
      // It is being removed already, which is waited for.
      if (!isStatus(error, 409) || Date.now() > deadline) throw error;
    }
  }
}

/** What the engine left of a start in the middle of which it was killed is in the way; of another container it is not. */
function isHalfStarted(error: EngineError): boolean {
  return /already exists|already in use/.test(error.message);
}
