/** Reads and follows runs, and starts, approves, cancels and repeats them for users. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { AppError, forbidden, invalid, notFound } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import { isRefName } from '../../git/names.ts';
import { recordAudit } from '../../identity/audit.ts';
import { type Account, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import { type Rechecks, whileAllowed } from '../../identity/rechecks.ts';
import { readLastingOffer } from '../../jobs/queue/offer.ts';
import { cancelInBatches } from '../../jobs/requests/bulk.ts';
import { listOpenJobsOfRun, readRepositoryInputs } from '../../jobs/requests/run-jobs.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction, violatesUnique } from '../../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../../platform/database/paging.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { notifyReaders } from '../../platform/events/outbox.ts';
import {
  type AccessRow,
  accessTarget,
  demandRepository,
  getRepository,
  gitAccessRule,
  type RepositoryId,
  type RepositoryKey,
  type RepositoryReadDeps,
} from '../../repositories/repositories.ts';
import { type JobFile, readJobFile } from '../file.ts';
import { planJobs, selectJobs, selectUnsuccessful } from '../job-selection.ts';
import { listInputs, type RunInput, type RunValue, resolveRunInputs } from '../run-inputs.ts';
import { readRunCommit } from './commit.ts';
import {
  type CreateDeps,
  createRun,
  findInputCommits,
  RUN_TRANSACTION_TIMEOUT_MS,
  type RunPlan,
  repositoryColumns,
  shortRefName,
  startJobs,
} from './create.ts';
import { listSucceeded, readJobResults } from './results.ts';
import { updateRuns } from './update.ts';

type Deps = CreateDeps & RepositoryReadDeps;
type Select = Prisma.RunSelect;
type Row<S extends Select> = Prisma.RunGetPayload<{ select: S }>;

/** Lists the runs of a repository, newest first. @throws AppError 400, 401, 403 */
export async function sliceRuns(
  { db }: { db: Db },
  viewer: Viewer,
  repository: AccessRow,
  { ref, ...range }: CursorPageRequest & { ref?: string | null },
  select: Select,
): Promise<CursorPage<Row<Select>>> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const where = { repositoryId: repository.id, ...(ref != null && { ref }) };
  return readCursorPage(db.run, NEWEST_FIRST, range, { where, select });
}

/** Finds a run of a repository that the viewer was allowed to read. */
export async function findRun<S extends Select>(
  { db }: { db: Db },
  repositoryId: string,
  number: number,
  select: S,
): Promise<Row<S> | null> {
  const where = { repositoryId_number: { repositoryId, number } };
  const row = await db.run.findUnique({ where, select });
  return row as unknown as Row<S> | null;
}

type StartInput = RepositoryId & {
  /** A branch or a tag; unset: the default branch. */
  ref?: string | null;
  /** A job that users may start; unset: all of them. */
  job?: string | null;
  /** Values of inputs that the jobs of the run declare. */
  inputs?: readonly RunValue[] | null;
};

/**
 * Starts a run by hand, from the file at the tip of a branch or tag.
 * @throws AppError 400 for an invalid file, job or value, 401, 403 (permission or quota), 404 for the repository or the ref
 */
export async function startRun<S extends Select>(
  services: Deps,
  viewer: Viewer,
  { ref, job = null, inputs, ...key }: StartInput,
  select: S,
): Promise<Row<S>> {
  const account = demandStarter(viewer);
  const row = await demandRepository(services.db, viewer, key, 'job.create', {});
  const repository = await readRepository(services.db, row.id);
  const { name, commit } = await resolveRef(services, repository.id, ref ?? row.defaultBranch);
  const { text } = commit;
  if (text === null)
    throw new AppError('conflict', `ref: ${name} has no file .loam/jobs.yml`, { field: 'ref' });
  const { file: parsed, problems } = readJobFile(text, await readLastingOffer(services));
  const [problem] = problems;
  if (problem)
    throw new AppError(
      'conflict',
      `ref: the file of ${name} is invalid: .loam/jobs.yml:${problem.line}: ${problem.message}`,
      { field: 'ref' },
    );
  const id = await createRun(services, repository, {
    trigger: 'manual',
    ref: name,
    commit,
    text,
    actor: account,
    creator: account,
    selectJobs: (file) => selectJobs(file, { kind: 'manual', job }),
    readInputs: ({ jobs }, names) => resolveRunInputs(jobs, names, inputs ?? []),
  });
  if (id === null) {
    const startable = [...(parsed?.jobs ?? [])].flatMap(([name, { on }]) =>
      on?.manual ? name : [],
    );
    throw job === null || startable.length === 0
      ? new AppError('conflict', 'The file has no job with `manual: true`')
      : invalid('job', `must be a job with \`manual: true\`: ${startable.join(', ')}`);
  }
  return readRun(services.db, id, select);
}

/** A job with `manual: true`. `inputs`: those of the run that it starts. */
export type StartableJob = { name: string; inputs: readonly [name: string, RunInput][] };

/**
 * Lists the jobs that users can start at the tip of a branch or tag; none if there is no valid file.
 * @param ref unset: the default branch
 * @throws AppError 401, 403, 404 for the ref
 */
export async function listStartableJobs(
  services: Deps,
  viewer: Viewer,
  repository: AccessRow & { defaultBranch: string },
  ref?: string | null,
): Promise<StartableJob[]> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const { commit } = await resolveRef(services, repository.id, ref ?? repository.defaultBranch);
  const { file } = readJobFile(commit.text ?? '', await readLastingOffer(services));
  if (!file) return [];
  const names = selectJobs(file, { kind: 'manual', job: null });
  return names
    .filter((name) => file.jobs.get(name)?.on?.manual)
    .map((name) => ({
      name,
      inputs: listInputs(file.jobs, selectJobs(file, { kind: 'manual', job: name })),
    }));
}

async function resolveRef(services: Deps, id: string, ref: string) {
  if (isRefName(ref))
    for (const name of [ref, `refs/heads/${ref}`, `refs/tags/${ref}`]) {
      if (!/^refs\/(?:heads|tags)\//.test(name)) continue;
      const commit = await readRunCommit(services, id, name);
      if (commit) return { name, commit };
    }
  throw notFound('Ref', ref);
}

/**
 * Creates the jobs of a run that waits for approval, in the name of the viewer.
 * @throws AppError 401, 403 (permission or quota), 404, 409 if the run does not wait
 */
export async function approveRun<S extends Select>(
  services: Deps,
  viewer: Viewer,
  { id }: { id: string },
  select: S,
): Promise<Row<S>> {
  const account = demandStarter(viewer);
  const { run, repository } = await findRunForAction(services.db, viewer, id, 'job.create');
  const commit = await readRunCommit(services, repository.id, run.sha);
  const offer = await readLastingOffer(services);
  const { file } = readJobFile(run.file ?? commit?.text ?? '', offer);
  if (!file) throw new AppError('conflict', 'The commit of the run is no longer in the repository');
  demandOwnFile(account, run, file);
  const hasMoved = await hasRefMoved(services, run);
  const planned = planJobs(file, run.jobNames, shortRefName(run.ref), valuesOf(run));
  const repositoryInputs = await findInputCommits(services, account, planned);
  await retryNames(() =>
    inTransaction(
      services.db,
      async (tx) => {
        const { count } = await tx.run.updateMany({
          where: { id, status: 'waiting_for_approval' },
          data: { status: 'queued', approvedBy: account.username },
        });
        if (count === 0) throw new AppError('conflict', 'The run does not wait for approval');
        await startJobs(services, tx, {
          id,
          repository,
          run: { ref: run.ref, commit: run, keepsText: run.file !== null, hasMoved },
          planned,
          repositoryInputs,
          offer,
          creator: account,
        });
        await recordRunAudit(tx, viewer, 'run.approve', run, repository);
        await notifyReaders(tx, `runs:${repository.id}`);
      },
      RUN_TRANSACTION_TIMEOUT_MS,
    ),
  );
  return readRun(services.db, id, select);
}

/**
 * Cancels the jobs of a run that have not ended, or a run that waits for approval.
 * @throws AppError 401, 403, 404, 409 if the run is over
 */
export async function cancelRun<S extends Select>(
  services: Deps,
  viewer: Viewer,
  { id }: { id: string },
  select: S,
): Promise<Row<S>> {
  demandAccount(viewer);
  const { run, repository } = await findRunForAction(services.db, viewer, id, 'job.cancel');
  const open = await inTransaction(services.db, async (tx) => {
    const { count } = await tx.run.updateMany({
      where: { id, status: 'waiting_for_approval' },
      data: { status: 'cancelled', completedAt: new Date() },
    });
    const jobs = count > 0 ? [] : await listOpenJobsOfRun(tx, id, repository.namespace.id);
    if (count === 0 && jobs.length === 0)
      throw new AppError('conflict', 'The run has no jobs that could be cancelled');
    await recordRunAudit(tx, viewer, 'run.cancel', run, repository);
    await notifyReaders(tx, `runs:${repository.id}`);
    return jobs;
  });
  await cancelInBatches(services, open);
  // The loop that follows changes of jobs updates the run too; this is for the answer.
  await inTransaction(services.db, (tx) =>
    updateRuns(
      tx,
      open.slice(0, 1).map((job) => job.id),
    ),
  );
  return readRun(services.db, id, select);
}

/**
 * Creates a run with the jobs of another one, for the same commit; with `failedOnly`, only with those that did not succeed. Jobs
 * that succeeded before count as met needs.
 * @throws AppError 401, 403 (permission or quota), 404, 409 while the run is not over, or if nothing is left to run
 */
export async function rerunRun<S extends Select>(
  services: Deps,
  viewer: Viewer,
  { id, failedOnly }: { id: string; failedOnly: boolean },
  select: S,
): Promise<Row<S>> {
  const account = demandStarter(viewer);
  const { run, repository } = await findRunForAction(services.db, viewer, id, 'job.create');
  if (!run.completedAt) throw new AppError('conflict', 'The run is not over: cancel it first');
  const commit = await readRunCommit(services, repository.id, run.sha);
  const text = run.file ?? commit?.text;
  if (text == null)
    throw new AppError('conflict', 'The commit of the run is no longer in the repository');
  const { file } = readJobFile(text, await readLastingOffer(services));
  if (file) demandOwnFile(account, run, file);
  const jobs = await services.db.job.findMany({
    // Those that ran before a transfer stay in the former namespace.
    where: { runId: id, namespaceId: repository.namespace.id },
    select: {
      id: true,
      outputsOf: true,
      name: true,
      runJob: true,
      repositoryInputs: true,
      array: { select: { name: true } },
    },
    orderBy: { id: 'asc' },
  });
  const succeeded = listSucceeded(planOf(run), await readJobResults(services.db, id));
  const newId = await createRun(services, repository, {
    trigger: run.trigger,
    ref: run.ref,
    commit: run,
    text,
    keepsText: run.file !== null,
    actor: account,
    creator: account,
    rerunOfId: id,
    readInputs: () => valuesOf(run),
    hasMoved: await hasRefMoved(services, run),
    selectJobs: (parsed) =>
      failedOnly ? selectUnsuccessful(parsed, run.jobNames, succeeded) : run.jobNames,
    ...(failedOnly && { earlierOutputs: await listEarlierOutputs(services.db, jobs, succeeded) }),
    earlier: new Map(
      jobs.flatMap(({ name, runJob, array }) => (runJob ? [[runJob, array?.name ?? name]] : [])),
    ),
    earlierInputs: new Map(
      jobs.flatMap((job) => (job.runJob ? [[job.runJob, readRepositoryInputs(job)]] : [])),
    ),
  });
  if (newId === null)
    throw new AppError('conflict', 'All jobs of the run succeeded, or were not needed');
  return readRun(services.db, newId, select);
}

/** Ids of the jobs that succeeded in the run, and of those before it whose outputs its jobs got: by their name in the file. */
async function listEarlierOutputs(
  db: Db,
  jobs: readonly { id: string; runJob: string | null; outputsOf: string[] }[],
  succeeded: ReadonlySet<string>,
): Promise<Map<string, string[]>> {
  const own = new Set(jobs.map(({ id }) => id));
  const ids = new Set(jobs.flatMap(({ outputsOf }) => outputsOf)).difference(own);
  const before = await db.job.findMany({
    where: { id: { in: [...ids] } },
    select: { id: true, runJob: true },
    orderBy: { id: 'asc' },
  });
  const sources = [...before, ...jobs.filter(({ runJob }) => runJob && succeeded.has(runJob))];
  const byName = new Map<string, string[]>();
  for (const { id, runJob } of sources)
    if (runJob !== null) byName.set(runJob, [...(byName.get(runJob) ?? []), id]);
  return byName;
}

async function findRunForAction(
  db: Db,
  viewer: Viewer,
  id: string,
  action: 'job.create' | 'job.cancel',
) {
  demandAccount(viewer);
  const run = isId('run', id) ? await db.run.findUnique({ where: { id } }) : null;
  if (!run) throw notFound('Run');
  await demandRepository(db, viewer, { id: run.repositoryId }, action, {});
  return { run, repository: await readRepository(db, run.repositoryId) };
}

/**
 * Refuses a job's own token: the jobs of a run get stored secrets, and jobs that a job creates must not get any.
 * @throws AppError 401, 403
 */
function demandStarter(viewer: Viewer): Account {
  const account = demandAccount(viewer);
  if (account.credential.kind === 'job') throw forbidden('A job cannot start or approve runs');
  return account;
}

/**
 * Refuses jobs that ask for secrets or rights if they come from the file of a schedule that another user has created. Nobody has
 * pushed its commands to the repository, so they may use only the rights of their author.
 * @throws AppError 403
 */
function demandOwnFile(
  { userId }: Account,
  run: { file: string | null; createdById: string | null; jobNames: string[] },
  { jobs }: JobFile,
): void {
  if (run.file === null || run.createdById === userId) return;
  const hasRights = run.jobNames.some((name) => {
    const { secrets, id_tokens: idTokens, permissions, inputs } = jobs.get(name) ?? {};
    const readsRepositories = inputs?.some(({ repo }) => repo !== undefined);
    return secrets?.length || idTokens?.length || permissions || readsRepositories;
  });
  if (hasRights)
    throw forbidden(
      'The jobs come from a schedule of another user and ask for secrets, permissions, identity tokens or repositories as inputs: create the schedule yourself',
    );
}

/** Whether the branch or tag is gone, or points to another commit than that of the run. */
async function hasRefMoved(
  services: Deps,
  { repositoryId, ref, sha }: { repositoryId: string; ref: string; sha: string },
): Promise<boolean> {
  return (await readRunCommit(services, repositoryId, ref))?.sha !== sha;
}

async function readRepository(db: Db, id: string) {
  const row = await db.repository.findUnique({ where: { id }, select: repositoryColumns });
  if (!row) throw notFound('Repository');
  return row;
}

async function readRun<S extends Select>(db: Db, id: string, select: S): Promise<Row<S>> {
  const row = await db.run.findUnique({ where: { id }, select });
  if (!row) throw notFound('Run');
  return row as unknown as Row<S>;
}

async function recordRunAudit(
  tx: Db,
  viewer: Viewer,
  action: 'run.approve' | 'run.cancel',
  run: { id: string; number: number },
  { name, namespace }: { name: string; namespace: { id: string } },
): Promise<void> {
  await recordAudit(tx, demandAccount(viewer), {
    action,
    namespaceIds: [namespace.id],
    subject: run.id,
    name: `${name}#${run.number}`,
  });
}

const NAME_TRIES = 5;

/** Runs a transaction again if another one has taken the name of a job. */
async function retryNames<T>(work: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await work();
    } catch (error) {
      if (!violatesUnique(error, 'name') || tries === NAME_TRIES) throw error;
    }
  }
}

/** The jobs of the file that a run has, with what they need. */
export function planOf({ plan }: { plan: Prisma.JsonValue }): RunPlan {
  return plan as unknown as RunPlan;
}

/** The values of the inputs of a run. */
export function valuesOf({ inputs }: { inputs: Prisma.JsonValue }): RunValue[] {
  return inputs as unknown as RunValue[];
}

/** Something changed in the runs of the repository. `number` is that of the followed run. */
export type RunChange = { repositoryId: string; number: number | null };

/**
 * Yields at once, and whenever a run of the repository was created or has changed.
 * @throws AppError 401, 404 immediately; later when the viewer loses the permission to read the repository
 */
export async function followRuns(
  services: RepositoryReadDeps & { bus: Bus; rechecks: Rechecks },
  viewer: Viewer,
  { number = null, ...key }: RepositoryKey & { number?: number | null },
): Promise<(signal: AbortSignal) => AsyncGenerator<RunChange>> {
  const { id } = await getRepository(services, viewer, key, {});
  const rule = gitAccessRule(services, id, 'repository.read');
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      for await (const why of services.bus.wakes(`runs:${id}`, ended))
        if (why !== 'idle') yield { repositoryId: id, number };
    });
}
