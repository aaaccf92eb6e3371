/**
 * Limits the length of requests to git's services. Git's programs keep every line of a request in memory, and a gzip
 * body may unpack to a thousand times its size: 1.5 MB that anybody could send to a public repository cost
 * `upload-pack` 350 MB and a minute of work.
 */
import { type Readable, Transform, type TransformCallback } from 'node:stream';
import type { GitService } from './git-services.ts';

/**
 * Wants and haves take some 50 bytes each: this allows 600,000. Clients send their haves in batches of at most some ten
 * thousand.
 */
const MAX_FETCH_BYTES = 32 * 2 ** 20;
/** Commands of a push, 100 to 150 bytes for each ref, and its options. The pack after them has a limit of its own. */
const MAX_COMMANDS_BYTES = 16 * 2 ** 20;

/** From this number on, refs are synced together (`receive.ts`): syncing each ref by itself takes 1 to 8 ms. */
const MANY_REFS = 100;

/** The request exceeds its limit. The message is for the client. */
export class RequestTooLong extends Error {
  override name = 'RequestTooLong';
}

const FETCH_TOO_LONG = `A fetch request must be at most ${MAX_FETCH_BYTES >> 20} MiB after decompression`;
const COMMANDS_TOO_LONG = `The list of refs to update must be at most ${MAX_COMMANDS_BYTES >> 20} MiB; push fewer refs at once`;

/** Passes a request through until it exceeds its limit. */
export class RequestLimit extends Transform {
  readonly #service: GitService;
  #commands = new CommandCounter();
  #bytes = 0;
  readonly #many = Promise.withResolvers<boolean>();

  constructor(service: GitService) {
    super();
    this.#service = service;
  }

  /** Whether a push has many commands, as soon as this is known, without a reader. Never rejects. */
  get hasManyRefs(): Promise<boolean> {
    return this.#many.promise;
  }

  override _transform(chunk: Buffer, _encoding: string, done: TransformCallback): void {
    const isFetch = this.#service === 'git-upload-pack';
    this.#bytes += isFetch ? chunk.length : this.#commands.take(chunk);
    if (this.#commands.count >= MANY_REFS) this.#many.resolve(true);
    // The output is not read before this resolves, so no more data arrives when the buffer is full.
    else if (this.#commands.flushes > 0 || this.#isFull(chunk)) this.#many.resolve(false);
    const isWithin = this.#bytes <= (isFetch ? MAX_FETCH_BYTES : MAX_COMMANDS_BYTES);
    if (isWithin) done(null, chunk);
    else done(new RequestTooLong(isFetch ? FETCH_TOO_LONG : COMMANDS_TOO_LONG));
  }

  #isFull({ length }: Buffer): boolean {
    return this.readableLength + length >= this.readableHighWaterMark;
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#many.resolve(false);
    done(error);
  }

  override _flush(done: TransformCallback): void {
    this.#many.resolve(false);
    done();
  }
}

/** Whether a push has many refs. False for an input that is not a client's request. */
export function hasManyRefs(input: Readable): Promise<boolean> {
  return input instanceof RequestLimit ? input.hasManyRefs : Promise.resolve(false);
}

/**
 * Counts the lines (`pkt-line.ts`) at the start of a push: commands, and after a flush optional push options, up to a
 * second flush or malformed data.
 */
class CommandCounter {
  flushes = 0;
  /** Commands before the first flush. */
  count = 0;
  /** Digits of a length field that is not complete yet. */
  #digits = '';
  /** Bytes of the current line that are still to arrive. */
  #left = 0;
  #over = false;

  /** @returns how many bytes of the chunk belong to the lines */
  take(chunk: Buffer): number {
    let at = 0;
    while (!this.#over && at < chunk.length) {
      if (this.#left > 0) {
        const taken = Math.min(this.#left, chunk.length - at);
        this.#left -= taken;
        at += taken;
        continue;
      }
      const digits = chunk.toString('latin1', at, at + 4 - this.#digits.length);
      this.#digits += digits;
      at += digits.length;
      if (this.#digits.length < 4) break;
      if (this.#digits === '0000') this.flushes++;
      const length = /^[0-9a-f]{4}$/i.test(this.#digits) ? Number.parseInt(this.#digits, 16) : 1;
      this.#digits = '';
      if (this.flushes === 0) this.count++;
      this.#left = Math.max(0, length - 4);
      // A flush is 0000, and no line is shorter than its own length field.
      this.#over = this.flushes > 1 || (length > 0 && length < 4);
    }
    return at;
  }
}
