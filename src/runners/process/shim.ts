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
 * The files in the folder of an attempt. Files that the server waits for appear complete, by rename or link:
 *   spec.json   the command and its limits; removed once read, because it contains secrets
 *   claim       the process that supervises the attempt; created once, so that no attempt runs twice
 *   started     the process and its start time; omitted when the work ends at once
 *   out, err    FIFOs for the output of the work. Node's own pipes are socket pairs, with which `> /dev/stdout` fails
 *   log         `<epoch ms> <o|e> <line>`, upper case when the line was cut
 *   disk        the last measurement of the job's folders
 *   reserve     deleted when the disk is full, to make room for the other files
 *   exit        how the attempt ended, written when the log is durable; from then on the claim has no meaning
 */
import { closeSync, existsSync, mkdirSync, readFileSync, unlinkSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';
import { DISK_FULL_EXIT, syncLog, takeClaim, writeJsonAtomically } from '../supervisor/claim.ts';
import { type DiskLimits, type DiskUse, type StopReason, watchDisk } from '../supervisor/disk.ts';
import { copyLines, type LogLimits, openLog } from '../supervisor/lines.ts';
import { lowerPriority } from '../supervisor/priority.ts';
import { closeInheritedDescriptors, describeOutOfMemory, watchMemory } from '../supervisor/proc.ts';
import {
  applyGroupLimits,
  type Cgroup,
  countOomKills,
  createGroup,
  type GroupPlan,
  removeGroup,
} from './cgroup.ts';
import { baseEnvironment, type Command, launch } from './launch.ts';
import { type Network, openNetwork } from './namespace.ts';
import type { ShimCommand, ShimEvent } from './shims.ts';
import { openProcessTree } from './tree.ts';

/** A timer whose clock continues while the machine is suspended. The clock of Node's timers stops then. */
type UptimeTimer = { clear(): void };

/** How often an `UptimeTimer` checks the clock. */
const TICK_MS = 1_000;

/** If a timer fires later than this, the machine was suspended when the timer was due. */
const LATE_MS = 5_000;

/** Like `setTimeout`, but `onDue` receives how late the timer fires. */
function startUptimeTimer(ms: number, onDue: (lateMs: number) => void): UptimeTimer {
  const dueAt = uptime() * 1_000 + ms;
  let timer: NodeJS.Timeout | undefined;
  const check = () => {
    const left = dueAt - uptime() * 1_000;
    if (left <= 0) onDue(-left);
    else timer = setTimeout(check, Math.min(left, TICK_MS));
  };
  check();
  return { clear: () => clearTimeout(timer) };
}

export type ShimSpec = {
  attempt: string;
  /** The kernel's boot id when the attempt was prepared. */
  bootId: string;
  /** Shell commands that set the limits of the process before `command`. */
  limitCommands: string[];
  command: Command;
  timeoutMs: number;
  graceMs: number;
  /** The group of all processes of the job; null: control groups cannot be created here. */
  cgroup: Cgroup | null;
  /** The settings of the group. */
  groupPlan: GroupPlan;
  /** `watched`: the kernel does not enforce the limit, so the shim does. */
  memory: { bytes: number; watched: boolean };
  disk: DiskLimits & { dirs: string[]; floorBytes: number };
  log: LogLimits;
};
export type AttemptStart = { pid: number; startedAt: number };
export type AttemptExit = {
  exitCode: number;
  timedOut: boolean;
  startedAt: number;
  endedAt: number;
  /** The work never ran. Without a `reason`, the log says why. */
  unstartable: boolean;
  /** A line for the log about how the work ended. */
  reason?: string;
  /** The kernel killed a process of the job because its memory limit was reached. */
  outOfMemory?: true | undefined;
};

/** How long the shim waits for processes that keep stdout open after the end of the work. */
const DRAIN_MS = 2_000;

/** `started` is written after this time: only measurements need it, and it would be a tenth of the work for a short job. */
const STARTED_DELAY_MS = 100;

/** The exit code after SIGKILL: 128 + 9. */
const KILLED = 137;

/**
 * A shim that uses more memory takes no other attempt. A shim uses 55 MB after a start, 96 MB after a flood of lines, and 92
 * MB when it had to strip the types from its source, as at the first start of a server.
 */
const MAX_RSS_BYTES = 80 * 2 ** 20;

/** The attempt that this process supervises, as its handlers of signals and errors see it. */
type CurrentAttempt = {
  stop(how: 'TERM' | 'KILL'): void;
  /** Handles an unexpected error. */
  fail?(error: Error): void;
};
let current: CurrentAttempt | undefined;

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
    // Waits one turn of the event loop, after which a signal for the previous attempt has been delivered.
    await turn();
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
    return await supervise(dir, startedAt, () => earlySignal, network);
  } catch (error) {
    // The command has not started. A sandbox may have started, and dies with this process.
    const end = { exitCode: 125, timedOut: false, startedAt, endedAt: Date.now() };
    const exit: AttemptExit = {
      ...end,
      unstartable: true,
      reason: toStopReason(error as Error).reason,
    };
    await writeEnd(dir, exit);
    process.exit(0);
  } finally {
    current = undefined;
  }
}

/** @returns whether the work ended by itself and left this shim fit for another attempt */
async function supervise(
  dir: string,
  startedAt: number,
  getEarlySignal: () => 'TERM' | 'KILL' | undefined,
  connected: Promise<Network> | undefined,
): Promise<boolean> {
  const fileOf = (name: string) => join(dir, name);
  const spec: ShimSpec = JSON.parse(readFileSync(fileOf('spec.json'), 'utf8'));
  unlinkSync(fileOf('spec.json'));
  /** Why this shim ended the work. */
  let stopReason: StopReason | undefined;
  let isStopped = false;
  let killWork = () => {};
  const endFor = (reason: StopReason | null) => {
    if (reason === null || stopReason !== undefined) return;
    stopReason = reason;
    isStopped = true;
    killWork();
  };
  const log = openLog(fileOf('log'), spec.log, (error) => endFor(toStopReason(error)));
  const [out, err] = [fileOf('out'), fileOf('err')] as const;
  const outputs = [copyLines(out, 'o', log), copyLines(err, 'e', log)] as const;
  if (spec.cgroup) {
    createGroup(spec.cgroup, spec.groupPlan);
    applyGroupLimits(spec.cgroup, spec.groupPlan);
  }
  const { pid, up, ended, network } = await launch({ ...spec, dir, out, err, connected });
  const tree = openProcessTree(spec, pid, up);
  // Work that is being killed may end by itself, for example with the code of a failed fork.
  let isKilled = false;
  let isOver = false;
  const kill = () => {
    // The processes are gone, and their ids may belong to other processes by now.
    if (isOver) return;
    isKilled = true;
    tree.kill();
  };
  killWork = kill;
  for (const { writer } of outputs) closeSync(writer);
  void network?.broken.then((message) => {
    if (!isOver) log.note(`The network of this job has failed: ${message}`);
  });
  // Reported early, because the server needs as long to record the start as a sandbox needs to start.
  report('started');
  let startedTimer: NodeJS.Timeout | undefined;
  void up.then(() => {
    const started: AttemptStart = { pid: pid ?? 0, startedAt };
    if (!isOver)
      startedTimer = setTimeout(
        () => writeJsonAtomically(fileOf('started'), started),
        STARTED_DELAY_MS,
      );
  });

  let timedOut = false;
  let graceTimer: UptimeTimer | undefined;
  const stop = (how: 'TERM' | 'KILL') => {
    if (isOver) return;
    isStopped = true;
    if (how === 'KILL') return kill();
    if (graceTimer) return;
    graceTimer = startUptimeTimer(spec.graceMs, kill);
    tree.terminate();
  };
  // From here on any error ends the job, because only this shim can end it.
  current = { stop, fail: (error) => endFor(toStopReason(error)) };
  const timeout = startUptimeTimer(spec.timeoutMs, (lateMs) => {
    timedOut = graceTimer === undefined;
    // A minute and a half after the grace period other servers treat the attempt as lost, and may have started a retry.
    stop(lateMs > LATE_MS ? 'KILL' : 'TERM');
  });

  const watching = new AbortController();
  const onMeasured = (use: DiskUse) => tryTo(() => writeJsonAtomically(fileOf('disk'), use));
  void watchDisk({ ...spec.disk, pids: tree.pids, onMeasured }, watching.signal).then(endFor);
  if (spec.memory.watched)
    void watchMemory(tree.pids, spec.memory.bytes, watching.signal).then(endFor);

  /** `ran`: the command has ended; false if the sandbox failed before it. */
  const finish = async (exitCode: number, ran: boolean): Promise<boolean> => {
    isOver = true;
    clearTimeout(startedTimer);
    timeout.clear();
    graceTimer?.clear();
    watching.abort();
    const endedAt = Date.now();
    const drainTimer = setTimeout(() => outputs.forEach((o) => void o.source.destroy()), DRAIN_MS);
    await Promise.all([tree.killRemaining(), ...outputs.map((o) => o.closed)]);
    clearTimeout(drainTimer);
    if (stopReason?.full) await emptyFolders(spec.disk.dirs);
    const oomKills = spec.cgroup ? countOomKills(spec.cgroup) : 0;
    const memoryReason =
      oomKills > 0 ? describeOutOfMemory(oomKills, spec.memory.bytes) : undefined;
    await writeEnd(dir, {
      // A killed command has failed, even if it ended by itself at the same moment. A command that was stopped before its
      // start has no exit code of its own.
      exitCode: isKilled || (isStopped && !ran) ? KILLED : exitCode,
      timedOut,
      startedAt,
      endedAt,
      unstartable: !ran && !isStopped,
      reason: stopReason?.reason ?? memoryReason,
      outOfMemory: oomKills > 0 || undefined,
    });
    network?.close();
    // The shim removes the group, because the server may not be running. A later server retries if this fails.
    if (spec.cgroup) await removeGroup(spec.cgroup).catch(() => {});
    log.close();
    const isSeparated = spec.command.setup !== null || spec.command.uid !== null;
    return ran && !isStopped && isSeparated && process.memoryUsage.rss() < MAX_RSS_BYTES;
  };
  const earlySignal = getEarlySignal();
  if (earlySignal) stop(earlySignal);
  const { exitCode, ran, error } = await ended;
  if (error) log.note(error);
  return finish(exitCode, ran);
}

/**
 * Records how the attempt ended, after syncing the log. When the disk is full, the reserve file is deleted; other programs
 * may take that space, so the write is retried every second. The retries end when the folder was removed, because no server
 * needs the record then.
 */
async function writeEnd(dir: string, exit: AttemptExit): Promise<void> {
  for (let round = 0; ; round++) {
    try {
      syncLog(join(dir, 'log'));
      return writeJsonAtomically(join(dir, 'exit'), exit, dir);
    } catch {
      if (!existsSync(dir)) return;
      tryTo(() => unlinkSync(join(dir, 'reserve')));
    }
    if (round > 0) await delay(1_000);
  }
}

function isDiskFull(error: unknown): boolean {
  return ['ENOSPC', 'EDQUOT'].includes((error as NodeJS.ErrnoException).code ?? '');
}

function toStopReason(error: Error): StopReason {
  const full = isDiskFull(error);
  const cause = full
    ? 'the disk of the server is full'
    : `the process that supervises it failed (${error.message})`;
  return { full, reason: `The job was ended: ${cause}.` };
}

/**
 * Deletes the files of an ended job, because the server may need the space to record the end. There would be no space for
 * artifacts of the job either.
 */
async function emptyFolders(dirs: readonly string[]): Promise<void> {
  const { removeTree } = await import('../supervisor/removal.ts');
  for (const dir of dirs) {
    await removeTree(dir).catch(() => {});
    tryTo(() => mkdirSync(dir));
  }
}

function tryTo(step: () => void): void {
  try {
    step();
  } catch {
    // The step is optional: the file does not exist, or there is no space for it.
  }
}
