/**
 * Reruns a job: creates a new job with the settings of another job, which may have any status.
 *
 * The new job runs the same commit, or the newest commit of the same branch. Prices and quotas are the current ones. Secrets
 * are decrypted and encrypted again for the new job; they are not shown to anyone. Stored secrets are checked as for a new job of
 * the viewer.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Config } from '../../base/config/config.ts';
import { AppError, forbidden, invalid, notFound } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import type { Urls } from '../../base/urls.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import type { Git } from '../../git/git.ts';
import { anyTargetIn, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import {
  type CommitSource,
  findCommitSource,
  resolveBranch,
} from '../../repositories/repositories.ts';
import { readCaches } from '../caches/request.ts';
import { readChecks, toCheckRequest } from '../metrics/checks.ts';
import { readOffer } from '../queue/offer.ts';
import { readJobCredentials } from '../record/job-credentials.ts';
import { readMatrixValues } from '../record/matrix-values.ts';
import type { SecretBox } from '../record/secret-box.ts';
import { readVolumes } from '../volumes/volumes.ts';
import { demandInputs, readInputs } from './inputs.ts';
import { findNextName } from './job-check.ts';
import { findNamespace, insertJob, type JobKey, jobNotFound } from './jobs.ts';
import type { Need } from './needs.ts';
import { demandRepositoryInputs, readRepositoryInputs } from './repository-inputs.ts';
import { checkJobName, checkRequest, isJobName, type NamedValue } from './request.ts';

type RerunInput = JobKey & {
  /** Null: the old name with the next free number. */
  newName?: string | null;
  /** Whether to run the current commit of the branch. */
  newestCommit?: boolean | null;
};

export type RerunDeps = {
  db: Db;
  pool: pg.Pool;
  git: Git;
  log: Logger;
  config: Config;
  cluster: Cluster;
  secretBox: SecretBox;
  urls: Urls;
};
type Select = Prisma.JobSelect;

/** Maximum number of names that are tried: another request may take a free name before the insert. */
const NAME_TRIES = 5;

const settingsColumns = {
  id: true,
  name: true,
  createdById: true,
  rerunOfId: true,
  command: true,
  repo: true,
  repositoryId: true,
  branch: true,
  commitSha: true,
  snapshotId: true,
  tag: true,
  image: true,
  gpu: true,
  gpuCount: true,
  cpu: true,
  memoryGb: true,
  diskGb: true,
  env: true,
  secrets: true,
  secretNames: true,
  variableNames: true,
  identity: true,
  region: true,
  timeoutMinutes: true,
  maxCost: true,
  idleTimeoutMinutes: true,
  holdOnFailureMinutes: true,
  shellAccess: true,
  retries: true,
  outputPath: true,
  inputs: true,
  repositoryInputs: true,
  volumes: true,
  cache: true,
  checkpointPath: true,
  checkpointMinutes: true,
  checks: true,
  testReports: true,
  outputsOf: true,
  arrayIndex: true,
  arraySize: true,
  matrixValues: true,
  concurrencyGroup: true,
  onConflict: true,
  needs: {
    select: { neededId: true, runJob: true, arrayId: true, condition: true },
    orderBy: { neededId: 'asc' },
  },
  labels: { select: { key: true, value: true } },
} as const satisfies Select;
type Settings = Prisma.JobGetPayload<{ select: typeof settingsColumns }>;

/**
 * @throws AppError 400, 401, 403 (permission or quota), 404 (job, repository, also of an input, branch), 409 if `newName` is taken, the commit
 *   no longer exists, the secrets cannot be decrypted, or the artifacts of an input were deleted
 */
export async function rerunJob<S extends Select>(
  services: RerunDeps,
  viewer: Viewer,
  { newName, newestCommit, ...key }: RerunInput,
  select: S,
): Promise<Prisma.JobGetPayload<{ select: S }>> {
  demandAccount(viewer);
  const namespace = await findNamespace(services, key.namespace);
  demand(viewer, 'job.create', anyTargetIn(viewer, namespace.id));
  const job =
    isJobName(key.name) &&
    (await services.db.job.findUnique({
      where: { namespaceId_name: { namespaceId: namespace.id, name: key.name } },
      select: settingsColumns,
      relationLoadStrategy: 'join',
    }));
  if (!job) throw jobNotFound(key);
  const { repositoryId } = job;
  demand(viewer, 'job.create', { namespaceId: namespace.id, repositoryId });
  const newest = newestCommit ?? false;
  demandSecretReuse(viewer, namespace.id, job, newest);
  if (newName != null) checkJobName('newName', newName);

  const source = await resolveSource(services, viewer, job, newest);
  const inputs = readInputs(job);
  await demandInputs(services, viewer, namespace.id, inputs);
  const repositoryInputs = readRepositoryInputs(job);
  await demandRepositoryInputs(services, viewer, repositoryInputs);
  await demandOutputs(services, viewer, job.outputsOf);
  const needs = await findOpenNeeds(services, job);
  const { permissions, idTokens } = readJobCredentials(job);
  const { arrayIndex, arraySize, concurrencyGroup: group, onConflict } = job;
  const settings = {
    ...job,
    inputs,
    volumes: readVolumes(job),
    cache: readCaches(job),
    checks: readChecks(job).map(toCheckRequest),
    permissions,
    idTokens,
    needs: null,
    maxCost: job.maxCost?.toString() ?? null,
    concurrency: group === null ? null : { group, onConflict },
    namespace: namespace.name,
    repo: source?.repo ?? null,
    env: toNamedValues(job.env as Record<string, string>),
    secrets: toNamedValues(unsealSecrets(services, job)),
  };
  const offer = await readOffer(services, job.gpu, namespace.id);
  for (let tries = 1; ; tries++) {
    const name = newName ?? (await nextName(services, namespace.id, job));
    const checked = checkRequest({ ...settings, name }, offer);
    const request = { ...checked, inputs, repositoryInputs, needs };
    const arrayPlace = { arrayIndex, arraySize };
    const matrixValues = readMatrixValues(job);
    const { outputsOf } = job;
    const place = { arrayPlace, matrixValues, outputsOf };
    const newJob = { namespace, request, source, rerunOfId: job.id, ...place };
    try {
      return await insertJob(services, viewer, newJob, select);
    } catch (error) {
      if (!(error instanceof AppError) || error.code !== 'already_exists') throw error;
      const message = 'newName: a job of that name exists in the namespace';
      if (newName != null) throw new AppError('already_exists', message, { field: 'newName' });
      if (tries === NAME_TRIES) throw error;
    }
  }
}

/**
 * Checks that the viewer may run the job with its secrets. The token of a job may not, because that job would decide when and
 * with which data they are used.
 *
 * Another commit may send the secrets anywhere. Only the creator of the job may run one with them, or an admin, who could
 * replace the secrets anyway. The same command at the same commit does what the creator intended.
 */
function demandSecretReuse(
  viewer: Viewer,
  namespaceId: string,
  { secrets, createdById, repositoryId }: Settings,
  newest: boolean,
): void {
  if (!secrets) return;
  const { credential, userId } = demandAccount(viewer);
  if (credential.kind === 'job') throw forbidden('A job cannot rerun jobs that have secrets');
  if (!newest || createdById === userId) return;
  demand(viewer, 'job.reuseSecrets', { namespaceId, repositoryId });
}

/** A job shows the outputs that it gets, so whoever reruns it must be allowed to see the jobs that wrote them. @throws AppError 403 */
async function demandOutputs(
  { db }: RerunDeps,
  viewer: Viewer,
  outputsOf: readonly string[],
): Promise<void> {
  if (outputsOf.length === 0) return;
  const jobs = await db.job.findMany({
    where: { id: { in: [...outputsOf] } },
    select: { namespaceId: true, repositoryId: true },
  });
  for (const job of jobs) demand(viewer, 'job.read', job);
}

/** A rerun waits for the needed jobs that have not ended. How the others ended does not matter: the user wants it to run. */
async function findOpenNeeds({ db }: RerunDeps, { needs }: Settings): Promise<Need[]> {
  if (needs.length === 0) return [];
  const open = await db.job.findMany({
    where: {
      id: { in: needs.map(({ neededId }) => neededId) },
      status: { in: ['queued', 'running'] },
    },
    select: { id: true, name: true },
  });
  const findOpen = (neededId: string) => open.find(({ id }) => id === neededId);
  // If jobs of a matrix have ended, one of them may have failed. Then the rerun only waits until the others have ended.
  const partlyEnded = new Set(
    needs.flatMap(({ neededId, runJob }) => (findOpen(neededId) ? [] : (runJob ?? []))),
  );
  return needs.flatMap(({ neededId, runJob, arrayId, condition }) => {
    const job = findOpen(neededId);
    const mayEndInAnyWay = condition === 'failed' && runJob !== null && partlyEnded.has(runJob);
    const when = mayEndInAnyWay ? 'finished' : condition;
    return job ? [{ ...job, runJob, arrayId, when }] : [];
  });
}

/** Finds the commit to run, and the current name of its repository; null for a job without a repository. */
async function resolveSource(
  services: RerunDeps,
  viewer: Viewer,
  { repo, repositoryId, branch, commitSha, snapshotId, tag }: Settings,
  newest: boolean,
): Promise<CommitSource | null> {
  if (newest && branch === null)
    throw invalid('newestCommit', `the job has no ${repo === null ? 'repository' : 'branch'}`);
  if (repo === null || commitSha === null) return null;
  if (repositoryId === null) throw notFound('Repository');
  const { fullName, isThere } = await findCommitSource(services, viewer, {
    repositoryId,
    commitSha,
  });
  if (newest) return resolveBranch(services, viewer, { repo: fullName, branch });
  if (isThere) return { repositoryId, repo: fullName, branch, commitSha, snapshotId, tag };
  if (branch === null)
    throw new AppError(
      'conflict',
      `The ${tag === null ? 'snapshot' : 'tag'} of the job is no longer in the repository`,
    );
  throw new AppError(
    'conflict',
    `newestCommit: the commit ${commitSha} is no longer in the repository; set newestCommit to run the tip of ${branch}`,
    { field: 'newestCommit' },
  );
}

function unsealSecrets(
  { secretBox, log }: RerunDeps,
  { id, secrets }: Settings,
): Record<string, string> {
  if (!secrets) return {};
  try {
    return secretBox.open(id, secrets);
  } catch (error) {
    log.error({ err: error, job: id }, 'Cannot decrypt the secrets of the job');
    throw new AppError(
      'conflict',
      'The secrets of the job cannot be decrypted: create a new job and give them again',
    );
  }
}

function toNamedValues(variables: Record<string, string>): NamedValue[] {
  return Object.entries(variables).map(([name, value]) => ({ name, value }));
}

/** A rerun of a rerun continues the numbers of the original. */
function nextName(services: RerunDeps, namespaceId: string, job: Settings): Promise<string> {
  const { name, rerunOfId } = job;
  return findNextName(services, namespaceId, rerunOfId === null ? name : name.replace(/-\d+$/, ''));
}
