/**
 * Sees to it that each push is recorded once, also when that fails at first: the database may be away, the
 * disk full. What is to be recorded is noted on disk before git updates refs, so a stop or a kill loses
 * nothing; while the server runs, a failed record is tried again with back-off.
 *
 * Of one repository, records are written one after the other, in the order of the pushes; those that wait
 * are written together. Where another server has recorded meanwhile, `record.ts` finds it out.
 */

import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import type { Logger } from '../../base/log.ts';
import type { Begun } from '../../git/disk/disk.ts';
import type { Git } from '../../git/git.ts';
import type { Command } from '../../git/transport/hooks.ts';
import { recordPushes } from './record.ts';
import type { BegunPush, Pushed } from './rows.ts';

type Deps = { git: Git; log: Logger; pool: pg.Pool };

type Entry = {
  begun: Begun<BegunPush>;
  updated: Command[] | null;
  /** Tells whoever waits for the first attempt. */
  recorded: PromiseWithResolvers<void>;
  /** Until when it may be unknown whether it took effect, in milliseconds since 1970; set by the first look. */
  openUntil?: number;
};

type Queue = { entries: Entry[]; wake: () => void };

const FIRST_WAIT_MS = 1_000;
const LONGEST_WAIT_MS = 60_000;
/**
 * Between looks at a push of a killed server whose ref another push has moved on, until that is recorded, which takes it
 * milliseconds; and until the ref is taken to have been moved without a push.
 */
const LOOK_MS = 250;
const OPEN_MS = 10_000;

export class PushRecorder {
  readonly #deps: Deps;
  /** By repository, for as long as there is something to record. */
  readonly #queues = new Map<string, Queue>();

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  /** Repositories with pushes that are not recorded yet. */
  get waiting(): number {
    return this.#queues.size;
  }

  /**
   * Records a push that has ended. `updated` is what git said took effect; null when it could not say.
   * @throws what the first attempt throws; it is then tried again in the background.
   */
  record(begun: Begun<BegunPush>, updated: Command[] | null): Promise<void> {
    return this.#add(begun.id, [{ begun, updated }]);
  }

  /**
   * Records what a killed server had let pass of one repository, oldest first and all at once: which of them
   * took effect shows only in the refs, where one may have moved on what another had moved.
   * @throws as `record`.
   */
  recover(id: string, begun: readonly Begun<BegunPush>[]): Promise<void> {
    return this.#add(
      id,
      begun.map((one) => ({ begun: one, updated: null })),
    );
  }

  #add(id: string, pushes: readonly Omit<Entry, 'recorded'>[]): Promise<void> {
    const recorded = Promise.withResolvers<void>();
    const entries = pushes.map((push) => ({ ...push, recorded }));
    const queue = this.#queues.get(id);
    if (queue) {
      queue.entries.push(...entries);
      // Somebody waits for the answer, and the fault may be over.
      queue.wake();
    } else {
      const fresh: Queue = { entries, wake: () => {} };
      this.#queues.set(id, fresh);
      this.#deps.git.tasks.background((signal) => this.#drain(id, fresh, signal));
    }
    return recorded.promise;
  }

  async #drain(id: string, queue: Queue, stopping: AbortSignal): Promise<void> {
    const { log } = this.#deps;
    let wait = FIRST_WAIT_MS;
    while (queue.entries.length > 0) {
      const batch = [...queue.entries];
      const pushes = batch.map((entry) => {
        entry.openUntil ??= Date.now() + OPEN_MS;
        const { begun, updated, openUntil } = entry;
        return { ...begun.data, updated, canWait: Date.now() < openUntil };
      });
      try {
        const open = await recordPushes(this.#deps, id, pushes);
        const isOpen = (_: Entry, i: number) => open.has(pushes[i] as Pushed);
        const left = batch.filter(isOpen);
        const done = batch.filter((entry) => !left.includes(entry));
        queue.entries.splice(0, batch.length, ...left);
        await Promise.all(done.map(({ begun }) => this.#forget(begun)));
        // Nobody waits for what its client has not heard of, and its note stays.
        for (const { recorded } of batch) recorded.resolve();
        wait = FIRST_WAIT_MS;
        if (left.length === 0) continue;
        if (stopping.aborted) break;
        await this.#pause(queue, LOOK_MS, stopping);
      } catch (error) {
        for (const { recorded } of queue.entries) recorded.reject(error);
        log.error(
          { err: error, repository: id, retryMs: wait },
          'a push could not be recorded yet',
        );
        // What a stopping server leaves is in the notes for the next start.
        if (stopping.aborted) break;
        await this.#pause(queue, wait, stopping);
        wait = Math.min(wait * 2, LONGEST_WAIT_MS);
      }
    }
    this.#queues.delete(id);
  }

  /** A note that cannot be removed is recorded again at the next start, which finds the event of the push. */
  async #forget({ id, done }: Begun<BegunPush>): Promise<void> {
    await done().catch((error) => {
      this.#deps.log.error({ err: error, repository: id }, 'the note of a push was not removed');
    });
  }

  async #pause(queue: Queue, ms: number, stopping: AbortSignal): Promise<void> {
    const woken = new AbortController();
    queue.wake = () => woken.abort();
    const signal = AbortSignal.any([stopping, woken.signal]);
    await delay(ms, undefined, { signal }).catch(() => {});
    queue.wake = () => {};
  }
}
