/**
 * A process that puts, reads and removes large files and sweeps, until it is killed. It prints a line when an operation
 * starts and a line when it is done. Its arguments: a database, a storage folder, a seed, and repositories, each of which
 * has its own loop.
 */
import { hash } from 'node:crypto';
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { readConfig } from '../../../src/base/config/config.ts';
import { createLog } from '../../../src/base/log.ts';
import { watchDiskSpace } from '../../../src/platform/storage/disk-space.ts';
import { openFolder } from '../../../src/platform/storage/folder.ts';
import { openLargeFiles } from '../../../src/repositories/lfs/store/store.ts';
import { sweepLargeFiles } from '../../../src/repositories/lfs/store/sweep.ts';

export const VERSIONS = 24;
/** Longer than any upload takes here, also on a busy machine. */
const GRACES = { uploads: 5_000, retired: 0 };

/** The content of a version: most of it is also in adjacent versions. Some are one chunk, the largest is 5 MB. */
export function contentsOf(version: number): Buffer {
  const blocks = 1 + (version % 6) * 25;
  const block = (n: number) => Buffer.alloc(32_768, hash('sha512', `block ${n}`, 'buffer'));
  const all = Array.from({ length: blocks }, (_, i) => block(i + (version >> 2)));
  const noise = Buffer.from(hash('sha512', `version ${version}`, 'buffer'));
  return Buffer.concat([...all.slice(0, blocks >> 1), noise, ...all.slice(blocks >> 1)]);
}

export function oidOf(bytes: Buffer): string {
  return hash('sha256', bytes);
}

export type Line = {
  step: 'begins' | 'done' | 'failed';
  action: 'put' | 'remove' | 'sweep';
  repository: string;
  version: number;
};

async function work([url, folder, seed, ...repositories]: string[]): Promise<void> {
  const log = createLog('warn');
  const pool = new pg.Pool({ connectionString: url, max: 10 });
  const storage = await openFolder(folder ?? '');
  const config = readConfig({});
  const space = await watchDiskSpace({ folders: [], floor: 0, log, onFree() {} });
  const files = openLargeFiles({ pool, storage, config, space, log }, new Uint8Array(32));
  const { signal } = new AbortController();
  let state = Number(seed);
  const random = (below: number) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    return (state >>> 8) % below;
  };
  const say = (line: Line) => process.stdout.write(`${JSON.stringify(line)}\n`);

  async function step(line: Omit<Line, 'step'>, what: () => Promise<unknown>) {
    say({ ...line, step: 'begins' });
    try {
      await what();
      say({ ...line, step: 'done' });
    } catch (error) {
      say({ ...line, step: 'failed' });
      throw error;
    }
  }

  async function loop(repository: string): Promise<never> {
    for (;;) {
      const version = random(VERSIONS);
      const bytes = contentsOf(version);
      const oid = oidOf(bytes);
      const body = async function* () {
        for (let at = 0; at < bytes.length; at += 500_000) {
          yield bytes.subarray(at, at + 500_000);
          await delay(random(8));
        }
      };
      if (random(3) > 0) {
        const object = { oid, size: bytes.length };
        const put = () => files.put(repository, object, body(), signal);
        await step({ action: 'put', repository, version }, put);
        const found = await files.open(repository, oid);
        if (!found || !(await buffer(found.body())).equals(bytes))
          throw new Error(`version ${version} is not what was put`);
      } else {
        const remove = () => files.remove(repository, [oid]);
        await step({ action: 'remove', repository, version }, remove);
      }
    }
  }

  async function sweep(): Promise<never> {
    for (;;) {
      const line = { action: 'sweep', repository: '', version: 0 } as const;
      await step(line, () => sweepLargeFiles({ pool, storage, log, config }, GRACES));
      await delay(random(50));
    }
  }

  await Promise.all([sweep(), ...repositories.map(loop)]);
}

if (import.meta.main) await work(process.argv.slice(2));
