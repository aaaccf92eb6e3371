/**
 * The network namespace of an attempt, connected by slirp4netns. Its two processes belong to the attempt's shim. Each holds
 * the end of a pipe to the shim, so they end with the shim, however it ends.
 *
 * Imports nothing but Node and the files beside it: a job's start waits for it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { Readable } from 'node:stream';

/** A command line, and whom it runs as; null: as we do. */
export type JoinCommand = { argv: string[]; uid: number | null };

/** Command lines; `{pid}` stands for the process that holds the namespace. */
export type NetworkSpec = {
  /** `ip -batch -` in a namespace of its own, which ends with its standard input. */
  hold: JoinCommand;
  /** For its standard input. They begin and end with showing the loopback, which is brought up between. */
  orders: string;
  /** Writes to descriptor 3 when the namespace is connected; ends when descriptor 4 is closed. */
  connect: JoinCommand;
  /** The beginning of a command line that runs in it. */
  enter: string[];
};

export type Network = {
  enter: string[];
  /** Settles with what it said when slirp4netns ends by itself. */
  broken: Promise<string>;
  close(): void;
};

const START_MS = 10_000;

/** What `ip` shows of a loopback, first as it is made. */
const MADE = /: lo: </;
const UP = /: lo: <LOOPBACK,UP/;

/** @throws Error with what its programs said, when they do not come up. */
export async function openNetwork(
  spec: NetworkSpec,
  env: Record<string, string>,
): Promise<Network> {
  const children: ChildProcess[] = [];
  const close = () => {
    for (const child of children) child.kill('SIGKILL');
  };
  const signal = AbortSignal.timeout(START_MS);
  try {
    const run = (line: JoinCommand, stdio: ('pipe' | 'ignore')[]) => {
      const started = start(line, env, stdio);
      children.push(started.child);
      return started;
    };
    const holder = run(spec.hold, ['pipe', 'pipe', 'pipe']);
    const said = hearing(holder.child.stdout as Readable);
    holder.child.stdin?.write(spec.orders);
    await holder.orEnd(said(MADE), signal);
    const withPid = (words: string[]) =>
      words.map((word) => word.replace('{pid}', String(holder.child.pid)));
    const connect = { ...spec.connect, argv: withPid(spec.connect.argv) };
    const slirp = run(connect, ['ignore', 'ignore', 'pipe', 'pipe', 'pipe']);
    const ready = Promise.withResolvers<void>();
    slirp.child.stdio[3]?.once('data', () => ready.resolve());
    // No job before the routes are there: until then all that the host reaches could be reached.
    await Promise.all([holder.orEnd(said(UP), signal), slirp.orEnd(ready.promise, signal)]);
    const broken = Promise.race([holder.ended, slirp.ended]);
    return { enter: withPid(spec.enter), broken, close };
  } catch (error) {
    close();
    throw error;
  }
}

function start(
  { argv: [program = '', ...args], uid }: JoinCommand,
  env: Record<string, string>,
  stdio: ('pipe' | 'ignore')[],
) {
  // With the user go the groups and rights of ours.
  const user = uid === null ? {} : { uid, gid: uid };
  const child = spawn(program, args, { env, stdio, ...user, cwd: '/' });
  const { promise: ended, resolve } = Promise.withResolvers<string>();
  child.once('error', ({ code, message }: NodeJS.ErrnoException) =>
    resolve(code === 'ENOENT' ? `${program} is not installed` : message),
  );
  let said = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    said = (said + chunk).slice(-1_000);
  });
  // Of pipes to a process that was killed. There are none where no descriptor was free.
  for (const stream of child.stdio ?? []) stream?.on('error', () => {});
  child.once('close', (code, by) =>
    resolve(said.trim().split('\n')[0] || `${program} ended with ${code ?? by}`),
  );
  const orEnd = async (wanted: Promise<void>, signal: AbortSignal) => {
    const { promise: late, reject } = Promise.withResolvers<never>();
    const onAbort = () => reject(new Error(`${program} does not answer: ${said.trim()}`));
    signal.addEventListener('abort', onAbort, { once: true });
    const early = ended.then((why) => {
      throw new Error(why);
    });
    try {
      await Promise.race([wanted, early, late]);
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  };
  return { child, ended, orEnd };
}

/** Settles when the stream has said it, also when that came before. */
function hearing(stream: Readable): (what: RegExp) => Promise<void> {
  let text = '';
  stream.on('data', (chunk: Buffer) => {
    text += chunk;
  });
  return (what) =>
    new Promise((resolve) => {
      const look = () => {
        if (!what.test(text)) return;
        stream.off('data', look);
        resolve();
      };
      stream.on('data', look);
      look();
    });
}

/** For a shell, as one word. */
export function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
