/**
 * Limits the memory of large responses: how much text one response may read, and how many large responses are built at the
 * same time.
 *
 * A response with 16 MiB of text needs about 100 MB while it is built (values, JSON, bytes to send). So each response has an
 * allowance. The first part of the allowance is free. To take more, the response needs one of a few slots, which it keeps
 * until it is sent. The connection of a slow client is closed if other clients wait, so that no client holds a slot forever.
 */
import { once } from 'node:events';
import { busy, invalid } from '../../base/errors.ts';
import { FairSemaphore, QueueTimeout } from './fair-semaphore.ts';

/** Bytes of text in one response. */
export const MAX_RESPONSE_BYTES = 16 * 2 ** 20;
/**
 * Bytes of text in one field of an event of a stream. Streams use no slots, because they have no end at which a slot could be
 * released.
 */
export const MAX_EVENT_BYTES = 2 ** 20;
/** Bytes that a response may take without a slot. */
const FREE_BYTES = 256 * 1024;
/**
 * The same for files, directories, commits and patches. Reads from git are limited in `git/`, and the response of a REST
 * route contains less git data than this, so only GraphQL queries for many objects wait.
 */
const FREE_GIT_BYTES = 8 * 2 ** 20;
/** Large responses that are built at the same time: 400 MB of memory. */
const SLOTS = 4;
/** Leaves slots for other callers. */
const SLOTS_PER_CALLER = 2;
const WAIT_MS = 30_000;
/** Searches through whole logs that run at the same time. Each search is limited in time and keeps one core busy. */
const MAX_SEARCHES = 2;
/** How long a response may keep its slot while other callers wait. */
const SEND_MS = 30_000;
/** Interval of checks whether `SEND_MS` has passed and other callers wait. */
const CHECK_MS = 1_000;

export type Allowance = {
  /**
   * Takes up to `bytes` of the remaining allowance. Waits for a slot if the response takes more than `freeBytes` in total.
   * @returns the number of bytes taken
   * @throws AppError 503 if no slot is free within 30 s
   */
  take(bytes: number, freeBytes?: number): Promise<number>;
};

/** `take` for data from git, of which more bytes are free. */
export function takeGitBytes(allowance: Allowance, bytes: number): Promise<number> {
  return allowance.take(bytes, FREE_GIT_BYTES);
}

/** `take` for data that cannot be shown in part. @throws AppError 400 if the allowance is used up, 503 like `take` */
export async function takeAllBytes(
  allowance: Allowance,
  bytes: number,
  freeBytes = FREE_BYTES,
): Promise<void> {
  if ((await allowance.take(bytes, freeBytes)) === bytes) return;
  throw invalid(null, 'The response is too large; request less at once');
}

/** `takeAllBytes` for data from git. */
export function takeAllGitBytes(allowance: Allowance, bytes: number): Promise<void> {
  return takeAllBytes(allowance, bytes, FREE_GIT_BYTES);
}

/** The part of Node's `ServerResponse` that the limiter needs to see the end of the response, or to end it. */
export type LimitedResponse = NodeJS.EventEmitter & {
  readonly destroyed: boolean;
  readonly writableFinished: boolean;
  destroy(): unknown;
};

/** The limits of all responses of a server, and of its log searches. */
export class ResponseLimiter {
  readonly #slots = new FairSemaphore(SLOTS, { perKey: SLOTS_PER_CALLER, waitMs: WAIT_MS });
  readonly #searches = new FairSemaphore(MAX_SEARCHES, { perKey: 1, waitMs: WAIT_MS });

  /** Runs a log search when a slot is free. @throws AppError 503 if no slot is free within 30 s */
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

  /** The allowance of a response. @param caller key of an account or an address */
  createAllowance(caller: string, response: LimitedResponse): Allowance {
    let left = MAX_RESPONSE_BYTES;
    let slot: Promise<void> | undefined;
    return {
      take: async (bytes, freeBytes = FREE_BYTES) => {
        const taken = Math.min(bytes, left);
        left -= taken;
        if (MAX_RESPONSE_BYTES - left > freeBytes) {
          slot ??= this.#acquireSlot(caller, response);
          await slot;
        }
        return taken;
      },
    };
  }

  /** The allowance of one field of an event of a stream. */
  createEventAllowance(): Allowance {
    let left = MAX_EVENT_BYTES;
    return {
      take: async (bytes) => {
        const taken = Math.min(bytes, left);
        left -= taken;
        return taken;
      },
    };
  }

  /**
   * Resolves when the response has a slot, which it keeps until it is closed: the work that the semaphore runs is to wait for
   * the close of the response.
   */
  async #acquireSlot(caller: string, response: LimitedResponse): Promise<void> {
    // The client has disconnected, and no further `close` event follows.
    if (response.destroyed || response.writableFinished) throw busy('The response is closed');
    const closed = new AbortController();
    response.once('close', () => closed.abort());
    const acquired = Promise.withResolvers<void>();
    const holdUntilClosed = async () => {
      acquired.resolve();
      const deadline = Date.now() + SEND_MS;
      const timer = setInterval(() => {
        if (Date.now() > deadline && this.#slots.isWanted(caller)) response.destroy();
      }, CHECK_MS);
      await once(closed.signal, 'abort');
      clearInterval(timer);
    };
    this.#slots.run(holdUntilClosed, { key: caller, signal: closed.signal }).catch((error) => {
      const isFull = error instanceof QueueTimeout;
      acquired.reject(isFull ? busy('Too many large responses are being built') : error);
    });
    return acquired.promise;
  }
}
