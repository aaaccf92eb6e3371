/**
 * The server's side of one command over SSH: the client's input, and where the command's outputs go. Its socket may be
 * that of the process that speaks SSH, or of another server, which has that process.
 */
import { type Duplex, Readable, Writable } from 'node:stream';
import { drained } from '../git/transport/relay.ts';
import { type Exit, FrameReader, encodeJsonFrame, writeFrame } from './frames.ts';

const CHECK_MS = 5_000;
/** For the other end to close, after it was given the end. */
const LINGER_MS = 5_000;

export type ExecSession = {
  input: Readable;
  output: Writable;
  /** Aborts when the client is gone. */
  readonly gone: AbortSignal;
  /** Of standard error. */
  writeError(text: string): void;
  /** From now on it ends when nothing is moved in either direction for so long. */
  endWhenIdle(ms: number, why: string): void;
  /** Ends it, as a program of that exit code. */
  exit(code: number): void;
};

/** Over a socket that is at the first byte of the input. */
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
  // Whoever reads or writes them looks whether they are destroyed.
  input.on('error', () => {});
  output.on('error', () => {});
  // Broken off by whoever runs the command: nobody may take what came for the whole.
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
    if (!input.readableEnded) input.destroy(new Error('the client is gone'));
    output.destroy();
  };
  socket.once('close', close);
  if (socket.destroyed) close();

  /** After what was written. */
  const finish = (code: number) => {
    isOver = true;
    clearInterval(timer);
    // What the client still sends is read and dropped, until it closes.
    input.destroy();
    if (socket.destroyed) return;
    socket.resume();
    // A slow client may take minutes for what was written before; one that takes nothing is ended by the other end.
    socket.end(encodeJsonFrame('exit', { code } satisfies Exit), () => {
      const linger = setTimeout(() => socket.destroy(), LINGER_MS);
      socket.once('close', () => clearTimeout(linger));
    });
  };
  const say = (text: string) => {
    if (!socket.destroyed) writeFrame(socket, 'error', Buffer.from(text));
  };
  return {
    input,
    output,
    gone: gone.signal,
    writeError: say,
    endWhenIdle(ms, why) {
      const check = () => {
        if (performance.now() - movedAt < ms) return;
        say(why);
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
