/**
 * The shim: one small process per attempt that outlives the server. It starts the work, stamps and keeps
 * every line, owns the timeout and the grace period, and writes down how the work ended. The server only
 * ever reads what the shim wrote, and sends it SIGTERM (end the work politely) or SIGUSR2 (end it now).
 *
 *   node shim.ts <folder of the attempt>
 *
 * It imports nothing but Node, because a job's start waits for it (52 ms).
 *
 * The files, all in that folder; a file that others wait for appears whole, by rename or link:
 *   spec.json   what to run; removed once read, because secrets are in it
 *   claim       who looks after the attempt; made once, so that no attempt runs twice
 *   started     the process and when it began
 *   out, err    FIFOs that the work writes to. Node's own pipes are socket pairs, and `> /dev/stdout` fails there
 *   log         `<epoch ms> <o|e> <line>`, upper case when the line was cut
 *   exit        how it ended, after the last byte of the log is on the disk
 */
import { spawn } from 'node:child_process';
import {
  closeSync,
  constants,
  existsSync,
  fsyncSync,
  linkSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { Socket } from 'node:net';
import { constants as os } from 'node:os';
import { join } from 'node:path';

export type ShimSpec = {
  attempt: string;
  argv: string[];
  env: Record<string, string>;
  cwd: string;
  /** bwrap's options, given by a file because `ps` shows arguments to everyone; null: unconfined. */
  sandbox: string[] | null;
  timeoutMs: number;
  graceMs: number;
};
export type Claim = { pid: number; startTime: string; bootId: string };
export type Started = { pid: number; startedAt: number };
export type Exit = {
  exitCode: number;
  timedOut: boolean;
  startedAt: number;
  endedAt: number;
  /** The sandbox could not be set up; what it said is in the log. */
  unstartable: boolean;
};

/** Decisions section 4. */
const MAX_LINE = 64 * 1024;
/** What holds stdout open after the work has ended is not waited for longer than this. */
const DRAIN_MS = 2_000;
/** In the environment of what the shim starts: how it is known again when the tree is gone. */
export const MARKER = 'LOAM_ATTEMPT_ID';

/** Boot and start time make a pid unique; empty where there is no /proc. */
export function identityOf(pid: number): { startTime: string; bootId: string } {
  const stat = statOf(pid);
  if (!stat) return { startTime: '', bootId: '' };
  return {
    startTime: stat.startTime,
    bootId: readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim(),
  };
}

export type ProcessStat = { state: string; parent: number; startTime: string; fields: string[] };

/** `/proc/<pid>/stat`, whose second field may itself hold spaces and parentheses. */
export function statOf(pid: number | string): ProcessStat | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return {
      state: fields[0] ?? '',
      parent: Number(fields[1]),
      startTime: fields[19] ?? '',
      fields,
    };
  } catch {
    return undefined;
  }
}

/** All processes below `root`, without it. */
export function descendants(root: number): number[] {
  const children = new Map<number, number[]>();
  for (const pid of allPids()) {
    const parent = statOf(pid)?.parent;
    if (parent === undefined) continue;
    children.set(parent, [...(children.get(parent) ?? []), pid]);
  }
  const found: number[] = [];
  for (let level = [root]; level.length > 0; ) {
    level = level.flatMap((pid) => children.get(pid) ?? []);
    found.push(...level);
  }
  return found;
}

function allPids(): number[] {
  return existsSync('/proc/self/stat') ? readdirSync('/proc').filter(isNumber).map(Number) : [];
}

function isNumber(name: string): boolean {
  return /^\d+$/.test(name);
}

if (import.meta.main) run(process.argv[2] ?? '');

function run(dir: string): void {
  const at = (name: string) => join(dir, name);
  let stop: (how: 'TERM' | 'KILL') => void = () => {};
  process.on('SIGTERM', () => stop('TERM'));
  process.on('SIGUSR2', () => stop('KILL'));
  for (const name of ['SIGHUP', 'SIGINT', 'SIGPIPE'] as const) process.on(name, () => {});

  if (!claim(at('claim'))) return;
  const spec: ShimSpec = JSON.parse(readFileSync(at('spec.json'), 'utf8'));
  unlinkSync(at('spec.json'));
  const log = openSync(at('log'), 'a', 0o600);
  const startedAt = Date.now();
  const outputs = [follow(at('out'), 'o', log), follow(at('err'), 'e', log)] as const;
  const { child, up, finished } = launch(spec, at('args'), outputs[0].writer, outputs[1].writer);
  for (const { writer } of outputs) closeSync(writer);
  // The server waits for this line; nobody reads it when the server was killed meanwhile.
  process.stdout.on('error', () => {});
  void up.then(() => {
    writeWhole(at('started'), { pid: child.pid ?? 0, startedAt } satisfies Started);
    process.stdout.write('started\n');
  });

  const tree = spec.sandbox ? sandboxed(up) : unconfined(spec.attempt, child.pid);
  let timedOut = false;
  let stopped = false;
  let ending: NodeJS.Timeout | undefined;
  stop = (how) => {
    stopped = true;
    if (how === 'KILL') return tree.kill();
    if (ending) return;
    ending = setTimeout(tree.kill, spec.graceMs);
    tree.terminate();
  };
  const timeout = setTimeout(() => {
    timedOut = ending === undefined;
    stop('TERM');
  }, spec.timeoutMs);

  const over = (exitCode: number, ran: boolean) => {
    clearTimeout(timeout);
    clearTimeout(ending);
    const endedAt = Date.now();
    // A sandbox has died with its first process; its pid may be another's by now.
    if (!spec.sandbox) tree.kill();
    const late = setTimeout(() => outputs.forEach((o) => void o.source.destroy()), DRAIN_MS);
    void Promise.all(outputs.map((o) => o.closed)).then(() => {
      clearTimeout(late);
      fsyncSync(log);
      const exit: Exit = { exitCode, timedOut, startedAt, endedAt, unstartable: !ran && !stopped };
      writeWhole(at('exit'), exit, dir);
      process.exit(0);
    });
  };
  child.once('error', (error) => {
    writeSync(log, `${Date.now()} e ${error.message}\n`);
    over(125, false);
  });
  child.once('exit', (code, signal) => {
    void finished.then((ran) => over(code ?? 128 + (signal ? os.signals[signal] : 0), ran));
  });
}

/** Whether the attempt is ours: the claim is complete the moment it exists, and exists once. */
function claim(file: string): boolean {
  const own = `${file}.${process.pid}`;
  const text: Claim = { pid: process.pid, ...identityOf(process.pid) };
  writeFileSync(own, JSON.stringify(text), { flush: true });
  try {
    linkSync(own, file);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  } finally {
    unlinkSync(own);
  }
}

/** On the disk for good when a folder to sync is named. */
function writeWhole(file: string, value: object, folderToSync?: string): void {
  writeFileSync(`${file}.new`, JSON.stringify(value), { flush: folderToSync !== undefined });
  renameSync(`${file}.new`, file);
  if (!folderToSync) return;
  const folder = openSync(folderToSync, 'r');
  fsyncSync(folder);
  closeSync(folder);
}

/**
 * `up` settles when the work runs, with the pid of the sandbox's first process; `finished` after the end, with
 * whether the command was really run: bwrap reports an exit code of its own only then.
 */
function launch(spec: ShimSpec, argsFile: string, out: number, err: number) {
  const { sandbox, argv, cwd, env } = spec;
  const [program = '', ...rest] = argv;
  if (!sandbox) {
    const child = spawn(program, rest, {
      cwd,
      env: { ...env, [MARKER]: spec.attempt },
      stdio: ['ignore', out, err],
      detached: true,
    });
    const up = Promise.withResolvers<number>();
    child.once('spawn', () => up.resolve(child.pid ?? 0));
    return { child, up: up.promise, finished: Promise.resolve(true) };
  }
  writeFileSync(argsFile, sandbox.map((arg) => `${arg}\0`).join(''), { mode: 0o600 });
  const args = openSync(argsFile, 'r');
  unlinkSync(argsFile);
  const options = ['--args', '4', '--json-status-fd', '3', '--', ...rest];
  const child = spawn(program, options, {
    cwd: '/',
    // Of bwrap's own processes alone; what it runs gets the environment that the options name.
    env: { [MARKER]: spec.attempt },
    stdio: ['ignore', out, err, 'pipe', args],
  });
  closeSync(args);
  let status = '';
  const up = Promise.withResolvers<number>();
  const finished = Promise.withResolvers<boolean>();
  child.stdio[3]?.on('data', (chunk: Buffer) => {
    status += chunk;
    const pid = /"child-pid": *(\d+)/.exec(status)?.[1];
    if (pid) up.resolve(Number(pid));
  });
  child.stdio[3]?.once('close', () => finished.resolve(status.includes('"exit-code"')));
  return { child, up: up.promise, finished: finished.promise };
}

type Tree = { terminate(): void; kill(): void };

/** The first process of the sandbox is the root of its pid namespace: when it is killed, all in it are. */
function sandboxed(up: Promise<number>): Tree {
  const terminate = (init: number) => {
    // It may not have started the command yet: there must be someone to hear it.
    if (!terminateAll(() => descendants(init)) && statOf(init))
      setTimeout(terminate, 10, init).unref();
  };
  return {
    terminate: () => void up.then(terminate),
    kill: () => void up.then((init) => signalOne(init, 'SIGKILL')),
  };
}

/** Daemons that left the tree are known by the marker in their environment. */
function unconfined(attempt: string, root: number | undefined): Tree {
  const all = () => {
    // A pid that is no child of ours any more may be another's.
    const alive = root && statOf(root)?.parent === process.pid ? [root, ...descendants(root)] : [];
    return [...new Set([...alive, ...markedPids(attempt)])];
  };
  // Without /proc the process group is all that we can know.
  if (process.platform !== 'linux') {
    const group = (name: NodeJS.Signals) => root && signalOne(-root, name);
    return { terminate: () => void group('SIGTERM'), kill: () => void group('SIGKILL') };
  }
  return { terminate: () => void terminateAll(all), kill: () => killAll(all) };
}

/** The processes of an attempt that carry its marker, wherever they went. */
export function markedPids(attempt: string): number[] {
  return allPids().filter((pid) => pid !== process.pid && isMarked(pid, attempt));
}

function isMarked(pid: number, attempt: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'latin1').includes(`${MARKER}=${attempt}\0`);
  } catch {
    return false;
  }
}

/**
 * Asks each once, and says how many there were. What a process starts after it has been asked is its way of
 * ending (a last upload, a checkpoint) and has the grace period; so nobody is looked for again after the
 * first was asked, only before: one may fork while we walk.
 */
function terminateAll(list: () => number[]): number {
  let pids = list();
  for (let round = 0; round < 5; round++) {
    const again = list();
    const settled = again.length === pids.length && again.every((pid) => pids.includes(pid));
    pids = again;
    if (settled) break;
  }
  for (const pid of pids) signalOne(pid, 'SIGTERM');
  return pids.length;
}

/** Again until no new process shows up. */
function killAll(list: () => number[]): void {
  const done = new Set<number>();
  for (let round = 0; round < 10; round++) {
    const fresh = list().filter((pid) => !done.has(pid));
    if (fresh.length === 0) return;
    for (const pid of fresh) {
      done.add(pid);
      signalOne(pid, 'SIGKILL');
    }
  }
}

export function signalOne(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has ended by itself.
  }
}

/** Copies a FIFO's lines into the log. The text passes as latin1, one character a byte, which is quick. */
function follow(fifo: string, stream: 'o' | 'e', log: number) {
  // The reader first and without blocking, or each end would wait for the other.
  const reader = openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(fifo, constants.O_WRONLY);
  const source = new Socket({ fd: reader, readable: true, writable: false });
  let pending = '';
  let cut = false;
  const keep = (part: string) => {
    pending += part;
    if (pending.length <= MAX_LINE) return;
    pending = pending.slice(0, MAX_LINE);
    cut = true;
  };
  const line = () => {
    const text = `${Date.now()} ${cut ? stream.toUpperCase() : stream} ${pending}\n`;
    pending = '';
    cut = false;
    return text;
  };
  source.on('data', (chunk) => {
    const text = chunk.toString('latin1');
    const first = text.indexOf('\n');
    if (first < 0) return keep(text);
    keep(text.slice(0, first));
    const last = text.lastIndexOf('\n');
    let complete = line();
    // A chunk is at most 64 KiB, so none of the lines within it can be too long.
    if (last > first) {
      const header = `${Date.now()} ${stream} `;
      const within = text.slice(first + 1, last);
      complete += `${header}${within.replaceAll('\n', `\n${header}`)}\n`;
    }
    writeAll(log, Buffer.from(complete, 'latin1'));
    keep(text.slice(last + 1));
  });
  source.on('error', () => {});
  const closed = new Promise<void>((resolve) => {
    source.once('close', () => {
      if (pending || cut) writeAll(log, Buffer.from(line(), 'latin1'));
      resolve();
    });
  });
  return { source, writer, closed };
}

function writeAll(fd: number, bytes: Buffer): void {
  for (let done = 0; done < bytes.length; ) done += writeSync(fd, bytes, done);
}
