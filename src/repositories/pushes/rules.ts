/**
 * What a push must pass, and what follows from it.
 *
 *   unpack into quarantine → judge → note that it was begun → git updates refs → record → answer the client
 *
 * Nothing takes effect before the judge has agreed, and the client gets success only after the record
 * is in the database. Where that cannot be written, the client's connection breaks off and it is tried again
 * (`recorder.ts`); killed between the two, the server finds its note at the next start and records then.
 */

import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { AppError, diskFull } from '../../base/errors.ts';
import { newId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import type { Begun } from '../../git/disk/disk.ts';
import type { Git } from '../../git/git.ts';
import { isCommitId, isRefName, MAX_REF_BYTES } from '../../git/names.ts';
import { PREFIX } from '../../git/objects/refs.ts';
import { sizeOf } from '../../git/objects/walk.ts';
import { NONE, type Push, type Verdict } from '../../git/transport/hooks.ts';
import type { PushRules } from '../../git/transport/receive.ts';
import { actorOf } from '../../identity/audit.ts';
import type { Account } from '../../identity/permissions.ts';
import type { Recheck } from '../../identity/rechecks.ts';
import type { Db } from '../../platform/database/client.ts';
import { storageExceeded, storageLeft, storageLimit } from '../../platform/limits/quotas.ts';
import { PushReservation } from '../../platform/limits/storage.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import { judgeBranches } from './branches.ts';
import { refused } from './brought.ts';
import { judgeLocks } from './locks.ts';
import { judgeNewFiles } from './new-files.ts';
import type { PushRecorder } from './recorder.ts';
import type { BegunPush } from './rows.ts';
import { type Room, readJudged, readRoom } from './rows.ts';
import type { FindingIds } from './secrets/find.ts';

type Deps = {
  db: Db;
  pool: pg.Pool;
  git: Git;
  config: Config;
  log: Logger;
  pushes: PushRecorder;
  space: DiskSpace;
  findingIds: FindingIds;
  largeFiles: LargeFiles;
};

export type PushBy = {
  repositoryId: string;
  by: Account;
  requestId: string;
  /** That the pusher may push; it is asked again before anything takes effect. */
  right: Pick<Recheck, 'fresh'>;
};

/** A look at what a push brings that takes longer is none: the push is refused and says so. */
const MAX_LOOK_MS = 60_000;
/** For an answer whether the pusher still may push, which comes within seconds while there is a database. */
const MAX_RECHECK_MS = 10_000;
/** Of a ref's name in a refusal. */
const MAX_SHOWN = 300;

/**
 * For `receivePack`: one object per push. `by` may push: its caller has asked. The pack may
 * take hours to come, so the right is asked for again at its end. The request's id is shown where something fails on
 * our side, and stands in the log.
 */
export async function pushRules(
  services: Deps,
  { repositoryId: id, by, requestId, right }: PushBy,
): Promise<PushRules> {
  const { db, git, log, pool, pushes } = services;
  const room = await readRoom(pool, id);
  const event = newId('evt');
  const reservation = new PushReservation(services, event);
  let begun: Begun<BegunPush> | undefined;
  return {
    hooks: git.hooks,
    locks: git.locks,
    limit: limitOf(services, room),
    async judge(push, signal) {
      try {
        const verdict = await judge(services, { id, by, push, signal, reservation });
        // While the database is away nobody answers whether the pusher still may push.
        await right.fresh(AbortSignal.any([signal, AbortSignal.timeout(MAX_RECHECK_MS)]));
        const at = new Date().toISOString();
        const { commands } = push;
        if (verdict.accepted)
          begun = await git.disk.begin(id, {
            kind: 'push',
            event,
            pusher: by.username,
            by: actorOf(by),
            commands,
            at,
          });
        return verdict;
      } catch (error) {
        if (error instanceof AppError && error.status < 500) return refused(error.message);
        if (await isGone(db, id)) return refused(DELETED);
        log.error({ err: error, repository: id, req: { id: requestId } }, 'a push was not judged');
        return refused(
          'The push could not be checked because of a fault on the server, and nothing was changed.',
          `Try again; the request id ${requestId} helps its operator to find the fault.`,
        );
      } finally {
        if (!begun) await reservation.release();
      }
    },
    async settle(updated) {
      if (!begun) return;
      await pushes.record(begun, updated);
      await reservation.release();
      const dir = git.disk.pathOf(id);
      git.maintenance.schedule(dir);
      const moved = (updated ?? []).filter(
        ({ ref, after }) => ref.startsWith(PREFIX.branch) && after !== NONE,
      );
      const tips = moved.map(({ after }) => after);
      git.tasks.background(() => git.history.prepare(git.objects, dir, tips));
    },
  };
}

/** What the pack of a push may take, and what its sender is told when it is larger. */
function limitOf(services: Deps, room: Room | null): PushRules['limit'] {
  if (!room) return { maxBytes: 0, reason: DELETED };
  const left = storageLeft(services, room);
  if (services.space.room < left)
    return { maxBytes: services.space.room, reason: diskFull().message };
  const { plan, storageBytes } = room;
  const numbers = { limit: storageLimit(services, plan), used: Number(storageBytes), adding: null };
  return { maxBytes: left, reason: storageExceeded(plan, numbers).message };
}

const DELETED = 'The repository was deleted';

/** Deleting takes a repository's folder away from whoever looks into it just then, which fails in many ways. */
async function isGone(db: Db, id: string): Promise<boolean> {
  return db.repository.count({ where: { id } }).then(
    (count) => count === 0,
    () => false,
  );
}

type Asked = {
  id: string;
  by: Account;
  push: Push;
  signal: AbortSignal;
  reservation: PushReservation;
};

async function judge(
  services: Deps,
  { id, by, push, signal, reservation }: Asked,
): Promise<Verdict> {
  const { commands, quarantine, options } = push;
  const row = await readJudged(services.pool, id, by.userId);
  if (!row) return refused(DELETED);
  for (const { ref, after } of commands) {
    const problem = after === NONE ? undefined : problemOf(ref);
    if (problem) return refused(`${ref.slice(0, MAX_SHOWN)} ${problem}; choose another name`);
  }
  const limit = AbortSignal.timeout(MAX_LOOK_MS);
  const bounded = AbortSignal.any([signal, limit]);
  const place = { dir: services.git.disk.pathOf(id), quarantine, signal: bounded };
  const protection = {
    namespaceId: row.namespaceId,
    defaultBranch: row.branchProtection ? row.defaultBranch : null,
    rules: row.rules,
  };
  if (services.space.low) return refused(diskFull().message);
  await reservation.take(row.namespaceId, row.plan, quarantine ? sizeOf(quarantine) : 0);
  const repository = { id, name: row.name, namespaceId: row.namespaceId };
  const tips = commands.map(({ after }) => after).filter((after) => after !== NONE);
  const brought = { repository, by, commands, tips, options, place };
  try {
    const branches = await judgeBranches(protection, by, commands, place);
    if (!branches.accepted) return branches;
    const locked = await judgeLocks(row.locks, brought);
    if (!locked.accepted) return locked;
    return await judgeNewFiles(services, brought, { forSecrets: row.secretScanning });
  } catch (error) {
    if (!limit.aborted) throw error;
    return refused(
      `What the push brings could not be looked at within ${MAX_LOOK_MS / 1000} seconds.`,
      `Push it in parts${row.secretScanning ? ', or switch secret scanning off for it' : ''}.`,
    );
  }
}

/** Why a ref of this name could not be asked for by it. */
function problemOf(ref: string): string | undefined {
  const name = ref.replace(/^refs\/(heads|tags)\//, '');
  if (isCommitId(name)) return "has the form of a commit's id, and would be taken for that commit";
  // What the hook's pipe gave for bytes that are no UTF-8.
  if (name.includes('\ufffd')) return 'is not UTF-8';
  if (!isRefName(name))
    return `is no name here: it may have ${MAX_REF_BYTES} bytes, not begin with "-", and not be "@"`;
  return undefined;
}
