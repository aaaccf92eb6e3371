/**
 * The machines of the other workers, as this worker last read them.
 *
 * A worker that was away itself (just started, without the database, suspended) cannot tell which peers are dead: they may
 * have been away too. So during its first minute it assumes that silent peers return and run images again. Otherwise the
 * first worker that returns and runs no images would fail the jobs that wait for an image.
 */
import type pg from 'pg';
import { readPeerMachines, WORKER_SILENCE_S, type WorkerCapacity } from '../worker-capacity.ts';

export type PeerWorkers = {
  /** The machines of all peers at the last refresh. */
  readonly machines: readonly WorkerCapacity[];
  /** @returns whether the machines have changed */
  refresh(): Promise<boolean>;
};

/** @param everyMs the longest time between two refreshes */
export function openPeerWorkers(
  services: { pool: pg.Pool },
  workerId: string,
  everyMs: number,
): PeerWorkers {
  let machines: readonly WorkerCapacity[] = [];
  let refreshedAt = Number.NEGATIVE_INFINITY;
  let presentSince = Number.NEGATIVE_INFINITY;
  return {
    get machines() {
      return machines;
    },
    async refresh() {
      // The wall clock, because the monotonic clock stops while the machine is suspended.
      const now = Date.now();
      if (now - refreshedAt > 2 * everyMs) presentSince = now;
      const isNew = now - presentSince < WORKER_SILENCE_S * 1000;
      const previous = JSON.stringify(machines);
      machines = await readPeerMachines(services, workerId, isNew);
      refreshedAt = now;
      return JSON.stringify(machines) !== previous;
    },
  };
}
