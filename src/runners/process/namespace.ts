/**
 * Opens the network namespace of an attempt and connects it by slirp4netns. Both processes are children of the attempt's
 * shim. Each has one end of a pipe to the shim, so they end with it, however it ends.
 *
 * The shim imports this file, so it imports nothing but Node: the start of a job waits for it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { Readable } from 'node:stream';

/** `uid` null: the command runs as the user of this process. */
type UserCommand = { argv: string[]; uid: number | null };

/** In the command lines `{pid}` stands for the process that holds the namespace. */
export type NetworkSpec = {
  /** `ip -batch -` in a namespace of its own. It ends when its standard input does. */
  hold: UserCommand;
  /** The input of `hold`. It first shows the loopback, then brings it up, and shows it again at the end. */
  ipCommands: string;
  /** Writes to descriptor 3 when the namespace is connected; ends when descriptor 4 is closed. */
  connect: UserCommand;
  /** The beginning of a command line that runs in the namespace. */
  enter: string[];
};

export type Network = {
  enter: string[];
  /** Settles with an error message when one of the processes ends by itself. */
  broken: Promise<string>;
  close(): void;
};

const START_MS = 10_000;

/** What `ip` prints for a new loopback, and for one that is up. */
const MADE = /: lo: </;
const UP = /: lo: <LOOPBACK,UP/;

/** @throws Error with the message of the program that failed */
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
    const run = (line: UserCommand, stdio: ('pipe' | 'ignore')[]) => {
      const started = start(line, env, stdio);
      children.push(started.child);
      return started;
    };
    const holder = run(spec.hold, ['pipe', 'pipe', 'pipe']);
    const printed = watchOutput(holder.child.stdout as Readable);
    holder.child.stdin?.write(spec.ipCommands);
    await holder.unlessEnded(printed(MADE), signal);
    const withPid = (words: string[]) =>
      words.map((word) => word.replace('{pid}', String(holder.child.pid)));
    const connect = { ...spec.connect, argv: withPid(spec.connect.argv) };
    const slirp = run(connect, ['ignore', 'ignore', 'pipe', 'pipe', 'pipe']);
    const ready = Promise.withResolvers<void>();
    slirp.child.stdio[3]?.once('data', () => ready.resolve());
    // No job may start before the routes exist: until then it could reach everything that the host reaches.
    await Promise.all([
      holder.unlessEnded(printed(UP), signal),
      slirp.unlessEnded(ready.promise, signal),
    ]);
    const broken = Promise.race([holder.ended, slirp.ended]);
    return { enter: withPid(spec.enter), broken, close };
  } catch (error) {
    close();
    throw error;
  }
}

function start(
  { argv: [program = '', ...args], uid }: UserCommand,
  env: Record<string, string>,
  stdio: ('pipe' | 'ignore')[],
) {
  // Changing the user also drops the groups and rights of this process.
  const user = uid === null ? {} : { uid, gid: uid };
  const child = spawn(program, args, { env, stdio, ...user, cwd: '/' });
  const { promise: ended, resolve } = Promise.withResolvers<string>();
  child.once('error', ({ code, message }: NodeJS.ErrnoException) =>
    resolve(code === 'ENOENT' ? `${program} is not installed` : message),
  );
  let errors = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    errors = (errors + chunk).slice(-1_000);
  });
  // Ignores errors of pipes to a killed process. `stdio` is missing where no descriptor was free.
  for (const stream of child.stdio ?? []) stream?.on('error', () => {});
  child.once('close', (code, by) =>
    resolve(errors.trim().split('\n')[0] || `${program} ended with ${code ?? by}`),
  );
  const unlessEnded = async (wanted: Promise<void>, signal: AbortSignal) => {
    const { promise: late, reject } = Promise.withResolvers<never>();
    const onAbort = () => reject(new Error(`${program} does not answer: ${errors.trim()}`));
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
  return { child, ended, unlessEnded };
}

/** The returned function waits until the output, including earlier output, matches. */
function watchOutput(stream: Readable): (pattern: RegExp) => Promise<void> {
  let text = '';
  stream.on('data', (chunk: Buffer) => {
    text += chunk;
  });
  return (pattern) =>
    new Promise((resolve) => {
      const look = () => {
        if (!pattern.test(text)) return;
        stream.off('data', look);
        resolve();
      };
      stream.on('data', look);
      look();
    });
}

/** Quotes the text as one word for a shell. */
export function quoteForShell(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
