/**
 * Creates runs from the rows of `run_triggers`, which were written with the record of the push. Each server claims due rows
 * (`CLAIM`); the transaction that creates the run deletes the row, so each row is used exactly once, whatever happens to servers.
 * After an error, the row is retried with growing delays. Other rows do not wait. A row whose claims were lost three times may
 * have ended the servers, so it becomes an invalid run.
 */
import type pg from 'pg';
import type { Logger } from '../../base/log.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { ZERO_ID } from '../../git/transport/hooks.ts';
import type { Actor } from '../../identity/audit.ts';
import {
  demandValidAccount,
  readAccounts,
  readScheduleOwner,
} from '../../identity/authenticate.ts';
import type { Account } from '../../identity/permissions.ts';
import { readLastingOffer } from '../../jobs/queue/offer.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { retryWhileUnavailable } from '../../platform/database/outage.ts';
import { runStatement } from '../../platform/database/statement.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { startLoop } from '../../platform/loop.ts';
import { lockRepository, type RepositoryReadDeps } from '../../repositories/repositories.ts';
import { type JobFile, readJobFile } from '../file.ts';
import { hasPathFilters, selectJobs } from '../job-selection.ts';
import { refreshSchedules } from '../schedules/schedules.ts';
import { findRunCommitId, type RunCommit, readChangedPaths, readRunCommit } from './commit.ts';
import {
  type CreateDeps,
  createRun,
  type NewRun,
  type RunRepository,
  recordRunWithoutJobs,
  repositoryColumns,
  shortRefName,
} from './create.ts';

export type TriggerDeps = CreateDeps & RepositoryReadDeps & { bus: Bus; log: Logger };

type TriggerRow = {
  id: string;
  repositoryId: string;
  ref: string;
  before: string;
  after: string;
  startsRun: boolean;
  mayCreateJobs: boolean;
  actor: Actor;
  /** Set for the time of a schedule. */
  scheduleId: string | null;
  attempts: number;
  /** Of earlier claims. */
  lostClaims: number;
  isExpired: boolean;
};

const CLAIMED_AT_ONCE = 10;
const MAX_LOST_CLAIMS = 3;
const IDLE_MS = 5_000;

/**
 * A claim expires after 15 to 60 seconds. If the server that claimed the row was killed, another server then claims it. The
 * loop deletes a row that is a day old, because its repository could not be read during the whole day.
 */
const CLAIM = `
  update run_triggers set attempts = attempts + 1, lost_claims = lost_claims + 1,
    due_at = now() + interval '15 seconds' * 2 ^ least(attempts, 2)
  where id in (
    select id from run_triggers where due_at <= now() and (lost_claims > 0) = $1 order by due_at, id limit $2
    for update skip locked)
  returning id, repository_id as "repositoryId", ref, before, after, starts_run as "startsRun",
    may_create_jobs as "mayCreateJobs", actor, schedule_id as "scheduleId", attempts, lost_claims - 1 as "lostClaims",
    created_at < now() - interval '1 day' as "isExpired"`;

/** After an error, the row is free again after 15 s, 30 s, up to 16 minutes. */
const POSTPONE = `
  update run_triggers set lost_claims = lost_claims - 1, due_at = now() + interval '15 seconds' * 2 ^ least(attempts - 1, 6)
  where id = $1`;

/** Runs until disposed. */
export function startTriggerLoop(services: TriggerDeps): AsyncDisposable {
  const { pool, bus, log } = services;
  return startLoop(
    {
      name: 'Reading the triggers of runs',
      every: IDLE_MS,
      wakes: (signal, everyMs) => bus.wakes(['runs', 'database'], signal, everyMs),
      backoff: { firstMs: 1_000, longestMs: 1_000 },
      log,
    },
    async (signal) => {
      const rows = await retryWhileUnavailable(() => claim(pool), signal);
      const ofBranches = Map.groupBy(rows, ({ repositoryId, ref }) => `${repositoryId} ${ref}`);
      await Promise.all(
        ofBranches.values().map((ofBranch) => useInOrder(services, ofBranch, signal)),
      );
      const suspects = await retryWhileUnavailable(() => claimSuspect(pool), signal);
      await useInOrder(services, suspects, signal);
      return rows.length === CLAIMED_AT_ONCE || suspects.length > 0;
    },
  );
}

async function claim(pool: pg.Pool): Promise<TriggerRow[]> {
  const rows = await runStatement<TriggerRow>(pool, CLAIM, [false, CLAIMED_AT_ONCE]);
  return rows.sort((a, b) => (a.id < b.id ? -1 : 1));
}

/** Claims one row with lost claims, because rows that are used together with the one that ends a server are not at fault. */
async function claimSuspect(pool: pg.Pool): Promise<TriggerRow[]> {
  return runStatement<TriggerRow>(pool, CLAIM, [true, 1]);
}

/** Age in seconds of the oldest trigger that was not used yet; 0 if there is none. */
export async function measureTriggerLag({ pool }: { pool: pg.Pool }): Promise<number> {
  const [row] = await runStatement<{ seconds: number }>(
    pool,
    'select coalesce(extract(epoch from now() - min(created_at)), 0)::float8 as seconds from run_triggers',
    [],
  );
  return row?.seconds ?? 0;
}

/** Uses the rows of one branch one after the other, because `isTooEarly` postpones a row while an earlier row is unused. */
async function useInOrder(
  services: TriggerDeps,
  rows: TriggerRow[],
  signal: AbortSignal,
): Promise<void> {
  for (const row of rows) await use(services, row, signal);
}

async function use(services: TriggerDeps, row: TriggerRow, signal: AbortSignal): Promise<void> {
  const { log, db, pool } = services;
  try {
    if (row.isExpired) {
      log.error({ trigger: row.id, repository: row.repositoryId }, 'gave up a trigger of a run');
      await inTransaction(db, async (tx) => {
        await dropScheduleOwner(tx, row);
        await take(tx, row);
      });
      return;
    }
    const repository = await db.repository.findUnique({
      where: { id: row.repositoryId },
      select: repositoryColumns,
    });
    if (!repository) return;
    if (row.lostClaims >= MAX_LOST_CLAIMS) return await giveUp(services, repository, row);
    const start = row.scheduleId === null ? startForPush : startForSchedule;
    await start(services, repository, row);
  } catch (error) {
    log.warn(
      { err: error, trigger: row.id, repository: row.repositoryId, attempts: row.attempts },
      'could not create a run; retrying',
    );
    // If this fails too, the row is free again when the claim expires.
    await retryWhileUnavailable(() => runStatement(pool, POSTPONE, [row.id]), signal).catch(
      () => {},
    );
  }
}

/** Whether the file differs from that of the commit to which the branch pointed before. */
async function changesFile(
  services: TriggerDeps,
  { repositoryId, before }: TriggerRow,
  commit: RunCommit | null,
): Promise<boolean> {
  if (before === ZERO_ID || !commit) return true;
  return (await readRunCommit(services, repositoryId, before))?.text !== commit.text;
}

/** Creates an invalid run, without reading the commit and the file again: one of them may have ended the servers. */
async function giveUp(
  services: TriggerDeps,
  repository: RunRepository,
  row: TriggerRow,
): Promise<void> {
  services.log.error(
    { trigger: row.id, repository: repository.id, lostClaims: row.lostClaims },
    'gave up a trigger of a run whose claims were lost; it may have ended servers',
  );
  const sha = await findRunCommitId(services, repository.id, row.after || row.ref);
  await recordRunWithoutJobs(
    services,
    repository,
    {
      trigger: triggerOf(row),
      ref: row.ref,
      actor: row.actor,
      commit: { sha: sha ?? row.after, title: '' },
    },
    {
      status: 'invalid',
      message: `The server stopped ${row.lostClaims} times while it read this file, so it started no jobs. Make the file simpler, or ask the operator.`,
    },
    async (tx) => {
      await dropScheduleOwner(tx, row);
      return take(tx, row);
    },
  );
}

/** The push may have changed the file, so the schedules start nothing in the name of the one who pushed it before. */
async function dropScheduleOwner(tx: Db, row: TriggerRow): Promise<void> {
  if (row.scheduleId !== null || !(await isOfDefaultBranch(tx, row))) return;
  const where = { repositoryId: row.repositoryId, name: null };
  await tx.schedule.updateMany({ where, data: { createdById: null } });
}

function triggerOf({ ref, scheduleId }: TriggerRow): 'push' | 'tag' | 'schedule' {
  if (scheduleId !== null) return 'schedule';
  return ref.startsWith(REF_PREFIX.tag) ? 'tag' : 'push';
}

function commitOf({ after }: TriggerRow, commit: RunCommit | null): Pick<NewRun, 'commit'> {
  return { commit: { sha: commit?.sha ?? after, title: commit?.title ?? '' } };
}

async function startForPush(
  services: TriggerDeps,
  repository: RunRepository,
  row: TriggerRow,
): Promise<void> {
  const commit = await readRunCommit(services, repository.id, row.after);
  const creator = row.mayCreateJobs ? await readAccount(services.pool, row.actor) : null;
  const keepsOwner = creator === null && !(await changesFile(services, row, commit));
  const offer = await readLastingOffer(services);
  const claim = async (tx: Db) => {
    const isOfDefault = await isOfDefaultBranch(tx, row);
    if (isOfDefault && (await isTooEarly(tx, row))) return false;
    if (!(await take(tx, row))) return false;
    if (isOfDefault) {
      const { file } = commit?.text == null ? { file: null } : readJobFile(commit.text, offer);
      await refreshSchedules(tx, repository, { file, creator, keepsOwner });
    }
    return true;
  };
  const isTag = row.ref.startsWith(REF_PREFIX.tag);
  const name = shortRefName(row.ref);
  const run = {
    trigger: triggerOf(row),
    ref: row.ref,
    ...commitOf(row, commit),
    text: row.startsRun ? (commit?.text ?? null) : null,
    selectJobs: async (file: JobFile) => {
      if (isTag) return selectJobs(file, { kind: 'tag', tag: name });
      const base = name === repository.defaultBranch ? null : repository.defaultBranch;
      const before = row.before === ZERO_ID ? null : row.before;
      const change = { before, after: commit?.sha ?? row.after, base };
      const paths = hasPathFilters(file)
        ? await readChangedPaths(services, repository.id, change)
        : null;
      return selectJobs(file, { kind: 'push', branch: name, paths });
    },
    actor: row.actor,
    creator,
  };
  await createRun(services, repository, run, claim);
}

async function startForSchedule(
  services: TriggerDeps,
  repository: RunRepository,
  row: TriggerRow,
): Promise<void> {
  const { db, pool } = services;
  const schedule = await db.schedule.findUnique({ where: { id: row.scheduleId ?? '' } });
  const commit = schedule && (await readRunCommit(services, repository.id, row.ref));
  const owner = schedule?.createdById
    ? await readScheduleOwner(pool, schedule.createdById, {
        id: schedule.id,
        name: schedule.name ?? schedule.cron,
        namespaceId: repository.namespace.id,
        repositoryId: repository.id,
      })
    : null;
  const run = {
    trigger: triggerOf(row),
    ref: row.ref,
    ...commitOf(row, commit),
    text: commit ? (schedule.file ?? commit.text) : null,
    keepsText: schedule?.file != null,
    selectJobs: (file: JobFile) =>
      selectJobs(file, { kind: 'schedule', jobs: schedule?.jobNames ?? [] }),
    actor: owner ?? row.actor,
    creator: owner,
  };
  await createRun(services, repository, run, (tx) => take(tx, row));
}

/** Locks the repository, so that its schedules are replaced by one push at a time. */
async function isOfDefaultBranch(tx: Db, { repositoryId, ref }: TriggerRow): Promise<boolean> {
  if (!(await lockRepository(tx, repositoryId))) return false;
  const select = { defaultBranch: true } as const;
  const row = await tx.repository.findUniqueOrThrow({ where: { id: repositoryId }, select });
  return ref === REF_PREFIX.branch + row.defaultBranch;
}

const EARLIER_MS = 1_000;

/**
 * Postpones a row while an earlier row of its branch is unused, so that the schedules of an earlier push never replace those of a
 * later push. A postponed row keeps its number of attempts.
 * @returns whether the row was postponed
 */
async function isTooEarly(tx: Db, { id, repositoryId, ref }: TriggerRow): Promise<boolean> {
  const where = { repositoryId, ref, scheduleId: null, id: { lt: id } };
  if (!(await tx.runTrigger.findFirst({ where, select: { id: true } }))) return false;
  const dueAt = new Date(Date.now() + EARLIER_MS);
  await tx.runTrigger.updateMany({
    where: { id },
    data: { dueAt, attempts: { decrement: 1 }, lostClaims: { decrement: 1 } },
  });
  return true;
}

/** Deletes the row in the transaction of the run. @returns false if another server has used it */
async function take(tx: Db, { id }: TriggerRow): Promise<boolean> {
  const { count } = await tx.runTrigger.deleteMany({ where: { id } });
  return count > 0;
}

/** The pusher with the rights of now; null if the credential is no longer valid. */
async function readAccount(pool: pg.Pool, { credential }: Actor): Promise<Account | null> {
  if (!credential) return null;
  const found = (await readAccounts(pool, [credential])).get(credential.id);
  return found && !(found instanceof Error) ? demandValidAccount(found) : null;
}
