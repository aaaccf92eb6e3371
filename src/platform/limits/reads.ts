/**
 * Limits the memory of large answers: how much text one answer may read, and how many large answers are built at once.
 *
 * An answer with 16 MiB of text needs about 100 MB while it is built (values, JSON, bytes to send). So each answer has an
 * allowance. Beyond a first part, which never waits, an answer needs one of a few slots and keeps it until it is sent. The
 * connection of a slow client is closed when others wait, so that no client can hold a slot forever.
 */
import { once } from 'node:events';
import { busy, invalid } from '../../base/errors.ts';
import { FairSemaphore, QueueTimeout } from './fair-semaphore.ts';

/** Bytes of text in one answer. */
export const ANSWER_BYTES = 16 * 2 ** 20;
/** Bytes of text in one event of a stream. A stream has no end at which a slot could be released. */
export const EVENT_BYTES = 2 ** 20;
/** Smaller answers need no slot. */
const LIGHT_BYTES = 256 * 1024;
/**
 * The same for files, directories, commits and patches. Git reads are limited elsewhere, and one REST route needs less than
 * this, so only answers with many of them wait.
 */
const LIGHT_GIT_BYTES = 8 * 2 ** 20;
const SLOTS = 4;
/** Leaves slots for other callers. */
const SLOTS_PER_CALLER = 2;
const WAIT_MS = 30_000;
/** Searches through whole logs at the same time. Each is limited in time and keeps one core busy. */
const MAX_SEARCHES = 2;
/** Time to build and send an answer while others wait. */
const SEND_MS = 30_000;
/** Interval of checks after that time whether others wait. */
const CHECK_MS = 1_000;

export type Allowance = {
  /**
   * Takes up to `bytes` of the remaining allowance. Waits for a slot once the answer has taken more than `light`.
   * @returns the number of bytes taken
   * @throws AppError 503 if no slot is free within 30 s
   */
  take(bytes: number, light?: number): Promise<number>;
};

/** For data from git. @returns the number of bytes taken @throws AppError like `take` */
export function takeGitBytes(allowance: Allowance, bytes: number): Promise<number> {
  return allowance.take(bytes, LIGHT_GIT_BYTES);
}

/** Like `takeOfGit`, for data that cannot be shown in part. @throws AppError 400 if the allowance is used up, 503 */
export async function takeAll(allowance: Allowance, bytes: number): Promise<void> {
  if ((await takeGitBytes(allowance, bytes)) === bytes) return;
  throw invalid(null, 'The response is too large; request less at once');
}

/** The part of Node's `ServerResponse` that tells when the answer has been sent. */
export type Answer = NodeJS.EventEmitter & {
  readonly destroyed: boolean;
  readonly writableFinished: boolean;
  destroy(): unknown;
};

/** The allowances of all answers of a server. */
export class AnswerLimiter {
  readonly #places = new FairSemaphore(SLOTS, { perKey: SLOTS_PER_CALLER, waitMs: WAIT_MS });
  readonly #searches = new FairSemaphore(MAX_SEARCHES, { perKey: 1, waitMs: WAIT_MS });

  /** Runs a search when a slot is free. @throws AppError 503 if none is free within 30 s */
  async search<T>(
    caller: string,
    signal: AbortSignal | undefined,
    work: () => Promise<T>,
  ): Promise<T> {
    try {
      return await this.#searches.run(work, { key: caller, signal });
    } catch (error) {
      throw error instanceof QueueTimeout ? busy('Too many logs are being searched') : error;
    }
  }

  /** Allowance of an answer to `caller`, an account or an address. */
  allowance(caller: string, answer: Answer): Allowance {
    let left = ANSWER_BYTES;
    let slot: Promise<void> | undefined;
    return {
      take: async (bytes, light = LIGHT_BYTES) => {
        const taken = Math.min(bytes, left);
        left -= taken;
        if (ANSWER_BYTES - left > light) {
          slot ??= this.#enter(caller, answer);
          await slot;
        }
        return taken;
      },
    };
  }

  /** Allowance of one object in an event of a stream. */
  allowanceOfEvent(): Allowance {
    let left = EVENT_BYTES;
    return {
      take: async (bytes) => {
        const taken = Math.min(bytes, left);
        left -= taken;
        return taken;
      },
    };
  }

  /** Resolves when the answer has a slot, which it keeps until it is closed. */
  async #enter(caller: string, answer: Answer): Promise<void> {
    // The client has disconnected; there will be no further `close` event.
    if (answer.destroyed || answer.writableFinished) throw busy('The answer is closed');
    const closed = new AbortController();
    answer.once('close', () => closed.abort());
    const entered = Promise.withResolvers<void>();
    const hold = async () => {
      entered.resolve();
      const overdue = Date.now() + SEND_MS;
      const checking = setInterval(() => {
        if (Date.now() > overdue && this.#places.isWanted(caller)) answer.destroy();
      }, CHECK_MS);
      await once(closed.signal, 'abort');
      clearInterval(checking);
    };
    this.#places.run(hold, { key: caller, signal: closed.signal }).catch((error) => {
      const full = error instanceof QueueTimeout;
      entered.reject(full ? busy('Too many large answers are being built') : error);
    });
    return entered.promise;
  }
}
