/**
 * Frames: the streams of a command over one connection, between the SSH front process and the server (`api/ssh/`), and between a
 * server and the worker whose job has the command (`runners/exec-stream.ts`). Each key lookup and each command has a connection of
 * its own:
 *
 *   client                      server
 *   keyLookup                   keyOwner
 *   exec, data …, resize, end   data and stderr …, exit
 *   pause, resume
 *
 * A frame is its kind (1 byte), the length of its content (4 bytes, big-endian) and the content: stream bytes or JSON.
 * Stream frames can have any length, because their bytes are passed on as they arrive.
 *
 * This file imports only Node modules, to keep the front process small.
 */
import type { Duplex, Writable } from 'node:stream';

const KINDS = {
  keyLookup: 1,
  keyOwner: 2,
  exec: 3,
  data: 4,
  end: 5,
  stderr: 6,
  exit: 7,
  resize: 8,
  pause: 9,
  resume: 10,
} as const;
export type Kind = keyof typeof KINDS;
type StreamKind = 'data' | 'stderr';

export type Exit = { code: number };
/** Exit code of a command in a job that was lost with its machine, as of `ssh` when its connection breaks. */
export const LOST_EXIT = 255;
/** In characters. */
export type TerminalSize = { columns: number; rows: number };

const NAMES = new Map<number, Kind>(
  (Object.keys(KINDS) as Kind[]).map((name) => [KINDS[name], name]),
);
const HEADER_BYTES = 5;
export const MAX_JSON_BYTES = 65_536;
/** Clients send the first frame immediately after they connect. */
const FIRST_FRAME_MS = 10_000;

function isStream(kind: Kind): kind is StreamKind {
  return kind === 'data' || kind === 'stderr';
}

export function encodeFrame(kind: Kind, content: Uint8Array): Uint8Array[] {
  const header = Buffer.allocUnsafe(HEADER_BYTES);
  header[0] = KINDS[kind];
  header.writeUInt32BE(content.length, 1);
  return [header, content];
}

export function encodeJsonFrame(kind: Kind, value: unknown): Buffer {
  return Buffer.concat(encodeFrame(kind, Buffer.from(JSON.stringify(value))));
}

/** Writes header and content together. @returns false if the caller should wait for `drain` */
export function writeFrame(to: Duplex, kind: StreamKind, bytes: Uint8Array): boolean {
  const [header, content] = encodeFrame(kind, bytes);
  to.cork();
  to.write(header);
  const wantsMore = to.write(content);
  to.uncork();
  return wantsMore;
}

/** Resolves when `output` accepts more data or is closed. */
export function waitForDrain(output: Writable): Promise<void> {
  return new Promise((resolve) => {
    const settle = () => {
      output.off('drain', settle);
      output.off('close', settle);
      resolve();
    };
    output.once('drain', settle);
    output.once('close', settle);
  });
}

type FrameHandlers = {
  /** Receives a piece of a stream. */
  bytes(kind: StreamKind, piece: Buffer): void;
  json(kind: Exclude<Kind, StreamKind>, value: unknown): void;
};

/** Parses frames from the chunks of a socket. */
export class FrameReader {
  readonly #handlers: FrameHandlers;
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerLength = 0;
  #kind: Kind = 'end';
  /** Bytes of the content that have not arrived yet. */
  #remaining = 0;
  #json: Buffer[] = [];

  constructor(handlers: FrameHandlers) {
    this.#handlers = handlers;
  }

  /** @throws Error for an invalid frame */
  push(chunk: Buffer): void {
    let at = 0;
    while (at < chunk.length) {
      if (this.#headerLength < HEADER_BYTES) {
        const taken = chunk.copy(this.#header, this.#headerLength, at);
        this.#headerLength += taken;
        at += taken;
        if (this.#headerLength < HEADER_BYTES) return;
        this.#begin();
      } else {
        const piece = chunk.subarray(at, at + this.#remaining);
        at += piece.length;
        this.#remaining -= piece.length;
        if (isStream(this.#kind)) this.#handlers.bytes(this.#kind, piece);
        else this.#json.push(piece);
      }
      // Also true after the header of an empty frame.
      if (this.#remaining === 0) this.#finish();
    }
  }

  #begin(): void {
    const kind = NAMES.get(this.#header[0] ?? 0);
    if (!kind) throw new Error(`Unknown frame kind ${this.#header[0]}`);
    this.#kind = kind;
    this.#remaining = this.#header.readUInt32BE(1);
    if (!isStream(kind) && this.#remaining > MAX_JSON_BYTES)
      throw new Error(
        `A frame of kind ${kind} has ${this.#remaining} bytes, more than ${MAX_JSON_BYTES}`,
      );
  }

  #finish(): void {
    this.#headerLength = 0;
    if (isStream(this.#kind)) return;
    const text = Buffer.concat(this.#json).toString();
    this.#json = [];
    this.#handlers.json(this.#kind, text === '' ? null : JSON.parse(text));
  }
}

/** Returns the first frame, or null if none arrives. Leaves the socket paused at the byte after the frame. */
export async function readFirstFrame(
  socket: Duplex,
): Promise<{ kind: Kind; value: unknown } | null> {
  const { promise, resolve } = Promise.withResolvers<{ kind: Kind; value: unknown } | null>();
  const timer = setTimeout(() => resolve(null), FIRST_FRAME_MS);
  const giveUp = () => resolve(null);
  const chunks: Buffer[] = [];
  let length = 0;
  /** Of the frame; until its header has arrived, that of the header. */
  let end = HEADER_BYTES;
  const read = (chunk: Buffer) => {
    chunks.push(chunk);
    length += chunk.length;
    // A client may send single bytes, so the chunks are joined only when they are enough.
    while (length >= end) {
      const received = Buffer.concat(chunks.splice(0));
      chunks.push(received);
      const kind = NAMES.get(received[0] ?? 0);
      const size = received.readUInt32BE(1);
      const isValid = kind && !isStream(kind) && size <= MAX_JSON_BYTES;
      if (isValid && end < HEADER_BYTES + size) {
        end = HEADER_BYTES + size;
        continue;
      }
      socket.off('data', read).pause();
      if (!isValid) return giveUp();
      if (length > end) socket.unshift(received.subarray(end));
      return resolve(parseFrame(kind, received.toString('utf8', HEADER_BYTES, end)));
    }
  };
  socket.once('close', giveUp);
  socket.on('data', read);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    socket.off('close', giveUp).off('data', read);
  }
}

function parseFrame(kind: Kind, text: string): { kind: Kind; value: unknown } | null {
  try {
    return { kind, value: text === '' ? null : JSON.parse(text) };
  } catch {
    return null;
  }
}
