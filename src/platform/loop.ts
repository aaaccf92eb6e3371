/** Periodic background work: one loop for every part of the server that repeats a step until it is stopped. */
import { Backoff, type BackoffOptions, jitter, sleep } from '../base/backoff.ts';
import type { Logger } from '../base/log.ts';
import { isDatabaseUnavailable } from './database/outage.ts';

export type LoopOptions = {
  /** What a step does, for the log, such as `Enforcing budgets`. */
  name: string;
  /** Milliseconds from the end of a step to the next one. A function is called before each wait. */
  every: number | (() => number);
  /** Waits for `every` before the first step. Default: false. */
  waitsFirst?: boolean;
  /**
   * Starts steps earlier, for instance after a notification (`Bus.wakes`): yields at once, and then when a step is due or
   * `everyMs()` has passed, until `signal` aborts.
   */
  wakes?: (signal: AbortSignal, everyMs: () => number) => AsyncIterable<unknown>;
  /**
   * Runs `work` on one server at a time (`Session.runAlone`); without running it, resolves with null on the other servers. Its
   * signal aborts when another server may have begun.
   */
  alone?: (work: (lost: AbortSignal) => Promise<unknown>) => Promise<unknown>;
  /** Pauses after steps that fail in a row. Default: a random time below `every`. */
  backoff?: BackoffOptions;
  signal: AbortSignal;
  log: Logger;
};

/**
 * Does one step of the work.
 * @param signal aborts when the loop stops, or this server no longer works alone
 * @returns true if there is more work, so that the next step follows at once
 */
type Step = (signal: AbortSignal) => Promise<unknown>;

/** A failure that repeats is logged once in this time, and otherwise for debugging only. */
const REPEAT_LOG_MS = 60_000;

/**
 * Repeats `step` until `signal` aborts. Never rejects. A step that fails is logged and repeated after a pause. An unavailable
 * database, which other parts report too, is a warning.
 */
export async function runLoop(options: LoopOptions, step: Step): Promise<void> {
  const { name, every, waitsFirst, wakes = ticks, alone, signal, log } = options;
  const everyMs = typeof every === 'number' ? () => every : every;
  const backoff = options.backoff && new Backoff(options.backoff);
  const run = alone
    ? () => alone((lost) => step(AbortSignal.any([signal, lost])))
    : () => step(signal);
  let mustWait = waitsFirst;
  let lastLogged = { failure: '', at: 0 };
  for await (const _ of wakes(signal, everyMs)) {
    for (let hasMore = !mustWait; hasMore && !signal.aborted; ) {
      try {
        hasMore = (await run()) === true;
        backoff?.reset();
      } catch (error) {
        if (signal.aborted) return;
        const pauseMs = backoff?.next() ?? jitter(everyMs());
        const isOutage = isDatabaseUnavailable(error);
        const failure = isOutage ? 'outage' : (error as Error).message;
        const isRepeated =
          failure === lastLogged.failure && Date.now() - lastLogged.at < REPEAT_LOG_MS;
        if (!isRepeated) lastLogged = { failure, at: Date.now() };
        const level = isOutage ? 'warn' : 'error';
        log[isRepeated ? 'debug' : level](
          { err: error },
          `${name} failed; the next try is in ${pauseMs} ms`,
        );
        await sleep(pauseMs, signal);
      }
    }
    mustWait = false;
  }
}

/** Starts a loop that runs until it is disposed of, which waits for the end of the current step. */
export function startLoop(options: Omit<LoopOptions, 'signal'>, step: Step): AsyncDisposable {
  const stopping = new AbortController();
  const running = runLoop({ ...options, signal: stopping.signal }, step);
  return {
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await running;
    },
  };
}

/** The wait does not keep the process alive. */
async function* ticks(signal: AbortSignal, everyMs: () => number): AsyncGenerator<void> {
  for (; !signal.aborted; await sleep(everyMs(), signal, { ref: false })) yield;
}
