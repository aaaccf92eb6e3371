/**
 * What the process that speaks SSH and the server say to each other, over a Unix socket: a connection for each question
 * whose a key is, and one for each command, whose streams it carries.
 *
 *   key →            ← account or null
 *   open →  data → end →            ← data, error … exit
 *
 * A frame is its kind (one byte), the length of its content (four, the highest first) and the content: bytes of a stream,
 * else JSON. A stream's bytes are passed on as they come, so a frame may be as long as it likes.
 *
 * The process that speaks SSH is a small one: this file imports nothing but Node.
 */
import type { Duplex } from 'node:stream';

export const KINDS = {
  key: 1,
  account: 2,
  open: 3,
  data: 4,
  end: 5,
  error: 6,
  exit: 7,
} as const;
export type Kind = keyof typeof KINDS;

/** Of a key that somebody has; its holder has not shown yet that it is theirs. */
export type KeyLookup = { fingerprint: string };
/** `id`: of the credential. `userId`, `name`: whose rights it has. */
export type KeyOwner = { id: string; userId: string; name: string } | null;
export type ExecRequest = {
  /** The id of the credential whose key was shown to be the client's. */
  credential: string;
  /** Null for a shell. */
  command: string | null;
  /** The client's `GIT_PROTOCOL`. */
  protocol?: string;
  /** Of the client. */
  address: string;
};
export type Exit = { code: number };

const NAMES = new Map<number, Kind>(
  (Object.keys(KINDS) as Kind[]).map((name) => [KINDS[name], name]),
);
const HEADER_BYTES = 5;
/** Of one that is no part of a stream. */
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

/** Writes the frame in one go. @returns whether the socket wants more */
export function writeFrame(to: Duplex, kind: 'data' | 'error', bytes: Uint8Array): boolean {
  const [header, content] = encodeFrame(kind, bytes);
  to.cork();
  to.write(header);
  const wantsMore = to.write(content);
  to.uncork();
  return wantsMore;
}

export type FrameHandlers = {
  /** A piece of a stream. */
  bytes(kind: 'data' | 'error', piece: Buffer): void;
  json(kind: Exclude<Kind, 'data' | 'error'>, value: unknown): void;
};

/** Cuts what comes over a socket into frames. */
export class FrameReader {
  readonly #received: FrameHandlers;
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerLength = 0;
  #kind: Kind = 'end';
  /** Of the content. */
  #left = 0;
  #json: Buffer[] = [];

  constructor(received: FrameHandlers) {
    this.#received = received;
  }

  /** @throws Error for what is no frame */
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
    if (!kind) throw new Error(`a frame of the unknown kind ${this.#header[0]}`);
    this.#kind = kind;
    this.#left = this.#header.readUInt32BE(1);
    if (kind !== 'data' && kind !== 'error' && this.#left > MAX_JSON)
      throw new Error(`a frame of the kind ${kind} with ${this.#left} bytes`);
  }

  #finish(): void {
    this.#headerLength = 0;
    if (this.#kind === 'data' || this.#kind === 'error') return;
    const text = Buffer.concat(this.#json).toString();
    this.#json = [];
    this.#received.json(this.#kind, text === '' ? null : JSON.parse(text));
  }
}
