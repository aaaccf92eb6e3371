/** Passes the streams of a command beside that of a job (`Runner.exec`) on over a connection, as frames. */
import type { Duplex, Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { setTimeout as delay } from 'node:timers/promises';
import {
  encodeJsonFrame,
  FrameReader,
  LOST_EXIT,
  type TerminalSize,
  waitForDrain,
  writeFrame,
} from '../platform/frames.ts';
import type { ExecSession } from './runner.ts';

/** Time for the other side to close the connection after the exit frame. */
const LINGER_MS = 5_000;
/** A connection that is not read does not notice that the other side is gone, so something is written to it this often. */
const PROBE_MS = 2_000;
/** Pause between changes of a terminal's size, each of which may start a process: a dragged window has a hundred sizes a second. */
const RESIZE_MS = 50;
const MAX_SIZE = 1_000;
const REFUSED_EXIT = 1;
/** How long an output is quiet after the end of the command before it is closed, and how much may come after the end. */
const DRAIN_MS = 2_000;
const DRAIN_STEP_MS = 200;
const MAX_REST = 2 ** 20;

/** What passed through a session. */
export type ExecTraffic = { exitCode: number | null; bytesIn: number; bytesOut: number };

/**
 * Serves a session to the other end of the connection, and closes the session when the connection closes. Streams that nobody reads
 * wait: memory is bounded.
 * @param connection at the first byte of the input
 * @param signal ends the session; the other side gets the message of its reason
 * @returns when the session has ended and its output was written
 */
export async function serveExec(
  session: ExecSession,
  connection: Duplex,
  signal?: AbortSignal,
): Promise<ExecTraffic> {
  const { stdin, stdout, stderr } = session;
  const traffic: ExecTraffic = { exitCode: null, bytesIn: 0, bytesOut: 0 };
  stdin.on('error', () => {});
  const resize = latestOnly((size: TerminalSize) => session.resize(size), RESIZE_MS);
  /** For a browser, which cannot make its WebSocket wait. */
  let paused: PromiseWithResolvers<void> | undefined;
  const resume = () => {
    paused?.resolve();
    paused = undefined;
  };
  connection.once('close', resume);
  let isFull = false;
  const waitForCommand = async () => {
    isFull = true;
    connection.pause();
    const probe = setInterval(() => {
      if (!connection.writableNeedDrain) writeFrame(connection, 'data', Buffer.alloc(0));
    }, PROBE_MS);
    await waitForDrain(stdin);
    clearInterval(probe);
    isFull = false;
    connection.resume();
  };
  const reader = new FrameReader({
    bytes(_kind, piece) {
      traffic.bytesIn += piece.length;
      // After the command has closed its input, the rest is dropped. The rest of a chunk still arrives after the pause.
      if (stdin.writable && !stdin.write(piece) && !isFull) void waitForCommand();
    },
    json(kind, value) {
      if (kind === 'end' && stdin.writable) stdin.end();
      if (kind === 'resize') resize(readSize(value));
      if (kind === 'pause') paused ??= Promise.withResolvers();
      if (kind === 'resume') resume();
    },
  });
  connection.on('data', (chunk: Buffer) => {
    try {
      reader.push(chunk);
    } catch (error) {
      connection.destroy(error as Error);
    }
  });
  connection.on('error', () => {});
  // It was paused at the first byte.
  connection.resume();
  const onClose = () => session.close();
  connection.once('close', onClose);
  // The other side says with a frame that its input has ended. A connection that ends is gone.
  connection.once('end', () => connection.destroy());
  if (connection.destroyed) onClose();
  const onAbort = () => {
    session.close();
    resume();
    // A terminal shows a line feed alone as such.
    const newline = stderr ? '\n' : '\r\n';
    endWithMessage(connection, { message: signal?.reason.message, newline, code: LOST_EXIT });
    destroyLater(connection);
  };
  signal?.addEventListener('abort', onAbort);
  if (signal?.aborted) onAbort();
  const send = async (kind: 'data' | 'stderr', from: Readable) => {
    for await (const piece of from) {
      traffic.bytesOut += piece.length;
      if (connection.destroyed || connection.writableEnded) continue;
      if (!writeFrame(connection, kind, piece)) await waitForDrain(connection);
      await paused?.promise;
    }
  };
  await Promise.all([
    send('data', stdout).catch(() => {}),
    stderr && send('stderr', stderr).catch(() => {}),
  ]);
  traffic.exitCode = await session.exited;
  connection.off('close', onClose);
  signal?.removeEventListener('abort', onAbort);
  if (connection.destroyed || connection.writableEnded) return traffic;
  connection.resume();
  connection.end(encodeJsonFrame('exit', { code: traffic.exitCode ?? LOST_EXIT }), () =>
    destroyLater(connection),
  );
  return traffic;
}

function destroyLater(connection: Duplex): void {
  const linger = setTimeout(() => connection.destroy(), LINGER_MS);
  connection.once('close', () => clearTimeout(linger));
}

/** Ends a connection whose session could not begin. The client shows the message as an error of the command. */
export function refuseSession(connection: Duplex, message: string): void {
  endWithMessage(connection, { message, newline: '\n', code: REFUSED_EXIT });
}

function endWithMessage(
  connection: Duplex,
  { message, newline, code }: { message: string; newline: string; code: number },
): void {
  if (connection.destroyed || connection.writableEnded) return;
  connection.resume();
  writeFrame(connection, 'stderr', Buffer.from(`loam: ${message}${newline}`));
  connection.end(encodeJsonFrame('exit', { code }));
}

/**
 * Reads the rest of an output after the end of the command, as long as its reader takes. Processes that the command has left behind
 * may keep it open, so it ends when it is quiet or when too much has come.
 */
export async function drainOutput(output: Readable & { bytesRead?: number }): Promise<void> {
  const isRead = finished(output, { writable: false }).catch(() => {});
  const countRead = () => output.bytesRead ?? 0;
  const atEnd = countRead();
  let seen = atEnd;
  for (let quietMs = 0; !output.closed && quietMs < DRAIN_MS && seen - atEnd < MAX_REST; ) {
    const hasEnded = await Promise.race([
      isRead.then(() => true),
      delay(DRAIN_STEP_MS, false, { ref: false }),
    ]);
    if (hasEnded) break;
    const isQuiet = countRead() === seen && output.readableLength === 0;
    quietMs = isQuiet ? quietMs + DRAIN_STEP_MS : 0;
    seen = countRead();
  }
  output.destroy();
}

/** @throws Error */
function readSize(value: unknown): TerminalSize {
  const { columns, rows } = (value ?? {}) as Partial<TerminalSize>;
  const isSize = (n: unknown): n is number =>
    Number.isInteger(n) && Number(n) >= 1 && Number(n) <= MAX_SIZE;
  if (!isSize(columns) || !isSize(rows)) throw new Error('The size of a terminal is not valid');
  return { columns, rows };
}

/** Runs one call after the other, with a pause, and of those that arrive meanwhile only the last. */
function latestOnly<T>(run: (value: T) => Promise<void>, pauseMs: number): (value: T) => void {
  let next: { value: T } | undefined;
  let isRunning = false;
  const runAll = async () => {
    isRunning = true;
    for (let one = next; one; one = next) {
      next = undefined;
      await run(one.value);
      await delay(pauseMs, undefined, { ref: false });
    }
    isRunning = false;
  };
  return (value) => {
    next = { value };
    if (!isRunning) void runAll();
  };
}
