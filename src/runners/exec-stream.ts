/** Passes the streams of a command beside that of a job (`Runner.exec`) on over a connection, as frames. */
import type { Duplex, Readable } from 'node:stream';
import {
  encodeJsonFrame,
  FrameReader,
  type Resize,
  waitForDrain,
  writeFrame,
} from '../platform/frames.ts';
import type { ExecSession } from './runner.ts';

/** Exit code of a command that was lost with its machine, as of `ssh` when its connection breaks. */
const LOST_EXIT = 255;
/** Time for the other side to close the connection after the exit frame. */
const LINGER_MS = 5_000;
/** A window that is dragged changes its size often, and each change may start a process. */
const RESIZE_MS = 50;
const MAX_SIZE = 1_000;

/** What passed through a session. */
export type ExecTraffic = { exitCode: number | null; bytesIn: number; bytesOut: number };

/**
 * Serves a session to the other end of the connection, and closes the session when the connection closes. Streams that nobody reads
 * wait: memory is bounded.
 * @param connection at the first byte of the input
 * @returns when the session has ended and its output was written
 */
export async function serveExec(session: ExecSession, connection: Duplex): Promise<ExecTraffic> {
  const { stdin, stdout, stderr } = session;
  const traffic: ExecTraffic = { exitCode: null, bytesIn: 0, bytesOut: 0 };
  stdin.on('error', () => {});
  let size: Resize | undefined;
  let resizing: NodeJS.Timeout | undefined;
  const resizeSoon = (next: Resize) => {
    size = next;
    resizing ??= setTimeout(() => {
      resizing = undefined;
      if (size) session.resize(size);
    }, RESIZE_MS);
  };
  const reader = new FrameReader({
    bytes(_kind, piece) {
      traffic.bytesIn += piece.length;
      // After the command has closed its input, the rest is dropped.
      if (!stdin.writable || stdin.write(piece)) return;
      connection.pause();
      void waitForDrain(stdin).then(() => connection.resume());
    },
    json(kind, value) {
      if (kind === 'end' && stdin.writable) stdin.end();
      if (kind === 'resize') resizeSoon(readSize(value));
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
  if (connection.destroyed) onClose();
  const send = async (kind: 'data' | 'stderr', from: Readable) => {
    for await (const piece of from) {
      traffic.bytesOut += piece.length;
      if (connection.destroyed) continue;
      if (!writeFrame(connection, kind, piece)) await waitForDrain(connection);
    }
  };
  await Promise.all([
    send('data', stdout).catch(() => {}),
    stderr && send('stderr', stderr).catch(() => {}),
  ]);
  traffic.exitCode = await session.exited;
  connection.off('close', onClose);
  clearTimeout(resizing);
  if (connection.destroyed) return traffic;
  connection.resume();
  connection.end(encodeJsonFrame('exit', { code: traffic.exitCode ?? LOST_EXIT }), () => {
    const linger = setTimeout(() => connection.destroy(), LINGER_MS);
    connection.once('close', () => clearTimeout(linger));
  });
  return traffic;
}

/** @throws Error */
function readSize(value: unknown): Resize {
  const { columns, rows } = (value ?? {}) as Partial<Resize>;
  const isSize = (n: unknown): n is number =>
    Number.isInteger(n) && Number(n) >= 1 && Number(n) <= MAX_SIZE;
  if (!isSize(columns) || !isSize(rows)) throw new Error('The size of a terminal is not valid');
  return { columns, rows };
}
