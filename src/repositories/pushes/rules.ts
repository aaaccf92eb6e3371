/**
 * Connects a push to its checks and its record.
 *
 *   unpack into quarantine → check → write a note → git updates refs → record → answer the client
 *
 * Nothing takes effect before the checks accept the push. The client gets success only after the record is in the
 * database. If recording fails, the connection is closed and the record is retried (`recorder.ts`); if the server is
 * killed in between, the next start finds the note and records the push.
 */

import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { AppError, diskFull } from '../../base/errors.ts';
import { newId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import type { PendingOperation } from '../../git/disk/disk.ts';
import type { Git } from '../../git/git.ts';
import { isCommitId, isRefName, looksLikeFullName, MAX_REF_BYTES } from '../../git/names.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { measureQuarantine } from '../../git/objects/walk.ts';
import { type Push, type Verdict, ZERO_ID } from '../../git/transport/hooks.ts';
import type { PushRules } from '../../git/transport/receive.ts';
import { copyActor } from '../../identity/audit.ts';
import type { Account } from '../../identity/permissions.ts';
import type { Recheck } from '../../identity/rechecks.ts';
import type { Db } from '../../platform/database/client.ts';
import type { IdempotentEffect } from '../../platform/database/idempotent-effects.ts';
import { storageExceeded, storageLeft, storageLimit } from '../../platform/limits/quotas.ts';
import { PushReservation } from '../../platform/limits/storage.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import { findSnapshotProblem } from '../snapshots.ts';
import { checkBranches, checkRequiredJobs } from './branches.ts';
import { reject, type ScanVerdict } from './incoming-push.ts';
import { checkLocks } from './locks.ts';
import type { PushRecorder } from './recorder.ts';
import type { PushNote } from './rows.ts';
import { type NamespaceStorage, readNamespaceStorage, readPushPolicy } from './rows.ts';
import { scanNewObjects } from './scan-new-objects.ts';
import type { FindingIds } from './secret-scanning/find.ts';
import { findTriggers, type JobsFile, type PushTrigger } from './triggers.ts';

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
  jobsFile: JobsFile;
};

type PushRequest = {
  repositoryId: string;
  by: Account;
  requestId: string;
  /** The permission to push, which is checked again before anything takes effect. */
  right: Pick<Recheck, 'waitForFreshCheck'>;
  effect?: IdempotentEffect | undefined;
};

/** Time limit of the checks. A push whose checks take longer is rejected. */
const MAX_CHECK_MS = 60_000;
/** Time limit for rechecking the permission. The answer takes seconds at most while the database is available. */
const MAX_RECHECK_MS = 10_000;
/** Characters of a ref name shown in a message. */
const MAX_NAME_IN_MESSAGE = 300;

/**
 * Creates the rules for one push by `receivePack`. The caller has checked that `by` may push; because the pack may take
 * hours to arrive, the permission is checked again at its end. The request id is shown on server errors and is in the
 * log.
 */
export async function createPushRules(
  services: Deps,
  { repositoryId: id, by, requestId, right, effect }: PushRequest,
): Promise<PushRules> {
  const { db, git, log, pool, pushes } = services;
  const namespaceStorage = await readNamespaceStorage(pool, id);
  const event = newId('evt');
  const reservation = new PushReservation(services, event);
  let operation: PendingOperation<PushNote> | undefined;
  return {
    hooks: git.hooks,
    locks: git.locks,
    limit: packLimit(services, namespaceStorage),
    async judge(push, signal) {
      try {
        const { verdict, triggers, store } = await checkPush(services, {
          id,
          by,
          push,
          signal,
          reservation,
        });
        // Has a time limit, because the permission cannot be checked while the database is unavailable.
        await right.waitForFreshCheck(
          AbortSignal.any([signal, AbortSignal.timeout(MAX_RECHECK_MS)]),
        );
        const at = new Date().toISOString();
        const { commands } = push;
        if (verdict.accepted) {
          await store?.();
          operation = await git.disk.beginOperation(id, {
            kind: 'push',
            event,
            pusher: by.username,
            by: copyActor(by),
            commands,
            ...(triggers.length > 0 && { triggers }),
            ...(effect && { effect }),
            at,
          });
        }
        return verdict;
      } catch (error) {
        if (error instanceof AppError && error.status < 500) return reject(error.message);
        if (await isDeleted(db, id)) return reject(DELETED);
        log.error({ err: error, repository: id, req: { id: requestId } }, 'could not check a push');
        return reject(
          'The push could not be checked because of a server error. Nothing was changed.',
          `Try again. If it fails again, give the operator the request id ${requestId}.`,
        );
      } finally {
        if (!operation) await reservation.release();
      }
    },
    async settle(updated) {
      if (!operation) return;
      await pushes.record(operation, updated);
      await reservation.release();
      const dir = git.disk.pathOf(id);
      git.maintenance.schedule(dir);
      const movedBranches = (updated ?? []).filter(
        ({ ref, after }) => ref.startsWith(REF_PREFIX.branch) && after !== ZERO_ID,
      );
      const tips = movedBranches.map(({ after }) => after);
      git.tasks.background(() => git.history.prepare(git.objects, dir, tips));
    },
  };
}

/** The size limit for the pack, and the message for a larger one. */
function packLimit(services: Deps, namespaceStorage: NamespaceStorage | null): PushRules['limit'] {
  if (!namespaceStorage) return { maxBytes: 0, reason: DELETED };
  const remaining = storageLeft(services, namespaceStorage);
  if (services.space.room < remaining)
    return { maxBytes: services.space.room, reason: diskFull().message };
  const { plan, storageBytes } = namespaceStorage;
  const numbers = { limit: storageLimit(services, plan), used: Number(storageBytes), adding: null };
  return { maxBytes: remaining, reason: storageExceeded(plan, numbers).message };
}

const DELETED = 'The repository was deleted';

/** Deleting a repository removes its folder while a push may use it, so the push can fail in many ways. */
async function isDeleted(db: Db, id: string): Promise<boolean> {
  return db.repository.count({ where: { id } }).then(
    (count) => count === 0,
    () => false,
  );
}

type CheckInput = {
  id: string;
  by: Account;
  push: Push;
  signal: AbortSignal;
  reservation: PushReservation;
};

/** `triggers`: empty for a rejected push. `store`: to call before the push takes effect. */
type CheckedPush = { verdict: Verdict; triggers: PushTrigger[]; store?: ScanVerdict['store'] };

function rejected(...reasons: string[]): CheckedPush {
  return { verdict: reject(...reasons), triggers: [] };
}

async function checkPush(
  services: Deps,
  { id, by, push, signal, reservation }: CheckInput,
): Promise<CheckedPush> {
  const { commands, quarantine, options } = push;
  const row = await readPushPolicy(services.pool, id, by.userId);
  if (!row) return rejected(DELETED);
  for (const command of commands) {
    const { ref, after } = command;
    const snapshotProblem = findSnapshotProblem(command);
    if (snapshotProblem) return rejected(`${ref.slice(0, MAX_NAME_IN_MESSAGE)} ${snapshotProblem}`);
    const problem = after === ZERO_ID ? undefined : findNameProblem(ref);
    if (problem)
      return rejected(`${ref.slice(0, MAX_NAME_IN_MESSAGE)} ${problem}; choose another name`);
  }
  const timeout = AbortSignal.timeout(MAX_CHECK_MS);
  const withTimeout = AbortSignal.any([signal, timeout]);
  const quarantined = { dir: services.git.disk.pathOf(id), quarantine, signal: withTimeout };
  const protection = {
    namespaceId: row.namespaceId,
    defaultBranch: row.branchProtection ? row.defaultBranch : null,
    rules: row.rules,
  };
  if (services.space.low) return rejected(diskFull().message);
  await reservation.take(row.namespaceId, row.plan, quarantine ? measureQuarantine(quarantine) : 0);
  const repository = { id, name: row.name, namespaceId: row.namespaceId };
  const tips = commands.map(({ after }) => after).filter((after) => after !== ZERO_ID);
  const incoming = { repository, by, commands, tips, options, quarantined };
  try {
    const branchVerdict = await checkBranches(protection, by, commands, quarantined);
    if (!branchVerdict.accepted) return { verdict: branchVerdict, triggers: [] };
    const jobsVerdict = await checkRequiredJobs(services, id, row.rules, commands, withTimeout);
    if (!jobsVerdict.accepted) return { verdict: jobsVerdict, triggers: [] };
    const lockVerdict = await checkLocks(row.locks, incoming);
    if (!lockVerdict.accepted) return { verdict: lockVerdict, triggers: [] };
    const { defaultBranch } = row;
    const [scanned, { triggers, notes }] = await Promise.all([
      scanNewObjects(services, incoming, { includeSecrets: row.secretScanning }),
      findTriggers(services.jobsFile, { repository, by, commands, quarantined, defaultBranch }),
    ]);
    if (!scanned.accepted) return { verdict: scanned, triggers: [] };
    const allNotes = [...(scanned.notes ?? []), ...notes];
    return { verdict: { accepted: true, notes: allNotes }, triggers, store: scanned.store };
  } catch (error) {
    if (!timeout.aborted) throw error;
    return rejected(
      `The push could not be checked within ${MAX_CHECK_MS / 1000} seconds.`,
      `Push fewer commits at once${row.secretScanning ? ', or turn off secret scanning for the repository' : ''}.`,
    );
  }
}

/** Returns why a ref of this name could not be used as `ref`, or undefined if it could. */
function findNameProblem(ref: string): string | undefined {
  const name = ref.replace(/^refs\/(heads|tags)\//, '');
  if (looksLikeFullName(ref.replace(/^refs\/(heads\/|tags\/|)/, '')))
    return 'begins with refs/ twice, and git would confuse it with another ref';
  if (isCommitId(name)) return 'has the form of a commit id and would be read as that commit';
  // Bytes that are not UTF-8 arrive from the hook's pipe as U+FFFD.
  if (name.includes('\ufffd')) return 'is not UTF-8';
  if (!isRefName(name))
    return `is not a valid name: it may have at most ${MAX_REF_BYTES} bytes, must not begin with "-", and must not be "@"`;
  return undefined;
}
