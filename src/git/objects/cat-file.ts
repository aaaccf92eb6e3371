/**
 * A pool of long-lived `git cat-file --batch-command --buffer` processes. Reading a tree takes 13 ms cold and less than
 * half a millisecond warm; a process per read took 19 ms (in a 236 MB pack).
 *
 * A reader has exclusive use of a process and then returns it. A process whose reader failed or left answers unread is
 * killed and never reused, because its next answer would go to the wrong reader. The pool limits the number of
 * processes, their idle time, and the bytes of one answer.
 */
import { FairSemaphore, QueueTimeout } from '../../platform/limits/fair-semaphore.ts';
import { GitError, type GitProcess, startGit } from '../processes/run.ts';

export type PoolOptions = {
  /** Maximum number of processes for all repositories together. */
  size?: number;
  /** Idle time after which a process is ended. */
  idleMs?: number;
  /** How long a reader may use a process, and how long it waits for a process. */
  timeoutMs?: number;
};

type Ticket = { dir: string; grant(process: CatFile): void; refuse(error: Error): void };

const MiB = 2 ** 20;
/** Largest object held in memory: commits, trees, and files small enough to be shown inline. */
const MAX_OBJECT_BYTES = 32 * MiB;

/** Each listing of a directory with 100,000 entries holds about 100 MB until it is sent. */
const LARGE_READS_AT_ONCE = 2;
const LARGE_READ_WAIT_MS = 20_000;

export class CatFilePool {
  readonly #size: number;
  readonly #idleMs: number;
  readonly #timeoutMs: number;
  /** Longest idle first. */
  readonly #idle = new Set<CatFile>();
  readonly #busy = new Set<CatFile>();
  readonly #waiting: Ticket[] = [];
  readonly #largeReads = new FairSemaphore(LARGE_READS_AT_ONCE, {
    perKey: 1,
    waitMs: LARGE_READ_WAIT_MS,
  });
  readonly #sweeper: NodeJS.Timeout;
  #closed = false;

  constructor({ size = 16, idleMs = 30_000, timeoutMs = 30_000 }: PoolOptions = {}) {
    this.#size = size;
    this.#idleMs = idleMs;
    this.#timeoutMs = timeoutMs;
    this.#sweeper = setInterval(() => this.#ageOut(), Math.max(10, idleMs / 2));
    this.#sweeper.unref();
  }

  /** For tests and metrics. */
  get counts(): { idle: number; busy: number; waiting: number } {
    return { idle: this.#idle.size, busy: this.#busy.size, waiting: this.#waiting.length };
  }

  /**
   * Lends a process of the repository at `dir` to `read` and takes the process back when the promise settles.
   * @throws QueueTimeout when no process became free, Error when `read` exceeded the timeout, and errors of `read`
   */
  async use<T>(dir: string, read: (objects: ObjectReader) => Promise<T>): Promise<T> {
    const process = await this.#checkOut(dir);
    const timer = setTimeout(() => process.kill('took too long'), this.#timeoutMs);
    try {
      return await read(process);
    } finally {
      clearTimeout(timer);
      this.#checkIn(process);
    }
  }

  /**
   * Like `use`, for reads that hold megabytes in memory: few run concurrently, shared fairly between repositories.
   * @throws as `use`; QueueTimeout also when too many large reads run
   */
  useForLargeObjects<T>(dir: string, read: (objects: ObjectReader) => Promise<T>): Promise<T> {
    return this.#largeReads.run(() => this.use(dir, read), { key: dir });
  }

  /** Ends the idle processes of a repository that is being removed. */
  endIdle(dir: string): void {
    for (const process of this.#idle) if (process.dir === dir) this.#end(process);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearInterval(this.#sweeper);
    for (const { refuse } of this.#waiting.splice(0)) refuse(new Error('the pool is closed'));
    const all = [...this.#idle, ...this.#busy];
    for (const process of all) process.kill('the pool is closed');
    await Promise.all(all.map((process) => process.exited));
  }

  async #checkOut(dir: string): Promise<CatFile> {
    if (this.#closed) throw new Error('the pool is closed');
    const own = [...this.#idle].findLast((process) => process.dir === dir);
    if (own) return this.#take(own);
    if (this.#idle.size + this.#busy.size >= this.#size) {
      const [oldest] = this.#idle;
      if (!oldest) return this.#wait(dir);
      this.#end(oldest);
    }
    return this.#take(this.#start(dir));
  }

  #wait(dir: string): Promise<CatFile> {
    const { promise, resolve: grant, reject: refuse } = Promise.withResolvers<CatFile>();
    const ticket = { dir, grant, refuse };
    const timer = setTimeout(() => {
      this.#waiting.splice(this.#waiting.indexOf(ticket), 1);
      refuse(new QueueTimeout(`no git cat-file process became free within ${this.#timeoutMs} ms`));
    }, this.#timeoutMs);
    this.#waiting.push(ticket);
    return promise.finally(() => clearTimeout(timer));
  }

  #start(dir: string): CatFile {
    const process = new CatFile(dir);
    process.exited.then(() => {
      this.#idle.delete(process);
      this.#busy.delete(process);
    });
    return process;
  }

  #take(process: CatFile): CatFile {
    this.#idle.delete(process);
    this.#busy.add(process);
    return process;
  }

  #checkIn(process: CatFile): void {
    this.#busy.delete(process);
    if (!process.isReusable) process.kill('was returned with unread answers');
    const next = this.#waiting.shift();
    if (next && process.isReusable && process.dir === next.dir) {
      next.grant(this.#take(process));
    } else if (next) {
      process.kill('was replaced by a process for another repository');
      next.grant(this.#take(this.#start(next.dir)));
    } else if (process.isReusable) {
      process.idleSince = performance.now();
      this.#idle.add(process);
    }
  }

  #end(process: CatFile): void {
    this.#idle.delete(process);
    process.kill('was ended');
  }

  #ageOut(): void {
    const limit = performance.now() - this.#idleMs;
    for (const process of this.#idle) if (process.idleSince < limit) this.#end(process);
  }
}

/** Reads objects. Names have any form that git accepts: an id, `<id>:<path>`, `refs/heads/main^{commit}`. */
export type ObjectReader = {
  /** Type and size of each object, null for missing objects. One round trip for all names. */
  info(names: readonly string[]): Promise<(ObjectInfo | null)[]>;
  /** Contents of each object. @throws Error when an object is larger than `maxBytes`; the process is then killed */
  read(names: readonly string[], maxBytes?: number): Promise<(ObjectData | null)[]>;
  /** The first bytes of each object, with the `size` of the whole object. Only these bytes are held in memory. */
  readBeginning(names: readonly string[], bytes: number): Promise<(ObjectData | null)[]>;
};

/** Names requested together, and the answers so far: one per name, in order. */
type Batch = AnswerRequest & {
  names: readonly string[];
  answers: (ObjectInfo | ObjectData | null)[];
  resolve(answers: never): void;
  reject(error: Error): void;
};

/** One process. Git answers commands in order, so pending batches form a queue. */
class CatFile implements ObjectReader {
  readonly dir: string;
  /** Resolves when the process has exited, or could not be started. */
  readonly exited: Promise<void>;
  idleSince = 0;
  readonly #process: Promise<GitProcess>;
  readonly #pending: Batch[] = [];
  readonly #answers = new AnswerReader();
  /** Why the process is no longer used; set once. */
  #dead: Error | undefined;

  constructor(dir: string) {
    this.dir = dir;
    // An absolute path: this process is long-lived and must not read on in a repository that was moved away.
    const env = { GIT_DIR: dir };
    this.#process = startGit(['cat-file', '--batch-command', '--buffer', '-z'], { dir, env });
    this.exited = this.#process.then(
      async (process) => {
        process.stdout.on('data', (chunk: Buffer) => this.#read(chunk));
        if (this.#dead) process.end();
        this.#fail(new GitError('cat-file', await process.ended));
      },
      (error) => this.#fail(error),
    );
  }

  get isReusable(): boolean {
    return !this.#dead && this.#pending.length === 0;
  }

  info(names: readonly string[]): Promise<(ObjectInfo | null)[]> {
    const request = { command: 'info', maxBytes: MAX_OBJECT_BYTES, cut: false } as const;
    return this.#ask<ObjectInfo>(request, names);
  }

  read(names: readonly string[], maxBytes = MAX_OBJECT_BYTES): Promise<(ObjectData | null)[]> {
    return this.#ask<ObjectData>({ command: 'contents', maxBytes, cut: false }, names);
  }

  readBeginning(names: readonly string[], bytes: number): Promise<(ObjectData | null)[]> {
    return this.#ask<ObjectData>({ command: 'contents', maxBytes: bytes, cut: true }, names);
  }

  kill(why: string): void {
    if (this.#dead) return;
    this.#fail(new Error(`git cat-file ${why}`));
    // A process that could not be started needs no ending.
    this.#process.then(
      (process) => process.end(),
      () => {},
    );
  }

  #fail(why: Error): void {
    this.#dead ??= why;
    for (const { reject } of this.#pending.splice(0)) reject(why);
  }

  #ask<T>(question: AnswerRequest, names: readonly string[]): Promise<(T | null)[]> {
    if (this.#dead) return Promise.reject(this.#dead);
    if (names.length === 0) return Promise.resolve([]);
    // NUL ends a command in this protocol. A NUL within a name would let a client inject a command.
    if (names.some((name) => name.includes('\0')))
      return Promise.reject(new Error('The name of an object contains NUL'));
    const { promise, resolve, reject } = Promise.withResolvers<(T | null)[]>();
    this.#pending.push({ ...question, names, answers: [], resolve, reject });
    const commands = names.map((name) => `${question.command} ${name}\0`).join('');
    // Keeps the order of requests: callbacks of one promise run in the order of their registration.
    this.#process.then(
      ({ stdin }) => stdin.write(`${commands}flush\0`),
      () => {},
    );
    // A reader may fail before it awaits this promise.
    promise.catch(() => {});
    return promise;
  }

  #read(chunk: Buffer): void {
    this.#answers.push(chunk);
    try {
      for (let batch = this.#pending[0]; batch; batch = this.#pending[0]) {
        const { names, answers } = batch;
        while (answers.length < names.length) {
          const answer = this.#answers.take(batch, names[answers.length] as string);
          if (answer === undefined) return;
          answers.push(answer);
        }
        this.#pending.shift();
        batch.resolve(answers as never);
      }
    } catch (error) {
      this.kill((error as Error).message);
    }
  }
}

/** The answers of `git cat-file --batch-command`, cut out of its output. */
export type ObjectType = 'blob' | 'tree' | 'commit' | 'tag';
export type ObjectInfo = { oid: string; type: ObjectType; size: number };
export type ObjectData = ObjectInfo & { data: Buffer };

type AnswerRequest = {
  command: 'info' | 'contents';
  /** Limit for contents. Larger contents are an error, or truncated when `cut` is set. */
  maxBytes: number;
  cut: boolean;
};

const HEADER = /^([0-9a-f]{40}) (blob|tree|commit|tag) (\d+)$/;
const NEWLINE = 10;

/** Splits git's output into answers: `<id> <type> <size>\n[<contents>\n]`, or `<name> missing\n`. */
class AnswerReader {
  #chunks: Buffer[] = [];
  #size = 0;
  /** Header of an answer whose contents have not arrived completely. */
  #header: ObjectInfo | undefined;
  /** The kept beginning of truncated contents, and the number of bytes that are still to be dropped. */
  #cut: { data: Buffer; left: number } | undefined;

  push(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
  }

  /**
   * The answer to the oldest request: null for a missing object, undefined while the answer is incomplete.
   * @throws Error when the contents are larger than the request allows
   */
  take(question: AnswerRequest, name: string): ObjectInfo | ObjectData | null | undefined {
    const { command, maxBytes, cut } = question;
    if (!this.#header) {
      const header = this.#takeHeader(name);
      if (!header || command === 'info') return header;
      if (header.size > maxBytes && !cut)
        throw new Error(`answered with more than ${maxBytes} bytes`);
      this.#header = header;
    }
    const header = this.#header;
    const data = this.#takeContents(header.size, maxBytes);
    if (!data) return undefined;
    this.#header = undefined;
    return { ...header, data };
  }

  /** Returns up to `keep` bytes of contents; drops the rest and the newline after the contents. */
  #takeContents(size: number, keep: number): Buffer | undefined {
    if (!this.#cut) {
      // Chunks are joined once, when the contents are complete: joining per chunk takes quadratic time.
      if (this.#size < Math.min(size + 1, keep)) return undefined;
      if (size <= keep) {
        if (this.#size < size + 1) return undefined;
        return this.#takeBytes(size + 1).subarray(0, size);
      }
      // Copied, so that the kept bytes do not hold the whole buffer in memory.
      this.#cut = { data: Buffer.from(this.#takeBytes(keep)), left: size - keep + 1 };
    }
    const dropped = Math.min(this.#cut.left, this.#size);
    this.#takeBytes(dropped);
    this.#cut.left -= dropped;
    if (this.#cut.left > 0) return undefined;
    const { data } = this.#cut;
    this.#cut = undefined;
    return data;
  }

  #takeHeader(name: string): ObjectInfo | null | undefined {
    const all = this.#joined();
    const end = all.indexOf(NEWLINE);
    if (end < 0) return undefined;
    const match = HEADER.exec(all.toString('latin1', 0, end));
    if (match) {
      this.#takeBytes(end + 1);
      const [, oid = '', type, size] = match;
      return { oid, type: type as ObjectType, size: Number(size) };
    }
    // The answer for a missing object repeats the name, including its newlines.
    let last = end;
    for (let left = name.split('\n').length - 1; left > 0 && last >= 0; left--)
      last = all.indexOf(NEWLINE, last + 1);
    if (last < 0) return undefined;
    this.#takeBytes(last + 1);
    return null;
  }

  #joined(): Buffer {
    if (this.#chunks.length !== 1) this.#chunks = [Buffer.concat(this.#chunks)];
    return this.#chunks[0] as Buffer;
  }

  #takeBytes(count: number): Buffer {
    const all = this.#joined();
    this.#chunks = count < all.length ? [all.subarray(count)] : [];
    this.#size -= count;
    return all.subarray(0, count);
  }
}
