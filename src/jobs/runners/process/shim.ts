/**
 * The shim: one small process per attempt that outlives the server. It starts the work, stamps and keeps
 * every line, owns the timeout and the grace period, and writes down how the work ended. The server only
 * ever reads what the shim wrote, and sends it SIGTERM (end the work politely) or SIGUSR2 (end it now).
 *
 *   node shim.ts <folder of the attempt>
 *
 * It imports nothing but Node and the few files beside it, because a job's start waits for it (52 ms).
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
  fsyncSync,
  linkSync,
  openSync,
  readFileSync,
  renameSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { constants as os } from 'node:os';
import { join } from 'node:path';
import { follow } from './lines.ts';
import {
  descendants,
  identityOf,
  killAll,
  MARKER,
  markedPids,
  signalOne,
  statOf,
  terminateAll,
} from './proc.ts';

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

/** What holds stdout open after the work has ended is not waited for longer than this. */
const DRAIN_MS = 2_000;

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
