/**
 * Starting the command line that `confinement.ts` composed. What it needs to know is on descriptors, because
 * `ps` shows arguments to everyone:
 *   3  the sandbox writes the pid of its first process, and how the command ended
 *   4  the sandbox reads how to set itself up
 *   5  the command's environment, as a script for `entry.ts`
 *
 * Imports nothing but Node and the files beside it: a job's start waits for it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chownSync, closeSync, openSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { constants as os, tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { type Network, type NetworkSpec, openNetwork } from './namespace.ts';
import { MARKER } from './proc.ts';

export const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

const TRIAL_MS = 10_000;
/** 128 + SIGKILL. */
const KILLED = 137;

/** JSON, so that it can be given to the shim. */
export type Command = {
  argv: string[];
  cwd: string;
  /** For descriptor 4; null: there is no sandbox, and nothing comes from descriptor 3. */
  setup: string | null;
  /** For descriptor 5. */
  env: string;
  /** What the command runs under; null: our own user. */
  uid: number | null;
  network: NetworkSpec | null;
};

/** `ran`: false when the sandbox could not be set up; what it said is in the log. */
export type Ended = { exitCode: number; ran: boolean; error?: string };

export type Launched = {
  child: ChildProcess;
  /** Settles when the work runs, with the pid of its first process. */
  up: Promise<number>;
  /** Settles after the end of the command, or of what should have run it. */
  ended: Promise<Ended>;
  network: Network | null;
};

/** @throws Error when its network does not come up. */
export async function launch(work: {
  attempt: string;
  command: Command;
  /** The beginning of the command line, which sets limits. */
  prefix: string[];
  /** For files that are there for a moment. */
  dir: string;
  out: number;
  err: number;
  /** Its network, where that is opened already. */
  connected?: Promise<Network>;
}): Promise<Launched> {
  const { attempt, command, prefix, dir, out, err, connected } = work;
  const env = environmentOf(attempt);
  // Without the attempt's mark: the next one may have it, and what ends this one's processes must spare it.
  const network =
    command.network && (await (connected ?? openNetwork(command.network, environmentOf())));
  const [program = '', ...args] = [...prefix, ...(network?.enter ?? []), ...command.argv];
  const inSandbox = command.setup !== null;
  const files = [
    hiddenFile(join(dir, 'setup'), command.setup ?? '', null),
    hiddenFile(join(dir, 'env'), command.env, command.uid),
  ];
  const child = spawn(program, args, {
    cwd: command.cwd,
    env,
    stdio: ['ignore', out, err, inSandbox ? 'pipe' : 'ignore', ...files],
    detached: !inSandbox,
  });
  for (const file of files) closeSync(file);

  const up = Promise.withResolvers<number>();
  const exited = exitOf(child);
  if (!inSandbox) {
    child.once('spawn', () => up.resolve(child.pid ?? 0));
    return { child, up: up.promise, ended: exited, network };
  }
  const report = child.stdio[3] as Readable;
  let status = '';
  report.on('data', (chunk: Buffer) => {
    status += chunk;
    const pid = /"child-pid": *(\d+)/.exec(status)?.[1];
    if (pid) up.resolve(Number(pid));
  });
  const reported = once(report, 'close');
  const ended = async (): Promise<Ended> => {
    const exit = await exited;
    await reported;
    if (status.includes('"exit-code"')) return exit;
    // Killed with its first process; the exit code that util-linux 2.38 then gives is one of a failure.
    if (status.includes('"set-up"')) return { exitCode: KILLED, ran: true };
    // A sandbox that was killed did not fail.
    return { ...exit, ran: exit.exitCode === KILLED };
  };
  return { child, up: up.promise, ended: ended(), network };
}

/** Nothing of the job's: it is for programs with more rights than it has. `attempt`: none has them yet. */
export function environmentOf(attempt?: string): Record<string, string> {
  return attempt === undefined ? { PATH } : { PATH, [MARKER]: attempt };
}

function exitOf(child: ChildProcess): Promise<Ended> {
  const { promise, resolve } = Promise.withResolvers<Ended>();
  child.once('error', ({ message }) => resolve({ exitCode: 125, ran: false, error: message }));
  child.once('exit', (code, signal) =>
    resolve({ exitCode: code ?? 128 + (signal ? os.signals[signal] : 0), ran: true }),
  );
  return promise;
}

/** Runs it to its end. @returns why it cannot be run here, or null. */
export async function tryCommand(command: Command): Promise<string | null> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-trial-'));
  const out = openSync(join(dir, 'out'), 'a', 0o600);
  try {
    const { child, ended } = await launch({ attempt: '', command, prefix: [], dir, out, err: out });
    const timer = setTimeout(() => child.kill('SIGKILL'), TRIAL_MS);
    const { exitCode, ran, error } = await ended;
    clearTimeout(timer);
    if (ran && exitCode === 0) return null;
    if (error?.includes('ENOENT')) return `${command.argv[0]} is not installed`;
    const [said] = readFileSync(join(dir, 'out'), 'utf8').trim().split('\n');
    return error ?? (said || `it ended with ${exitCode}`);
  } finally {
    closeSync(out);
    await rm(dir, { recursive: true });
  }
}

/** A descriptor to a file that has no name any more; `reader`: the user who must be able to open it again. */
function hiddenFile(path: string, text: string, reader: number | null): number {
  writeFileSync(path, text, { mode: 0o400 });
  if (reader !== null) chownSync(path, reader, reader);
  const file = openSync(path, 'r');
  unlinkSync(path);
  return file;
}
