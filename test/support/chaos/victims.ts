/** Parts of a job that are killed separately: the shim of a container, and the shim of a process. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { isAlive, readClaim } from '../../../src/runners/supervisor/folder.ts';
import { signalOne } from '../../../src/runners/supervisor/proc.ts';
import type { Victim } from '../kills/killer.ts';
import type { OneServer } from '../many-servers.ts';

/** The folder of attempts in a worker's data folder, and the file in an attempt's folder that names its process. */
const CLAIMS = {
  containerShim: { folder: 'containers', claim: 'claim' },
  processShim: { folder: 'attempts', claim: 'claim' },
};
export type Part = keyof typeof CLAIMS;
const PARTS: readonly Part[] = ['containerShim', 'processShim'];

/** The name of the engine among the victims. */
export const ENGINE = 'dockerd';

/** The attempts whose shim was killed, once for each kill. */
export type KilledAttempts = Record<Part, string[]>;

/** Retries, because a worker has no job at some moments. */
const TRIES = 20;
const AGAIN_MS = 100;

/**
 * One shim, if there is any. The running server handles the consequences for its attempt.
 *
 * The shim of a container is not killed together with the engine or the worker, because nothing else would know how its
 * container ended.
 */
export function partVictim(
  part: Part,
  { name, dataDir }: Pick<OneServer, 'name' | 'dataDir'>,
  hit: KilledAttempts,
): Victim {
  return {
    name: `a ${part} of ${name}`,
    ...(part === 'containerShim' && { of: [ENGINE, name] }),
    async kill() {
      for (let tries = 0; tries < TRIES; tries++) {
        const found = await findParts(part, dataDir);
        const pid = [...found.keys()][Math.floor(Math.random() * found.size)];
        if (pid !== undefined) return killParts(part, [pid], found, hit);
        await delay(AGAIN_MS);
      }
    },
    start: async () => {},
  };
}

/** A worker with all its shims, as when an init system kills a whole service. */
export function wholeWorkerVictim(
  server: OneServer,
  start: () => Promise<void>,
  hit: KilledAttempts,
): Victim {
  const { name, dataDir } = server;
  return {
    name: `all of ${name}`,
    of: [ENGINE, name],
    async kill() {
      const found = await Promise.all(
        PARTS.map(async (part) => [part, await findParts(part, dataDir)] as const),
      );
      const killed = server.kill();
      for (const [part, pids] of found) killParts(part, [...pids.keys()], pids, hit);
      await killed;
    },
    start,
  };
}

/** The live processes with the attempts of each: a shim runs several attempts in turn. */
async function findParts(part: Part, dataDir: string): Promise<Map<number, string[]>> {
  const { folder, claim: file } = CLAIMS[part];
  const found = new Map<number, string[]>();
  const names = await readdir(join(dataDir, folder)).catch(() => []);
  for (const attempt of names.filter((name) => name.startsWith('att_'))) {
    const claim = await readClaim(join(dataDir, folder, attempt, file));
    if (claim && isAlive(claim)) found.set(claim.pid, [...(found.get(claim.pid) ?? []), attempt]);
  }
  return found;
}

function killParts(
  part: Part,
  pids: number[],
  found: Map<number, string[]>,
  hit: KilledAttempts,
): void {
  for (const pid of pids) {
    hit[part].push(...(found.get(pid) ?? []));
    signalOne(pid, 'SIGKILL');
  }
}
