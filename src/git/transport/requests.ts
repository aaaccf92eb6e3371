/**
 * How long a request to one of git's services may be. Its programs keep every line of it in memory, and a body that
 * was sent as gzip may unpack to a thousand times its size: of 1.5 MB that anybody could send to a public
 * repository, `upload-pack` made 350 MB and a minute of work.
 */
import { Transform, type TransformCallback } from 'node:stream';
import type { Service } from './transport.ts';

/**
 * What is wanted and what is there already, some 50 bytes each: 600,000 of them. Clients send what they have in
 * pieces of at most some ten thousand.
 */
const MAX_FETCH_BYTES = 32 * 2 ** 20;
/** The commands of a push, some 100 to 150 bytes for each ref, and its options. The pack after them has a limit of its own. */
const MAX_COMMANDS_BYTES = 16 * 2 ** 20;

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

  constructor(service: Service) {
    super();
    this.#service = service;
  }

  override _transform(chunk: Buffer, _encoding: string, done: TransformCallback): void {
    const isFetch = this.#service === 'git-upload-pack';
    this.#bytes += isFetch ? chunk.length : this.#lines.take(chunk);
    const isWithin = this.#bytes <= (isFetch ? MAX_FETCH_BYTES : MAX_COMMANDS_BYTES);
    if (isWithin) done(null, chunk);
    else done(new RequestTooLong(isFetch ? FETCH_TOO_LONG : COMMANDS_TOO_LONG));
  }
}

/**
 * The lines (`pkt-line.ts`) that a push begins with: the commands, and after a flush the options where there are some, up
 * to a second flush or what is no line.
 */
class Lines {
  #flushes = 0;
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
      if (this.#digits === '0000') this.#flushes++;
      const length = /^[0-9a-f]{4}$/i.test(this.#digits) ? Number.parseInt(this.#digits, 16) : 1;
      this.#digits = '';
      this.#left = Math.max(0, length - 4);
      // Flush is 0000, and no line is shorter than its own length.
      this.#over = this.#flushes > 1 || (length > 0 && length < 4);
    }
    return at;
  }
}
