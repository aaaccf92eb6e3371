/** Is it up, and which one is it. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Db } from '../../platform/database/client.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';

const ROOT = join(import.meta.dirname, '../../..');

export type Version = { version: 'v1'; build: string; commit: string | null };

/** `degraded` when the database does not answer or the disk is nearly full; that is a 503 over REST. */
export async function health({
  db,
  space,
}: {
  db: Db;
  space: DiskSpace;
}): Promise<'ok' | 'degraded'> {
  return !space.low && (await databaseAnswers(db)) ? 'ok' : 'degraded';
}

/** Within two seconds. Whether requests should be sent here: on a disk that is nearly full reads go on. */
export async function databaseAnswers(db: Db): Promise<boolean> {
  const { promise: late, resolve } = Promise.withResolvers<boolean>();
  const timer = setTimeout(resolve, 2_000, false);
  const answer = db.$queryRaw`select 1`.then(
    () => true,
    () => false,
  );
  return Promise.race([answer, late]).finally(() => clearTimeout(timer));
}

/** Read once: neither changes while we run. */
export const version: Version = {
  version: 'v1',
  build: JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')).version,
  commit: checkedOutCommit(),
};

/** The commit of the checkout we run from, without starting `git`; null outside one. */
function checkedOutCommit(): string | null {
  try {
    const head = readFileSync(join(ROOT, '.git/HEAD'), 'utf8').trim();
    const ref = head.replace(/^ref: /, '');
    return ref === head ? head : readFileSync(join(ROOT, '.git', ref), 'utf8').trim();
  } catch {
    return null;
  }
}
