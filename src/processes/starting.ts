/**
 * The starter's own program (`starter.ts`): starts what it is told to, and tells how that ended. What was not detached
 * ends with the process that asked for it.
 *
 * It imports nothing but Node: it has to stay small, or starting programs would cost here what it costs there.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import type { Ending, Order, Report } from './protocol.ts';

/** Of what a program says of its failure. */
const MAX_STDERR = 16_384;

const children = new Map<number, ChildProcess>();
const tell = (report: Report) => {
  // Nobody is there any more to be told.
  if (process.connected) process.send?.(report, () => {});
};

process.on('message', (order: Order) => {
  if (order.kind === 'say') say(order);
  else if (order.kind === 'kill') children.get(order.id)?.kill(order.signal);
  else if (order.kind === 'run') run(order);
  else detach(order);
});
process.on('disconnect', () => {
  for (const child of children.values()) {
    child.stdin?.destroy();
    if (detached.has(child)) {
      // It goes on with what it was told, and its input ends. Nobody hears any more what it says, or waits for it.
      child.stdout?.destroy();
      child.unref();
    } else child.kill('SIGTERM');
  }
});

function run({ id, program, input, maxBytes }: Order & { kind: 'run' }): void {
  const { file, args, cwd, env } = program;
  const child = watched(id, () => spawn(file, args, { cwd, env, stdio: ['pipe', 'pipe', 'pipe'] }));
  if (!child) return;
  const said: Uint8Array[] = [];
  const ending: Ending = {
    code: null,
    signal: null,
    stdout: new Uint8Array(),
    stderr: '',
    tooMuch: false,
  };
  let size = 0;
  child.stdout?.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size <= maxBytes) return void said.push(chunk);
    ending.tooMuch = true;
    child.kill('SIGTERM');
  });
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    if (ending.stderr.length < MAX_STDERR)
      ending.stderr += text.slice(0, MAX_STDERR - ending.stderr.length);
  });
  child.stdin?.end(input);
  child.once('close', (code, signal) => {
    if (!children.delete(id)) return;
    tell({ id, kind: 'ended', ending: { ...ending, code, signal, stdout: Buffer.concat(said) } });
  });
}

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
