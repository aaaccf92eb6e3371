/**
 * The starter process (`starter.ts`): starts programs on command and reports how they ended. Programs that are not detached
 * end with the process that requested them.
 *
 * It imports only Node modules: it must stay small, because its size is what starting a program costs.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import type { Socket } from 'node:net';
import { closeInheritedDescriptors } from './inherited-descriptors.ts';
import type { Command, ProgramExit, StarterEvent } from './protocol.ts';

/** Limit of the error output that is kept. */
const MAX_STDERR = 16_384;

/** Interval of checks whether the parent process has ended. */
const CHECK_MS = 20;

// Programs would inherit them, also shells in jobs.
closeInheritedDescriptors();

const children = new Map<number, ChildProcess>();
const sendEvent = (event: StarterEvent, stream?: Socket) => {
  // If not connected, the parent process has ended.
  if (process.connected) process.send?.(event, stream, {}, () => {});
};

process.on('message', (command: Command) => {
  if (command.kind === 'start') start(command);
  else if (command.kind === 'ack') confirmHandover(command.id);
  else if (command.kind === 'write') writeInput(command);
  else if (command.kind === 'kill') children.get(command.id)?.kill(command.signal);
  else if (command.kind === 'run') run(command);
  else detach(command);
});
process.on('disconnect', end);
// If the parent process dies while a stream is being sent to it, Node emits no `disconnect`, because it waits for the stream
// to arrive. Commands that were sent before are still processed.
process.stdin
  .on('error', () => {})
  .once('close', endWhenDisconnected)
  .resume();

function endWhenDisconnected(): void {
  if (process.connected) setTimeout(endWhenDisconnected, CHECK_MS);
  else end();
}

let isEnding = false;

function end(): void {
  if (isEnding) return;
  isEnding = true;
  const ending: Promise<unknown>[] = [];
  for (const child of children.values()) {
    child.stdin?.destroy();
    if (detached.has(child)) {
      // A detached program continues with the input that it has. Its output and its end are no longer reported.
      child.stdout?.destroy();
      child.unref();
    } else {
      for (const stream of child.stdio ?? []) stream?.destroy();
      child.kill('SIGTERM');
      ending.push(new Promise((resolve) => child.once('exit', resolve)));
    }
  }
  Promise.all(ending).then(() => process.exit());
}

function run({ id, program, input, maxBytes }: Command & { kind: 'run' }): void {
  const { file, args, cwd, env } = program;
  const child = spawnWatched(id, () =>
    spawn(file, args, { cwd, env, stdio: ['pipe', 'pipe', 'pipe'] }),
  );
  if (!child) return;
  const chunks: Uint8Array[] = [];
  let size = 0;
  child.stdout?.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size <= maxBytes) chunks.push(chunk);
    else child.kill('SIGTERM');
  });
  const errors = collectErrors(child);
  child.stdin?.end(input);
  child.once('close', (code, signal) => {
    if (!children.delete(id)) return;
    const [stdout, stderr] = [Buffer.concat(chunks), errors()];
    sendEvent({
      id,
      kind: 'ended',
      ending: { code, signal, stdout, stderr, exceededLimit: size > maxBytes },
    });
  });
}

/** Collects the beginning of a program's error output. */
function collectErrors({ stderr }: ChildProcess): () => string {
  let text = '';
  stderr?.setEncoding('utf8').on('data', (more: string) => {
    if (text.length < MAX_STDERR) text += more.slice(0, MAX_STDERR - text.length);
  });
  return () => text;
}

type Start = Command & { kind: 'start' };
/** Programs that wait for the handover of their streams. The handover of the first program is in progress. */
const queue: Start[] = [];
/**
 * Node keeps reading a stream until the parent process has received it, and drops the data (nodejs/node#8353). No public API
 * stops these reads: `pause()` only stops the events, and `pauseOnConnect` is for servers.
 */
type HandedOver = Socket & { _handle: { readStop(): void } | null };
/** How long standard error is read after the end of a program, for programs that it has started. */
const DRAIN_MS = 1_000;

/**
 * Hands over the streams of one program at a time. A stream that is handed over as soon as it exists is never read in this
 * process, but while another handover is in progress Node would queue the stream and read it. Standard output goes first,
 * then the pipes, which have no data before the program has input, and standard input last.
 */
function start(next: Start): void {
  if (queue.push(next) === 1) beginHandover(next);
}

function confirmHandover(id: number): void {
  if (queue[0]?.id !== id) return;
  queue.shift();
  const [next] = queue;
  if (next) beginHandover(next);
}

function beginHandover({ id, program, pipes }: Start): void {
  const { file, args, cwd, env } = program;
  const more = Array<'pipe'>(pipes).fill('pipe');
  const child = spawnWatched(id, () =>
    spawn(file, args, { cwd, env, stdio: ['pipe', 'pipe', 'pipe', ...more] }),
  );
  if (child?.pid === undefined) {
    confirmHandover(id);
    return;
  }
  const errors = collectErrors(child);
  const { pid, stdio } = child;
  const handOver = (descriptor: number) => {
    const stream = stdio[descriptor] as HandedOver | null;
    stream?._handle?.readStop();
    sendEvent({ id, kind: 'stream', descriptor, pid }, stream ?? undefined);
  };
  for (let descriptor = 1; descriptor < stdio.length; descriptor++)
    if (descriptor !== 2) handOver(descriptor);
  handOver(0);
  child.once('exit', (code, signal) => {
    const finish = () => {
      clearTimeout(waiting);
      child.stderr?.destroy();
      if (!children.delete(id)) return;
      const [stdout, stderr] = [new Uint8Array(), errors()];
      sendEvent({
        id,
        kind: 'ended',
        ending: { code, signal, stdout, stderr, exceededLimit: false },
      });
    };
    const waiting = setTimeout(finish, DRAIN_MS);
    if (child.stderr?.closed ?? true) finish();
    else child.stderr?.once('close', finish);
  });
}

process.on('warning', ({ name }) => {
  // Node has tried several times to hand over a stream: the parent process has no free descriptor.
  const [first] = queue;
  if (name === 'SentHandleNotReceivedWarning' && first) children.get(first.id)?.kill('SIGKILL');
});

function writeInput({ id, text, last }: Command & { kind: 'write' }): void {
  const input = children.get(id)?.stdin;
  if (last) input?.end(text);
  else input?.write(text);
}

const detached = new WeakSet<ChildProcess>();

function detach({ id, program, errors }: Command & { kind: 'detach' }): void {
  const { file, args, cwd, env } = program;
  const child = spawnWatched(id, () => {
    const stderr = openSync(errors, 'a', 0o600);
    try {
      return spawn(file, args, { cwd, env, detached: true, stdio: ['pipe', 'pipe', stderr] });
    } finally {
      closeSync(stderr);
    }
  });
  if (!child) return;
  detached.add(child);
  child.stdout
    ?.setEncoding('utf8')
    .on('data', (text: string) => sendEvent({ id, kind: 'output', text }));
  child.once('exit', (code, signal) => {
    if (!children.delete(id)) return;
    const ending: ProgramExit = {
      code,
      signal,
      stdout: new Uint8Array(),
      stderr: '',
      exceededLimit: false,
    };
    sendEvent({ id, kind: 'ended', ending });
  });
}

/** @returns undefined if the program could not be started; the failure is reported */
function spawnWatched(id: number, start: () => ChildProcess): ChildProcess | undefined {
  const failed = ({ code, message }: NodeJS.ErrnoException) => {
    if (children.delete(id)) sendEvent({ id, kind: 'failed', code, message });
  };
  try {
    const child = start();
    children.set(id, child);
    child.on('error', failed);
    // Ignores errors of pipes to a program that has ended. There are no pipes if no descriptor was free.
    for (const stream of child.stdio ?? []) stream?.on('error', () => {});
    return child;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    sendEvent({ id, kind: 'failed', code, message });
    return undefined;
  }
}
