/**
 * The shim: a small process that has one attempt at a time and outlives the server. It starts the work, stamps and
 * keeps every line, owns the timeout and the grace period, and writes down how the work ended. The server only
 * ever reads what the shim wrote, and sends it SIGTERM (end the work politely) or SIGUSR2 (end it now).
 *
 *   node shim.ts <folder of attempts> < orders, a line each
 *
 * It may have been started before there was an attempt (`shims.ts`). Until the order to start one it has made no claim,
 * and the network that it has opened ends with it. When an attempt has ended by itself the shim takes the next one, as
 * long as its input lasts. After one that had to be ended, and one that shared our user and could have tampered with us,
 * it ends.
 *
 * It imports nothing but Node and the few files beside it, because a job's start may wait for it (100 ms).
 *
 * The files, all in that folder; a file that others wait for appears whole, by rename or link:
 *   spec.json   what to run; removed once read, because secrets are in it
 *   claim       who looks after the attempt; made once, so that no attempt runs twice
 *   started     the process and when it began, of what is not over at once
 *   out, err    FIFOs that the work writes to. Node's own pipes are socket pairs, and `> /dev/stdout` fails there
 *   log         `<epoch ms> <o|e> <line>`, upper case when the line was cut
 *   disk        what its folders held when they were last looked at
 *   reserve     bytes that are given up when the disk is full, so that the files above can be finished
 *   exit        how it ended, after the last byte of the log is on the disk; from then on the claim means nothing
 */
import { closeSync, existsSync, mkdirSync, readFileSync, unlinkSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';
import { claim, DISK_FULL_EXIT, syncLog, writeWhole } from '../supervisor/claim.ts';
import { type DiskLimits, type DiskUse, type Verdict, watchDisk } from '../supervisor/disk.ts';
import { follow, type LogLimits, openLog } from '../supervisor/lines.ts';
import { giveWay } from '../supervisor/priority.ts';
import { closeInherited, tellOutOfMemory, watchMemory } from '../supervisor/proc.ts';
import { type Cgroup, oomKills, removeGroup } from './cgroup.ts';
import { type GroupPlan, limitGroup, makeGroup } from './group-plan.ts';
import { type Command, environmentOf, launch } from './launch.ts';
import { type Network, openNetwork } from './namespace.ts';
import type { ShimOrder, ShimWord } from './shims.ts';
import { treeOf } from './tree.ts';

/**
 * Timers by the clock that goes on while the machine is suspended. That of Node's timers stops then.
 *
 * Imports nothing but Node: the shim does.
 */
type UptimeTimer = { clear(): void };

/** How often a timer looks at the clock. */
const TICK_MS = 1_000;

/** What is later than this was due while the machine was suspended. */
const LATE_MS = 5_000;

/** As `setTimeout`; `then` hears how late it is. */
function after(ms: number, then: (lateMs: number) => void): UptimeTimer {
  const due = uptime() * 1_000 + ms;
  let timer: NodeJS.Timeout | undefined;
  const look = () => {
    const left = due - uptime() * 1_000;
    if (left <= 0) then(-left);
    else timer = setTimeout(look, Math.min(left, TICK_MS));
  };
  look();
  return { clear: () => clearTimeout(timer) };
}

export type ShimSpec = {
  attempt: string;
  /** When it was prepared: of the kernel (`proc.ts`). */
  bootId: string;
  /** For the shell that becomes the command line below: they set the limits of a process. */
  orders: string[];
  command: Command;
  timeoutMs: number;
  graceMs: number;
  /** Where all processes of the job are; null: this machine has no groups for us. */
  cgroup: Cgroup | null;
  /** How they are made. */
  groupPlan: GroupPlan;
  /** In bytes; `watched`: nothing but us holds the job to it. */
  memory: { bytes: number; watched: boolean };
  disk: DiskLimits & { dirs: string[]; floorBytes: number };
  log: LogLimits;
};
export type Started = { pid: number; startedAt: number };
export type Exit = {
  exitCode: number;
  timedOut: boolean;
  startedAt: number;
  endedAt: number;
  /** It never ran. Without a `reason`, the log says why. */
  unstartable: boolean;
  /** A line for the log about how it ended. */
  reason?: string;
  /** The kernel killed a process of it for want of memory; left out: it did not. */
  outOfMemory?: true | undefined;
};

/** What holds stdout open after the work has ended is not waited for longer than this. */
const DRAIN_MS = 2_000;

/** Nobody asks what a job uses that is over sooner, and a file of its start is a tenth of what the shim does for it. */
const SHORT_MS = 100;

/** Of a process that got SIGKILL. */
const KILLED = 137;

/**
 * A shim that has grown beyond this, in bytes, takes no other attempt: a start leaves 55 MB, a flood of lines 96, and the
 * first start of a server, which has to take the types out of the source, 92.
 */
const MOST_MEMORY = 80 * 2 ** 20;

/** What the attempt does when something asks for its end. */
type Current = {
  stop(how: 'TERM' | 'KILL'): void;
  /** Something went wrong that nobody expected. */
  trouble?(error: Error): void;
};
/** Of the attempt that we have. */
let current: Current | undefined;

if (import.meta.main) {
  closeInherited();
  giveWay();
  process.on('SIGTERM', () => asked('TERM'));
  process.on('SIGUSR2', () => asked('KILL'));
  for (const name of ['SIGHUP', 'SIGINT', 'SIGPIPE'] as const) process.on(name, () => {});
  process.on('uncaughtException', (error) => {
    if (current?.trouble) return current.trouble(error);
    console.error(error);
    process.exit(1);
  });
  // The server hears what we say; nobody does when it was killed meanwhile.
  process.stdout.on('error', () => {});
  await takeOrders(process.argv[2] ?? '');
  process.exit(0);
}

function asked(how: 'TERM' | 'KILL'): void {
  // Without an attempt there is nothing to end but ourselves.
  current ? current.stop(how) : process.exit(0);
}

async function takeOrders(dir: string): Promise<void> {
  let network: Promise<Network> | undefined;
  for await (const line of createInterface({ input: process.stdin })) {
    if (line === '') continue;
    const order: ShimOrder = JSON.parse(line);
    if (order.order === 'connect') {
      network = openNetwork(order.network, environmentOf());
      // The start of the attempt hears of it.
      network.catch(() => {});
      continue;
    }
    // A signal meant for the attempt before has been delivered by then.
    await turn();
    giveWay();
    if (!(await run(join(dir, order.attempt), network))) break;
    network = undefined;
    say('free');
  }
  await network?.then(
    (opened) => opened.close(),
    () => {},
  );
}

function say(word: ShimWord): void {
  process.stdout.write(`${word}\n`);
}

/**
 * @param network of the attempt, where it is being opened already
 * @returns whether we can take another attempt: not when this one is another shim's
 */
async function run(dir: string, network: Promise<Network> | undefined): Promise<boolean> {
  let early: 'TERM' | 'KILL' | undefined;
  current = {
    stop(how) {
      if (early !== 'KILL') early = how;
    },
  };
  try {
    if (!claim(join(dir, 'claim'))) return false;
  } catch (error) {
    process.exit(isFull(error) ? DISK_FULL_EXIT : 1);
  }
  const startedAt = Date.now();
  try {
    return await supervise(dir, startedAt, () => early, network);
  } catch (error) {
    // Nothing has started yet but, perhaps, a sandbox, which dies with us.
    const end = { exitCode: 125, timedOut: false, startedAt, endedAt: Date.now() };
    const exit: Exit = { ...end, unstartable: true, reason: troubleOf(error as Error).reason };
    await writeEnd(dir, exit);
    process.exit(0);
  } finally {
    current = undefined;
  }
}

/** We are fit for another when all of it has ended by itself, and left us as we were. */
async function supervise(
  dir: string,
  startedAt: number,
  early: () => 'TERM' | 'KILL' | undefined,
  connected: Promise<Network> | undefined,
): Promise<boolean> {
  const at = (name: string) => join(dir, name);
  const spec: ShimSpec = JSON.parse(readFileSync(at('spec.json'), 'utf8'));
  unlinkSync(at('spec.json'));
  /** Why we ended the work. */
  let verdict: Verdict | undefined;
  let stopped = false;
  let end = () => {};
  const endFor = (why: Verdict | null) => {
    if (why === null || verdict !== undefined) return;
    verdict = why;
    stopped = true;
    end();
  };
  const log = openLog(at('log'), spec.log, (error) => endFor(troubleOf(error)));
  const [out, err] = [at('out'), at('err')] as const;
  const outputs = [follow(out, 'o', log), follow(err, 'e', log)] as const;
  if (spec.cgroup) {
    makeGroup(spec.cgroup, spec.groupPlan);
    limitGroup(spec.cgroup, spec.groupPlan);
  }
  const { pid, up, ended, network } = await launch({ ...spec, dir, out, err, connected });
  const tree = treeOf(spec, pid, up);
  // While it is being killed it may end by itself, with the code of a failed fork for example.
  let killing = false;
  let isOver = false;
  const kill = () => {
    // Its processes are gone, and their ids may be others' by now.
    if (isOver) return;
    killing = true;
    tree.kill();
  };
  end = kill;
  for (const { writer } of outputs) closeSync(writer);
  void network?.broken.then((why) => {
    if (!isOver) log.note(`The network of this job has failed: ${why}`);
  });
  // The server records that meanwhile, which takes as long as a sandbox.
  say('started');
  let telling: NodeJS.Timeout | undefined;
  void up.then(() => {
    const started: Started = { pid: pid ?? 0, startedAt };
    if (!isOver) telling = setTimeout(() => writeWhole(at('started'), started), SHORT_MS);
  });

  let timedOut = false;
  let ending: UptimeTimer | undefined;
  const stop = (how: 'TERM' | 'KILL') => {
    if (isOver) return;
    stopped = true;
    if (how === 'KILL') return kill();
    if (ending) return;
    ending = after(spec.graceMs, kill);
    tree.terminate();
  };
  // Whatever else goes wrong here, nobody but us would end the job.
  current = { stop, trouble: (error) => endFor(troubleOf(error)) };
  const timeout = after(spec.timeoutMs, (lateMs) => {
    timedOut = ending === undefined;
    // A minute and a half after the grace other servers take the attempt for lost, and the next one may run already.
    stop(lateMs > LATE_MS ? 'KILL' : 'TERM');
  });

  const watching = new AbortController();
  const measured = (use: DiskUse) => tryTo(() => writeWhole(at('disk'), use));
  void watchDisk({ ...spec.disk, pids: tree.pids, measured }, watching.signal).then(endFor);
  if (spec.memory.watched)
    void watchMemory(tree.pids, spec.memory.bytes, watching.signal).then(endFor);

  /** `ran`: what ended was the command, and not the sandbox before it. */
  const over = async (exitCode: number, ran: boolean): Promise<boolean> => {
    isOver = true;
    clearTimeout(telling);
    timeout.clear();
    ending?.clear();
    watching.abort();
    const endedAt = Date.now();
    const late = setTimeout(() => outputs.forEach((o) => void o.source.destroy()), DRAIN_MS);
    await Promise.all([tree.clear(), ...outputs.map((o) => o.closed)]);
    clearTimeout(late);
    if (verdict?.full) await empty(spec.disk.dirs);
    const killed = spec.cgroup ? oomKills(spec.cgroup) : 0;
    const memory = killed > 0 ? tellOutOfMemory(killed, spec.memory.bytes) : undefined;
    const unstartable = !ran && !stopped;
    // What was killed has failed, even if it ended by itself at the same moment; and a command that was ended before
    // it began has no exit code of its own.
    const code = killing || (stopped && !ran) ? KILLED : exitCode;
    const reason = verdict?.reason ?? memory;
    const how = { reason, outOfMemory: killed > 0 || undefined };
    await writeEnd(dir, { exitCode: code, timedOut, startedAt, endedAt, unstartable, ...how });
    network?.close();
    // There may be no server any more that would; what cannot be removed now is left to one.
    if (spec.cgroup) await removeGroup(spec.cgroup).catch(() => {});
    log.close();
    const isOwn = spec.command.setup !== null || spec.command.uid !== null;
    return ran && !stopped && isOwn && process.memoryUsage.rss() < MOST_MEMORY;
  };
  const before = early();
  if (before) stop(before);
  const { exitCode, ran, error } = await ended;
  if (error) log.note(error);
  return over(exitCode, ran);
}

/**
 * Writes down how it ended, once the log is on the disk. When the disk is full, what was kept in reserve is
 * given up for it; as that may be taken by others, it is tried again every second. Nothing is written when the
 * folder was removed: then nobody asks any more.
 */
async function writeEnd(dir: string, exit: Exit): Promise<void> {
  for (let round = 0; ; round++) {
    try {
      syncLog(join(dir, 'log'));
      return writeWhole(join(dir, 'exit'), exit, dir);
    } catch {
      if (!existsSync(dir)) return;
      tryTo(() => unlinkSync(join(dir, 'reserve')));
    }
    if (round > 0) await delay(1_000);
  }
}

function isFull(error: unknown): boolean {
  return ['ENOSPC', 'EDQUOT'].includes((error as NodeJS.ErrnoException).code ?? '');
}

function troubleOf(error: Error): Verdict {
  const full = isFull(error);
  const why = full
    ? 'the disk of the server is full'
    : `what looks after it failed (${error.message})`;
  return { full, reason: `The job was ended: ${why}.` };
}

/**
 * Removes what the job has in its folders, because the server may need the space to take note of its end. This
 * was the last that the job did, and there would be no room for artifacts.
 */
async function empty(dirs: readonly string[]): Promise<void> {
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
    // It is not there, or there is no space for it; nothing depends on it.
  }
}
