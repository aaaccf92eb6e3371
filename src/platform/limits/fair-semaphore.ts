/**
 * A semaphore that is fair between keys (a caller, an address, a repository): waiting keys are served in turn, so a caller
 * with many requests only delays itself.
 *
 * Waiting is limited in time and number. The work itself must limit how long it holds a slot.
 */
import { AppError, busy } from '../../base/errors.ts';

type SemaphoreOptions = {
  /** Maximum number of slots for one key. */
  perKey?: number;
  /** Default: 30,000; Infinity: no limit. */
  waitMs?: number;
  /** Maximum number of waiting requests. Further requests are refused at once. */
  maxWaiting?: number;
};

type AcquireOptions = {
  key?: string;
  /** Aborts when the caller no longer needs the result. */
  signal?: AbortSignal;
};

/** The id of an account or credential, or the address of an anonymous client. */
export type Caller = { key: string; isAnonymous: boolean };

/** No slot became free in time, or too many requests are waiting. */
export class QueueTimeout extends Error {
  override name = 'QueueTimeout';
}

type Ticket = { key: string; grant(): void };

export class FairSemaphore {
  readonly #slots: number;
  readonly #options: Required<SemaphoreOptions>;
  /** Held slots, by key. */
  readonly #held = new Map<string, number>();
  #running = 0;
  /** Waiting requests, by key, in the order in which the keys are served. */
  readonly #waiting = new Map<string, Set<Ticket>>();
  #waitingCount = 0;

  constructor(slots: number, options: SemaphoreOptions = {}) {
    this.#slots = slots;
    this.#options = { perKey: slots, waitMs: 30_000, maxWaiting: 1_000, ...options };
  }

  /** For tests and metrics. */
  get counts(): { running: number; waiting: number } {
    return { running: this.#running, waiting: this.#waitingCount };
  }

  /** Whether a waiting request could use a slot that `key` holds. */
  isWanted(key: string): boolean {
    if (this.#waitingCount === 0) return false;
    return this.#running >= this.#slots || this.#waiting.has(key);
  }

  /** Runs `work` when a slot is free. @throws QueueTimeout; every error of `work` */
  async run<T>(work: () => Promise<T>, { key = '', signal }: AcquireOptions = {}): Promise<T> {
    if (signal?.aborted) throw new QueueTimeout('the caller no longer waits');
    if (this.#isFree(key)) this.#hold(key);
    else await this.#wait(key, signal);
    try {
      return await work();
    } finally {
      this.#release(key);
    }
  }

  #isFree(key: string): boolean {
    return this.#running < this.#slots && (this.#held.get(key) ?? 0) < this.#options.perKey;
  }

  #hold(key: string): void {
    this.#running++;
    this.#held.set(key, (this.#held.get(key) ?? 0) + 1);
  }

  /** Releases a slot, and grants it to the first waiting key that is below its limit. */
  #release(key: string): void {
    this.#running--;
    const remaining = (this.#held.get(key) ?? 0) - 1;
    if (remaining > 0) this.#held.set(key, remaining);
    else this.#held.delete(key);
    for (const [next, tickets] of this.#waiting) {
      const [ticket] = tickets;
      if (!ticket || !this.#isFree(next)) continue;
      this.#hold(next);
      this.#forget(ticket);
      // The key's other requests wait behind the other keys.
      if (this.#waiting.delete(next) && tickets.size > 0) this.#waiting.set(next, tickets);
      ticket.grant();
      return;
    }
  }

  #wait(key: string, signal?: AbortSignal): Promise<void> {
    const { waitMs, maxWaiting } = this.#options;
    if (this.#waitingCount >= maxWaiting)
      return Promise.reject(new QueueTimeout(`${this.#waitingCount} requests are already waiting`));
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const ticket: Ticket = { key, grant: resolve };
    this.#waiting.getOrInsertComputed(key, () => new Set()).add(ticket);
    this.#waitingCount++;
    const refuse = () => {
      this.#forget(ticket);
      reject(new QueueTimeout(`no slot was free within ${waitMs} ms`));
    };
    const timer = Number.isFinite(waitMs) ? setTimeout(refuse, waitMs) : undefined;
    signal?.addEventListener('abort', refuse, { once: true });
    return promise.finally(() => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', refuse);
    });
  }

  #forget(ticket: Ticket): void {
    const tickets = this.#waiting.get(ticket.key);
    if (!tickets?.delete(ticket)) return;
    if (tickets.size === 0) this.#waiting.delete(ticket.key);
    this.#waitingCount--;
  }
}

export type TransferSemaphores = {
  transfers: FairSemaphore;
  /** A transfer without credentials needs a slot of both semaphores. */
  anonymousTransfers: FairSemaphore;
};

const MAX_WAITING_PER_SLOT = 8;

/**
 * One caller may use half of the slots, all anonymous clients together three quarters, and one anonymous address a quarter.
 */
export function openTransferSemaphores(slots: number): TransferSemaphores {
  const maxWaiting = slots * MAX_WAITING_PER_SLOT;
  return {
    transfers: new FairSemaphore(slots, { perKey: Math.ceil(slots / 2), maxWaiting }),
    anonymousTransfers: new FairSemaphore(Math.ceil((slots * 3) / 4), {
      perKey: Math.ceil(slots / 4),
      maxWaiting,
    }),
  };
}

/** Names of transfers in errors. Anonymous clients cannot push, so theirs have another name. */
export type TransferNames = readonly [name: string, anonymous: string];
export const GIT_TRANSFERS: TransferNames = ['fetches and pushes', 'fetches'];
export const LFS_TRANSFERS: TransferNames = [
  'transfers of large files',
  'downloads of large files',
];

/** `signal` aborts when the client disconnects. */
type TransferCaller = Caller & { signal: AbortSignal };

const RETRY_SECONDS = 10;

/**
 * Runs a transfer when a slot is free. The slot is released when the client disconnects; the server closes the connection of
 * a client that neither sends nor receives.
 * @throws AppError 429 if too many anonymous transfers are running, 503 if too many transfers are running
 */
export function withTransferSlot<T>(
  { transfers, anonymousTransfers }: TransferSemaphores,
  [name, anonymousName]: TransferNames,
  { key, isAnonymous, signal }: TransferCaller,
  transfer: () => Promise<T>,
): Promise<T> {
  const runInSlot = () =>
    transfers.run(transfer, { key, signal }).catch((error) => {
      throw error instanceof QueueTimeout ? busy(`Too many ${name} are under way`) : error;
    });
  if (!isAnonymous) return runInSlot();
  return anonymousTransfers.run(runInSlot, { key, signal }).catch((error) => {
    if (!(error instanceof QueueTimeout)) throw error;
    const problem = `Too many ${anonymousName} without credentials are under way`;
    throw new AppError('rate_limit_exceeded', `${problem}; try again in ${RETRY_SECONDS} s`, {
      retryAfter: RETRY_SECONDS,
    });
  });
}
