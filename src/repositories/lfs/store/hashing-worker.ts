/**
 * Worker thread that finds chunk boundaries and computes the SHA-256 of each chunk and of the whole object (600 MB/s),
 * so that the main thread stays free for requests. It also verifies chunks that were read. Buffers are shared or
 * transferred, not copied.
 */
import { createHash, type Hash } from 'node:crypto';
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import {
  type ChunkBatch,
  findCuts,
  findDamagedChunk,
  type GearTable,
  HEADROOM,
  hashChunks,
  maxChunks,
  transferListOf,
} from './chunking.ts';

export type WorkerRequest =
  | {
      kind: 'batch';
      /** Identifies the object. */
      contents: number;
      buffer: ArrayBufferLike;
      /** Where the bytes of the batch end. They begin at `HEADROOM`. */
      end: number;
      isLast: boolean;
      /** Whether to find chunks. Otherwise only the whole object is hashed. */
      cutting: boolean;
    }
  /** The object has no more batches. */
  | { kind: 'forget'; contents: number }
  | ({ kind: 'check'; contents: number } & ChunkBatch);

/** `oid`: SHA-256 of the whole object in hexadecimal, with the last batch. */
export type HashReply = ChunkBatch & { contents: number; oid?: string };
/** `damaged`: index of the first chunk whose SHA-256 differs, or -1. */
export type VerifyReply = { contents: number; buffer: ArrayBufferLike; damaged: number };
export type WorkerReply = HashReply | VerifyReply;

export type WorkerSettings = { gear: GearTable };

type Contents = { whole: Hash; rest: Uint8Array };

function serve(port: MessagePort, { gear }: WorkerSettings): void {
  const all = new Map<number, Contents>();

  port.on('message', (request: WorkerRequest) => {
    const { contents } = request;
    if (request.kind === 'forget') return void all.delete(contents);
    if (request.kind === 'check') {
      const { buffer } = request;
      const reply: VerifyReply = { contents, buffer, damaged: findDamagedChunk(request) };
      return port.postMessage(reply, transferListOf(buffer));
    }
    const known = all.get(contents) ?? { whole: createHash('sha256'), rest: new Uint8Array() };
    all.set(contents, known);
    const { buffer, end, isLast, cutting } = request;
    const bytes = new Uint8Array(buffer);
    known.whole.update(bytes.subarray(HEADROOM, end));
    const start = HEADROOM - known.rest.length;
    bytes.set(known.rest, start);
    const room = new Uint32Array(cutting ? maxChunks(end - start) : 0);
    const ends = room.subarray(0, cutting ? findCuts(gear, bytes, start, end, isLast, room) : 0);
    const hashes = hashChunks({ buffer, start, ends });
    known.rest = cutting ? bytes.slice(ends.at(-1) ?? start, end) : known.rest;
    const reply: HashReply = { contents, buffer, start, ends, hashes };
    if (isLast) {
      reply.oid = known.whole.digest('hex');
      all.delete(contents);
    }
    port.postMessage(reply, transferListOf(buffer));
  });
}

if (parentPort) serve(parentPort, workerData);
