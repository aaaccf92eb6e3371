/**
 * Runs transactions that are requested at the same time as one transaction, so that the database process wakes up twice and
 * flushes to disk once for the whole batch. Requests that would wait for a lock of another transaction run alone.
 */
import { setImmediate as nextTick } from 'node:timers/promises';
import { isDatabaseUnavailable, isRolledBackByConflict } from './outage.ts';

/** Batches that run at the same time. Further requests wait and form the next batch. */
const MAX_BATCHES = 4;
/** Requests that run alone at the same time. Leaves connections of the pool for other code. */
const MAX_ALONE = 8;
/** A request whose rows stay locked for longer fails. */
const LOCK_TIMEOUT_MS = 120_000;

/** Result for a request that the batch did not run, because the request would have had to wait for a lock. */
export const RUN_ALONE = Symbol('run alone');

type Runners<T, R> = {
  /** Runs the requests in one transaction without long lock waits. @returns a result for each, in order */
  runBatch(input: readonly T[]): Promise<readonly (R | typeof RUN_ALONE)[]>;
  /**
   * Runs one request that a batch did not run, or whose batch failed, so that no request fails because of another request. It
   * must not wait long for locks. It is called again after it fails because of a conflict, for example by `lock_timeout`.
   */
  runAlone(input: T): Promise<R>;
};

type Request<T, R> = PromiseWithResolvers<R> & { input: T; requestedAt: number };

/**
 * @param maxSize maximum number of requests in a batch
 * @returns a function that runs a request. It fails like `runAlone`, and with the error of the batch while the database is
 *   unavailable, because then it is unknown whether the batch was committed
 */
export function batchTransactions<T, R>(runners: Runners<T, R>, maxSize: number) {
  const waiting: Request<T, R>[] = [];
  const waitingAlone: Request<T, R>[] = [];
  /** Requests whose rows were locked. They are retried last: most other requests only shared a batch with a locked one. */
  const locked: Request<T, R>[] = [];
  let runningBatches = 0;
  let runningAlone = 0;
  let isCollecting = false;

  async function runBatches(): Promise<void> {
    runningBatches++;
    isCollecting = true;
    // Requests of the same iteration of the event loop form one batch.
    await nextTick();
    isCollecting = false;
    while (waiting.length > 0) {
      const batch = waiting.splice(0, maxSize);
      startIfNeeded();
      await settleBatch(batch);
    }
    runningBatches--;
  }

  function startIfNeeded(): void {
    if (waiting.length > 0 && runningBatches < MAX_BATCHES && !isCollecting) void runBatches();
  }

  async function settleBatch(batch: readonly Request<T, R>[]): Promise<void> {
    try {
      const results = await runners.runBatch(batch.map(({ input }) => input));
      for (const [index, request] of batch.entries()) {
        const result = results[index] as R | typeof RUN_ALONE;
        if (result === RUN_ALONE) void retryAlone(request);
        else request.resolve(result);
      }
    } catch (error) {
      for (const request of batch)
        if (isDatabaseUnavailable(error) && !isRolledBackByConflict(error)) request.reject(error);
        else void retryAlone(request);
    }
  }

  /** Runs the request alone, again and again until it has no conflict or `LOCK_TIMEOUT_MS` have passed. */
  async function retryAlone(request: Request<T, R>): Promise<void> {
    waitingAlone.push(request);
    if (runningAlone >= MAX_ALONE) return;
    runningAlone++;
    for (let next = nextAlone(); next; next = nextAlone())
      try {
        next.resolve(await runners.runAlone(next.input));
      } catch (error) {
        const waitedMs = Date.now() - next.requestedAt;
        if (isRolledBackByConflict(error) && waitedMs < LOCK_TIMEOUT_MS) locked.push(next);
        else next.reject(error);
      }
    runningAlone--;
  }

  function nextAlone(): Request<T, R> | undefined {
    return waitingAlone.shift() ?? locked.shift();
  }

  return (input: T): Promise<R> => {
    const request = { input, requestedAt: Date.now(), ...Promise.withResolvers<R>() };
    waiting.push(request);
    startIfNeeded();
    return request.promise;
  };
}
