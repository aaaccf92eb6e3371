/**
 * Removing what is past its time: at the start and every ten minutes, in batches that are short enough to disturb
 * nobody. Every server does it; what another has removed already is simply not there.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from '../log.ts';

const EVERY_MS = 10 * 60_000;
/** Between batches, so that a large backlog does not keep the database busy. */
const BREATH_MS = 20;

/** Runs one batch of periodic work. @returns whether more work may be left */
export type Chore = () => Promise<boolean>;

/** Owns the chores until it is disposed. One that fails does not keep the others from being done, and is done next time. */
export function startUpkeep(
  { log }: { log: Logger },
  chores: Readonly<Record<string, Chore>>,
): AsyncDisposable {
  const stopping = new AbortController();
  const { signal } = stopping;
  const pause = (ms: number) => delay(ms, undefined, { signal, ref: false }).catch(() => {});

  async function doAll(): Promise<void> {
    for (const [name, chore] of Object.entries(chores)) {
      try {
        while (!signal.aborted && (await chore())) await pause(BREATH_MS);
      } catch (error) {
        if (!signal.aborted) log.warn({ err: error }, `${name}: not done; again in ten minutes`);
      }
    }
  }

  const working = (async () => {
    for (; !signal.aborted; await pause(EVERY_MS)) await doAll();
  })();
  return {
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await working;
    },
  };
}
