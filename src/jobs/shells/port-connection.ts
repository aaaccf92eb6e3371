/** A connection to a port of a running job as a stream of bytes, by the command of `ports.ts`. */
import { Duplex, duplexPair } from 'node:stream';
import { AppError, busy } from '../../base/errors.ts';
import {
  type Exit,
  encodeJsonFrame,
  FrameReader,
  LOST_EXIT,
  waitForDrain,
  writeFrame,
} from '../../platform/frames.ts';
import { CONNECTED, NO_INTERPRETER_EXIT } from './ports.ts';

/** For the start of the command, also on a cluster. */
const CONNECT_MS = 30_000;
const MAX_SAID = 1_000;
/** Begins what the server itself says instead of the command (`refuseSession`). */
const REFUSAL = /^loam: /;

type OpenPort = (frames: Duplex) => Promise<void>;

/**
 * Bytes that are written before the port is reached wait. It fails with an `AppError` if the port is not reached, and ends when the
 * program of the job closes the connection.
 */
export class PortConnection extends Duplex {
  readonly #port: number;
  /** This side of the stream of frames. */
  readonly #frames: Duplex;
  readonly #timer: NodeJS.Timeout;
  #isConnected = false;
  #hasExited = false;
  /** What the command has said on its second output. */
  #said = '';

  /** @param open gets the other side of a stream of frames, at the first byte; rejects if no command could be started */
  constructor(port: number, open: OpenPort) {
    super({ allowHalfOpen: false });
    this.#port = port;
    const [frames, far] = duplexPair();
    this.#frames = frames;
    this.#timer = setTimeout(
      () => this.destroy(portError(504, `The connection to port ${port} took too long`)),
      CONNECT_MS,
    );
    this.on('error', () => {});
    frames.on('error', () => {});
    // The other side ends after the exit frame, or because it is lost.
    frames.once('end', () => frames.destroy());
    frames.once('close', () => {
      far.destroy();
      if (!this.#hasExited) this.destroy(this.#isConnected ? undefined : this.#failure(null));
    });
    far.on('error', () => {}).once('close', () => frames.destroy());
    const reader = new FrameReader({
      bytes: (kind, piece) => {
        if (kind === 'data') this.#receive(piece);
        else if (this.#said.length < MAX_SAID) this.#said += piece.toString('utf8', 0, MAX_SAID);
      },
      json: (kind, value) => {
        if (kind === 'exit') this.#end((value as Exit).code);
      },
    });
    frames.on('data', (chunk: Buffer) => {
      try {
        reader.push(chunk);
      } catch (error) {
        this.destroy(error as Error);
      }
    });
    open(far).catch((error) => this.destroy(error));
  }

  /** For `http.Agent`, which expects a socket. */
  ref(): this {
    return this;
  }

  override _read(): void {
    this.#frames.resume();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    if (this.#frames.destroyed || writeFrame(this.#frames, 'data', chunk)) done();
    else void waitForDrain(this.#frames).then(done);
  }

  override _final(done: () => void): void {
    if (this.#frames.writable) this.#frames.write(encodeJsonFrame('end', null));
    done();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.#timer);
    this.#frames.destroy();
    done(error);
  }

  #receive(piece: Buffer): void {
    let bytes = piece;
    if (!this.#isConnected) {
      if (piece.length === 0) return;
      if (piece.toString('latin1', 0, 1) !== CONNECTED)
        return void this.destroy(portError(502, 'The job has sent an answer that is not valid'));
      this.#isConnected = true;
      clearTimeout(this.#timer);
      bytes = piece.subarray(1);
    }
    if (bytes.length > 0 && !this.push(bytes)) this.#frames.pause();
  }

  #end(code: number): void {
    this.#hasExited = true;
    if (!this.#isConnected) return void this.destroy(this.#failure(code));
    // Not an end of the connection that the program has chosen.
    if (code === LOST_EXIT) return void this.destroy();
    this.push(null);
    this.#frames.destroy();
  }

  #failure(code: number | null): AppError {
    if (code === null) return busy('The connection to the job was lost');
    if (REFUSAL.test(this.#said)) return busy(this.#said.replace(REFUSAL, '').trim());
    if (code === NO_INTERPRETER_EXIT)
      return portError(502, 'Ports need perl or python3 in the job, which has neither');
    return portError(
      502,
      `Nothing listens on port ${this.#port} of the job. Start a program there that listens on localhost, and try again.`,
    );
  }
}

/** An error of the program of a job, not of the server. */
export function portError(status: 502 | 504, message: string): AppError {
  return new AppError('internal_error', message, { status });
}
