/** The record of pushes: the repository's row, brought up to what is on disk. */

import type pg from 'pg';
import type { Logger } from '../../base/log.ts';
import type { Git } from '../../git/git.ts';
import { PREFIX, setHead } from '../../git/objects/refs.ts';
import { NONE } from '../../git/transport/hooks.ts';
import { onConnection } from '../../platform/database/client.ts';
import { pipeline } from '../../platform/database/statement.ts';
import { sortPushes } from './effective.ts';
import { type Measures, measure } from './measure.ts';
import { beginLocked, type Pushed, readRecorded, writeRecord } from './rows.ts';

type Deps = { git: Git; log: Logger; pool: pg.Pool };

/** Of measuring again because another server has recorded meanwhile. */
const TRIES = 5;

/**
 * Measures the repository once and writes an event for each push, oldest first, in one transaction. Git runs before the
 * transaction, which is short, because events of others wait for its end (`events/read.ts`). So another server,
 * which had the repository before or has it next, may record pushes between the two; what was measured is old then,
 * and is measured again.
 *
 * Does nothing when no push took effect, or the repository is gone. A push that is recorded again gets no second
 * event.
 * @returns the pushes that are to be recorded later, because another has moved their refs on that is not recorded itself
 */
export async function recordPushes(
  services: Deps,
  id: string,
  pushes: readonly Pushed[],
): Promise<ReadonlySet<Pushed>> {
  for (let tries = 1; tries <= TRIES; tries++) {
    const open = await recordMeasured(services, id, pushes);
    if (open) return open;
  }
  throw new Error('other servers record pushes again and again');
}

/** @returns null when another record was written meanwhile; else the pushes that are left */
async function recordMeasured(
  services: Deps,
  id: string,
  pushes: readonly Pushed[],
): Promise<ReadonlySet<Pushed> | null> {
  const { git, pool } = services;
  const row = await readRecorded(pool, id, lookedThrough(pushes));
  if (!row) return new Set();
  const dir = git.disk.pathOf(id);
  const { told } = row;
  const { refs, ...measures } = await measure(services, id, (refs) =>
    defaultBranchOf(row, sortPushes(pushes, refs, told).effective, refs),
  );
  const { effective, open } = sortPushes(pushes, refs, told);
  if (effective.length === 0) return open;
  if (measures.defaultBranch !== row.defaultBranch) await setHead(dir, measures.defaultBranch);

  return onConnection(pool, async (client) => {
    const locked = await beginLocked(client, id, effective);
    const isSame = locked?.records === row.records;
    await pipeline(client, async (tx) => {
      if (locked && isSame) {
        // A record that was late must not turn these back.
        const at = new Date(effective.at(-1)?.at ?? Date.now());
        const pushedAt = latest(at, locked.pushedAt);
        const updatedAt = latest(pushedAt, locked.updatedAt);
        const fresh = effective.filter(({ event }) => !event || !locked.written.includes(event));
        await writeRecord(tx, locked, { ...measures, pushedAt, updatedAt }, fresh);
      }
      await tx.query({ text: 'commit' });
    });
    return !locked || isSame ? open : null;
  });
}

function latest(one: Date, other: Date | null): Date {
  return other && other > one ? other : one;
}

/** As many events are looked through for those that moved a ref last. */
const EVENTS_READ = 100;
const YOUNG_EVENTS_READ = 20;

/**
 * Which events matter. Where git said what all of the pushes did, only those that are younger than they: seldom one, so the
 * data of no other is read.
 */
function lookedThrough(pushes: readonly Pushed[]): { since: Date; limit: number } {
  const isKnown = pushes.every(({ updated }) => updated !== null);
  if (!isKnown) return { since: new Date(0), limit: EVENTS_READ };
  const since = new Date(Math.min(...pushes.map(({ at }) => Date.parse(at))));
  return { since, limit: YOUNG_EVENTS_READ };
}

/** Where there is a choice, for an empty repository that was to have another default branch. */
const USUAL = ['main', 'master'];

/**
 * The default branch stays, unless the repository was empty and what was pushed to it lacks that branch: then
 * it is the usual one of the branches of the first push, else the first.
 */
function defaultBranchOf(
  { branchCount, defaultBranch }: { branchCount: number; defaultBranch: string },
  effective: readonly Pushed[],
  refs: Measures['refs'],
): string {
  if (branchCount > 0 || refs.has(PREFIX.branch + defaultBranch)) return defaultBranch;
  for (const { commands } of effective) {
    const pushed = commands
      .filter(({ ref, after }) => after !== NONE && ref.startsWith(PREFIX.branch) && refs.has(ref))
      .map(({ ref }) => ref.slice(PREFIX.branch.length));
    const chosen = USUAL.find((name) => pushed.includes(name)) ?? pushed[0];
    if (chosen !== undefined) return chosen;
  }
  return defaultBranch;
}
