/**
 * Starts and removes containers.
 *
 * The command begins only when its script appears (`../container/wrapper.ts`), after the server has completed the setup from
 * outside, such as firewall rules. A manipulated `/bin/sh` gains nothing by not waiting: before its firewall rules are set, the
 * container has no network (`network.ts`). If a start fails before, for example because the engine dies in the
 * middle, the container is removed and created again, because no part of the job has run.
 */
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { RunnerUnavailable } from '../runner.ts';
import { writeJsonAtomically } from '../supervisor/claim.ts';
import { beginWithoutShim, type Opening, readRecord, writeRecord } from './attempt-dir.ts';
import { killContainerProcesses, procFileContains } from './container-processes.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';
import { sharesKernel } from './engine-facts.ts';
import { type ContainerNetwork, InconsistentNetworkError } from './network.ts';
import {
  type ContainerState,
  describeEarlyExit,
  exitedOnItsOwn,
  explainStartFailure,
  readContainerState,
} from './outcome.ts';
import type { SupervisedContainer } from './supervision.ts';

/** How long the engine may take to remove a container. */
const REMOVAL_TIMEOUT_MS = 10_000;

type StartOptions = SupervisedContainer & {
  network: ContainerNetwork;
  /** Applies the limits that all containers of this server share. */
  applySharedLimits(): Promise<void>;
  /** Counts a recreation of the container. @returns false when there were too many */
  mayRecreate(): boolean;
  /** Called before the command begins: for a remote container, whose script exists already, before its start. */
  mayBegin(): Promise<boolean>;
};

/**
 * A repeated call after a failure completes the missing steps.
 * @returns the result of `mayBegin`; true if the attempt has begun already or can never start
 * @throws RunnerUnavailable also when the container must be recreated
 */
export async function startContainer(options: StartOptions): Promise<boolean> {
  const { attempt, engine, container, attemptDir, shims, mayBegin } = options;
  const isRemote = (await readRecord(attemptDir, 'attempt'))?.remote ?? false;
  if (!isRemote && (await readRecord(attemptDir, 'opening'))) return true;
  if (!isRemote) shims.reserve(attempt);
  const created = await requireState(engine, container);
  const isFirstStart = created.status === 'created';
  if (isFirstStart) {
    // Before the start, because the job may be over before the engine's answer arrives.
    if (isRemote && !(await mayBegin())) return false;
    // Durable, because a remote container survives a crash of this machine.
    if (isRemote) await writeRecord(attemptDir, 'opening', { at: Date.now(), hasShim: false });
    if (!(await sendStart(options, created.id, isRemote))) return true;
  }
  if (isRemote) return true;
  await connectNetwork(options, created.id);
  const state = await requireState(engine, container);
  if (state.status === 'ended' && (await isUnstartable(options, state.exitCode, isFirstStart)))
    return true;
  if (!(await mayBegin())) return false;
  const opening: Opening = { at: Date.now(), hasShim: runsOnHostKernel(state) };
  if (opening.hasShim) shims.storeInitProcess(attempt, state.pid);
  else shims.discard(attempt);
  writeJsonAtomically(join(attemptDir, 'opening.json'), opening);
  await (opening.hasShim ? shims.ensure(attempt) : beginWithoutShim(attemptDir));
  return true;
}

/**
 * Whether a running container shares the kernel of this machine, so that FIFOs created by this server work in it: its first
 * process is visible here, in the container's own control group. False for an engine in a virtual machine, and for a server
 * in a container.
 */
function runsOnHostKernel({ id, pid, runtime }: ContainerState): boolean {
  return sharesKernel(runtime) && procFileContains(pid, 'cgroup', id);
}

async function requireState(engine: Engine, container: string) {
  const state = await readContainerState(engine, container);
  if (!state) throw new RunnerUnavailable('the container is gone');
  return state;
}

/** @returns false when the container can never start; the reason is then recorded */
async function sendStart(
  { engine, container, attemptDir, applySharedLimits }: StartOptions,
  id: string,
  isRemote: boolean,
): Promise<boolean> {
  await applySharedLimits();
  try {
    await engine.call((docker) => docker.getContainer(container).start());
    return true;
  } catch (error) {
    const reason = explainStartFailure(error);
    if (reason !== null) {
      await writeRecord(attemptDir, 'unstartable', { reason });
      return false;
    }
    // Without a barrier the command may have begun, so the container must stay.
    if (isRemote || !(error instanceof EngineError)) throw error;
    await killAndRemove(engine, container, id);
    throw isHalfStarted(error) ? recreationError(error.message) : error;
  }
}

async function connectNetwork(
  { engine, container, network, mayRecreate }: StartOptions,
  id: string,
): Promise<void> {
  try {
    await network.connect(container);
  } catch (error) {
    if (!(error instanceof InconsistentNetworkError && mayRecreate())) throw error;
    await killAndRemove(engine, container, id);
    throw recreationError(error.message);
  }
}

/**
 * Decides about a container that ended before the barrier opened, so that no part of the command has run. Either it ended
 * with its engine and is recreated, or its `/bin/sh` does not wait at the barrier, and the attempt can never start.
 * @returns whether the container was recorded as unstartable
 * @throws RunnerUnavailable when the container must be recreated
 */
async function isUnstartable(
  { attemptDir, mayRecreate }: StartOptions,
  exitCode: number,
  isFirstStart: boolean,
): Promise<boolean> {
  if (!exitedOnItsOwn(exitCode, isFirstStart) && mayRecreate())
    throw recreationError('it ended together with its engine');
  // After a stop request the attempt ends for that reason.
  if (await readRecord(attemptDir, 'stop')) return false;
  await writeRecord(attemptDir, 'unstartable', { reason: describeEarlyExit(exitCode) });
  return true;
}

function recreationError(reason: string): RunnerUnavailable {
  return new RunnerUnavailable(`the container must be recreated: ${reason}`);
}

/**
 * Kills the container's processes before the engine removes it. An engine that was killed during a start may have lost track
 * of processes that it started, and those would wait at a barrier that never opens.
 */
async function killAndRemove(engine: Engine, container: string, id: string): Promise<void> {
  if (process.getuid?.() === 0) await killContainerProcesses(id);
  await removeContainer(engine, container);
}

/** Removes the container of an attempt that never began. It may have processes even if the engine reports it as `created`. */
export async function removeUnstarted(engine: Engine, container: string): Promise<void> {
  const state = await readContainerState(engine, container);
  if (state?.status === 'created') await killAndRemove(engine, container, state.id);
  else await removeContainer(engine, container);
}

/** @param container name or id; it need not exist */
export async function removeContainer(engine: Engine, container: string): Promise<void> {
  for (const deadline = Date.now() + REMOVAL_TIMEOUT_MS; ; await delay(50)) {
    try {
      await engine.call((docker) =>
        docker.getContainer(container).remove({ force: true, v: true }),
      );
    } catch (error) {
      if (isStatus(error, 404)) return;
      // 409: a removal is in progress.
      if (!isStatus(error, 409) || Date.now() > deadline) throw error;
    }
  }
}

/** Whether remains of a start during which the engine was killed block the next start of this container. */
function isHalfStarted(error: EngineError): boolean {
  return /already exists|already in use/.test(error.message);
}
