/**
 * Transactions that are asked for at the same moment, carried out as one: the database is woken twice for all of them, and
 * waits for the disk once. What would have to wait for another transaction is carried out by itself, and soon holds nobody up.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { isDatabaseAway, isLostRace, isStillLocked } from './outage.ts';

/** Groups that are carried out at the same time. While so many are, what is asked for waits, and is of the next group. */
const MOST_GROUPS = 4;
/** Of those by themselves: fewer than there are connections, which others need too. */
const MOST_ALONE = 8;
/** What has been locked for so long is given up. */
const PATIENCE_MS = 120_000;

/** The answer for what a group has left out, because it would have had to wait. */
export const RUN_ALONE = Symbol('by itself');

type Ways<T, R> = {
  /** Does what a group asks for in one transaction, without waiting long for others. @returns an answer for each, in their order */
  together(asked: readonly T[]): Promise<readonly (R | typeof RUN_ALONE)[]>;
  /**
   * Of those that a group has left out, and of all whose group failed, so that none fails for another. Does not wait long for
   * others either: it fails with `lock_timeout`, and is called again.
   */
  alone(asked: T): Promise<R>;
};

type Waiting<T, R> = PromiseWithResolvers<R> & { asked: T; since: number };

/**
 * @param most of one group
 * @returns what one asks with; it fails as `alone` does, and as the group does while the database is away, because then
 *   nobody knows what has been done
 */
export function batchTransactions<T, R>({ together, alone }: Ways<T, R>, most: number) {
  const waiting: Waiting<T, R>[] = [];
  const byThemselves: Waiting<T, R>[] = [];
  /** Those that were still locked. They go behind the others, most of which only shared a group with one that was. */
  const locked: Waiting<T, R>[] = [];
  let groups = 0;
  let alones = 0;
  let isBeginning = false;

  async function begin(): Promise<void> {
    groups++;
    isBeginning = true;
    // What comes in the same turn of the event loop belongs together.
    await nextTurn();
    isBeginning = false;
    while (waiting.length > 0) {
      const group = waiting.splice(0, most);
      beginAnother();
      await answer(group);
    }
    groups--;
  }

  function beginAnother(): void {
    if (waiting.length > 0 && groups < MOST_GROUPS && !isBeginning) void begin();
  }

  async function answer(group: readonly Waiting<T, R>[]): Promise<void> {
    try {
      const answers = await together(group.map(({ asked }) => asked));
      for (const [place, one] of group.entries()) {
        const answered = answers[place] as R | typeof RUN_ALONE;
        if (answered === RUN_ALONE) void answerAlone(one);
        else one.resolve(answered);
      }
    } catch (error) {
      for (const one of group)
        if (isDatabaseAway(error) && !isLostRace(error)) one.reject(error);
        else void answerAlone(one);
    }
  }

  /** However often that takes: it is none of the groups. */
  async function answerAlone(one: Waiting<T, R>): Promise<void> {
    byThemselves.push(one);
    if (alones >= MOST_ALONE) return;
    alones++;
    for (let next = nextAlone(); next; next = nextAlone())
      try {
        next.resolve(await alone(next.asked));
      } catch (error) {
        if (isStillLocked(error) && Date.now() - next.since < PATIENCE_MS) locked.push(next);
        else next.reject(error);
      }
    alones--;
  }

  function nextAlone(): Waiting<T, R> | undefined {
    return byThemselves.shift() ?? locked.shift();
  }

  return (asked: T): Promise<R> => {
    const one = { asked, since: Date.now(), ...Promise.withResolvers<R>() };
    waiting.push(one);
    beginAnother();
    return one.promise;
  };
}
