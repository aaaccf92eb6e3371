/**
 * A bound on how much of something is under way at once, in which those that wait take turns: of each key
 * (a caller, an address, a repository) one after the other, so that whoever asks for much waits for itself.
 *
 * Every wait is bounded, in time and in number. A place is held by the work alone, which is bounded by its
 * own means.
 */
import { AppError, busy } from '../../base/errors.ts';

export type TurnsOptions = {
  /** Of one key. */
  perKey?: number;
  waitMs?: number;
  /** Those beyond are refused at once. */
  maxWaiting?: number;
};

export type TurnOptions = {
  key?: string;
  /** Ends the wait: nobody is there any more who wants the result. */
  signal?: AbortSignal;
};

/** Who asks: the id of an account or a credential, or the address of the anonymous. */
export type Caller = { key: string; isAnonymous: boolean };

/** No turn came within the time, or too many wait already. */
export class QueueTimeout extends Error {
  override name = 'NoTurn';
}

type Ticket = { key: string; grant(): void };

export class FairSemaphore {
  readonly #atOnce: number;
  readonly #options: Required<TurnsOptions>;
  /** Places held, by key. */
  readonly #held = new Map<string, number>();
  #running = 0;
  /** Those that wait, by key: the key whose last turn is longest ago comes first. */
  readonly #waiting = new Map<string, Set<Ticket>>();
  #waitingCount = 0;

  constructor(atOnce: number, options: TurnsOptions = {}) {
    this.#atOnce = atOnce;
    this.#options = { perKey: atOnce, waitMs: 30_000, maxWaiting: 1_000, ...options };
  }

  /** For tests and metrics. */
  get counts(): { running: number; waiting: number } {
    return { running: this.#running, waiting: this.#waitingCount };
  }

  /** Whether somebody waits for whom a place that `key` holds would be a turn. */
  isWanted(key: string): boolean {
    if (this.#waitingCount === 0) return false;
    return this.#running >= this.#atOnce || this.#waiting.has(key);
  }

  /** Runs `work` when it is its turn. @throws NoTurn; else what `work` throws. */
  async take<T>(work: () => Promise<T>, { key = '', signal }: TurnOptions = {}): Promise<T> {
    if (signal?.aborted) throw new QueueTimeout('nobody waits for it any more');
    if (this.#isFree(key)) this.#hold(key);
    else await this.#wait(key, signal);
    try {
      return await work();
    } finally {
      this.#release(key);
    }
  }

  #isFree(key: string): boolean {
    return this.#running < this.#atOnce && (this.#held.get(key) ?? 0) < this.#options.perKey;
  }

  #hold(key: string): void {
    this.#running++;
    this.#held.set(key, (this.#held.get(key) ?? 0) + 1);
  }

  /** Gives a place back, and to the first key that waits and may have it. */
  #release(key: string): void {
    this.#running--;
    const left = (this.#held.get(key) ?? 0) - 1;
    if (left > 0) this.#held.set(key, left);
    else this.#held.delete(key);
    for (const [next, tickets] of this.#waiting) {
      const [ticket] = tickets;
      if (!ticket || !this.#isFree(next)) continue;
      this.#hold(next);
      this.#forget(ticket);
      // Behind the others, for its next turn.
      if (this.#waiting.delete(next) && tickets.size > 0) this.#waiting.set(next, tickets);
      ticket.grant();
      return;
    }
  }

  #wait(key: string, signal?: AbortSignal): Promise<void> {
    const { waitMs, maxWaiting } = this.#options;
    if (this.#waitingCount >= maxWaiting)
      return Promise.reject(new QueueTimeout(`${this.#waitingCount} wait already`));
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const ticket: Ticket = { key, grant: resolve };
    const tickets = this.#waiting.get(key) ?? new Set();
    this.#waiting.set(key, tickets.add(ticket));
    this.#waitingCount++;
    const refuse = () => {
      this.#forget(ticket);
      reject(new QueueTimeout(`no turn came within ${waitMs} ms`));
    };
    const timer = setTimeout(refuse, waitMs);
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
  /** Those without credentials need a turn of both. */
  anonymousTransfers: FairSemaphore;
};

const WAITING_PER_TRANSFER = 8;

/** A caller may have half of `atOnce`; an address of the anonymous a quarter, and all of those three quarters. */
export function openTransferSemaphores(atOnce: number): TransferSemaphores {
  const maxWaiting = atOnce * WAITING_PER_TRANSFER;
  return {
    transfers: new FairSemaphore(atOnce, { perKey: Math.ceil(atOnce / 2), maxWaiting }),
    anonymousTransfers: new FairSemaphore(Math.ceil((atOnce * 3) / 4), {
      perKey: Math.ceil(atOnce / 4),
      maxWaiting,
    }),
  };
}

/* Transfers that wait for their turn: how many are under way at once is bounded, for each caller and in all. */

/** What transfers are called in an error, and those of the anonymous, who may not push. */
export type TransferNames = readonly [all: string, anonymous: string];
export const OF_GIT: TransferNames = ['fetches and pushes', 'fetches'];
export const OF_LARGE_FILES: TransferNames = [
  'transfers of large files',
  'downloads of large files',
];

/** Whose transfer it is. `signal` aborts when the client is gone. */
type TransferCaller = Caller & { signal: AbortSignal };

const RETRY_SECONDS = 10;

/**
 * Runs a transfer when it is its turn. Its place is given back when the client is gone, too: one that takes or
 * sends nothing is cut off by whoever speaks with it.
 * @throws AppError 429 when the address has too many of the anonymous under way, 503 when there are too many
 */
export function withTransferSlot<T>(
  { transfers, anonymousTransfers }: TransferSemaphores,
  [all, ofAnonymous]: TransferNames,
  { key, isAnonymous, signal }: TransferCaller,
  transfer: () => Promise<T>,
): Promise<T> {
  const turn = () =>
    transfers.take(transfer, { key, signal }).catch((error) => {
      throw error instanceof QueueTimeout ? busy(`Too many ${all} are under way`) : error;
    });
  if (!isAnonymous) return turn();
  return anonymousTransfers.take(turn, { key, signal }).catch((error) => {
    if (!(error instanceof QueueTimeout)) throw error;
    const problem = `Too many ${ofAnonymous} without credentials are under way`;
    throw new AppError('rate_limit_exceeded', `${problem}; try again in ${RETRY_SECONDS} s`, {
      retryAfter: RETRY_SECONDS,
    });
  });
}
