/**
 * The machines of the other workers, as this worker last read them.
 *
 * A worker that has just started, was suspended or had no database cannot tell which peers are dead, because the same may have
 * happened to them. So for its first minute it assumes that silent peers return and run images again. Otherwise the first
 * worker that returns and does not run images would fail the jobs that need an image.
 */
import type pg from 'pg';
import { readPeerMachines, WORKER_SILENCE_S, type WorkerCapacity } from './worker-capacity.ts';

export type PeerWorkers = {
  /** The machines of all peers at the last refresh. */
  readonly machines: readonly WorkerCapacity[];
  /** @returns whether the machines have changed */
  refresh(): Promise<boolean>;
};

/** @param everyMs the longest time between two refreshes */
export function createPeerWorkers(
  services: { pool: pg.Pool },
  workerId: string,
  everyMs: number,
): PeerWorkers {
  let machines: readonly WorkerCapacity[] = [];
  let refreshedAt = Number.NEGATIVE_INFINITY;
  let returnedAt = Number.NEGATIVE_INFINITY;
  return {
    get machines() {
      return machines;
    },
    async refresh() {
      // The wall clock, because the monotonic clock stops while the machine is suspended.
      const now = Date.now();
      if (now - refreshedAt > 2 * everyMs) returnedAt = now;
      const hasJustReturned = now - returnedAt < WORKER_SILENCE_S * 1000;
      const previous = JSON.stringify(machines);
      machines = await readPeerMachines(services, workerId, hasJustReturned);
      refreshedAt = now;
      return JSON.stringify(machines) !== previous;
    },
  };
}
