/**
 * Periodic background work, mostly deletion of expired rows: at startup and every ten minutes, in short batches that do
 * not disturb other work. Every server runs all tasks; a row that another server has already deleted is skipped.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from '../../base/log.ts';

const INTERVAL_MS = 10 * 60_000;
/** Pause between batches, so that a large backlog does not keep the database busy. */
const PAUSE_MS = 20;

/** Runs one batch. @returns whether there may be more work */
export type MaintenanceTask = () => Promise<boolean>;

/** Runs the tasks until disposed. A task that fails does not stop the others, and runs again next time. */
export function startMaintenance(
  { log }: { log: Logger },
  tasks: Readonly<Record<string, MaintenanceTask>>,
): AsyncDisposable {
  const stopping = new AbortController();
  const { signal } = stopping;
  const pause = (ms: number) => delay(ms, undefined, { signal, ref: false }).catch(() => {});

  async function runAll(): Promise<void> {
    for (const [name, task] of Object.entries(tasks)) {
      try {
        while (!signal.aborted && (await task())) await pause(PAUSE_MS);
      } catch (error) {
        if (!signal.aborted) log.warn({ err: error }, `maintenance task "${name}" failed; retry in ten minutes`);
      }
    }
  }

  const working = (async () => {
    for (; !signal.aborted; await pause(INTERVAL_MS)) await runAll();
  })();
  return {
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await working;
    },
  };
}
