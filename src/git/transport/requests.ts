/**
 * How long a request to one of git's services may be. Its programs keep every line of it in memory, and a body that
 * was sent as gzip may unpack to a thousand times its size: of 1.5 MB that anybody could send to a public
 * repository, `upload-pack` made 350 MB and a minute of work.
 */
import { type Readable, Transform, type TransformCallback } from 'node:stream';
import type { Service } from './service.ts';

/**
 * What is wanted and what is there already, some 50 bytes each: 600,000 of them. Clients send what they have in
 * pieces of at most some ten thousand.
 */
const MAX_FETCH_BYTES = 32 * 2 ** 20;
/** The commands of a push, some 100 to 150 bytes for each ref, and its options. The pack after them has a limit of its own. */
const MAX_COMMANDS_BYTES = 16 * 2 ** 20;

/** From here on refs are written otherwise (`receive.ts`): each that is synced by itself takes 1 to 8 ms. */
const MANY_REFS = 100;

/** The request is longer than it may be. Its message is for the client. */
export class RequestTooLong extends Error {
  override name = 'RequestTooLong';
}

const FETCH_TOO_LONG = `A request of a fetch may be ${MAX_FETCH_BYTES >> 20} MiB long, unpacked`;
const COMMANDS_TOO_LONG = `The list of refs to update may be ${MAX_COMMANDS_BYTES >> 20} MiB long; push them in parts`;

/** Passes a request on for as long as it is within its limit. */
export class RequestLimit extends Transform {
  readonly #service: Service;
  #lines = new Lines();
  #bytes = 0;
  readonly #many = Promise.withResolvers<boolean>();

  constructor(service: Service) {
    super();
    this.#service = service;
  }

  /** Whether a push has many commands, as soon as it is known; nothing needs to be read for that. Never rejects. */
  get hasManyRefs(): Promise<boolean> {
    return this.#many.promise;
  }

  override _transform(chunk: Buffer, _encoding: string, done: TransformCallback): void {
    const isFetch = this.#service === 'git-upload-pack';
    this.#bytes += isFetch ? chunk.length : this.#lines.take(chunk);
    if (this.#lines.count >= MANY_REFS) this.#many.resolve(true);
    // Nobody reads before this is known, so no more comes once this is full.
    else if (this.#lines.flushes > 0 || this.#isFull(chunk)) this.#many.resolve(false);
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

/** Whether a push brings many refs; of a request that is no client's it is not asked. */
export function hasManyRefs(input: Readable): Promise<boolean> {
  return input instanceof RequestLimit ? input.hasManyRefs : Promise.resolve(false);
}

/**
 * The lines (`pkt-line.ts`) that a push begins with: the commands, and after a flush the options where there are some, up
 * to a second flush or what is no line.
 */
class Lines {
  flushes = 0;
  /** How many have begun before the first flush. */
  count = 0;
  /** The length of a line that is not complete yet. */
  #digits = '';
  /** Bytes of the present line that are still to come. */
  #left = 0;
  #over = false;

  /** @returns how many bytes of the chunk belong to them */
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
      // Flush is 0000, and no line is shorter than its own length.
      this.#over = this.flushes > 1 || (length > 0 && length < 4);
    }
    return at;
  }
}
