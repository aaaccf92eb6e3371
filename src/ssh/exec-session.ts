/**
 * The server's side of one SSH command: its input, outputs and exit code, over a socket to the SSH front process of this
 * server or, for forwarded commands, to another server.
 */
import { type Duplex, Readable, Writable } from 'node:stream';
import { drained } from '../git/transport/relay.ts';
import { type Exit, FrameReader, encodeJsonFrame, writeFrame } from './frames.ts';

const CHECK_MS = 5_000;
/** Time for the peer to close the socket after the exit frame. */
const LINGER_MS = 5_000;

export type ExecSession = {
  input: Readable;
  output: Writable;
  /** Aborts when the client has disconnected. */
  readonly gone: AbortSignal;
  /** Writes to the client's standard error. */
  writeError(text: string): void;
  /** Ends the session when no bytes move in either direction for `ms`, with the message `why`. */
  endWhenIdle(ms: number, why: string): void;
  /** Ends the session with an exit code, after all output is written. */
  exit(code: number): void;
};

/** @param socket at the first byte of the input */
export function openExecSession(socket: Duplex): ExecSession {
  const gone = new AbortController();
  let movedAt = performance.now();
  let timer: NodeJS.Timeout | undefined;
  let isOver = false;
  const moved = () => {
    movedAt = performance.now();
  };

  const input = new Readable({ read: () => void socket.resume() });
  const output = new Writable({
    write(chunk: Buffer, _encoding, done) {
      moved();
      if (socket.destroyed) return done();
      if (writeFrame(socket, 'data', chunk)) return done();
      drained(socket).then(() => {
        moved();
        done();
      });
    },
  });
  // The code that reads and writes these streams checks whether they are destroyed.
  input.on('error', () => {});
  output.on('error', () => {});
  // The output was destroyed early: closing the socket tells the client that it is incomplete.
  output.once('close', () => {
    if (!isOver) socket.destroy();
  });

  const reader = new FrameReader({
    bytes(_kind, piece) {
      moved();
      if (!input.destroyed && !input.push(piece)) socket.pause();
    },
    json(kind) {
      if (kind === 'end' && !input.destroyed) input.push(null);
    },
  });
  socket.on('data', (chunk: Buffer) => {
    try {
      reader.push(chunk);
    } catch (error) {
      socket.destroy(error as Error);
    }
  });
  socket.on('error', () => {});
  const close = () => {
    clearInterval(timer);
    gone.abort();
    if (!input.readableEnded) input.destroy(new Error('The client has disconnected'));
    output.destroy();
  };
  socket.once('close', close);
  if (socket.destroyed) close();

  /** Sends the exit frame after the bytes that were written. */
  const finish = (code: number) => {
    isOver = true;
    clearInterval(timer);
    // Reads and drops further input until the client closes.
    input.destroy();
    if (socket.destroyed) return;
    socket.resume();
    // A slow client may need minutes for buffered output. The front process ends clients that read nothing.
    socket.end(encodeJsonFrame('exit', { code } satisfies Exit), () => {
      const linger = setTimeout(() => socket.destroy(), LINGER_MS);
      socket.once('close', () => clearTimeout(linger));
    });
  };
  const writeError = (text: string) => {
    if (!socket.destroyed) writeFrame(socket, 'error', Buffer.from(text));
  };
  return {
    input,
    output,
    gone: gone.signal,
    writeError,
    endWhenIdle(ms, why) {
      const check = () => {
        if (performance.now() - movedAt < ms) return;
        writeError(why);
        finish(1);
        output.destroy();
      };
      timer = setInterval(check, Math.min(CHECK_MS, ms));
    },
    exit(code) {
      if (isOver) return;
      isOver = true;
      if (output.destroyed || output.writableEnded) finish(code);
      else output.end(() => finish(code));
    },
  };
}
