/** Randomly kills and restarts victims. */
import { setTimeout as delay } from 'node:timers/promises';

/** The longest time between two kills, and between a kill and the restart of the victim. */
const BETWEEN_MS = 2_500;
const DOWN_MS = 2_500;
/** If more were down at once, no server would be left to do the work that the kills disturb. */
const DOWN_AT_ONCE = 2;

export type Victim = {
  name: string;
  /** Victims with a common element are never down at the same time; unset: its name. */
  of?: readonly string[];
  /** Sends SIGKILL, in whatever state it is. */
  kill(): Promise<void>;
  /** Resolves when it is ready. */
  start(): Promise<void>;
};

type KillOptions = {
  kills: number;
  seed: number;
  signal: AbortSignal;
  /** Settles when it is time for the kill with this number, from 1. */
  pace?: (kill: number) => Promise<void>;
};

/** `seed` determines the victims and the times. Resolves when all are running after the last kill. */
export async function killAtRandom(
  victims: readonly Victim[],
  { kills, seed, signal, pace = async () => {} }: KillOptions,
): Promise<void> {
  const random = mulberry32(seed);
  const starting = new Set<Promise<void>>();
  const down = new Set<Victim>();
  for (let kill = 1; kill <= kills; kill++) {
    await pace(kill);
    await delay(random() * BETWEEN_MS, undefined, { signal });
    while (down.size >= DOWN_AT_ONCE) await Promise.race(starting);
    const away = new Set([...down].flatMap(({ of, name }) => of ?? [name]));
    const up = victims.filter(({ of, name }) => !(of ?? [name]).some((one) => away.has(one)));
    const victim = up[Math.floor(random() * up.length)] as Victim;
    const pause = random() * DOWN_MS;
    down.add(victim);
    await victim.kill();
    const at = performance.now();
    console.log(`${kill}: ${victim.name} is killed, ${new Date().toISOString()}`);
    const back = delay(pause)
      .then(() => victim.start())
      .then(() => {
        const seconds = ((performance.now() - at) / 1000).toFixed(1);
        console.log(`${kill}: ${victim.name} is back after ${seconds} s`);
      })
      .finally(() => {
        down.delete(victim);
        starting.delete(back);
      });
    starting.add(back);
    back.catch(() => {});
  }
  await Promise.all(starting);
}

/** Pseudo-random numbers from 0 to 1, the same for the same seed. */
export function mulberry32(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
