/**
 * The protocol between the SSH front process and the server over a Unix socket. Each key lookup and each command has a
 * connection of its own:
 *
 *   key →            ← account or null
 *   open →  data → end →            ← data, error … exit
 *
 * A frame is its kind (1 byte), the length of its content (4 bytes, big-endian) and the content: stream bytes or JSON.
 * Stream frames can have any length, because their bytes are passed on as they arrive.
 *
 * This file imports only Node, to keep the front process small.
 */
import type { Duplex } from 'node:stream';

const KINDS = {
  key: 1,
  account: 2,
  open: 3,
  data: 4,
  end: 5,
  error: 6,
  exit: 7,
} as const;
export type Kind = keyof typeof KINDS;

/** Sent before and after the client has proved that it has the private key. */
export type KeyLookup = { fingerprint: string };
/** `id`: of the credential. `userId`, `name`: the user whose rights it has. Null for an unknown key. */
export type KeyOwner = { id: string; userId: string; name: string } | null;
export type ExecRequest = {
  /** Id of the credential whose signature was verified. */
  credential: string;
  /** Null for a shell request. */
  command: string | null;
  /** The client's `GIT_PROTOCOL`. */
  protocol?: string;
  /** The client's IP address. */
  address: string;
};
export type Exit = { code: number };

const NAMES = new Map<number, Kind>(
  (Object.keys(KINDS) as Kind[]).map((name) => [KINDS[name], name]),
);
const HEADER_BYTES = 5;
const MAX_JSON = 65_536;

export function encodeFrame(kind: Kind, content: Uint8Array): Buffer[] {
  const header = Buffer.allocUnsafe(HEADER_BYTES);
  header[0] = KINDS[kind];
  header.writeUInt32BE(content.length, 1);
  return [header, content as Buffer];
}

export function encodeJsonFrame(kind: Kind, value: unknown): Buffer {
  return Buffer.concat(encodeFrame(kind, Buffer.from(JSON.stringify(value))));
}

/** Writes header and content together. @returns false if the caller should wait for `drain` */
export function writeFrame(to: Duplex, kind: 'data' | 'error', bytes: Uint8Array): boolean {
  const [header, content] = encodeFrame(kind, bytes);
  to.cork();
  to.write(header);
  const wantsMore = to.write(content);
  to.uncork();
  return wantsMore;
}

type FrameHandlers = {
  /** Receives a piece of a stream. */
  bytes(kind: 'data' | 'error', piece: Buffer): void;
  json(kind: Exclude<Kind, 'data' | 'error'>, value: unknown): void;
};

/** Parses frames from the chunks of a socket. */
export class FrameReader {
  readonly #received: FrameHandlers;
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerLength = 0;
  #kind: Kind = 'end';
  /** Missing bytes of the content. */
  #left = 0;
  #json: Buffer[] = [];

  constructor(received: FrameHandlers) {
    this.#received = received;
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
        const piece = chunk.subarray(at, at + this.#left);
        at += piece.length;
        this.#left -= piece.length;
        if (this.#kind === 'data' || this.#kind === 'error')
          this.#received.bytes(this.#kind, piece);
        else this.#json.push(piece);
      }
      if (this.#left === 0) this.#finish();
    }
  }

  #begin(): void {
    const kind = NAMES.get(this.#header[0] ?? 0);
    if (!kind) throw new Error(`Unknown frame kind ${this.#header[0]}`);
    this.#kind = kind;
    this.#left = this.#header.readUInt32BE(1);
    if (kind !== 'data' && kind !== 'error' && this.#left > MAX_JSON)
      throw new Error(`A frame of kind ${kind} has ${this.#left} bytes, more than ${MAX_JSON}`);
  }

  #finish(): void {
    this.#headerLength = 0;
    if (this.#kind === 'data' || this.#kind === 'error') return;
    const text = Buffer.concat(this.#json).toString();
    this.#json = [];
    this.#received.json(this.#kind, text === '' ? null : JSON.parse(text));
  }
}
