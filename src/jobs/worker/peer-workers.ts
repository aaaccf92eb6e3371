/**
 * What the other workers offer, as this one knows it.
 *
 * One that was away itself (just started, without the database, suspended) cannot tell who is gone: the others may have been
 * away with it, and be back a moment later. So until it has looked around for a minute, those that are silent count as
 * workers that will run images again. Else the first that is back, and runs none, would fail the jobs that wait for them.
 */
import type pg from 'pg';
import { machinesElsewhere, WORKER_SILENCE_S, type WorkerCapacity } from '../worker-capacity.ts';

export type PeerWorkers = {
  /** As they were at the last look. */
  readonly machines: readonly WorkerCapacity[];
  /** @returns whether they offer something else than before */
  look(): Promise<boolean>;
};

/** @param everyMs how long it is from one look to the next, at most */
export function openPeerWorkers(
  services: { pool: pg.Pool },
  workerId: string,
  everyMs: number,
): PeerWorkers {
  let machines: readonly WorkerCapacity[] = [];
  let lastLook = Number.NEGATIVE_INFINITY;
  let thereSince = Number.NEGATIVE_INFINITY;
  return {
    get machines() {
      return machines;
    },
    async look() {
      const now = Date.now();
      // By the time of day, which goes on while the machine is suspended.
      if (now - lastLook > 2 * everyMs) thereSince = now;
      const isNew = now - thereSince < WORKER_SILENCE_S * 1000;
      const before = JSON.stringify(machines);
      machines = await machinesElsewhere(services, workerId, isNew);
      lastLook = now;
      return JSON.stringify(machines) !== before;
    },
  };
}
