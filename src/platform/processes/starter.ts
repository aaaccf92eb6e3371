/**
 * Starts programs through a small helper process, the starter.
 *
 * To start a program, the kernel copies the page tables of its parent. That blocks the main thread of a 300 MB server for 10
 * to 40 ms, and a small process for 2 ms. So the starter (`starting.ts`) starts the programs that are started often. It ends
 * with this process and ends its programs, except detached programs. If the starter is killed, running programs fail as if the
 * machine had no free processes (EAGAIN), and the next program gets a new starter.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { Socket } from 'node:net';
import { type Duplex, PassThrough } from 'node:stream';
import { ownProgram } from './own-program.ts';
import type { Command, Program, ProgramExit, StarterEvent } from './protocol.ts';

export type { Program };

/** Time between SIGTERM and SIGKILL. */
const GRACE_MS = 5_000;
const MAX_BYTES = 16 * 2 ** 20;

type ReceivedEvent =
  | Exclude<StarterEvent, { kind: 'failed' }>
  | { id: number; kind: 'failed'; error: Error };
type Listener = (received: ReceivedEvent, stream?: Duplex) => void;
type Starter = { child: ChildProcess; listeners: Map<number, Listener> };

let starter: Starter | undefined;
let count = 0;

type RunOptions = {
  input?: string;
  /** On abort, the program is ended by SIGTERM, and later by SIGKILL. */
  signal?: AbortSignal;
  timeoutMs?: number;
  /** Limit of standard output; a program that writes more is ended. */
  maxBytes?: number;
};

/**
 * Runs a program to its end.
 * @throws Error with a code if it cannot be started; EAGAIN also if the starter has died
 */
export function runProgram(program: Program, options: RunOptions = {}): Promise<ProgramExit> {
  const { input = '', signal, timeoutMs, maxBytes = MAX_BYTES } = options;
  const { promise, resolve, reject } = Promise.withResolvers<ProgramExit>();
  const id = ++count;
  let killing: NodeJS.Timeout | undefined;
  const end = () => {
    if (killing) return;
    send({ id, kind: 'kill', signal: 'SIGTERM' });
    killing = setTimeout(() => send({ id, kind: 'kill', signal: 'SIGKILL' }), GRACE_MS);
  };
  // `sendCommand` throws if not even the starter can be started; nothing needs cleanup then.
  sendCommand({ id, kind: 'run', program, input, maxBytes }, (event) => {
    if (event.kind === 'failed') reject(event.error);
    else if (event.kind === 'ended') resolve(event.ending);
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

/** Like `runProgram`, with the PATH of this process. @throws Error also if the program fails; its `stderr` is a property */
export async function run(file: string, args: readonly string[], options?: RunOptions) {
  const env = { PATH: process.env.PATH ?? '/usr/bin:/bin' };
  const ending = await runProgram({ file, args, env, cwd: '/' }, options);
  const { code, signal, stderr } = ending;
  options?.signal?.throwIfAborted();
  if (code !== 0) {
    const [firstLine] = stderr.trim().split('\n');
    const reason = firstLine || `${file} ended with ${code ?? signal}`;
    throw Object.assign(new Error(reason), { stderr });
  }
  return ending;
}

/** A program in its own session, which outlives this process and its starter. */
export type DetachedProgram = {
  /** Settles when the program has ended. @throws Error if it could not be started, or its starter has died */
  readonly ended: Promise<ProgramExit>;
  /** Its result, if it has ended. */
  readonly ending: ProgramExit | undefined;
  /** Writes to the program's standard input, and closes the input after the last text. */
  write(text: string, last?: boolean): void;
};

/**
 * @param errors file to which standard error is appended
 * @param onLine called with each line of standard output
 */
export function startDetached(
  program: Program,
  errors: string,
  onLine: (line: string) => void = () => {},
): DetachedProgram {
  const ended = Promise.withResolvers<ProgramExit>();
  // Callers that do not await `ended` must not cause an unhandled rejection.
  ended.promise.catch(() => {});
  const id = ++count;
  let partialLine = '';
  let ending: ProgramExit | undefined;
  sendCommand({ id, kind: 'detach', program, errors }, (event) => {
    if (event.kind === 'failed') ended.reject(event.error);
    else if (event.kind === 'ended') {
      ending = event.ending;
      ended.resolve(ending);
    } else if (event.kind === 'output') {
      const lines = (partialLine + event.text).split('\n');
      partialLine = lines.pop() ?? '';
      for (const line of lines) onLine(line);
    }
  });
  return {
    ended: ended.promise,
    get ending() {
      return ending;
    },
    write: (text, last = false) => send({ id, kind: 'write', text, last }),
  };
}

/** A running program with its streams. Its standard error is returned with its result. */
export type StreamedProgram = {
  readonly pid: number | undefined;
  readonly stdin: Duplex;
  readonly stdout: Duplex;
  /** The additional pipes, from descriptor 3 on. */
  readonly pipes: readonly Duplex[];
  /** Settles when the program has ended; its output may not have arrived yet. Rejects if the starter has died. */
  readonly ended: Promise<ProgramExit>;
  kill(signal: NodeJS.Signals): void;
};

/**
 * Starts a program and returns its streams. Their data does not pass through the starter.
 * @throws like `runProgram`
 */
export function startProgram(
  program: Program,
  { pipes = 0 }: { pipes?: number } = {},
): Promise<StreamedProgram> {
  const started = Promise.withResolvers<StreamedProgram>();
  const ended = Promise.withResolvers<ProgramExit>();
  // Callers that do not await `ended` yet must not cause an unhandled rejection.
  ended.promise.catch(() => {});
  const id = ++count;
  /** By descriptor. */
  const streams = new Map<number, Duplex | undefined>();
  let isTaken = false;
  const fail = (error: Error) => {
    started.reject(error);
    ended.reject(error);
    // If only the starter has died, the program keeps running.
    if (!isTaken) for (const stream of streams.values()) stream?.destroy();
  };
  const take = (pid: number | undefined) => {
    // Standard error is not handed over.
    if (streams.size < pipes + 2) {
      send({ id, kind: 'kill', signal: 'SIGKILL' });
      return;
    }
    isTaken = true;
    started.resolve({
      pid,
      stdin: streams.get(0) ?? closedStream().destroy(),
      stdout: streams.get(1) ?? closedStream().end(),
      pipes: Array.from({ length: pipes }, (_, i) => streams.get(3 + i) ?? closedStream().end()),
      ended: ended.promise,
      kill: (signal) => send({ id, kind: 'kill', signal }),
    });
  };
  const listener: Listener = (event, stream) => {
    if (event.kind === 'failed') fail(event.error);
    else if (event.kind === 'ended') {
      send({ id, kind: 'ack' });
      // Destroyed, so that code that writes to it gets an error.
      streams.get(0)?.destroy();
      ended.resolve(event.ending);
      if (!isTaken)
        fail(createError('the streams of a program could not be handed over', 'EMFILE'));
    } else if (event.kind === 'stream') {
      // Write errors are ignored, because the result of the program shows the failure.
      stream?.on('error', () => {});
      streams.set(event.descriptor, stream);
      if (event.descriptor > 0) return;
      // Node reads from each socket that it receives, and would end standard input when the program closes it, as if the
      // writer had ended it. A pipeline into it whose source ends later would then wait forever.
      if (stream) stream.allowHalfOpen = true;
      send({ id, kind: 'ack' });
      take(event.pid);
    }
  };
  sendCommand({ id, kind: 'start', program, pipes }, listener);
  return started.promise;
}

/** Replaces a stream of a program that ended before the stream was handed over. */
function closedStream(): PassThrough {
  return new PassThrough().on('error', () => {});
}

/** Sends a command that starts a program, and calls `listener` with the events of the program. */
function sendCommand(command: Command & { program: Program }, listener: Listener): void {
  starter ??= spawnStarter();
  const { listeners, child } = starter;
  const keepsAlive = command.kind !== 'detach';
  if (keepsAlive) changeRunningCount(child, 1);
  listeners.set(command.id, (event, stream) => {
    if (event.kind === 'ended' || event.kind === 'failed') {
      listeners.delete(command.id);
      if (keepsAlive) changeRunningCount(child, -1);
    }
    listener(event, stream);
  });
  send(command);
}

function send(command: Command): void {
  // If the starter has ended, its `exit` event fails all programs.
  if (starter?.child.connected) starter.child.send(command, () => {});
}

function spawnStarter(): Starter {
  const child = spawn(process.execPath, [ownProgram(import.meta, 'starting')], {
    cwd: '/',
    env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
    // Ctrl+C in a terminal is for the server, which may still need the starter.
    detached: true,
    // The starter ends when its standard input is closed, which happens when this process ends.
    stdio: ['pipe', 'ignore', 'ignore', 'ipc'],
    serialization: 'advanced',
  });
  child.stdin?.on('error', () => {});
  const started: Starter = { child, listeners: new Map() };
  child.on('message', (event: StarterEvent, stream?: Socket) => {
    const { id } = event;
    const received: ReceivedEvent =
      event.kind === 'failed'
        ? { id, kind: event.kind, error: createError(event.message, event.code) }
        : event;
    started.listeners.get(id)?.(received, stream);
  });
  const failAll = (message: string, code = 'EAGAIN') => {
    if (starter === started) starter = undefined;
    for (const [id, listener] of started.listeners)
      listener({ id, kind: 'failed', error: createError(message, code) });
  };
  child.once('error', ({ message, code }: NodeJS.ErrnoException) => failAll(message, code));
  child.once('exit', (code, signal) => failAll(`the program starter ended with ${code ?? signal}`));
  changeRunningCount(child, 0);
  return started;
}

const runningCounts = new WeakMap<ChildProcess, number>();

/** The starter keeps this process alive only while programs are running. */
function changeRunningCount(child: ChildProcess, change: -1 | 0 | 1): void {
  const count = (runningCounts.get(child) ?? 0) + change;
  runningCounts.set(child, count);
  // The pipe alone must not keep the process alive.
  const input = child.stdin as Socket | null;
  for (const handle of [child, child.channel]) count > 0 ? handle?.ref() : handle?.unref();
  input?.unref();
}

function createError(message: string, code: string | undefined): Error {
  return Object.assign(new Error(message), { code });
}
