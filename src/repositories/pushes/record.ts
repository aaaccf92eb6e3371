/** Records pushes: updates the repository's row from the state on disk. */

import type pg from 'pg';
import type { Logger } from '../../base/log.ts';
import type { Git } from '../../git/git.ts';
import { REF_PREFIX, setHead } from '../../git/objects/refs.ts';
import { ZERO_ID } from '../../git/transport/hooks.ts';
import { withConnection } from '../../platform/database/client.ts';
import { pipeline } from '../../platform/database/statement.ts';
import { snapshotIdOf } from '../snapshots.ts';
import { classifyPushes } from './classify.ts';
import { type Measurements, measureRepository } from './measure.ts';
import { beginAndLock, type PushToRecord, readRecordedState, writeRecord } from './rows.ts';

type Deps = { git: Git; log: Logger; pool: pg.Pool };

/** Tries when other servers record pushes to the same repository at the same time. */
const MAX_TRIES = 5;

/**
 * Measures the repository and writes an event for each push, oldest first, in one transaction. Git runs before the
 * transaction to keep it short, because event readers wait for it (`platform/events/read.ts`). If another server
 * records a push in between, the measurement is outdated and is repeated.
 *
 * Does nothing if no push took effect or the repository no longer exists. Recording a push twice creates no second
 * event.
 * @returns the pushes to record later, because a push that is not recorded yet has moved their refs further
 */
export async function recordPushes(
  services: Deps,
  id: string,
  pushes: readonly PushToRecord[],
): Promise<ReadonlySet<PushToRecord>> {
  for (let tries = 1; tries <= MAX_TRIES; tries++) {
    const undecided = await recordMeasured(services, id, pushes);
    if (undecided) return undecided;
  }
  throw new Error(`other servers recorded pushes during each of ${MAX_TRIES} tries`);
}

/** @returns null if another record was written in between, else the pushes to record later */
async function recordMeasured(
  services: Deps,
  id: string,
  pushes: readonly PushToRecord[],
): Promise<ReadonlySet<PushToRecord> | null> {
  const { git, pool } = services;
  const row = await readRecordedState(pool, id, eventWindow(pushes));
  if (!row) return new Set();
  const dir = git.disk.pathOf(id);
  const { recorded } = row;
  const { refs, ...measures } = await measureRepository(services, id, (refs) =>
    chooseDefaultBranch(row, classifyPushes(pushes, refs, recorded).effective, refs),
  );
  const { effective, undecided } = classifyPushes(pushes, refs, recorded);
  if (effective.length === 0) return undecided;
  if (measures.defaultBranch !== row.defaultBranch) await setHead(dir, measures.defaultBranch);

  return withConnection(pool, async (client) => {
    const locked = await beginAndLock(client, id, effective);
    const isUnchanged = locked?.records === row.records;
    await pipeline(client, async (tx) => {
      if (locked && isUnchanged) {
        // A late record must not set these times back.
        const pushes = withoutSnapshots(effective);
        const last = pushes.at(-1);
        const pushedAt = last ? latest(new Date(last.at), locked.pushedAt) : locked.pushedAt;
        const updatedAt = pushedAt ? latest(pushedAt, locked.updatedAt) : locked.updatedAt;
        const unrecorded = pushes.filter(({ event }) => !locked.existingEvents.includes(event));
        const snapshots = effective
          .flatMap(({ commands }) => commands)
          .flatMap((command) => snapshotIdOf(command) ?? []);
        const changes = { ...measures, pushedAt, updatedAt, snapshots };
        await writeRecord(tx, locked, changes, unrecorded);
      }
      await tx.query({ text: 'commit' });
    });
    return !locked || isUnchanged ? undecided : null;
  });
}

/** Leaves out snapshots, and pushes of nothing else: they are not pushes to the users of the repository. */
function withoutSnapshots(pushes: readonly PushToRecord[]): PushToRecord[] {
  return pushes
    .map((push) => ({
      ...push,
      commands: push.commands.filter((command) => snapshotIdOf(command) === null),
    }))
    .filter(({ commands }) => commands.length > 0);
}

function latest(a: Date, b: Date | null): Date {
  return b && b > a ? b : a;
}

/** Number of latest events that are searched for the last update of a ref. */
const MAX_EVENTS = 100;
const MAX_RECENT_EVENTS = 20;

/**
 * Chooses the events to read. If git reported on all pushes, only events younger than the pushes matter. There is
 * rarely one, so the query reads the data of almost no events.
 */
function eventWindow(pushes: readonly PushToRecord[]): { since: Date; limit: number } {
  const isKnown = pushes.every(({ updated }) => updated !== null);
  if (!isKnown) return { since: new Date(0), limit: MAX_EVENTS };
  const since = new Date(Math.min(...pushes.map(({ at }) => Date.parse(at))));
  return { since, limit: MAX_RECENT_EVENTS };
}

/** Preferred default branches for a repository that was empty. */
const PREFERRED_BRANCHES = ['main', 'master'];

/**
 * Chooses the default branch. It changes only if the repository was empty and the pushes did not create the branch. The
 * new default branch is a preferred branch of the first push, or else its first branch.
 */
function chooseDefaultBranch(
  { branchCount, defaultBranch }: { branchCount: number; defaultBranch: string },
  effective: readonly PushToRecord[],
  refs: Measurements['refs'],
): string {
  if (branchCount > 0 || refs.has(REF_PREFIX.branch + defaultBranch)) return defaultBranch;
  for (const { commands } of effective) {
    const pushed = commands
      .filter(
        ({ ref, after }) => after !== ZERO_ID && ref.startsWith(REF_PREFIX.branch) && refs.has(ref),
      )
      .map(({ ref }) => ref.slice(REF_PREFIX.branch.length));
    const chosen = PREFERRED_BRANCHES.find((name) => pushed.includes(name)) ?? pushed[0];
    if (chosen !== undefined) return chosen;
  }
  return defaultBranch;
}
