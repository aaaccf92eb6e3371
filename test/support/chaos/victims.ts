/** Parts of a job that are killed by themselves: what records a container, and what runs a process. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { isAlive, readClaim } from '../../../src/runners/supervisor/folder.ts';
import { signalOne } from '../../../src/runners/supervisor/proc.ts';
import type { Victim } from '../kills/killer.ts';
import type { OneServer } from '../many-servers.ts';

/** Where the data folder of a worker has the attempts, and where in an attempt's folder it says which process it is. */
const CLAIMS = {
  recorder: { folder: 'containers', claim: 'record/claim' },
  shim: { folder: 'attempts', claim: 'claim' },
};
export type Part = keyof typeof CLAIMS;
const PARTS: readonly Part[] = ['recorder', 'shim'];

/** The name of the victim that it is. */
export const ENGINE = 'dockerd';

/** Attempts by what was killed of them, each as often as it was. */
export type Hit = Record<Part, string[]>;

/** At some moments a worker has no job. */
const TRIES = 20;
const AGAIN_MS = 100;

/**
 * One of them, if there is any. The server that runs sees to what becomes of its attempt.
 *
 * Not beside what else knows how a container ended: when nobody saw it, nobody can say.
 */
export function onePart(part: Part, { name, dataDir }: OneServer, hit: Hit): Victim {
  return {
    name: `a ${part} of ${name}`,
    ...(part === 'recorder' && { of: [ENGINE, name] }),
    async kill() {
      for (let tries = 0; tries < TRIES; tries++) {
        const found = await partsOf(part, dataDir);
        const pid = [...found.keys()][Math.floor(Math.random() * found.size)];
        if (pid !== undefined) return end(part, [pid], found, hit);
        await delay(AGAIN_MS);
      }
    },
    start: async () => {},
  };
}

/** A worker with all recorders and shims that it has, as an init system kills a whole service. */
export function allOf(server: OneServer, start: () => Promise<void>, hit: Hit): Victim {
  const { name, dataDir } = server;
  return {
    name: `all of ${name}`,
    of: [ENGINE, name],
    async kill() {
      const found = await Promise.all(
        PARTS.map(async (part) => [part, await partsOf(part, dataDir)] as const),
      );
      const killed = server.kill();
      for (const [part, pids] of found) end(part, [...pids.keys()], pids, hit);
      await killed;
    },
    start,
  };
}

/** Their processes that live, with the attempts of each: a shim takes one after the other. */
async function partsOf(part: Part, dataDir: string): Promise<Map<number, string[]>> {
  const { folder, claim: file } = CLAIMS[part];
  const found = new Map<number, string[]>();
  const names = await readdir(join(dataDir, folder)).catch(() => []);
  for (const attempt of names.filter((name) => name.startsWith('att_'))) {
    const claim = await readClaim(join(dataDir, folder, attempt, file));
    if (claim && isAlive(claim)) found.set(claim.pid, [...(found.get(claim.pid) ?? []), attempt]);
  }
  return found;
}

function end(part: Part, pids: number[], found: Map<number, string[]>, hit: Hit): void {
  for (const pid of pids) {
    hit[part].push(...(found.get(pid) ?? []));
    signalOne(pid, 'SIGKILL');
  }
}
