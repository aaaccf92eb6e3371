/**
 * The shim: a small process that supervises one attempt at a time and outlives the server. It starts the work, records every
 * line with its time, enforces the timeout and the grace period, and records how the work ended. The server only reads the
 * shim's files, and sends it SIGTERM (end the work gracefully) or SIGUSR2 (kill it).
 *
 *   node shim.ts <folder of attempts> < commands, one per line
 *
 * The shim may be started before it has an attempt (`shims.ts`). Until it starts an attempt, it has no claim, and a network
 * that it opened ends with it. After an attempt that ended by itself the shim takes the next attempt, until its input ends.
 * After an attempt that was killed, or that ran as the server's user and could have tampered with the shim, the shim ends.
 *
 * The shim imports few files, because the start of a job may wait for it (100 ms).
 *
 * The files in the folder of an attempt, beside those of `../supervisor/supervise.ts`:
 *   spec.json   the command and its limits; removed once read, because it contains secrets
 *   claim       the process that supervises the attempt; created once, so that no attempt runs twice; without meaning once
 *               `exit` exists
 *   out, err    FIFOs for the output of the work. Node's own pipes are socket pairs, with which `> /dev/stdout` fails
 */
import { readFileSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setImmediate as nextIteration } from 'node:timers/promises';
import { closeInheritedDescriptors } from '../../platform/processes/inherited-descriptors.ts';
import { DISK_FULL_EXIT, takeClaim } from '../supervisor/claim.ts';
import { lowerPriority } from '../supervisor/priority.ts';
import {
  isDiskFull,
  recordFailedStart,
  type Supervision,
  supervise,
  type Work,
  type WorkOutputs,
  type WorkSpec,
} from '../supervisor/supervise.ts';
import {
  applyGroupLimits,
  type Cgroup,
  countOomKills,
  createGroup,
  type GroupSettings,
  removeGroup,
} from './cgroup.ts';
import { baseEnvironment, type Command, launch } from './launch.ts';
import { type Network, openNetwork } from './namespace.ts';
import type { ShimCommand, ShimEvent } from './shims.ts';
import { openProcessTree } from './tree.ts';

export type ShimSpec = WorkSpec & {
  attempt: string;
  /** The kernel's boot id when the attempt was prepared. */
  bootId: string;
  /** Shell commands that set the limits of the process before `command`. */
  limitCommands: string[];
  command: Command;
  /** The group of all processes of the job; null: control groups cannot be created here. */
  cgroup: Cgroup | null;
  /** The settings of the group. A name of earlier versions, kept because the file may be read by a shim of another version. */
  groupPlan: GroupSettings;
};

/**
 * A shim that uses more memory takes no other attempt. A shim uses 55 MB after a start, 96 MB after a flood of lines, and 92
 * MB when it had to strip the types from its source, as at the first start of a server.
 */
const MAX_RSS_BYTES = 80 * 2 ** 20;

/** The attempt that this process supervises, as its handlers of signals and errors see it. */
let current: Supervision | undefined;

if (import.meta.main) {
  closeInheritedDescriptors();
  lowerPriority();
  process.on('SIGTERM', () => onSignal('TERM'));
  process.on('SIGUSR2', () => onSignal('KILL'));
  for (const name of ['SIGHUP', 'SIGINT', 'SIGPIPE'] as const) process.on(name, () => {});
  process.on('uncaughtException', (error) => {
    if (current?.fail) return current.fail(error);
    console.error(error);
    process.exit(1);
  });
  // Writing to stdout fails when the server was killed meanwhile.
  process.stdout.on('error', () => {});
  await readCommands(process.argv[2] ?? '');
  process.exit(0);
}

function onSignal(how: 'TERM' | 'KILL'): void {
  // Without an attempt the signal ends the shim itself.
  current ? current.stop(how) : process.exit(0);
}

async function readCommands(dir: string): Promise<void> {
  let network: Promise<Network> | undefined;
  for await (const line of createInterface({ input: process.stdin })) {
    if (line === '') continue;
    const command: ShimCommand = JSON.parse(line);
    if (command.type === 'connect') {
      network = openNetwork(command.network, baseEnvironment());
      // The start of the attempt reports the error.
      network.catch(() => {});
      continue;
    }
    // Waits one iteration of the event loop, after which a signal for the previous attempt has been delivered.
    await nextIteration();
    lowerPriority();
    if (!(await run(join(dir, command.attempt), network))) break;
    network = undefined;
    report('free');
  }
  await network?.then(
    (opened) => opened.close(),
    () => {},
  );
}

function report(event: ShimEvent): void {
  process.stdout.write(`${event}\n`);
}

/**
 * @param network the attempt's network, if it is being opened already
 * @returns whether this shim can take another attempt; false when another shim has claimed the attempt
 */
async function run(dir: string, network: Promise<Network> | undefined): Promise<boolean> {
  /** The signal that was received before the work could be stopped. */
  let earlySignal: 'TERM' | 'KILL' | undefined;
  current = {
    stop(how) {
      if (earlySignal !== 'KILL') earlySignal = how;
    },
  };
  try {
    if (!takeClaim(join(dir, 'claim'))) return false;
  } catch (error) {
    process.exit(isDiskFull(error) ? DISK_FULL_EXIT : 1);
  }
  const startedAt = Date.now();
  try {
    return await superviseAttempt(dir, startedAt, () => earlySignal, network);
  } catch (error) {
    // The command has not started. A sandbox may have started, and dies with this process.
    await recordFailedStart(dir, startedAt, error as Error);
    process.exit(0);
  } finally {
    current = undefined;
  }
}

/** @returns whether the work ended by itself and left this shim fit for another attempt */
async function superviseAttempt(
  dir: string,
  startedAt: number,
  getEarlySignal: () => 'TERM' | 'KILL' | undefined,
  connected: Promise<Network> | undefined,
): Promise<boolean> {
  const specFile = join(dir, 'spec.json');
  const spec: ShimSpec = JSON.parse(readFileSync(specFile, 'utf8'));
  unlinkSync(specFile);
  const { isStopped, ran } = await supervise(dir, spec, startedAt, {
    start: (outputs) => startWork(dir, spec, outputs, connected),
    onStarted(supervision) {
      current = supervision;
      // Reported early, because the server needs as long to record the start as a sandbox needs to start.
      report('started');
    },
    getEarlySignal,
    // Loaded on demand, because the start of a job waits for the shim.
    removeTree: async (folder) => (await import('../supervisor/removal.ts')).removeTree(folder),
  });
  const isSeparated = spec.command.setup !== null || spec.command.uid !== null;
  return ran && !isStopped && isSeparated && process.memoryUsage.rss() < MAX_RSS_BYTES;
}

async function startWork(
  dir: string,
  spec: ShimSpec,
  { out, err }: WorkOutputs,
  connected: Promise<Network> | undefined,
): Promise<Work> {
  const { cgroup } = spec;
  if (cgroup) {
    createGroup(cgroup, spec.groupPlan);
    applyGroupLimits(cgroup, spec.groupPlan);
  }
  const { pid, up, ended, network } = await launch({ ...spec, dir, out, err, connected });
  return {
    pid,
    up,
    ended,
    tree: openProcessTree(spec, pid, up),
    networkBroken: network?.broken,
    countOomKills: () => (cgroup ? countOomKills(cgroup) : 0),
    async release() {
      network?.close();
      // The shim removes the group, because the server may not be running. A later server retries if this fails.
      if (cgroup) await removeGroup(cgroup).catch(() => {});
    },
  };
}
