/**
 * Transactions that are asked for at the same moment, carried out as one: the database is woken twice for all of them, and
 * waits for the disk once. What one of them waits for holds up its own group alone.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { isDatabaseAway } from './outage.ts';

/** Groups that are carried out at the same time. While so many are, what is asked for waits, and is the next group. */
const MOST_GROUPS = 4;

/** The answer for one that is to be carried out by itself: it would have to wait, and the group with it. */
export const BY_ITSELF = Symbol('by itself');

type Waiting<T, R> = PromiseWithResolvers<R> & { asked: T };

/**
 * @param carryOut does what a group asks for, in one transaction, and gives an answer for each in their order: `BY_ITSELF` for
 *   those that it left out of a larger group. Where it fails it is called again for each by itself, so that none fails for
 *   another; unless the database is away, which leaves unsaid what was done.
 * @param most of one group
 * @returns what one asks with; it fails as `carryOut` did
 */
export function grouped<T, R>(
  carryOut: (asked: readonly T[]) => Promise<readonly (R | typeof BY_ITSELF)[]>,
  most: number,
): (asked: T) => Promise<R> {
  const waiting: Waiting<T, R>[] = [];
  let groups = 0;
  let isBeginning = false;

  async function begin(): Promise<void> {
    groups++;
    isBeginning = true;
    // What comes in the same turn of the event loop belongs together.
    await nextTurn();
    isBeginning = false;
    while (waiting.length > 0) await answer(waiting.splice(0, most));
    groups--;
  }

  async function answer(group: readonly Waiting<T, R>[]): Promise<void> {
    try {
      const answers = await carryOut(group.map(({ asked }) => asked));
      const others: Waiting<T, R>[] = [];
      for (const [place, one] of group.entries()) {
        const answered = answers[place] as R | typeof BY_ITSELF;
        if (answered === BY_ITSELF) others.push(one);
        else one.resolve(answered);
      }
      await eachByItself(others);
    } catch (error) {
      if (group.length > 1 && !isDatabaseAway(error)) await eachByItself(group);
      else for (const { reject } of group) reject(error);
    }
  }

  async function eachByItself(some: readonly Waiting<T, R>[]): Promise<void> {
    await Promise.all(some.map((one) => answer([one])));
  }

  return (asked) => {
    const one = { asked, ...Promise.withResolvers<R>() };
    waiting.push(one);
    if (groups < MOST_GROUPS && !isBeginning) void begin();
    return one.promise;
  };
}
