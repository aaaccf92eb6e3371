/**
 * The server's side of one SSH command: its input, outputs and exit code, over a socket to the SSH front process of
 * this server or, for forwarded commands, to another server.
 */
import { type Duplex, Readable, Writable } from 'node:stream';
import {
  type Exit,
  encodeJsonFrame,
  FrameReader,
  waitForDrain,
  writeFrame,
} from '../../platform/frames.ts';

const IDLE_CHECK_MS = 5_000;
/** Time for the peer to close the socket after the exit frame. */
const LINGER_MS = 5_000;

export class ExecSession {
  readonly input: Readable;
  readonly output: Writable;
  readonly #socket: Duplex;
  readonly #gone = new AbortController();
  /** When the last bytes were received or written. */
  #lastTransferAt = performance.now();
  #timer: NodeJS.Timeout | undefined;
  /** Whether the exit code is known; the output may still be buffered. */
  #hasExited = false;

  /** @param socket at the first byte of the input */
  constructor(socket: Duplex) {
    this.#socket = socket;
    this.input = new Readable({ read: () => void socket.resume() });
    this.output = new Writable({
      write: (chunk: Buffer, _encoding, done) => this.#writeOutput(chunk, done),
    });
    // Ignored, because the code that reads and writes these streams checks whether they are destroyed.
    this.input.on('error', () => {});
    this.output.on('error', () => {});
    // If the output was destroyed early, closing the socket tells the client that it is incomplete.
    this.output.once('close', () => {
      if (!this.#hasExited) socket.destroy();
    });
    this.#readFrames();
    socket.on('error', () => {});
    socket.once('close', () => this.#close());
    if (socket.destroyed) this.#close();
  }

  /** Aborts when the client has disconnected. */
  get gone(): AbortSignal {
    return this.#gone.signal;
  }

  /** Writes to the client's standard error. */
  writeError(text: string): void {
    if (!this.#socket.destroyed) writeFrame(this.#socket, 'stderr', Buffer.from(text));
  }

  /** Ends the session when no bytes move in either direction for `ms`, with the message `why`. */
  endWhenIdle(ms: number, why: string): void {
    const check = () => {
      if (performance.now() - this.#lastTransferAt < ms) return;
      this.writeError(why);
      this.#finish(1);
      this.output.destroy();
    };
    this.#timer = setInterval(check, Math.min(IDLE_CHECK_MS, ms));
  }

  /** Ends the session with an exit code, after all output is written. */
  exit(code: number): void {
    if (this.#hasExited) return;
    this.#hasExited = true;
    const { output } = this;
    if (output.destroyed || output.writableEnded) this.#finish(code);
    else output.end(() => this.#finish(code));
  }

  #readFrames(): void {
    const { input } = this;
    const socket = this.#socket;
    const reader = new FrameReader({
      bytes: (_kind, piece) => {
        this.#lastTransferAt = performance.now();
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
  }

  #writeOutput(chunk: Buffer, done: () => void): void {
    const socket = this.#socket;
    this.#lastTransferAt = performance.now();
    if (socket.destroyed || writeFrame(socket, 'data', chunk)) {
      done();
      return;
    }
    waitForDrain(socket).then(() => {
      this.#lastTransferAt = performance.now();
      done();
    });
  }

  #close(): void {
    clearInterval(this.#timer);
    this.#gone.abort();
    if (!this.input.readableEnded) this.input.destroy(new Error('The client has disconnected'));
    this.output.destroy();
  }

  /** Sends the exit frame after the bytes that were written. */
  #finish(code: number): void {
    const socket = this.#socket;
    this.#hasExited = true;
    clearInterval(this.#timer);
    // Reads and drops further input until the client closes.
    this.input.destroy();
    if (socket.destroyed) return;
    socket.resume();
    // A slow client may need minutes for buffered output. The front process ends clients that read nothing.
    socket.end(encodeJsonFrame('exit', { code } satisfies Exit), () => {
      const linger = setTimeout(() => socket.destroy(), LINGER_MS);
      socket.once('close', () => clearTimeout(linger));
    });
  }
}
