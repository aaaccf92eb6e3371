/** Is it up, and which one is it. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Db } from './db.ts';

const ROOT = join(import.meta.dirname, '..');

export type Version = { version: 'v1'; build: string; commit: string | null };

/** `degraded` when the database does not answer within two seconds; the doors turn that into a 503. */
export async function health(db: Db): Promise<'ok' | 'degraded'> {
  const { promise: late, resolve } = Promise.withResolvers<'degraded'>();
  const timer = setTimeout(resolve, 2_000, 'degraded' as const);
  const answer = db.$queryRaw`select 1`.then(
    () => 'ok' as const,
    () => 'degraded' as const,
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
