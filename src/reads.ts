/**
 * What an answer may hold of large things that it reads (log lines, files, trees), and how many such answers are
 * made at once.
 *
 * An answer of 16 MiB of text is held several times over while it is made: as values, as JSON, as bytes on their
 * way out (measured: 100 MB). So an answer has an allowance; and beyond a first part that waits for nobody, it needs
 * one of a few places, which it keeps until it is sent. Whoever is written to slowly loses its place when another
 * has waited long enough: no client can hold the places for ever.
 */
import { AppError } from './errors.ts';

/** Of text in one answer. */
export const ANSWER_BYTES = 16 * 2 ** 20;
/** Of text in one event of a stream, where there is no end of the answer that would give a place back. */
export const EVENT_BYTES = 2 ** 20;
/** Answers with less need no place. */
const LIGHT_BYTES = 256 * 1024;
const PLACES = 4;
/** So that one caller leaves room for others. */
const PLACES_A_CALLER = 2;
const WAIT_MS = 30_000;
/** How long an answer may take to be sent while others wait. */
const SEND_MS = 30_000;

export type Allowance = {
  /**
   * Takes `bytes` of what is left, or as many as are; waits for a place when it gets one.
   * @returns how many were taken
   * @throws AppError 429 when no place is free within 30 s
   */
  take(bytes: number): Promise<number>;
};

/** The part of Node's `ServerResponse` that tells when a place is free again. */
export type Answer = {
  readonly destroyed: boolean;
  readonly writableFinished: boolean;
  once(event: 'close', listener: () => void): unknown;
  destroy(): unknown;
};

type Place = { caller: string; answer: Answer; overdue: boolean; timer?: NodeJS.Timeout };
type Waiter = { place: Place; enter(): void };

/** The allowances of all answers of a server. */
export class Reads {
  readonly #held = new Set<Place>();
  readonly #waiting = new Set<Waiter>();

  /** Of an answer to `caller`, an account or an address. */
  allowance(caller: string, answer: Answer): Allowance {
    let left = ANSWER_BYTES;
    let place: Promise<void> | undefined;
    return {
      take: async (bytes) => {
        const taken = Math.min(bytes, left);
        left -= taken;
        if (ANSWER_BYTES - left > LIGHT_BYTES) {
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

  #enter(caller: string, answer: Answer): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const place: Place = { caller, answer, overdue: false };
    const refuse = () => {
      this.#waiting.delete(waiter);
      const message = 'Too many large answers are being made; try again in a few seconds';
      reject(new AppError('rate_limit_exceeded', message, { retryAfter: 5 }));
    };
    const timer = setTimeout(refuse, WAIT_MS);
    const waiter: Waiter = {
      place,
      enter: () => {
        clearTimeout(timer);
        this.#waiting.delete(waiter);
        this.#hold(place);
        resolve();
      },
    };
    answer.once('close', () => {
      clearTimeout(timer);
      if (this.#waiting.has(waiter)) refuse();
      this.#leave(place);
    });
    this.#waiting.add(waiter);
    // Its client is gone already, and `close` will not come again.
    if (answer.destroyed || answer.writableFinished) {
      clearTimeout(timer);
      refuse();
    }
    this.#admit();
    return promise;
  }

  #hold(place: Place): void {
    this.#held.add(place);
    place.timer = setTimeout(() => {
      place.overdue = true;
      this.#admit();
    }, SEND_MS);
  }

  #leave(place: Place): void {
    clearTimeout(place.timer);
    if (this.#held.delete(place)) this.#admit();
  }

  /** Gives free places to those who wait: to the caller that holds fewest, and of equals to who came first. */
  #admit(): void {
    while (this.#held.size < PLACES) {
      const next = [...this.#waiting]
        .map((waiter) => ({ waiter, holds: this.#heldBy(waiter.place.caller) }))
        .filter(({ holds }) => holds < PLACES_A_CALLER)
        .reduce<{ waiter: Waiter; holds: number } | null>(
          (best, one) => (best && best.holds <= one.holds ? best : one),
          null,
        );
      if (!next) break;
      next.waiter.enter();
    }
    this.#cutOff();
  }

  /** Breaks off the oldest of the overdue answers whose places would help, at most one for each that waits. */
  #cutOff(): void {
    const callers = new Set([...this.#waiting].map(({ place }) => place.caller));
    const isFull = this.#held.size >= PLACES;
    const overdue = [...this.#held].filter((place) => place.overdue);
    const helpful = overdue.filter(({ caller }) => isFull || callers.has(caller));
    for (const { answer } of helpful.slice(0, this.#waiting.size)) answer.destroy();
  }

  #heldBy(caller: string): number {
    return [...this.#held].filter((place) => place.caller === caller).length;
  }
}
