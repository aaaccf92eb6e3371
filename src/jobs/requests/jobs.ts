/**
 * Creates, reads, cancels and deletes jobs, with permission checks. See `lists.ts` for lists, `record/state.ts` for the state
 * machine, and `attempts/worker.ts` for the worker.
 *
 * Callers pass the columns that they need as `select`, so that one query reads these and the columns for permission checks.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { AppError, notFound } from '../../base/errors.ts';
import { costPerHour } from '../../base/hardware.ts';
import type { Logger } from '../../base/log.ts';
import { isPossibleNamespaceName } from '../../base/names.ts';
import type { Urls } from '../../base/urls.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import type { Git } from '../../git/git.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { type Actor, addAuditToStatement } from '../../identity/audit.ts';
import {
  type Account,
  anyTargetIn,
  demand,
  demandAccount,
  type Viewer,
} from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import {
  inPoolTransaction,
  inTransaction,
  retryConflicts,
  violatesReference,
  violatesUnique,
} from '../../platform/database/client.ts';
import {
  createStatementParts,
  type Queryable,
  runStatement,
  type Transaction,
} from '../../platform/database/statement.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import type { Storage } from '../../platform/storage/storage.ts';
import {
  type CommitSource,
  planSnapshot,
  resolveBranch,
  resolveSnapshot,
  sourceRef,
} from '../../repositories/repositories.ts';
import { demandValues } from '../../repositories/secrets/secrets.ts';
import type { Outcome } from '../../runners/runner.ts';
import { detachArtifacts, removeMarked } from '../artifacts/kept.ts';
import { checkKeyLengths, type JobCache } from '../caches/request.ts';
import { mayWriteCaches } from '../caches/scope.ts';
import { removeDeletedPages } from '../logs/removal.ts';
import { readOffer } from '../queue/offer.ts';
import { describeWait } from '../queue/worker-capacity.ts';
import { throwIfOverBudget } from '../record/budgets.ts';
import { auditCancelled, cancelLockedJobs } from '../record/cancel.ts';
import { isReleased, releaseLockedJob } from '../record/failure-hold.ts';
import { demandCredentials, toJobCredentials } from '../record/job-credentials.ts';
import { jobRows } from '../record/job-rows.ts';
import type { MatrixValue } from '../record/matrix-values.ts';
import type { SecretBox } from '../record/secret-box.ts';
import {
  addEvents,
  isOver,
  type LockedJob,
  lockJob,
  statusTopic,
  withLockedJobs,
} from '../record/state.ts';
import { visibleTo } from '../record/visibility.ts';
import { resolveVolumes } from '../volumes/volumes.ts';
import { type JobInput, listInputNeeds, resolveInputs } from './inputs.ts';
import { insertAndRead, insertJobs, isOneStatement, type PreparedJob } from './insert.ts';
import { arrayJobName, type Need, resolveNeeds } from './needs.ts';
import { type RepositoryInput, resolveRepositoryInputs } from './repository-inputs.ts';
import {
  type CreateInput,
  checkRequest,
  findWarnings,
  isJobName,
  type NamedValue,
} from './request.ts';

export { payloadToSend } from '../artifacts/downloads.ts';
export { isNeedMet } from '../dependencies/groups.ts';
export type { BudgetEventData } from '../record/budgets.ts';
export type { JobEventData } from '../record/payload.ts';
export type { SecretBox } from '../record/secret-box.ts';
export { visibleTo } from '../record/visibility.ts';
export { insertJobs, type JobToInsert } from './insert.ts';
export { type CreateInput, checkRequest, type NamedValue } from './request.ts';

/** How an attempt ended; null in the database while the attempt is open. */
export type AttemptOutcome = Outcome['kind'];

type Select = Prisma.JobSelect;
type Row<S extends Select> = Prisma.JobGetPayload<{ select: S }>;

export type JobKey = { namespace: string; name: string };

/** The columns that permission checks need. */
const accessColumns = {
  id: true,
  namespaceId: true,
  repositoryId: true,
  createdById: true,
} as const;
export type AccessRow = Row<typeof accessColumns>;

/**
 * @returns the job; `env`, whose values are never shown again; and a function that reads the warnings
 * @throws AppError 400, 401, 403 (permission, also for a secret, or quota), 404 (namespace, repository, branch, snapshot,
 *   job or repository of an input), 409, 422
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
    space: DiskSpace;
    urls: Urls;
  },
  viewer: Viewer,
  input: CreateInput,
  select: S,
): Promise<{ job: Row<S>; env: readonly NamedValue[]; warnings: () => Promise<string[]> }> {
  const newJob = await planJob(services, viewer, input);
  const job = await insertJob(services, viewer, newJob, select);
  const warnings = () => findWarnings(services, newJob.request, newJob.namespace.id);
  return { job, env: input.env ?? [], warnings };
}

/**
 * Checks a request, and finds the commit and the jobs that it names.
 * @param isUnpushed the job will run a snapshot of `repo` that the client has not pushed yet
 * @throws AppError as `createJob`, but neither for a quota nor for a taken name
 */
export async function planJob(
  services: {
    db: Db;
    pool: pg.Pool;
    git: Git;
    log: Logger;
    config: Config;
    cluster: Cluster;
    space: DiskSpace;
  },
  viewer: Viewer,
  input: CreateInput,
  isUnpushed = false,
): Promise<NewJob> {
  demandAccount(viewer);
  const namespace = await resolveNamespace(services.pool, input.namespace);
  demand(viewer, 'job.create', anyTargetIn(viewer, namespace.id));
  const request = checkRequest(input, await readOffer(services, input.gpu, namespace.id));
  const { repo, branch } = request;
  const { snapshot } = input;
  const source =
    repo === null
      ? null
      : isUnpushed
        ? await planSnapshot(services, viewer, repo)
        : snapshot == null
          ? await resolveBranch(services, viewer, { repo, branch })
          : await resolveSnapshot(services, viewer, { repo, snapshot });
  const size = request.array?.size ?? 1;
  const inputs = await resolveInputs(services, viewer, namespace.id, request.inputs, { size });
  const [repositoryInputs = []] = await resolveRepositoryInputs(services, viewer, [request]);
  const needs = await resolveNeeds(services, viewer, namespace.id, { needs: request.needs, size });
  // Not of jobs that are only inputs: these give files, and no variables.
  const outputsOf = needs.map(({ id }) => id);
  needs.push(...(await listInputNeeds(services, inputs, needs)));
  return { namespace, request: { ...request, inputs, repositoryInputs, needs }, source, outputsOf };
}

export type NewJob = {
  namespace: { id: string; name: string; plan: Plan };
  request: Omit<ReturnType<typeof checkRequest>, 'inputs' | 'repositoryInputs' | 'needs'> & {
    inputs: readonly JobInput[];
    repositoryInputs: readonly RepositoryInput[];
    needs: readonly Need[];
  };
  /** Null without a repository. */
  source: CommitSource | null;
  /** The id of the job of which this is a rerun. */
  rerunOfId?: string;
  /** The run to which the job belongs. */
  runId?: string;
  /** For a rerun: the place of the original in its array. */
  arrayPlace?: { arrayIndex: number | null; arraySize: number | null };
  /** Ids of the jobs whose outputs it gets, in the order of `needs`. */
  outputsOf?: readonly string[];
  /** The values of its combination of a matrix; none for other jobs. */
  matrixValues?: readonly MatrixValue[];
  /** The command is that of a file at the commit, so nobody chose it for this job (`Job.commandFromRef`). */
  commandFromRef?: boolean;
};

/**
 * Inserts a job after the caller has checked that the viewer may create it.
 * @throws AppError 400 (stored secrets and variables), 401, 403 (permission for the repository or a secret, quota),
 *   404 (repository), 409 naming `name`
 */
export async function insertJob<S extends Select>(
  services: { db: Db; pool: pg.Pool; config: Config; secretBox: SecretBox; urls: Urls },
  viewer: Viewer,
  newJob: NewJob,
  select: S,
): Promise<Row<S>> {
  const { namespace, request, outputsOf } = newJob;
  const { needs, array } = request;
  const job = { job: await prepareJob(services, viewer, newJob), needs, array, outputsOf };
  const insert = () => {
    // The statement that inserts a job does not see the labels and needs that it inserts.
    if ('labels' in select || 'needs' in select)
      return inPoolTransaction(services.pool, async (tx) => {
        const [[first] = []] = await insertJobs(services, tx, { namespace, jobs: [job] });
        const [row] = await jobRows.statement(select, {}, 'where r.id = $1').read(tx, [first?.id]);
        return row;
      });
    const insertOn = (on: Queryable) =>
      insertAndRead(services, on, { namespace, job }, jobRows.columns(select));
    return isOneStatement(services, { namespace, job })
      ? retryConflicts(() => insertOn(services.pool))
      : inPoolTransaction(services.pool, insertOn);
  };
  const row = await insert().catch((error) => throwInsertError(services, newJob, error));
  return row as unknown as Row<S>;
}

async function throwInsertError(
  services: { pool: pg.Pool },
  { namespace, request: { name, array } }: NewJob,
  error: unknown,
): Promise<never> {
  // The repository was deleted after its branch was read.
  if (violatesReference(error, 'repository_id')) throw notFound('Repository');
  if (!violatesUnique(error, 'name')) return throwIfOverBudget(services, namespace.id, error);
  const message = array
    ? `name: a job with the name of one of ${arrayJobName(name, 0)} to ${arrayJobName(name, array.size - 1)} exists in the namespace`
    : 'name: a job of that name exists in the namespace';
  throw new AppError('already_exists', message, { field: 'name' });
}

/** Ends a transaction without an error. */
class RolledBack extends Error {}

/**
 * Inserts the job in a transaction that is rolled back, so that everything is checked that an insert checks.
 * @throws AppError as `insertJob`
 */
export async function tryInsertJob(
  services: { db: Db; pool: pg.Pool; config: Config; secretBox: SecretBox; urls: Urls },
  viewer: Viewer,
  newJob: NewJob,
): Promise<void> {
  const { namespace, request } = newJob;
  const { needs, array } = request;
  const job = await prepareJob(services, viewer, newJob);
  await inTransaction(services.db, async (tx) => {
    await insertJobs(services, tx, { namespace, jobs: [{ job, needs, array }] });
    throw new RolledBack();
  }).catch((error) => {
    if (!(error instanceof RolledBack)) return throwInsertError(services, newJob, error);
  });
}

/**
 * Checks that the viewer may create the job, and builds its row for `insertJobs`. Needs and an array are given there.
 * @throws AppError 400 (stored secrets and variables, volumes), 401, 403 (permission for the repository or a secret),
 *   422 (volumes)
 */
export async function prepareJob(
  services: { db: Db; pool: pg.Pool; urls: Urls; config: Pick<Config, 'hardware' | 'volumes'> },
  viewer: Viewer,
  newJob: NewJob,
): Promise<PreparedJob> {
  const author = demandAccount(viewer);
  const {
    namespace,
    request,
    source,
    arrayPlace,
    matrixValues = [],
    commandFromRef = false,
  } = newJob;
  const {
    env,
    secrets,
    credentials,
    labels,
    inputs,
    repositoryInputs,
    volumes,
    cache,
    checks,
    needs: _,
    array,
    ...settings
  } = request;
  // Checked again with the repository, because the credential may be restricted to other repositories.
  const repositoryId = source?.repositoryId ?? null;
  demand(viewer, 'job.create', { namespaceId: namespace.id, repositoryId });
  const ref = source && sourceRef(source);
  await demandValues(services, commandFromRef ? null : author, {
    origin: { namespaceId: namespace.id, repositoryId, ref },
    names: settings,
    own: { env, secrets },
  });
  await demandCredentials(services, viewer, credentials, {
    namespaceId: namespace.id,
    source,
    isFromRef: commandFromRef,
  });
  const data = {
    ...settings,
    namespaceId: namespace.id,
    createdById: author.userId,
    repositoryId,
    repo: source?.repo ?? null,
    branch: source?.branch ?? null,
    commitSha: source?.commitSha ?? null,
    snapshotId: source?.snapshotId ?? null,
    tag: source?.tag ?? null,
    env,
    // The driver would write a list as an array of PostgreSQL.
    inputs: JSON.stringify(inputs),
    repositoryInputs: JSON.stringify(repositoryInputs),
    cache: JSON.stringify(
      await planCaches(services, commandFromRef ? null : author, cache, source),
    ),
    checks: JSON.stringify(checks),
    volumes: JSON.stringify(resolveVolumes(services.config.volumes, namespace.name, volumes)),
    commandFromRef,
    identity: toJobCredentials(credentials, services.urls.base),
    costPerHour: costPerHour(settings, services.config.hardware.current).toFixed(),
    progress: await describeWait(services, { ...settings, namespaceId: namespace.id }),
    rerunOfId: newJob.rerunOfId ?? null,
    arrayIndex: arrayPlace?.arrayIndex ?? null,
    arraySize: arrayPlace?.arraySize ?? null,
    matrixValues: matrixValues.length > 0 ? JSON.stringify(matrixValues) : null,
  };
  const { name, repo, branch, image, gpu } = data;
  const change = {
    by: author,
    action: newJob.rerunOfId ? ('job.rerun' as const) : ('job.create' as const),
    namespaceIds: [namespace.id],
    name,
    details: {
      repo,
      branch,
      image,
      gpu,
      ...(newJob.rerunOfId && { rerunOf: newJob.rerunOfId }),
      ...(newJob.runId && { run: newJob.runId }),
      ...(array && { array: array.size }),
      ...(credentials.permissions && { permissions: credentials.permissions }),
      ...(credentials.idTokens.length > 0 && {
        audiences: credentials.idTokens.map(({ audience }) => audience),
      }),
    },
  };
  return { data, secrets, labels, change };
}

/** Caches are only restored if the creator may not write to the ref of the job. */
async function planCaches(
  services: { pool: pg.Pool },
  author: Account | null,
  caches: readonly JobCache[],
  source: CommitSource | null,
): Promise<readonly JobCache[]> {
  if (caches.length === 0 || !source) return caches;
  const { branch, tag = null, snapshotId, repositoryId } = source;
  checkKeyLengths(caches, branch ?? tag ?? '');
  const origin = { branch, tag, snapshotId, repositoryId };
  const mayWrite = await mayWriteCaches(services, author, origin);
  return mayWrite ? caches : caches.map((cache) => ({ ...cache, readOnly: true }));
}

export function jobNotFound({ namespace, name }: JobKey): AppError {
  return notFound('Job', `${namespace}/${name}`);
}

/** @throws AppError 401, 403, 404 */
export async function getJob<S extends Select>(
  services: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  key: JobKey,
  select: S,
): Promise<Row<S> & AccessRow> {
  demandAccount(viewer);
  const row = isJobName(key.name) ? await readJob(services, key, select) : null;
  // Errors about the namespace (unknown, not permitted) come first, so that they do not reveal which jobs exist.
  const namespaceId = row?.namespaceId ?? (await findNamespace(services, key.namespace)).id;
  demand(viewer, 'job.read', anyTargetIn(viewer, namespaceId));
  if (!row) throw jobNotFound(key);
  demand(viewer, 'job.read', row);
  return row;
}

async function readJob<S extends Select>(
  { pool }: { pool: pg.Pool },
  key: JobKey,
  select: S,
): Promise<(Row<S> & AccessRow) | null> {
  const namespace = key.namespace.toLowerCase();
  if (!isPossibleNamespaceName(namespace)) return null;
  const condition = 'where n.name = $1 and r.name = $2';
  const statement = jobRows.statement(select, accessColumns, condition);
  const [row] = await statement.read(pool, [namespace, key.name]);
  return (row ?? null) as (Row<S> & AccessRow) | null;
}

/** Reads a job by its id; null if it does not exist or the viewer may not see it. */
export async function findJob<S extends Select>(
  { db }: { db: Db },
  viewer: Viewer,
  id: string,
  select: S,
): Promise<Row<S> | null> {
  const row = await db.job.findUnique({ where: { id, AND: [visibleTo(viewer)] }, select });
  return row as unknown as Row<S> | null;
}

/** The columns of an attempt that clients may see. */
export const attemptColumns = {
  id: true,
  number: true,
  machine: true,
  cpus: true,
  memoryBytes: true,
  shared: true,
  /** Not shown itself: only where a cluster has placed the attempt (`readPlacement`). */
  handle: true,
  /** Not shown themselves: which joined machine runs the attempt (`findMachineOfAttempt`). */
  runner: true,
  createdAt: true,
  outcome: true,
  exitCode: true,
  startedAt: true,
  exitedAt: true,
  endedAt: true,
} as const satisfies Prisma.JobAttemptSelect;
export type Attempt = Prisma.JobAttemptGetPayload<{ select: typeof attemptColumns }>;

/** Where a cluster runs an attempt. */
export type Placement = {
  cluster: string;
  node: string;
  /** The command with which an operator looks at it; null if the engine has none. */
  inspect: string | null;
};

/** Null before the start, and for an attempt that runs on no cluster: `machine` says where. */
export function readPlacement({
  handle,
  machine,
}: Pick<Attempt, 'handle' | 'machine'>): Placement | null {
  const { cluster, node, inspect } = (handle ?? {}) as Partial<Placement>;
  return cluster && node && node !== machine ? { cluster, node, inspect: inspect ?? null } : null;
}

/** Reads an attempt by its id; null if it does not exist or the viewer may not see it. */
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
 * Commits the status `cancelled`, and reads the job after that.
 * @throws AppError 401, 403, 404, 409 if the job has ended
 */
export async function cancelJob<S extends Select>(
  services: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  key: JobKey,
  select: S,
): Promise<{ job: Row<S>; message: string }> {
  const author = demandAccount(viewer);
  const { id } = await findJobForAction(services, viewer, 'job.cancel', key);
  let message = '';
  const cancel = async (client: pg.PoolClient, [job]: LockedJob[]) => {
    if (!job) return;
    if (isOver(job.status))
      throw new AppError('conflict', `The job cannot be cancelled: its status is ${job.status}`);
    const [cancelled] = await cancelLockedJobs(client, [job], { audit: auditCancelled(author) });
    message = describeCancellation(job.status === 'running', cancelled?.attempt ?? null);
  };
  const missing = await retryConflicts(() =>
    withLockedJobs(services.pool, [id], cancel, { isWaiting: true }),
  );
  if (missing.length > 0) throw jobNotFound(key);
  const job = await services.db.job.findUniqueOrThrow({ where: { id }, select });
  return { job: job as unknown as Row<S>, message };
}

/**
 * Ends the hold of a failed sandbox: the job then ends with its artifacts and the exit code of its command.
 * @throws AppError 401, 403, 404, 409 if the job is not held
 */
export async function releaseJob<S extends Select>(
  services: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  key: JobKey,
  select: S,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  const { id } = await findJobForAction(services, viewer, 'job.cancel', key);
  const release = async (client: pg.PoolClient, [job]: LockedJob[]) => {
    if (!job) return;
    if (job.status !== 'running' || !job.heldAt)
      throw new AppError('conflict', `The job is not held: its status is ${job.status}`);
    if (isReleased(job)) return;
    await releaseLockedJob(client, job, author);
  };
  const missing = await retryConflicts(() =>
    withLockedJobs(services.pool, [id], release, { isWaiting: true }),
  );
  if (missing.length > 0) throw jobNotFound(key);
  const job = await services.db.job.findUniqueOrThrow({ where: { id }, select });
  return job as unknown as Row<S>;
}

function describeCancellation(ran: boolean, attempt: { exitedAt: Date | null } | null): string {
  if (!ran) return 'Cancelled before the job started.';
  return attempt?.exitedAt
    ? 'Cancelled. The process had ended already; its artifacts are still stored.'
    : 'Cancelled. The processes of the job get SIGTERM now, and SIGKILL after 30 seconds.';
}

/**
 * Deletes the job with its log. Its artifacts are kept (`artifacts/kept.ts`) unless `deleteArtifacts` is set.
 * @throws AppError 401, 403, 404, 409 while the job is queued or running
 */
export async function deleteJob(
  services: { db: Db; pool: pg.Pool; storage: Storage; log: Logger },
  viewer: Viewer,
  { deleteArtifacts, ...key }: JobKey & { deleteArtifacts: boolean },
): Promise<string> {
  const { id, namespaceId } = await findJobForAction(services, viewer, 'job.delete', key);
  const deleteRow = async (tx: Db) => {
    const job = await lockJob(tx, id);
    if (!job) throw jobNotFound(key);
    if (!isOver(job.status))
      throw new AppError(
        'conflict',
        `The job cannot be deleted while its status is ${job.status}: cancel it first`,
      );
    await deleteLockedJobs(tx, [job], { by: demandAccount(viewer), deleteArtifacts });
  };
  await inTransaction(services.db, deleteRow);
  // This removes a part of a long log. Maintenance removes the rest.
  await removeDeletedPages(services, id).catch((error) =>
    services.log.error(
      { err: error, job: id },
      'Cannot remove the log now; maintenance retries it',
    ),
  );
  // The deletion is committed. Maintenance removes the files that cannot be removed now.
  if (deleteArtifacts)
    await removeMarked(services, { id, namespaceId }).catch((error) =>
      services.log.error(
        { err: error, job: id },
        'Cannot remove the artifacts now; maintenance retries it',
      ),
    );
  return id;
}

/**
 * Deletes finished jobs whose rows are locked, with their events and audit entries. Their logs, and the files of deleted
 * artifacts, are removed after the commit.
 * @param options.by null if the caller writes one audit entry for all
 */
export async function deleteLockedJobs(
  tx: Transaction,
  jobs: readonly LockedJob[],
  { by, deleteArtifacts }: { by: Actor | null; deleteArtifacts: boolean },
): Promise<void> {
  const ids = jobs.map(({ id }) => id);
  await detachArtifacts(tx, ids, deleteArtifacts);
  const statement = createStatementParts();
  const { parts, parameter, values } = statement;
  parts.push(`deleted as (delete from jobs where id = any (${parameter(ids, 'text[]')}))`);
  const topics = addEvents(statement, jobs, 'job.deleted');
  const details = { deleteArtifacts };
  if (by) {
    const changes = jobs.map(({ id, name, namespaceId }) => {
      const namespaceIds = [namespaceId];
      return { by, action: 'job.delete' as const, namespaceIds, subject: id, name, details };
    });
    addAuditToStatement(statement, changes);
  }
  for (const id of ids) topics.push(`job:${id}`, statusTopic(id));
  const notify = `select count(pg_notify('loam', topic)::text) from unnest(${parameter(topics, 'text[]')}) topic`;
  await runStatement(tx, `with ${parts.join(', ')} ${notify}`, values);
}

export async function findJobForAction(
  services: { db: Db },
  viewer: Viewer,
  action: 'job.cancel' | 'job.delete' | 'job.keep',
  { namespace: name, name: jobName }: JobKey,
): Promise<AccessRow> {
  const account = demandAccount(viewer);
  const namespace = await findNamespace(services, name);
  const minimum = action === 'job.delete' ? 'job.deleteOwn' : action;
  demand(viewer, minimum, anyTargetIn(viewer, namespace.id));
  const job =
    isJobName(jobName) &&
    (await services.db.job.findUnique({
      where: { namespaceId_name: { namespaceId: namespace.id, name: jobName } },
      select: accessColumns,
    }));
  if (!job) throw jobNotFound({ namespace: name, name: jobName });
  const isOwn = job.createdById === account.userId;
  demand(viewer, action === 'job.delete' && !isOwn ? 'job.deleteAny' : minimum, job);
  return job;
}

/** @throws AppError 401 if `viewer` is given and is not signed in, 404 */
export async function findNamespace({ db }: { db: Db }, name: string, viewer?: Viewer) {
  if (viewer) demandAccount(viewer);
  return resolveNamespace(db, name);
}
