/**
 * The starter's own program (`starter.ts`): starts what it is told to, and tells how that ended. What was not detached
 * ends with the process that asked for it.
 *
 * It imports nothing but Node: it has to stay small, or starting programs would cost here what it costs there.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import type { Socket } from 'node:net';
import type { Order, Report } from './protocol.ts';

/** Of what a program says of its failure. */
const MAX_STDERR = 16_384;

/** Between two looks whether the other end is gone. */
const LOOK_MS = 20;

const children = new Map<number, ChildProcess>();
const tell = (report: Report, stream?: Socket) => {
  // Nobody is there any more to be told.
  if (process.connected) process.send?.(report, stream, {}, () => {});
};

process.on('message', (order: Order) => {
  if (order.kind === 'start') start(order);
  else if (order.kind === 'have') handedOver(order.id);
  else if (order.kind === 'say') say(order);
  else if (order.kind === 'kill') children.get(order.id)?.kill(order.signal);
  else if (order.kind === 'run') run(order);
  else detach(order);
});
process.on('disconnect', end);
// Of a process that dies while a stream is on its way to it, Node tells no `disconnect`: it waits for that to arrive. What
// the process has said before is read first.
process.stdin
  .on('error', () => {})
  .once('close', endWhenAlone)
  .resume();

function endWhenAlone(): void {
  if (process.connected) setTimeout(endWhenAlone, LOOK_MS);
  else end();
}

let isOver = false;

function end(): void {
  if (isOver) return;
  isOver = true;
  const ending: Promise<unknown>[] = [];
  for (const child of children.values()) {
    child.stdin?.destroy();
    if (detached.has(child)) {
      // It goes on with what it was told, and its input ends. Nobody hears any more what it says, or waits for it.
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

function run({ id, program, input, maxBytes }: Order & { kind: 'run' }): void {
  const { file, args, cwd, env } = program;
  const child = watched(id, () => spawn(file, args, { cwd, env, stdio: ['pipe', 'pipe', 'pipe'] }));
  if (!child) return;
  const said: Uint8Array[] = [];
  let size = 0;
  child.stdout?.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size <= maxBytes) said.push(chunk);
    else child.kill('SIGTERM');
  });
  const errors = errorsOf(child);
  child.stdin?.end(input);
  child.once('close', (code, signal) => {
    if (!children.delete(id)) return;
    const [stdout, stderr] = [Buffer.concat(said), errors()];
    tell({ id, kind: 'ended', ending: { code, signal, stdout, stderr, tooMuch: size > maxBytes } });
  });
}

/** Reads what a program says of its failure, and keeps its beginning. */
function errorsOf({ stderr }: ChildProcess): () => string {
  let text = '';
  stderr?.setEncoding('utf8').on('data', (more: string) => {
    if (text.length < MAX_STDERR) text += more.slice(0, MAX_STDERR - text.length);
  });
  return () => text;
}

type Start = Order & { kind: 'start' };
/** The streams of the first are being handed over. */
const starts: Start[] = [];
/**
 * Node goes on reading a stream until the other process has it, and drops what it reads (nodejs/node#8353). It has no public
 * way to stop that: `pause()` stops the events alone, and `pauseOnConnect` is for servers.
 */
type Handed = Socket & { _handle: { readStop(): void } | null };
/** After a program's end, for what one that it started may still say. */
const DRAIN_MS = 1_000;

/**
 * One program at a time: a stream that is handed over as soon as it is made is never read here, but while another is on
 * its way Node would keep it back, and read. The standard output goes first, then what says nothing before the program
 * has input, and standard input last.
 */
function start(next: Start): void {
  if (starts.push(next) === 1) begin(next);
}

function handedOver(id: number): void {
  if (starts[0]?.id !== id) return;
  starts.shift();
  const [next] = starts;
  if (next) begin(next);
}

function begin({ id, program, pipes }: Start): void {
  const { file, args, cwd, env } = program;
  const more = Array<'pipe'>(pipes).fill('pipe');
  const child = watched(id, () =>
    spawn(file, args, { cwd, env, stdio: ['pipe', 'pipe', 'pipe', ...more] }),
  );
  if (child?.pid === undefined) {
    handedOver(id);
    return;
  }
  const errors = errorsOf(child);
  const { pid, stdio } = child;
  const give = (descriptor: number) => {
    const stream = stdio[descriptor] as Handed | null;
    stream?._handle?.readStop();
    tell({ id, kind: 'stream', descriptor, pid }, stream ?? undefined);
  };
  for (let descriptor = 1; descriptor < stdio.length; descriptor++)
    if (descriptor !== 2) give(descriptor);
  give(0);
  child.once('exit', (code, signal) => {
    const over = () => {
      clearTimeout(waiting);
      child.stderr?.destroy();
      if (!children.delete(id)) return;
      const [stdout, stderr] = [new Uint8Array(), errors()];
      tell({ id, kind: 'ended', ending: { code, signal, stdout, stderr, tooMuch: false } });
    };
    const waiting = setTimeout(over, DRAIN_MS);
    if (child.stderr?.closed ?? true) over();
    else child.stderr?.once('close', over);
  });
}

process.on('warning', ({ name }) => {
  // Node has tried several times to hand a stream over: no descriptor is free there.
  const [first] = starts;
  if (name === 'SentHandleNotReceivedWarning' && first) children.get(first.id)?.kill('SIGKILL');
});

function say({ id, text, last }: Order & { kind: 'say' }): void {
  const input = children.get(id)?.stdin;
  if (last) input?.end(text);
  else input?.write(text);
}

const detached = new WeakSet<ChildProcess>();

function detach({ id, program, errors }: Order & { kind: 'detach' }): void {
  const { file, args, cwd, env } = program;
  const child = watched(id, () => {
    const stderr = openSync(errors, 'a', 0o600);
    try {
      return spawn(file, args, { cwd, env, detached: true, stdio: ['pipe', 'pipe', stderr] });
    } finally {
      closeSync(stderr);
    }
  });
  if (!child) return;
  detached.add(child);
  child.stdout?.setEncoding('utf8').on('data', (text: string) => tell({ id, kind: 'said', text }));
  child.once('exit', (code, signal) => {
    if (!children.delete(id)) return;
    const ending = { code, signal, stdout: new Uint8Array(), stderr: '', tooMuch: false };
    tell({ id, kind: 'ended', ending });
  });
}

/** Undefined: it could not be started, which is told. */
function watched(id: number, start: () => ChildProcess): ChildProcess | undefined {
  const failed = ({ code, message }: NodeJS.ErrnoException) => {
    if (children.delete(id)) tell({ id, kind: 'failed', code, message });
  };
  try {
    const child = start();
    children.set(id, child);
    child.on('error', failed);
    // Of pipes to a process that has ended. There are none where no descriptor was free.
    for (const stream of child.stdio ?? []) stream?.on('error', () => {});
    return child;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    tell({ id, kind: 'failed', code, message });
    return undefined;
  }
}
