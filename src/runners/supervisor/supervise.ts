/**
 * Supervises the command of one attempt: stamps and stores its lines, enforces the timeout, the grace period and the limits
 * that the kernel does not enforce, and records how the command ended. The same for processes of this machine
 * (`../process/shim.ts`), for containers (`../docker/container-shim.ts`) and on the nodes of a cluster (`../agent/agent.ts`), which differ
 * in how the command is started.
 *
 * The files that it writes into the folder of the attempt. Files that others wait for appear complete, by rename:
 *   started     the process and its start time; omitted when the work ends at once
 *   log         `<epoch ms> <o|e> <line>`, upper case when the line was cut
 *   disk        the last measurement of the job's folders
 *   reserve     deleted when the disk is full, to make room for the other files
 *   exit        how the attempt ended, written when the log is durable
 *
 * It reads `lease` (`lease.ts`), if the work has one.
 */
import { closeSync, existsSync, mkdirSync, unlinkSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { syncLog, writeJsonAtomically } from './claim.ts';
import { type DiskLimits, type DiskUse, type StopReason, watchDisk } from './disk.ts';
import { watchLease } from './lease.ts';
import { copyLines, type LogLimits, openLog } from './lines.ts';
import { describeOutOfMemory, watchMemory } from './proc.ts';

export type AttemptStart = { pid: number; startedAt: number };
export type AttemptExit = {
  /** Null: the command has ended, but its exit code is unknown here. */
  exitCode: number | null;
  timedOut: boolean;
  startedAt: number;
  endedAt: number;
  /** The work never ran. Without a `reason`, the log says why. */
  unstartable: boolean;
  /** A line for the log about how the work ended. */
  reason?: string;
  /** The work was killed, and the attempt is lost. */
  isLoss?: true | undefined;
  /** The kernel killed a process of the job because its memory limit was reached. */
  outOfMemory?: true | undefined;
  /** How many processes the kernel has killed for that, if it was counted. */
  oomKills?: number | undefined;
  /** As of `Outcome`. Noted by the agent, which alone sees the folder. */
  hasResults?: boolean | undefined;
};

/** How the supervisor began to end the work, for a supervisor that replaces it. `reason`: unset if it was asked to. */
export type Ending = {
  /** `TERM`: the grace period began. */
  how: 'TERM' | 'KILL';
  at: number;
  timedOut: boolean;
  reason?: StopReason | undefined;
};

export type WorkSpec = {
  timeoutMs: number;
  graceMs: number;
  /** `watched`: the kernel does not enforce the limit, so the supervisor does. */
  memory: { bytes: number; watched: boolean };
  /** Unset: another program watches the disk. */
  disk?: DiskLimits & { dirs: string[]; floorBytes: number };
  log: LogLimits;
  /** The work is killed when its lease was not renewed for this long. Unset: it has none. */
  leaseMs?: number | undefined;
};

/** `ran`: false when the sandbox could not be set up; its messages are in the log. `exitCode`: null if it is unknown. */
type WorkEnd = { exitCode: number | null; ran: boolean; error?: string };

/** Work that has been started. */
export type Work = {
  /** The started process, for measurements; undefined when there is none on this machine. */
  pid: number | undefined;
  /** Settles when the command runs. */
  up: Promise<unknown>;
  /** Settles when the command, or the sandbox before it, has ended. */
  ended: Promise<WorkEnd>;
  tree: ProcessTree;
  /** Settles with a message when the network of the work breaks. */
  networkBroken?: Promise<string> | undefined;
  /** How many processes of the work the kernel has killed for lack of memory; undefined if they cannot be counted. */
  countOomKills(): number | undefined;
  /** Called after the end was recorded. */
  release(): Promise<void>;
};

export type ProcessTree = {
  pids(): number[];
  terminate(): void;
  kill(): void;
  /** Kills remaining processes after the end of the first process. */
  killRemaining(): Promise<void>;
};

/** Handlers of the supervised work. */
export type Supervision = {
  stop(how: 'TERM' | 'KILL'): void;
  /** Ends the work because of an unexpected error of the supervisor. */
  fail?(error: Error): void;
};

/** How the work ended. `isStopped`: the supervisor has ended it. `ran`: the command has run. */
export type SuperviseResult = { isStopped: boolean; ran: boolean };

/** Paths of the FIFOs. `closed` settles when both were opened and no process has them open any more. */
export type WorkOutputs = { out: string; err: string; closed: Promise<unknown> };

type Options = {
  /** Folder of the FIFOs `out` and `err` for the output of the work; default: that of the attempt. */
  fifoDir?: string;
  /** Starts the work, whose output goes to the FIFOs. */
  start(outputs: WorkOutputs): Promise<Work>;
  /** Called when the work has been started. From then on any error must end it, because only this process can. */
  onStarted(supervision: Supervision): void;
  /** Called when the start is recorded. */
  onUp?(started: AttemptStart): void;
  /** Called when the end is recorded, or cannot be because the folder was removed. */
  onRecorded?(exit: AttemptExit): void;
  /** Set when the work survived a supervisor that had begun to end it. */
  ending?: Ending | undefined;
  /** Called before the work is signalled, if it may survive this process. */
  onEnding?(ending: Ending): void;
  /** The signal that was received before the work could be stopped. */
  getEarlySignal(): 'TERM' | 'KILL' | undefined;
  /** Removes a folder of the job with its files, when the disk is full. */
  removeTree(folder: string): Promise<void>;
};

/** How long to wait for processes that keep stdout open after the end of the work. */
const DRAIN_MS = 2_000;

/** `started` is written after this time: only measurements need it, and it would be a tenth of the work for a short job. */
const STARTED_DELAY_MS = 100;

/** The exit code after SIGKILL: 128 + 9. */
const KILLED = 137;

/** @param startedAt epoch milliseconds */
export async function supervise(
  dir: string,
  spec: WorkSpec,
  startedAt: number,
  options: Options,
): Promise<SuperviseResult> {
  const { fifoDir = dir, start, onStarted, onUp, onRecorded, getEarlySignal, removeTree } = options;
  const { ending: before, onEnding } = options;
  const fileOf = (name: string) => join(dir, name);
  /** `reason`: why the supervisor ended the work. */
  const ending: { reason?: StopReason | undefined } = { reason: before?.reason };
  let isStopped = before !== undefined;
  let timedOut = before?.timedOut ?? false;
  const storeEnding = (how: 'TERM' | 'KILL') =>
    tryTo(() => onEnding?.({ how, at: Date.now(), timedOut, reason: ending.reason }));
  let killWork = () => {};
  const endFor = (reason: StopReason | null) => {
    if (reason === null || ending.reason) return;
    ending.reason = reason;
    isStopped = true;
    killWork();
  };
  const log = openLog(fileOf('log'), spec.log, (error) => {
    // Before the work is ended, because that is recorded too.
    releaseReserve(dir);
    endFor(toStopReason(error));
  });
  const [out, err] = [join(fifoDir, 'out'), join(fifoDir, 'err')] as const;
  const outputs = [copyLines(out, 'o', log), copyLines(err, 'e', log)] as const;
  const closed = Promise.all(outputs.map((output) => output.closed));
  const work = await start({ out, err, closed });
  const { tree } = work;
  // Work that is being killed may end by itself, for example with the code of a failed fork.
  let isKilled = false;
  let isOver = false;
  const kill = () => {
    // The processes are gone, and their ids may belong to other processes by now.
    if (isOver) return;
    if (!isKilled) storeEnding('KILL');
    isKilled = true;
    tree.kill();
  };
  killWork = kill;
  if (ending.reason || before?.how === 'KILL') kill();
  // While nothing has opened a FIFO for writing, it would be at its end without these.
  void Promise.race([work.up, work.ended]).then(() => {
    for (const { writer } of outputs) closeSync(writer);
  });
  void work.networkBroken?.then((message) => {
    if (!isOver) log.note(`The network of this job has failed: ${message}`);
  });
  let startedTimer: NodeJS.Timeout | undefined;
  void work.up.then(() => {
    const started: AttemptStart = { pid: work.pid ?? 0, startedAt };
    if (isOver) return;
    startedTimer = setTimeout(() => {
      onUp?.(started);
      writeJsonAtomically(fileOf('started'), started);
    }, STARTED_DELAY_MS);
  });

  let graceTimer: UptimeTimer | undefined;
  if (before) graceTimer = startUptimeTimer(before.at + spec.graceMs - Date.now(), kill);
  const stop = (how: 'TERM' | 'KILL') => {
    if (isOver) return;
    isStopped = true;
    if (how === 'KILL') return kill();
    if (graceTimer) return;
    storeEnding('TERM');
    graceTimer = startUptimeTimer(spec.graceMs, kill);
    tree.terminate();
  };
  onStarted({ stop, fail: (error) => endFor(toStopReason(error)) });
  // Work that is being ended already has not exceeded its timeout.
  const leftMs = Math.min(startedAt + spec.timeoutMs - Date.now(), spec.timeoutMs);
  const timeout = startUptimeTimer(leftMs, (lateMs) => {
    if (graceTimer) return;
    timedOut = true;
    // A minute and a half after the grace period other servers treat the attempt as lost, and may have started a retry.
    stop(lateMs > LATE_MS ? 'KILL' : 'TERM');
  });

  const watching = new AbortController();
  const onMeasured = (use: DiskUse) => tryTo(() => writeJsonAtomically(fileOf('disk'), use));
  if (spec.disk)
    void watchDisk({ ...spec.disk, pids: tree.pids, onMeasured }, watching.signal).then(endFor);
  if (spec.memory.watched)
    void watchMemory(tree.pids, spec.memory.bytes, watching.signal).then(endFor);
  if (spec.leaseMs !== undefined) void watchLease(dir, spec.leaseMs, watching.signal).then(endFor);

  const earlySignal = getEarlySignal();
  if (earlySignal) stop(earlySignal);
  const { exitCode, ran, error } = await work.ended;
  if (error) log.note(error);

  isOver = true;
  clearTimeout(startedTimer);
  timeout.clear();
  graceTimer?.clear();
  watching.abort();
  const endedAt = Date.now();
  const drainTimer = setTimeout(() => outputs.forEach((o) => void o.source.destroy()), DRAIN_MS);
  await Promise.all([tree.killRemaining(), closed]);
  clearTimeout(drainTimer);
  if (ending.reason?.full) await emptyFolders(spec.disk?.dirs ?? [], removeTree);
  const oomKills = work.countOomKills();
  const memoryReason = oomKills ? describeOutOfMemory(oomKills, spec.memory.bytes) : undefined;
  const reason = ending.reason?.reason ?? memoryReason;
  const exit: AttemptExit = {
    // A killed command has failed, even if it ended by itself at the same moment. A command that was stopped before its
    // start has no exit code of its own.
    exitCode: isKilled || (isStopped && !ran) ? KILLED : exitCode,
    timedOut,
    startedAt,
    endedAt,
    unstartable: !ran && !isStopped,
    ...(reason !== undefined && { reason }),
    isLoss: ending.reason?.isLoss,
    outOfMemory: (oomKills ?? 0) > 0 || undefined,
    oomKills,
  };
  await writeEnd(dir, exit);
  onRecorded?.(exit);
  await work.release();
  log.close();
  return { isStopped, ran };
}

/** Records that the work could not be started because of an error of the supervisor. */
export async function recordFailedStart(
  dir: string,
  startedAt: number,
  error: Error,
): Promise<AttemptExit> {
  const { reason } = toStopReason(error);
  const end = { exitCode: 125, timedOut: false, startedAt, endedAt: Date.now() };
  const exit = { ...end, unstartable: true, reason };
  await writeEnd(dir, exit);
  return exit;
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
      releaseReserve(dir);
    }
    if (round > 0) await delay(1_000);
  }
}

/** Makes room on a full disk for the last lines and the record of the end. */
function releaseReserve(dir: string): void {
  tryTo(() => unlinkSync(join(dir, 'reserve')));
}

export function isDiskFull(error: unknown): boolean {
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
async function emptyFolders(
  dirs: readonly string[],
  removeTree: Options['removeTree'],
): Promise<void> {
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
