/** The pool of hashing threads (`hashing-worker.ts`), which start on demand and are shared by all transfers. */
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { abortable } from '../../../platform/storage/streams.ts';
import {
  BufferPool,
  type ChunkBatch,
  type GearTable,
  HASH_BYTES,
  HEADROOM,
  transferListOf,
} from './chunking.ts';
import type {
  HashReply,
  VerifyReply,
  WorkerReply,
  WorkerRequest,
  WorkerSettings,
} from './hashing-worker.ts';
import { type ChunkVerifier, READ_BATCH_BYTES } from './read.ts';

/** Bytes hashed per message: 7 ms, after which the thread can serve another upload. */
const BATCH_BYTES = 4 * 2 ** 20;
/** A transfer uses three buffers at once. */
const UPLOADS = { bytes: HEADROOM + BATCH_BYTES, most: 6 };
const DOWNLOADS = { bytes: HEADROOM + READ_BATCH_BYTES, most: 9 };
/** At most half of the cores: one thread hashes 600 MB/s, more than most disks and networks deliver. */
const THREADS = Math.max(1, Math.min(4, availableParallelism() >> 1));

export type Chunk = {
  /** SHA-256. */
  hash: Buffer;
  bytes: Buffer;
};

/** The result of one batch. */
type HashedChunks = {
  /** The chunks that end in the batch. */
  chunks: Chunk[];
  /** With the last batch: the SHA-256 of the whole object, in hexadecimal. */
  oid?: string;
  /** Returns the memory of the chunks to the pool. Allocating memory for each batch took a third of the time. */
  free(): void;
};

type AnsweredRequest = Exclude<WorkerRequest, { kind: 'forget' }>;
type PendingReply = PromiseWithResolvers<WorkerReply>;
type Thread = {
  worker: Worker;
  /** Number of unfinished objects. */
  open: number;
  /** By object. Replies arrive in the order of the requests. */
  waiting: Map<number, PendingReply[]>;
};

export class HashingPool implements AsyncDisposable {
  readonly #gear: GearTable;
  readonly #threads = new Set<Thread>();
  readonly #buffers = new BufferPool(UPLOADS);
  #lastContents = 0;
  /** Verifies chunks in one of the threads. */
  readonly verifier: ChunkVerifier = {
    buffers: new BufferPool(DOWNLOADS),
    verify: (chunks) => this.#verify(chunks),
  };

  constructor(gear: GearTable) {
    this.#gear = gear;
  }

  /**
   * Hashes the `size` bytes of `body` while they arrive, one batch ahead of the consumer; `atMost` bytes if the size is not known.
   * @param cutting whether to find chunks as well
   * @throws BodyTooLong, BodyTooShort, errors of `body`, and the reason of `signal`
   */
  async *hash(
    body: AsyncIterable<Uint8Array>,
    { cutting, signal, ...expected }: ExpectedSize & { cutting: boolean; signal: AbortSignal },
  ): AsyncGenerator<HashedChunks> {
    const buffers = this.#buffers;
    const thread = this.#assignThread();
    const { contents } = thread;
    try {
      let before: Promise<WorkerReply> | undefined;
      const batches = splitIntoBatches(body, expected, buffers, signal);
      for await (const { buffer, end, isLast } of prefetchNext(batches)) {
        const reply = thread.ask({ kind: 'batch', contents, buffer, end, isLast, cutting });
        // Awaited in the next round; until then a rejection counts as handled.
        reply.catch(() => {});
        if (before) yield toHashedChunks((await before) as HashReply, buffers);
        before = reply;
      }
      if (before) yield toHashedChunks((await before) as HashReply, buffers);
    } finally {
      thread.end();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#threads].map(({ worker }) => worker.terminate()));
  }

  async #verify(chunks: ChunkBatch): Promise<VerifyReply> {
    const thread = this.#assignThread();
    try {
      const request = { kind: 'check', contents: thread.contents, ...chunks } as const;
      return (await thread.ask(request)) as VerifyReply;
    } finally {
      thread.end();
    }
  }

  /** Assigns an object to the least busy thread. */
  #assignThread() {
    const thread = this.#leastBusy();
    const contents = ++this.#lastContents;
    const waiting: PendingReply[] = [];
    thread.open++;
    thread.waiting.set(contents, waiting);
    const post = (request: WorkerRequest) =>
      thread.worker.postMessage(request, 'buffer' in request ? transferListOf(request.buffer) : []);
    return {
      contents,
      ask: async (request: AnsweredRequest): Promise<WorkerReply> => {
        if (!this.#threads.has(thread)) throw threadEnded();
        const reply = Promise.withResolvers<WorkerReply>();
        waiting.push(reply);
        post(request);
        const answer = await reply.promise;
        // A shared buffer arrives as a new wrapper object. The pool tracks the original one.
        return request.buffer instanceof ArrayBuffer
          ? answer
          : { ...answer, buffer: request.buffer };
      },
      end() {
        thread.open--;
        thread.waiting.delete(contents);
        post({ kind: 'forget', contents });
      },
    };
  }

  #leastBusy(): Thread {
    const [first] = [...this.#threads].sort((a, b) => a.open - b.open);
    return first && (first.open === 0 || this.#threads.size >= THREADS) ? first : this.#start();
  }

  #start(): Thread {
    const url = new URL('./hashing-worker.ts', import.meta.url);
    const workerData: WorkerSettings = { gear: this.#gear };
    const worker = new Worker(url, { env: {}, workerData });
    const thread: Thread = { worker, open: 0, waiting: new Map() };
    const fail = (error: Error) => {
      this.#threads.delete(thread);
      for (const all of thread.waiting.values()) for (const one of all) one.reject(error);
      thread.waiting.clear();
    };
    worker.on('message', (reply: WorkerReply) =>
      thread.waiting.get(reply.contents)?.shift()?.resolve(reply),
    );
    worker.on('error', fail);
    worker.on('exit', () => fail(threadEnded()));
    // Idle threads must not keep a stopping server alive. Pending replies belong to transfers, which do.
    worker.unref();
    this.#threads.add(thread);
    return thread;
  }
}

function threadEnded(): Error {
  return new Error('A hashing thread has ended');
}

/** Requests the next item while the consumer processes the current one. */
async function* prefetchNext<T>(source: AsyncIterable<T>): AsyncGenerator<T> {
  const iterator = source[Symbol.asyncIterator]();
  const ask = () => {
    const answer = iterator.next();
    // Awaited in the next round; until then a rejection counts as handled.
    answer.catch(() => {});
    return answer;
  };
  try {
    for (let next = ask(); ; ) {
      const { value, done } = await next;
      if (done) return;
      next = ask();
      yield value;
    }
  } finally {
    // Not awaited: `return` waits for a pending `next`, which may never settle.
    iterator.return?.()?.catch(() => {});
  }
}

type ExpectedSize = { size: number } | { atMost: number };

type Batch = { buffer: ArrayBufferLike; end: number; isLast: boolean };

/** Splits the body into batches of `BATCH_BYTES`. The last batch is smaller and may be empty. */
async function* splitIntoBatches(
  body: AsyncIterable<Uint8Array>,
  expected: ExpectedSize,
  buffers: BufferPool,
  signal: AbortSignal,
): AsyncGenerator<Batch> {
  const limit = 'size' in expected ? expected.size : expected.atMost;
  let seen = 0;
  let placed = 0;
  const begin = () => {
    const room = HEADROOM + Math.min(BATCH_BYTES, limit - placed);
    return Buffer.from(buffers.acquire(room), 0, room);
  };
  let batch = begin();
  let end = HEADROOM;
  const taken = (isLast: boolean): Batch => ({ buffer: batch.buffer, end, isLast });
  for await (let piece of abortable(body, signal)) {
    seen += piece.length;
    if (seen > limit) throw new BodyTooLong();
    while (piece.length > 0) {
      if (end === batch.length) {
        yield taken(false);
        batch = begin();
        end = HEADROOM;
      }
      const part = piece.subarray(0, batch.length - end);
      batch.set(part, end);
      end += part.length;
      placed += part.length;
      piece = piece.subarray(part.length);
    }
  }
  if ('size' in expected && seen < limit) throw new BodyTooShort(seen);
  yield taken(true);
}

/** The body has more bytes than announced. */
export class BodyTooLong extends Error {
  override name = 'BodyTooLong';
}

/** The body has fewer bytes than announced. */
export class BodyTooShort extends Error {
  override name = 'BodyTooShort';
  readonly bytes: number;

  constructor(bytes: number) {
    super();
    this.bytes = bytes;
  }
}

/** Joins two pieces that are adjacent in memory, else returns null. One write of 4 MiB is cheaper than 64 of 64 KiB. */
export function joinAdjacent(one: Buffer, other: Buffer): Buffer | null {
  const isNext = one.buffer === other.buffer && one.byteOffset + one.length === other.byteOffset;
  return isNext ? Buffer.from(one.buffer, one.byteOffset, one.length + other.length) : null;
}

function toHashedChunks(
  { buffer, start, ends, hashes, oid }: HashReply,
  buffers: BufferPool,
): HashedChunks {
  const chunks: Chunk[] = [];
  let from = start;
  for (const [i, to] of ends.entries()) {
    const hash = Buffer.from(hashes.buffer, hashes.byteOffset + i * HASH_BYTES, HASH_BYTES);
    chunks.push({ hash, bytes: Buffer.from(buffer, from, to - from) });
    from = to;
  }
  return { chunks, oid, free: () => buffers.release(buffer) };
}
