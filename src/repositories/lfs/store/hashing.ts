/** Threads that hash (`hashing-worker.ts`): started when they are needed, shared by all transfers. */
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { abortable } from '../../../platform/storage/streams.ts';
import type { Gear } from './chunking.ts';
import { HASH_BYTES, HEADROOM } from './chunking.ts';
import type { CheckedChunks, HashedBatch, Reply, Request, Started } from './hashing-worker.ts';
import { handedOver, Memory } from './chunking.ts';
import { type Checking, RUN_BYTES } from './read.ts';

/** Bytes of contents that are hashed at once: 7 ms, after which another upload has its turn. */
const BATCH_BYTES = 4 * 2 ** 20;
/** An upload has three batches at once, a download as many of a MiB. */
const UPLOADS = { bytes: HEADROOM + BATCH_BYTES, most: 6 };
const DOWNLOADS = { bytes: HEADROOM + RUN_BYTES, most: 9 };
/** One does 600 MB/s, more than disks and networks give it; the cores are for others too. */
const THREADS = Math.max(1, Math.min(4, availableParallelism() >> 1));

export type Chunk = {
  /** SHA-256. */
  hash: Buffer;
  bytes: Buffer;
};

/** What became of a batch. */
export type Hashed = {
  /** Those that end in it. */
  chunks: Chunk[];
  /** With the last one: the SHA-256 of the whole, in hexadecimal. */
  oid?: string;
  /** Says that nobody needs the bytes of the chunks any more: fresh memory for each batch took a third of the time. */
  free(): void;
};

export type Hashing = AsyncDisposable & {
  /**
   * Hashes `size` bytes of contents as they come, one batch ahead of the reader.
   * @param cutting whether chunks are wanted too
   * @throws TooLong, TooShort, what `body` throws, and the reason of `signal`
   */
  hash(
    body: AsyncIterable<Uint8Array>,
    options: { size: number; cutting: boolean; signal: AbortSignal },
  ): AsyncGenerator<Hashed>;
  /** In one of the threads. */
  checking: Checking;
};

type Question = Exclude<Request, { kind: 'forget' }>;
type Waiting = PromiseWithResolvers<Reply>;
type Thread = {
  worker: Worker;
  /** Contents that it has not seen the end of. */
  open: number;
  /** By contents: replies come in the order of the requests. */
  waiting: Map<number, Waiting[]>;
};

/** @param gear by which contents are cut into chunks */
export function openHashing(gear: Gear): Hashing {
  const threads = new Set<Thread>();
  const memory = new Memory(UPLOADS);
  let lastContents = 0;

  function start(): Thread {
    const url = new URL('./hashing-worker.ts', import.meta.url);
    const worker = new Worker(url, { env: {}, workerData: { gear } satisfies Started });
    const thread: Thread = { worker, open: 0, waiting: new Map() };
    const fail = (error: Error) => {
      threads.delete(thread);
      for (const all of thread.waiting.values()) for (const one of all) one.reject(error);
      thread.waiting.clear();
    };
    worker.on('message', (reply: Reply) =>
      thread.waiting.get(reply.contents)?.shift()?.resolve(reply),
    );
    worker.on('error', fail);
    worker.on('exit', () => fail(new Error('a thread that hashes large files has ended')));
    // A server that stops does not wait for it; those who wait for its reply hold the process.
    worker.unref();
    threads.add(thread);
    return thread;
  }

  function leastBusy(): Thread {
    const [first] = [...threads].sort((a, b) => a.open - b.open);
    return first && (first.open === 0 || threads.size >= THREADS) ? first : start();
  }

  async function* hash(
    body: AsyncIterable<Uint8Array>,
    { size, cutting, signal }: { size: number; cutting: boolean; signal: AbortSignal },
  ): AsyncGenerator<Hashed> {
    const thread = begin();
    const { contents } = thread;
    try {
      let before: Promise<Reply> | undefined;
      for await (const { buffer, end, isLast } of ahead(batches(body, size, memory, signal))) {
        const reply = thread.ask({ kind: 'batch', contents, buffer, end, isLast, cutting });
        // Heard below, if this goes on so far.
        reply.catch(() => {});
        if (before) yield hashedOf((await before) as HashedBatch, memory);
        before = reply;
      }
      if (before) yield hashedOf((await before) as HashedBatch, memory);
    } finally {
      thread.end();
    }
  }

  /** A thread for contents, until they end. */
  function begin() {
    const thread = leastBusy();
    const contents = ++lastContents;
    const waiting: Waiting[] = [];
    thread.open++;
    thread.waiting.set(contents, waiting);
    const post = (request: Request) =>
      thread.worker.postMessage(request, 'buffer' in request ? handedOver(request.buffer) : []);
    return {
      contents,
      async ask(request: Question): Promise<Reply> {
        if (!threads.has(thread)) throw new Error('a thread that hashes large files has ended');
        const reply = Promise.withResolvers<Reply>();
        waiting.push(reply);
        post(request);
        const answer = await reply.promise;
        // What is shared comes back as another object, and it is this one that is known not to be used any more.
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

  return {
    hash,
    checking: {
      memory: new Memory(DOWNLOADS),
      async check(chunks) {
        const thread = begin();
        try {
          const request = { kind: 'check', contents: thread.contents, ...chunks } as const;
          return (await thread.ask(request)) as CheckedChunks;
        } finally {
          thread.end();
        }
      },
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([...threads].map(({ worker }) => worker.terminate()));
    },
  };
}

/** The next is on its way while the reader has one. */
async function* ahead<T>(source: AsyncIterable<T>): AsyncGenerator<T> {
  const iterator = source[Symbol.asyncIterator]();
  const ask = () => {
    const answer = iterator.next();
    // Heard below, if the reader goes on so far.
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
    // Not waited for: it would wait in turn for what does not come.
    iterator.return?.()?.catch(() => {});
  }
}

type Batch = { buffer: ArrayBufferLike; end: number; isLast: boolean };

/** The body in pieces of `BATCH_BYTES`, the last of which is smaller, and may be empty. */
async function* batches(
  body: AsyncIterable<Uint8Array>,
  size: number,
  memory: Memory,
  signal: AbortSignal,
): AsyncGenerator<Batch> {
  let seen = 0;
  let placed = 0;
  const begin = () => {
    const room = HEADROOM + Math.min(BATCH_BYTES, size - placed);
    return Buffer.from(memory.take(room), 0, room);
  };
  let batch = begin();
  let end = HEADROOM;
  const taken = (isLast: boolean): Batch => ({ buffer: batch.buffer, end, isLast });
  for await (let piece of abortable(body, signal)) {
    seen += piece.length;
    if (seen > size) throw new TooLong();
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
  if (seen < size) throw new TooShort(seen);
  yield taken(true);
}

/** A body has more bytes than it was to have. */
export class TooLong extends Error {
  override name = 'TooLong';
}

/** A body has fewer bytes than it was to have. */
export class TooShort extends Error {
  override name = 'TooShort';
  readonly bytes: number;

  constructor(bytes: number) {
    super();
    this.bytes = bytes;
  }
}

/** Two pieces as one where they lie one after the other in memory: 64 writes of 64 KiB cost more than one of 4 MiB. */
export function joined(one: Buffer, other: Buffer): Buffer | null {
  const isNext = one.buffer === other.buffer && one.byteOffset + one.length === other.byteOffset;
  return isNext ? Buffer.from(one.buffer, one.byteOffset, one.length + other.length) : null;
}

function hashedOf({ buffer, start, ends, hashes, oid }: HashedBatch, memory: Memory): Hashed {
  const chunks: Chunk[] = [];
  let from = start;
  for (const [i, to] of ends.entries()) {
    const hash = Buffer.from(hashes.buffer, hashes.byteOffset + i * HASH_BYTES, HASH_BYTES);
    chunks.push({ hash, bytes: Buffer.from(buffer, from, to - from) });
    from = to;
  }
  return { chunks, oid, free: () => memory.free(buffer) };
}
