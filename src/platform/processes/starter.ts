/**
 * Starts programs for this process, which is large.
 *
 * To start a program the kernel copies the page tables of whoever starts it: from a server of 300 MB that held the
 * main thread up for 10 to 40 ms each time, from a small process it takes 2. So one small process (`starting.ts`) is
 * kept that does it, from the first program on. It ends with this one, and what it runs for it too, but for what is
 * detached. When it was killed, what was under way fails as if the machine were short of processes, and the next program
 * has a new one.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { type Duplex, PassThrough } from 'node:stream';
import type { Ending, Order, Program, Report } from './protocol.ts';

export type { Ending, Program };

/** Between SIGTERM and SIGKILL. */
const GRACE_MS = 5_000;
const MAX_BYTES = 16 * 2 ** 20;

type Told = Exclude<Report, { kind: 'failed' }> | { id: number; kind: 'failed'; error: Error };
type Listener = (told: Told, stream?: Duplex) => void;
type Starter = { child: ChildProcess; listeners: Map<number, Listener> };

let starter: Starter | undefined;
let count = 0;

export type RunOptions = {
  input?: string;
  /** Ends it, first by SIGTERM. */
  signal?: AbortSignal;
  timeoutMs?: number;
  /** Of standard output; a program that says more is ended. */
  maxBytes?: number;
};

/**
 * Runs a program to its end.
 * @throws Error with the code of the failure when it cannot be started; EAGAIN is also that of a starter that died
 */
export function runProgram(program: Program, options: RunOptions = {}): Promise<Ending> {
  const { input = '', signal, timeoutMs, maxBytes = MAX_BYTES } = options;
  const { promise, resolve, reject } = Promise.withResolvers<Ending>();
  const id = ++count;
  let killing: NodeJS.Timeout | undefined;
  const end = () => {
    if (killing) return;
    send({ id, kind: 'kill', signal: 'SIGTERM' });
    killing = setTimeout(() => send({ id, kind: 'kill', signal: 'SIGKILL' }), GRACE_MS);
  };
  // It throws when not even the starter can be started; nothing is left of it then.
  order({ id, kind: 'run', program, input, maxBytes }, (report) => {
    if (report.kind === 'failed') reject(report.error);
    else if (report.kind === 'ended') resolve(report.ending);
  });
  const timer = timeoutMs === undefined ? undefined : setTimeout(end, timeoutMs);
  signal?.addEventListener('abort', end, { once: true });
  if (signal?.aborted) end();
  return promise.finally(() => {
    clearTimeout(timer);
    clearTimeout(killing);
    signal?.removeEventListener('abort', end);
  });
}

/** As `runProgram` with our own PATH. @throws Error also when it fails: `stderr` has what it said */
export async function run(file: string, args: readonly string[], options?: RunOptions) {
  const env = { PATH: process.env.PATH ?? '/usr/bin:/bin' };
  const ending = await runProgram({ file, args, env, cwd: '/' }, options);
  const { code, signal, stderr } = ending;
  options?.signal?.throwIfAborted();
  if (code !== 0) {
    const [said] = stderr.trim().split('\n');
    const why = said || `${file} ended with ${code ?? signal}`;
    throw Object.assign(new Error(why), { stderr });
  }
  return ending;
}

/** A program in a session of its own, which outlives this process and its starter. */
export type Detached = {
  /** Settles when it has ended. @throws Error when it could not be started, or its starter has died */
  readonly ended: Promise<Ending>;
  /** Its exit code, if it has ended by now. */
  readonly ending: Ending | undefined;
  /** Writes to its standard input, and ends that after the last. */
  say(text: string, last?: boolean): void;
};

/**
 * @param errors the file that its standard error is appended to
 * @param hear gets each line that it says
 */
export function detach(
  program: Program,
  errors: string,
  hear: (line: string) => void = () => {},
): Detached {
  const ended = Promise.withResolvers<Ending>();
  // Whoever does not wait need not hear of it.
  ended.promise.catch(() => {});
  const id = ++count;
  let begun = '';
  let ending: Ending | undefined;
  order({ id, kind: 'detach', program, errors }, (report) => {
    if (report.kind === 'failed') ended.reject(report.error);
    else if (report.kind === 'ended') {
      ending = report.ending;
      ended.resolve(ending);
    } else if (report.kind === 'said') {
      const lines = (begun + report.text).split('\n');
      begun = lines.pop() ?? '';
      for (const line of lines) hear(line);
    }
  });
  return {
    ended: ended.promise,
    get ending() {
      return ending;
    },
    say: (text, last = false) => send({ id, kind: 'say', text, last }),
  };
}

/** A program that runs, whose streams are ours. What it says on its standard error is told at its end. */
export type Streamed = {
  readonly pid: number | undefined;
  readonly stdin: Duplex;
  readonly stdout: Duplex;
  /** The extra ones, from descriptor 3 on. */
  readonly pipes: readonly Duplex[];
  /** Settles when it has ended; what it has written may still be on its way. Rejects when its starter has died. */
  readonly ended: Promise<Ending>;
  kill(signal: NodeJS.Signals): void;
};

/**
 * Starts a program and has its streams. Nothing that goes through them passes the starter.
 * @throws as `runProgram`
 */
export function startProgram(
  program: Program,
  { pipes = 0 }: { pipes?: number } = {},
): Promise<Streamed> {
  const started = Promise.withResolvers<Streamed>();
  const ended = Promise.withResolvers<Ending>();
  // It may have failed before anybody waits for its end.
  ended.promise.catch(() => {});
  const id = ++count;
  /** By descriptor. */
  const streams = new Map<number, Duplex | undefined>();
  let isTaken = false;
  const fail = (error: Error) => {
    started.reject(error);
    ended.reject(error);
    // The program goes on when only its starter has died.
    if (!isTaken) for (const stream of streams.values()) stream?.destroy();
  };
  const take = (pid: number | undefined) => {
    // Of the standard streams, the error output is not handed over.
    if (streams.size < pipes + 2) {
      send({ id, kind: 'kill', signal: 'SIGKILL' });
      return;
    }
    isTaken = true;
    started.resolve({
      pid,
      stdin: streams.get(0) ?? passedBy().destroy(),
      stdout: streams.get(1) ?? passedBy().end(),
      pipes: Array.from({ length: pipes }, (_, i) => streams.get(3 + i) ?? passedBy().end()),
      ended: ended.promise,
      kill: (signal) => send({ id, kind: 'kill', signal }),
    });
  };
  const listener: Listener = (report, stream) => {
    if (report.kind === 'failed') fail(report.error);
    else if (report.kind === 'ended') {
      send({ id, kind: 'have' });
      // Whoever still writes hears of it.
      streams.get(0)?.destroy();
      ended.resolve(report.ending);
      if (!isTaken) fail(errorOf('the streams of a program could not be handed over', 'EMFILE'));
    } else if (report.kind === 'stream') {
      // What cannot be written any more shows in the program's end.
      stream?.on('error', () => {});
      streams.set(report.descriptor, stream);
      if (report.descriptor > 0) return;
      // Node reads each socket that it was given, and would end this one as if its writer had, when the program closes it:
      // a pipeline into it, whose source ends later, would then wait for ever for the end that it has missed.
      if (stream) stream.allowHalfOpen = true;
      send({ id, kind: 'have' });
      take(report.pid);
    }
  };
  order({ id, kind: 'start', program, pipes }, listener);
  return started.promise;
}

/** In place of a stream of a program that had ended before it was handed over. */
function passedBy(): PassThrough {
  return new PassThrough().on('error', () => {});
}

function order(what: Order & { program: Program }, listener: Listener): void {
  starter ??= start();
  const { listeners, child } = starter;
  const holds = what.kind !== 'detach';
  if (holds) hold(child, 1);
  listeners.set(what.id, (report, stream) => {
    if (report.kind === 'ended' || report.kind === 'failed') {
      listeners.delete(what.id);
      if (holds) hold(child, -1);
    }
    listener(report, stream);
  });
  send(what);
}

function send(what: Order): void {
  // One that is gone says so by its end.
  if (starter?.child.connected) starter.child.send(what, () => {});
}

function start(): Starter {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'starting.ts')], {
    cwd: '/',
    env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
    // A terminal's Ctrl+C is for the server, which may still need it.
    detached: true,
    // Its input ends with this process.
    stdio: ['pipe', 'ignore', 'ignore', 'ipc'],
    serialization: 'advanced',
  });
  child.stdin?.on('error', () => {});
  const own: Starter = { child, listeners: new Map() };
  child.on('message', (report: Report, stream?: Socket) => {
    const { id } = report;
    const told: Told =
      report.kind === 'failed'
        ? { id, kind: report.kind, error: errorOf(report.message, report.code) }
        : report;
    own.listeners.get(id)?.(told, stream);
  });
  const over = (why: string, code = 'EAGAIN') => {
    if (starter === own) starter = undefined;
    for (const [id, listener] of own.listeners)
      listener({ id, kind: 'failed', error: errorOf(why, code) });
  };
  child.once('error', ({ message, code }: NodeJS.ErrnoException) => over(message, code));
  child.once('exit', (code, signal) => over(`what starts programs ended with ${code ?? signal}`));
  hold(child, 0);
  return own;
}

const held = new WeakMap<ChildProcess, number>();

/** A process that is done waits for programs that it runs, and not for what could start more. */
function hold(child: ChildProcess, change: -1 | 0 | 1): void {
  const count = (held.get(child) ?? 0) + change;
  held.set(child, count);
  // The pipe to it holds nobody by itself.
  const input = child.stdin as Socket | null;
  for (const one of [child, child.channel]) count > 0 ? one?.ref() : one?.unref();
  input?.unref();
}

function errorOf(message: string, code: string | undefined): Error {
  return Object.assign(new Error(message), { code });
}
