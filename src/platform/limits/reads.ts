/**
 * What an answer may hold of large things that it reads, and how many such answers are made at once.
 *
 * An answer of 16 MiB of text is held several times over while it is made: as values, as JSON, as bytes on their
 * way out (measured: 100 MB). So an answer has an allowance; and beyond a first part that waits for nobody, it needs
 * one of a few places, which it keeps until it is sent. A client that reads slowly is cut off when others have to
 * wait, so that none can hold the places for ever.
 */
import { once } from 'node:events';
import { busy, invalid } from '../../base/errors.ts';
import { FairSemaphore, QueueTimeout } from './fair-semaphore.ts';

/** Of text in one answer. */
export const ANSWER_BYTES = 16 * 2 ** 20;
/** Of text in one event of a stream, where there is no end of the answer that would give a place back. */
export const EVENT_BYTES = 2 ** 20;
/** Answers with less need no place. */
const LIGHT_BYTES = 256 * 1024;
/**
 * Of files, directories, commits and patches: how many are read at once is bounded where git is asked, and what one
 * route of REST answers of them is less, so only answers that ask for many wait.
 */
const LIGHT_GIT_BYTES = 8 * 2 ** 20;
const PLACES = 4;
/** So that one caller leaves room for others. */
const PLACES_A_CALLER = 2;
const WAIT_MS = 30_000;
/** Searches through whole logs at once; each is bounded in time, and keeps one core busy. */
const SEARCHES = 2;
/** How long an answer may take to be made and sent while others wait. */
const SEND_MS = 30_000;
/** After that, how often it is looked whether somebody waits. */
const LOOK_MS = 1_000;

export type Allowance = {
  /**
   * Takes `bytes` of what is left, or as many as are; waits for a place once the answer holds more than `light`.
   * @returns how many were taken
   * @throws AppError 503 when no place is free within 30 s
   */
  take(bytes: number, light?: number): Promise<number>;
};

/** For what git gives. @returns how many bytes were taken. @throws AppError as `take` */
export function takeOfGit(allowance: Allowance, bytes: number): Promise<number> {
  return allowance.take(bytes, LIGHT_GIT_BYTES);
}

/** As `takeOfGit`, for what is not shown in part. @throws AppError 400 when it does not fit any more, 503 */
export async function takeWhole(allowance: Allowance, bytes: number): Promise<void> {
  if ((await takeOfGit(allowance, bytes)) === bytes) return;
  throw invalid(null, 'The answer is full: ask for less at once');
}

/** The part of Node's `ServerResponse` that shows when the answer was sent. */
export type Answer = NodeJS.EventEmitter & {
  readonly destroyed: boolean;
  readonly writableFinished: boolean;
  destroy(): unknown;
};

/** The allowances of all answers of a server. */
export class Reads {
  readonly #places = new FairSemaphore(PLACES, { perKey: PLACES_A_CALLER, waitMs: WAIT_MS });
  readonly #searches = new FairSemaphore(SEARCHES, { perKey: 1, waitMs: WAIT_MS });

  /** Runs a search for `caller` when it is its turn. @throws AppError 503 when none comes within 30 s */
  async search<T>(
    caller: string,
    signal: AbortSignal | undefined,
    work: () => Promise<T>,
  ): Promise<T> {
    try {
      return await this.#searches.take(work, { key: caller, signal });
    } catch (error) {
      throw error instanceof QueueTimeout ? busy('Too many logs are being searched') : error;
    }
  }

  /** Of an answer to `caller`, an account or an address. */
  allowance(caller: string, answer: Answer): Allowance {
    let left = ANSWER_BYTES;
    let place: Promise<void> | undefined;
    return {
      take: async (bytes, light = LIGHT_BYTES) => {
        const taken = Math.min(bytes, left);
        left -= taken;
        if (ANSWER_BYTES - left > light) {
          place ??= this.#enter(caller, answer);
          await place;
        }
        return taken;
      },
    };
  }

  /** Of one thing that an event of a stream shows. */
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

  /** Settles when the answer has a place, which it keeps until it is closed. */
  async #enter(caller: string, answer: Answer): Promise<void> {
    // Its client is gone, and `close` will not come again.
    if (answer.destroyed || answer.writableFinished) throw busy('The answer is closed');
    const closed = new AbortController();
    answer.once('close', () => closed.abort());
    const entered = Promise.withResolvers<void>();
    const hold = async () => {
      entered.resolve();
      const overdue = Date.now() + SEND_MS;
      const looking = setInterval(() => {
        if (Date.now() > overdue && this.#places.isWanted(caller)) answer.destroy();
      }, LOOK_MS);
      await once(closed.signal, 'abort');
      clearInterval(looking);
    };
    this.#places.take(hold, { key: caller, signal: closed.signal }).catch((error) => {
      const full = error instanceof QueueTimeout;
      entered.reject(full ? busy('Too many large answers are being made') : error);
    });
    return entered.promise;
  }
}
