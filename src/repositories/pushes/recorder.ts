/**
 * Records each push exactly once, even if the database is unavailable or the disk is full. A push is noted on disk
 * before git updates refs, so a stop or a kill loses nothing; a running server retries failed records with backoff.
 *
 * The pushes of one repository are recorded in order; waiting pushes are recorded in one batch. Records by other
 * servers are detected in `record.ts`.
 */

import type pg from 'pg';
import { Backoff, sleep } from '../../base/backoff.ts';
import type { Logger } from '../../base/log.ts';
import type { PendingOperation } from '../../git/disk/disk.ts';
import type { Git } from '../../git/git.ts';
import type { ReceivedRefUpdate } from '../../git/transport/hooks.ts';
import { recordPushes } from './record.ts';
import type { PushNote, PushToRecord } from './rows.ts';

type Deps = { git: Git; log: Logger; pool: pg.Pool };

type Entry = {
  operation: PendingOperation<PushNote>;
  updated: ReceivedRefUpdate[] | null;
  /** Settles with the first try. */
  recorded: PromiseWithResolvers<void>;
  /**
   * Deadline for deciding whether the push took effect, in milliseconds since 1970; set by the first try.
   */
  undecidedUntil?: number;
};

type Queue = {
  entries: Entry[];
  wake: () => void;
  /** Settles with the next try. */
  nextTry: PromiseWithResolvers<void>;
};

const RETRIES = { firstMs: 1_000, longestMs: 60_000 };
/**
 * Retry interval for an undecided push of a killed server. Another push moved its ref and will be recorded within
 * milliseconds. After `UNDECIDED_MS`, the ref is treated as moved without a push.
 */
const UNDECIDED_RETRY_MS = 250;
const UNDECIDED_MS = 10_000;

export class PushRecorder {
  readonly #deps: Deps;
  /** Repository id → pushes to record. Empty queues are removed. */
  readonly #queues = new Map<string, Queue>();

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  /** Number of repositories with unrecorded pushes. */
  get waiting(): number {
    return this.#queues.size;
  }

  /**
   * Records a finished push. `updated` is what git reported as updated; null if it gave no report.
   * @throws the error of the first try; retries continue in the background
   */
  record(
    operation: PendingOperation<PushNote>,
    updated: ReceivedRefUpdate[] | null,
  ): Promise<void> {
    return this.#add(operation.id, [{ operation, updated }]);
  }

  /**
   * Records the pushes to one repository that a killed server accepted, oldest first. They are recorded in one batch,
   * because only the refs show which pushes took effect, and a push may have moved a ref that an earlier push updated.
   * @throws as `record`
   */
  recover(id: string, operations: readonly PendingOperation<PushNote>[]): Promise<void> {
    return this.#add(
      id,
      operations.map((operation) => ({ operation, updated: null })),
    );
  }

  /** Waits until the waiting pushes of a repository are recorded. @throws the error of the next try */
  async flush(id: string): Promise<void> {
    const queue = this.#queues.get(id);
    queue?.wake();
    await queue?.nextTry.promise;
  }

  #add(id: string, pushes: readonly Omit<Entry, 'recorded'>[]): Promise<void> {
    const recorded = Promise.withResolvers<void>();
    const entries = pushes.map((push) => ({ ...push, recorded }));
    const queue = this.#queues.get(id);
    if (queue) {
      queue.entries.push(...entries);
      // Retries immediately, because a client is waiting and the fault may be over.
      queue.wake();
    } else {
      const created: Queue = { entries, wake: () => {}, nextTry: createTry() };
      this.#queues.set(id, created);
      this.#deps.git.tasks.background((signal) => this.#drain(id, created, signal));
    }
    return recorded.promise;
  }

  async #drain(id: string, queue: Queue, stopping: AbortSignal): Promise<void> {
    const { log } = this.#deps;
    const backoff = new Backoff(RETRIES);
    while (queue.entries.length > 0) {
      const batch = [...queue.entries];
      const pushes = batch.map((entry) => {
        entry.undecidedUntil ??= Date.now() + UNDECIDED_MS;
        const { operation, updated, undecidedUntil } = entry;
        return { ...operation.data, updated, canWait: Date.now() < undecidedUntil };
      });
      try {
        const undecided = await recordPushes(this.#deps, id, pushes);
        const isUndecided = (_: Entry, i: number) => undecided.has(pushes[i] as PushToRecord);
        const undecidedEntries = batch.filter(isUndecided);
        const recordedEntries = batch.filter((entry) => !undecidedEntries.includes(entry));
        queue.entries.splice(0, batch.length, ...undecidedEntries);
        await Promise.all(recordedEntries.map(({ operation }) => this.#removeNote(operation)));
        // Clients wait only for decided pushes. The note of an undecided push stays.
        for (const { recorded } of batch) recorded.resolve();
        queue.nextTry.resolve();
        queue.nextTry = createTry();
        backoff.reset();
        if (undecidedEntries.length === 0) continue;
        if (stopping.aborted) break;
        await this.#pause(queue, UNDECIDED_RETRY_MS, stopping);
      } catch (error) {
        for (const { recorded } of queue.entries) recorded.reject(error);
        queue.nextTry.reject(error);
        queue.nextTry = createTry();
        const retryMs = backoff.next();
        log.error({ err: error, repository: id, retryMs }, 'could not record a push; retrying');
        // The next start reads the remaining pushes from the notes.
        if (stopping.aborted) break;
        await this.#pause(queue, retryMs, stopping);
      }
    }
    if (queue.entries.length > 0) {
      // Pushes that arrived during the last try would otherwise wait forever, and the stop of the server for them.
      const error = new Error('the server is stopping; the next start records the push');
      for (const { recorded } of queue.entries) recorded.reject(error);
      queue.nextTry.reject(error);
    }
    this.#queues.delete(id);
  }

  /** If the note stays, the next start records the push again and finds its event. */
  async #removeNote({ id, finish }: PendingOperation<PushNote>): Promise<void> {
    await finish().catch((error) => {
      this.#deps.log.error({ err: error, repository: id }, 'could not remove the note of a push');
    });
  }

  async #pause(queue: Queue, ms: number, stopping: AbortSignal): Promise<void> {
    const woken = new AbortController();
    queue.wake = () => woken.abort();
    const signal = AbortSignal.any([stopping, woken.signal]);
    await sleep(ms, signal);
    queue.wake = () => {};
  }
}

/** Its error is that of a push, which is logged already: there may be nobody who waits for it. */
function createTry(): PromiseWithResolvers<void> {
  const next = Promise.withResolvers<void>();
  next.promise.catch(() => {});
  return next;
}
