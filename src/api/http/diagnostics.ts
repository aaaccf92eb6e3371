/** Health and version of this server. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { demandOperator, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import type { Disk, DiskSpace } from '../../platform/storage/disk-space.ts';

const ROOT = join(import.meta.dirname, '../../..');

export type Version = { version: 'v1'; build: string; commit: string | null };

/** `degraded` when the database does not answer or the disk is nearly full; REST then responds with 503. */
export async function checkHealth({
  db,
  space,
}: {
  db: Db;
  space: DiskSpace;
}): Promise<'ok' | 'degraded'> {
  return !space.low && (await isDatabaseReachable(db)) ? 'ok' : 'degraded';
}

/**
 * Whether the database answers within two seconds. Used by load balancers. A nearly full disk is ignored, because reads
 * still work.
 */
export async function isDatabaseReachable(db: Db): Promise<boolean> {
  const { promise: timeout, resolve } = Promise.withResolvers<boolean>();
  const timer = setTimeout(resolve, 2_000, false);
  const reply = db.$queryRaw`select 1`.then(
    () => true,
    () => false,
  );
  return Promise.race([reply, timeout]).finally(() => clearTimeout(timer));
}

export type ServerHealth = {
  isDatabaseReachable: boolean;
  /** The time of one query. */
  databaseMs: number;
  disks: Disk[];
};

/** The parts that `checkHealth` judges, for operators. @throws AppError 401, 403 */
export async function readServerHealth(
  { db, space }: { db: Db; space: DiskSpace },
  viewer: Viewer,
): Promise<ServerHealth> {
  demandOperator(viewer);
  const start = performance.now();
  const reachable = await isDatabaseReachable(db);
  const databaseMs = performance.now() - start;
  return { isDatabaseReachable: reachable, databaseMs, disks: await space.disks() };
}

/** Read once: the files do not change while the process runs. */
export const version: Version = {
  version: 'v1',
  build: JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')).version,
  commit: checkedOutCommit(),
};

/** The commit of the checkout, read without starting `git`; null outside a checkout. */
function checkedOutCommit(): string | null {
  try {
    const head = readFileSync(join(ROOT, '.git/HEAD'), 'utf8').trim();
    const ref = head.replace(/^ref: /, '');
    return ref === head ? head : readFileSync(join(ROOT, '.git', ref), 'utf8').trim();
  } catch {
    return null;
  }
}
