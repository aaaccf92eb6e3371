/**
 * A thread that cuts contents into chunks and takes their SHA-256, and that of the whole: 600 MB/s, during which the
 * main thread answers requests. It checks chunks that were read, too. No bytes are copied: their memory is shared, or
 * handed over and back.
 *
 * The bytes of a batch stand behind `HEADROOM`. What the batch before it had after its last cut is put right in front
 * of them, so that every chunk lies in one piece.
 */
import { createHash, type Hash } from 'node:crypto';
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { type Chunks, cut, firstDamaged, type Gear, HEADROOM, hashesOf, maxChunks } from './chunking.ts';
import { handedOver } from './chunking.ts';

export type Request =
  | {
      kind: 'batch';
      /** Of the contents that it belongs to. */
      contents: number;
      buffer: ArrayBufferLike;
      /** Where its bytes end; they begin at `HEADROOM`. */
      end: number;
      isLast: boolean;
      /** Whether chunks are wanted; otherwise only the whole is hashed. */
      cutting: boolean;
    }
  /** Nothing more comes of it. */
  | { kind: 'forget'; contents: number }
  | ({ kind: 'check'; contents: number } & Chunks);

/** `oid`: of the whole, in hexadecimal, with the last batch. */
export type HashedBatch = Chunks & { contents: number; oid?: string };
/** `damaged`: the first chunk that has another SHA-256; -1: none has. */
export type CheckedChunks = { contents: number; buffer: ArrayBufferLike; damaged: number };
export type Reply = HashedBatch | CheckedChunks;

/** What the thread is started with. */
export type Started = { gear: Gear };

type Contents = { whole: Hash; rest: Uint8Array };

function serve(port: MessagePort, { gear }: Started): void {
  const all = new Map<number, Contents>();

  port.on('message', (request: Request) => {
    const { contents } = request;
    if (request.kind === 'forget') return void all.delete(contents);
    if (request.kind === 'check') {
      const { buffer } = request;
      const checked: CheckedChunks = { contents, buffer, damaged: firstDamaged(request) };
      return port.postMessage(checked, handedOver(buffer));
    }
    const known = all.get(contents) ?? { whole: createHash('sha256'), rest: new Uint8Array() };
    all.set(contents, known);
    const { buffer, end, isLast, cutting } = request;
    const bytes = new Uint8Array(buffer);
    known.whole.update(bytes.subarray(HEADROOM, end));
    const start = HEADROOM - known.rest.length;
    bytes.set(known.rest, start);
    const room = new Uint32Array(cutting ? maxChunks(end - start) : 0);
    const ends = room.subarray(0, cutting ? cut(gear, bytes, start, end, isLast, room) : 0);
    const hashes = hashesOf({ buffer, start, ends });
    known.rest = cutting ? bytes.slice(ends.at(-1) ?? start, end) : known.rest;
    const reply: HashedBatch = { contents, buffer, start, ends, hashes };
    if (isLast) {
      reply.oid = known.whole.digest('hex');
      all.delete(contents);
    }
    port.postMessage(reply, handedOver(buffer));
  });
}

if (parentPort) serve(parentPort, workerData);
