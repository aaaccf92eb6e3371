/**
 * Opens the network namespace of an attempt and connects it by slirp4netns. The processes that hold and connect the namespace
 * are children of the attempt's shim. Each has one end of a pipe to the shim, so they end with it, however it ends.
 *
 * The shim imports this file, so it imports only Node: the start of a job waits for the shim.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { Readable } from 'node:stream';

/** `uid`: null for the user of this process. */
type UserCommand = { argv: string[]; uid: number | null };

/** In the command lines `{pid}` stands for the process that holds the namespace. */
export type NetworkSpec = {
  /** `ip -batch -` in a namespace of its own. It ends when its standard input does. */
  hold: UserCommand;
  /** The input of `hold`: shows the loopback interface, brings it up, adds routes, and shows the interface again. */
  ipCommands: string;
  /** Writes to descriptor 3 when the namespace is connected; ends when descriptor 4 is closed. */
  connect: UserCommand;
  /** The beginning of a command line that runs in the namespace. */
  enter: string[];
};

export type Network = {
  enter: string[];
  /** Settles with an error message when one of the two processes ends by itself. */
  broken: Promise<string>;
  close(): void;
};

const START_TIMEOUT_MS = 10_000;

/** Output of `ip` for a loopback interface that exists, and for one that is up. */
const LOOPBACK_EXISTS = /: lo: </;
const LOOPBACK_UP = /: lo: <LOOPBACK,UP/;

/** @throws Error with the message of the program that failed */
export async function openNetwork(
  spec: NetworkSpec,
  env: Record<string, string>,
): Promise<Network> {
  const children: ChildProcess[] = [];
  const close = () => {
    for (const child of children) child.kill('SIGKILL');
  };
  const signal = AbortSignal.timeout(START_TIMEOUT_MS);
  try {
    const run = (line: UserCommand, stdio: ('pipe' | 'ignore')[]) => {
      const started = start(line, env, stdio);
      children.push(started.child);
      return started;
    };
    const holder = run(spec.hold, ['pipe', 'pipe', 'pipe']);
    const printed = watchOutput(holder.child.stdout as Readable);
    holder.child.stdin?.write(spec.ipCommands);
    await holder.unlessEnded(printed(LOOPBACK_EXISTS), signal);
    const withPid = (words: string[]) =>
      words.map((word) => word.replace('{pid}', String(holder.child.pid)));
    const connect = { ...spec.connect, argv: withPid(spec.connect.argv) };
    const slirp = run(connect, ['ignore', 'ignore', 'pipe', 'pipe', 'pipe']);
    const ready = Promise.withResolvers<void>();
    slirp.child.stdio[3]?.once('data', () => ready.resolve());
    // No job may start before the routes exist: without them it could reach every address that the host can reach.
    await Promise.all([
      holder.unlessEnded(printed(LOOPBACK_UP), signal),
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
  // Ignores errors of pipes to a killed process. `stdio` is missing when no file descriptor was free.
  for (const stream of child.stdio ?? []) stream?.on('error', () => {});
  child.once('close', (code, by) =>
    resolve(errors.trim().split('\n')[0] || `${program} ended with ${code ?? by}`),
  );
  /** Waits for `wanted`. @throws Error when the process ends before, or `signal` aborts */
  const unlessEnded = async (wanted: Promise<void>, signal: AbortSignal) => {
    const { promise: timedOut, reject } = Promise.withResolvers<never>();
    const onAbort = () => reject(new Error(`${program} does not answer: ${errors.trim()}`));
    signal.addEventListener('abort', onAbort, { once: true });
    const endedEarly = ended.then((message) => {
      throw new Error(message);
    });
    try {
      await Promise.race([wanted, endedEarly, timedOut]);
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
      const check = () => {
        if (!pattern.test(text)) return;
        stream.off('data', check);
        resolve();
      };
      stream.on('data', check);
      check();
    });
}

/** Quotes the text as one word for a shell. */
export function quoteForShell(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
