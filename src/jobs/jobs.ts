/**
 * Jobs, for those who may: create, find, cancel, delete. They are listed in `lists.ts`; what a job goes through stands
 * in `state.ts`, who runs it in `worker.ts`.
 *
 * Callers say with `select` which columns they want, so that one query serves both them and the rules here.
 */
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { Plan } from '../../prisma/generated/enums.ts';
import type { Config } from '../base/config/config.ts';
import { AppError, notFound } from '../base/errors.ts';
import { costPerHour } from '../base/hardware.ts';
import { newId } from '../base/ids.ts';
import type { Logger } from '../base/log.ts';
import { canBeNamespace } from '../base/names.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { Git } from '../git/git.ts';
import { namespaceNamed } from '../identity/accounts.ts';
import { type Change, record } from '../identity/audit.ts';
import { anyIn, demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction, violatesReference, violatesUnique } from '../platform/database/client.ts';
import { wake } from '../platform/events/outbox.ts';
import type { Storage } from '../platform/storage/storage.ts';
import { resolveBranch, type Source } from '../repositories/repositories.ts';
import type { Outcome } from '../runners/runner.ts';
import { detachArtifacts, removeMarked } from './artifacts/kept.ts';
import { writeNewJob } from './insert.ts';
import { removeDeletedPages } from './logs/removal.ts';
import { jobRows } from './payload.ts';
import { type CreateInput, checkRequest, isJobName, type NamedValue } from './request.ts';
import { runSpanUntil } from './runtime.ts';
import type { SecretBox } from './secrets.ts';
import { publishJobEvent, isOver, lockJob, moveJob, PHASES, statusTopic } from './state.ts';
import { visibleTo } from './visibility.ts';
import { describeWait } from './worker-capacity.ts';

export { payloadToSend } from './artifacts/downloads.ts';
export type { JobEventData } from './payload.ts';
export type { CreateInput, NamedValue } from './request.ts';
export { visibleTo } from './visibility.ts';

/** How an attempt ended; null in the database while it lasts. */
export type AttemptOutcome = Outcome['kind'];

type Select = Prisma.JobSelect;
type Row<S extends Select> = Prisma.JobGetPayload<{ select: S }>;

export type JobKey = { namespace: string; name: string };

/** What the rules need of every row. */
const accessColumns = {
  id: true,
  namespaceId: true,
  repositoryId: true,
  createdById: true,
} as const;
export type AccessRow = Row<typeof accessColumns>;

/**
 * @returns the job, and `env` once more: nobody is shown it ever after.
 * @throws AppError 400, 401, 403 (right or quota), 404 (namespace, repository, branch), 409, 422.
 */
export async function createJob<S extends Select>(
  services: {
    db: Db;
    pool: pg.Pool;
    git: Git;
    log: Logger;
    config: Config;
    cluster: Cluster;
    secretBox: SecretBox;
  },
  viewer: Viewer,
  input: CreateInput,
  select: S,
): Promise<{ job: Row<S>; env: readonly NamedValue[] }> {
  demandAccount(viewer);
  const namespace = await namespaceNamed(services.pool, input.namespace);
  demand(viewer, 'job.create', anyIn(viewer, namespace.id));
  const request = checkRequest(input);
  const { repo, branch } = request;
  const source = repo === null ? null : await resolveBranch(services, viewer, { repo, branch });
  const job = await insertJob(services, viewer, { namespace, request, source }, select);
  return { job, env: input.env ?? [] };
}

export type NewJob = {
  namespace: { id: string; name: string; plan: Plan };
  request: ReturnType<typeof checkRequest>;
  /** Null without a repository. */
  source: Source | null;
  /** The id of the job that it repeats. */
  rerunOfId?: string;
};

/**
 * Writes a job that the viewer was found to be allowed to create.
 * @throws AppError 401, 403 (right for the repository, quota), 404 (repository), 409 naming `name`
 */
export async function insertJob<S extends Select>(
  services: { db: Db; pool: pg.Pool; config: Config; secretBox: SecretBox },
  viewer: Viewer,
  { namespace, request, source, rerunOfId }: NewJob,
  select: S,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  const { env, secrets, labels, ...settings } = request;
  // Again with the repository, because the credential may be narrowed to others.
  demand(viewer, 'job.create', { namespaceId: namespace.id, repositoryId: source?.repositoryId });

  const id = newId('job');
  const sealed = Object.keys(secrets).length > 0 ? services.secretBox.seal(id, secrets) : null;
  const data = {
    ...settings,
    id,
    namespaceId: namespace.id,
    createdById: author.userId,
    repositoryId: source?.repositoryId ?? null,
    repo: source?.repo ?? null,
    branch: source?.branch ?? null,
    commitSha: source?.commitSha ?? null,
    env,
    secrets: sealed,
    costPerHour: costPerHour(settings).toFixed(),
    progress: await describeWait(services, settings),
    rerunOfId: rerunOfId ?? null,
  };
  const { name, image, gpu } = settings;
  const { repo, branch } = data;
  const change: Change = {
    action: rerunOfId ? 'job.rerun' : 'job.create',
    namespaceIds: [namespace.id],
    subject: id,
    name,
    details: { repo, branch, image, gpu, ...(rerunOfId && { rerunOf: rerunOfId }) },
  };
  const made = { data, labels, namespace, author, change };
  return writeNewJob(services, made, select).catch((error) => {
    // Deleted since its branch was read.
    if (violatesReference(error, 'repository_id')) throw notFound('Repository');
    if (!violatesUnique(error, 'name')) throw error;
    const message = 'name: a job of that name exists in the namespace';
    throw new AppError('already_exists', message, { field: 'name' });
  });
}

/** @throws AppError 401, 403, 404. */
export async function getJob<S extends Select>(
  services: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  key: JobKey,
  select: S,
): Promise<Row<S> & AccessRow> {
  demandAccount(viewer);
  const row = isJobName(key.name) ? await readJob(services, key, select) : null;
  // That there is no such namespace, and that the viewer may see no job in it, is told before what is not in it.
  const namespaceId = row?.namespaceId ?? (await namespaceOf(services, key.namespace)).id;
  demand(viewer, 'job.read', anyIn(viewer, namespaceId));
  if (!row) throw notFound('Job');
  demand(viewer, 'job.read', row);
  return row;
}

async function readJob<S extends Select>(
  { db, pool }: { db: Db; pool: pg.Pool },
  key: JobKey,
  select: S,
): Promise<(Row<S> & AccessRow) | null> {
  const namespace = key.namespace.toLowerCase();
  if (!canBeNamespace(namespace)) return null;
  const statement = jobRows.statement(select, accessColumns, 'where n.name = $1 and r.name = $2');
  if (statement) {
    const [row] = await statement.read(pool, [namespace, key.name]);
    return (row ?? null) as (Row<S> & AccessRow) | null;
  }
  const row = await db.job.findFirst({
    where: { name: key.name, namespace: { name: namespace } },
    select: { ...select, ...accessColumns },
    relationLoadStrategy: 'join',
  });
  return row as unknown as (Row<S> & AccessRow) | null;
}

/** One by its id, as `visibleTo` has it; null when there is none that the viewer may see. */
export async function findJob<S extends Select>(
  { db }: { db: Db },
  viewer: Viewer,
  id: string,
  select: S,
): Promise<Row<S> | null> {
  const row = await db.job.findUnique({ where: { id, AND: [visibleTo(viewer)] }, select });
  return row as unknown as Row<S> | null;
}

/** The columns of an attempt that clients see. */
export const attemptColumns = {
  id: true,
  number: true,
  machine: true,
  cpus: true,
  memoryBytes: true,
  shared: true,
  outcome: true,
  exitCode: true,
  startedAt: true,
  exitedAt: true,
  endedAt: true,
} as const satisfies Prisma.JobAttemptSelect;
export type Attempt = Prisma.JobAttemptGetPayload<{ select: typeof attemptColumns }>;

/** Null when there is none that the viewer may see. */
export function findAttempt(
  { db }: { db: Db },
  viewer: Viewer,
  id: string,
): Promise<Attempt | null> {
  return db.jobAttempt.findUnique({
    where: { id, job: visibleTo(viewer) },
    select: attemptColumns,
  });
}

/**
 * Commits `cancelled` and returns; the worker is woken and ends the process afterwards.
 * @throws AppError 401, 403, 404, 409 when the job is over.
 */
export async function cancelJob<S extends Select>(
  services: { db: Db },
  viewer: Viewer,
  key: JobKey,
  select: S,
): Promise<{ job: Row<S>; message: string }> {
  const { id, namespaceId } = await findForAction(services, viewer, 'job.cancel', key);
  return inTransaction(services.db, async (tx) => {
    let attempt: Awaited<ReturnType<typeof findHoldingAttempt>> = null;
    const before = await moveJob(tx, id, async (job, now) => {
      if (isOver(job.status))
        throw new AppError('conflict', `The job cannot be cancelled: its status is ${job.status}`);
      attempt = await findHoldingAttempt(tx, job.attemptId);
      const ran = runSpanUntil(attempt, now);
      // Its process may have ended, and what it left be on its way into storage.
      const set = attempt?.exitedAt ? { exitCode: attempt.exitCode } : {};
      return { to: 'cancelled', phase: PHASES.cancelled, ran, set };
    });
    if (!before) throw notFound('Job');
    const { name } = key;
    const namespaceIds = [namespaceId] as const;
    const author = demandAccount(viewer);
    await record(tx, author, { action: 'job.cancel', namespaceIds, subject: id, name });
    const job = await tx.job.findUniqueOrThrow({ where: { id }, select });
    const message = describeCancellation(before.status === 'running', attempt);
    return { job: job as unknown as Row<S>, message };
  });
}

function describeCancellation(ran: boolean, attempt: { exitedAt: Date | null } | null): string {
  if (!ran) return 'Cancelled before it started.';
  return attempt?.exitedAt
    ? 'Cancelled. Its process had ended already; its artifacts are stored all the same.'
    : 'Cancelled. Its processes get SIGTERM now, and SIGKILL after 30 seconds.';
}

/** How far the attempt is that holds a job; null when none does. */
async function findHoldingAttempt(tx: Prisma.TransactionClient, attemptId: string | null) {
  const select = { startedAt: true, exitedAt: true, exitCode: true } as const;
  return attemptId === null ? null : tx.jobAttempt.findUnique({ where: { id: attemptId }, select });
}

/**
 * Removes the record with its log; the artifacts stay where they are (`kept.ts`) unless they are to go too.
 * @throws AppError 401, 403, 404, 409 while the job is queued or running.
 */
export async function deleteJob(
  services: { db: Db; pool: pg.Pool; storage: Storage; log: Logger },
  viewer: Viewer,
  { deleteArtifacts, ...key }: JobKey & { deleteArtifacts: boolean },
): Promise<string> {
  const { id, namespaceId } = await findForAction(services, viewer, 'job.delete', key);
  const work = async (tx: Prisma.TransactionClient) => {
    const job = await lockJob(tx, id);
    if (!job) throw notFound('Job');
    if (!isOver(job.status))
      throw new AppError(
        'conflict',
        `The job cannot be deleted while its status is ${job.status}: cancel it first`,
      );
    await detachArtifacts(tx, id, deleteArtifacts);
    await tx.job.delete({ where: { id }, select: { id: true } });
    await publishJobEvent(tx, job, job.namespace, 'job.deleted');
    const namespaceIds = [namespaceId] as const;
    const details = { deleteArtifacts };
    const author = demandAccount(viewer);
    const { name } = job;
    await record(tx, author, { action: 'job.delete', namespaceIds, subject: id, name, details });
    await wake(tx, `job:${id}`);
    await wake(tx, statusTopic(id));
  };
  await inTransaction(services.db, work);
  // What is left of a long log is removed later (`upkeep.ts`).
  await removeDeletedPages(services, id).catch((error) =>
    services.log.error({ err: error, job: id }, 'a log was not removed yet'),
  );
  // The job is gone by now: files that cannot be removed at once are removed later.
  if (deleteArtifacts)
    await removeMarked(services, { id, namespaceId }).catch((error) =>
      services.log.error({ err: error, job: id }, 'artifacts were not removed yet'),
    );
  return id;
}

async function findForAction(
  services: { db: Db },
  viewer: Viewer,
  action: 'job.cancel' | 'job.delete',
  { namespace: name, name: jobName }: JobKey,
): Promise<AccessRow> {
  const account = demandAccount(viewer);
  const namespace = await namespaceOf(services, name);
  const least = action === 'job.delete' ? 'job.deleteOwn' : action;
  demand(viewer, least, anyIn(viewer, namespace.id));
  const job =
    isJobName(jobName) &&
    (await services.db.job.findUnique({
      where: { namespaceId_name: { namespaceId: namespace.id, name: jobName } },
      select: accessColumns,
    }));
  if (!job) throw notFound('Job');
  const own = job.createdById === account.userId;
  demand(viewer, action === 'job.delete' && !own ? 'job.deleteAny' : least, job);
  return job;
}

/** @throws AppError 401 for a viewer who is not signed in, 404. */
export async function namespaceOf({ db }: { db: Db }, name: string, viewer?: Viewer) {
  if (viewer) demandAccount(viewer);
  return namespaceNamed(db, name);
}
