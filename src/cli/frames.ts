/**
 * Frames of a session in a job, as `src/platform/frames.ts` of the server describes them: the kind (1 byte), the length of the
 * content (4 bytes, big-endian) and the content, which is bytes of a stream or JSON.
 */
const KINDS = { exec: 3, data: 4, end: 5, stderr: 6, exit: 7, resize: 8 } as const;
const HEADER_BYTES = 5;
const MAX_JSON_BYTES = 65_536;

export function encodeFrame(kind: 'data' | 'end', content: Uint8Array): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header[0] = KINDS[kind];
  header.writeUInt32BE(content.length, 1);
  return Buffer.concat([header, content]);
}

export function encodeJsonFrame(kind: 'exec' | 'resize', value: object): Buffer {
  const frame = encodeFrame('data', Buffer.from(JSON.stringify(value)));
  frame[0] = KINDS[kind];
  return frame;
}

type Output = { kind: 'data' | 'stderr'; bytes: Buffer } | { kind: 'exit'; code: number };

/** Parses the frames of a server. */
export class FrameReader {
  #rest: Buffer = Buffer.alloc(0);
  /** Of the stream frame whose bytes are arriving. */
  #kind: 'data' | 'stderr' = 'data';
  #remaining = 0;

  /** @throws Error for a frame that no server sends */
  *read(chunk: Buffer): Generator<Output> {
    let rest = this.#rest.length > 0 ? Buffer.concat([this.#rest, chunk]) : chunk;
    for (;;) {
      if (this.#remaining > 0 && rest.length > 0) {
        const bytes = rest.subarray(0, this.#remaining);
        this.#remaining -= bytes.length;
        rest = rest.subarray(bytes.length);
        yield { kind: this.#kind, bytes };
      }
      if (this.#remaining > 0 || rest.length < HEADER_BYTES) break;
      const length = rest.readUInt32BE(1);
      const kind = rest[0];
      if (kind === KINDS.data || kind === KINDS.stderr) {
        this.#kind = kind === KINDS.data ? 'data' : 'stderr';
        this.#remaining = length;
        rest = rest.subarray(HEADER_BYTES);
        continue;
      }
      if (kind !== KINDS.exit || length > MAX_JSON_BYTES)
        throw new Error(`unknown frame ${kind} of ${length} bytes`);
      if (rest.length < HEADER_BYTES + length) break;
      const { code } = JSON.parse(rest.toString('utf8', HEADER_BYTES, HEADER_BYTES + length));
      rest = rest.subarray(HEADER_BYTES + length);
      yield { kind: 'exit', code: Number(code) };
    }
    this.#rest = rest;
  }
}
