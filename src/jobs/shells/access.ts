/**
 * Who may open a shell in a running job: who could create it as it is, because a shell reads everything that the job has, its
 * secrets and tokens too. That is its creator and the admins of its namespace, each as far as they may use its stored secrets
 * and give it its permissions.
 */
import type pg from 'pg';
import type { JobStatus, Prisma } from '../../../prisma/generated/client.ts';
import type { Config } from '../../base/config/config.ts';
import { AppError, forbidden } from '../../base/errors.ts';
import { can, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { AccessRule } from '../../identity/rechecks.ts';
import type { Db } from '../../platform/database/client.ts';
import { findRepositoryById, sourceRef } from '../../repositories/repositories.ts';
import { demandValues } from '../../repositories/secrets/secrets.ts';
import { demandCredentials, readJobCredentials } from '../record/job-credentials.ts';
import { isOver } from '../record/state.ts';
import { getJob, type JobKey } from '../requests/jobs.ts';

/** Of jobs that repeat each other, when it is asked who has given the first one its secrets. */
const MAX_REPEATED = 1_000;

export type Deps = { db: Db; pool: pg.Pool; config: Pick<Config, 'jobShell'> };

export type ShellTarget = {
  jobId: string;
  namespaceId: string;
  attemptId: string;
  /** The process that supervises the attempt. */
  workerId: string;
  /** Must hold while the shell is open. */
  rule: AccessRule;
};

export const shellColumns = {
  id: true,
  namespaceId: true,
  repositoryId: true,
  createdById: true,
  rerunOfId: true,
  status: true,
  attemptId: true,
  repo: true,
  branch: true,
  snapshotId: true,
  tag: true,
  secrets: true,
  secretNames: true,
  identity: true,
  shellAccess: true,
} as const satisfies Prisma.JobSelect;
type ShellJob = Prisma.JobGetPayload<{ select: typeof shellColumns }>;

/** @throws AppError 401, 403, 404, 409 if the job does not run */
export async function authorizeShell(
  services: Deps,
  viewer: Viewer,
  key: JobKey,
): Promise<ShellTarget> {
  return authorize(services, viewer, await getJob(services, viewer, key, shellColumns));
}

/** As `authorizeShell`, for a viewer who could see the job before. @throws AppError 401, 403, 409, 410 if it was deleted */
export async function authorizeShellById(
  services: Deps,
  viewer: Viewer,
  id: string,
): Promise<ShellTarget> {
  const job = await services.db.job.findUnique({ where: { id }, select: shellColumns });
  if (!job) throw new AppError('not_found', 'The job was deleted', { status: 410 });
  demand(viewer, 'job.read', job);
  return authorize(services, viewer, job);
}

async function authorize(services: Deps, viewer: Viewer, job: ShellJob): Promise<ShellTarget> {
  await demandShell(services, viewer, job);
  if (job.status !== 'running' || job.attemptId === null)
    throw new AppError('conflict', `${describeState(job.status)}; a shell needs a running job`);
  const where = { id: job.attemptId };
  const attempt = await services.db.jobAttempt.findUnique({ where, select: { workerId: true } });
  if (!attempt) throw new AppError('conflict', 'The job has just ended');
  return {
    jobId: job.id,
    namespaceId: job.namespaceId,
    attemptId: job.attemptId,
    workerId: attempt.workerId,
    rule: {
      key: `shell ${job.id}`,
      demand: (current) => demandShell(services, current, job),
    },
  };
}

function describeState(status: JobStatus): string {
  return isOver(status) ? `The job has ended (${status})` : `The job is ${status}`;
}

/** Whether the viewer may open a shell in the job now. */
export async function canOpenShell(
  services: Deps,
  viewer: Viewer,
  job: ShellJob,
): Promise<boolean> {
  if (job.status !== 'running' || job.attemptId === null || viewer.kind !== 'account') return false;
  try {
    await demandShell(services, viewer, job);
    return true;
  } catch (error) {
    if (error instanceof AppError) return false;
    throw error;
  }
}

async function demandShell(services: Deps, viewer: Viewer, job: ShellJob): Promise<void> {
  const account = demandAccount(viewer);
  const { userId } = account;
  demandShellsOn(services.config);
  demand(viewer, job.createdById === userId ? 'job.shellOwn' : 'job.shellAny', job);
  const { namespaceId, repositoryId } = job;
  await demandShellAccess(services, job);
  // The secrets that were given with the first job are of its creator.
  if (job.secrets && !(await hasCreatedAll(services, userId, job)))
    demandEverything(viewer, job, 'its secrets were given to a job that it repeats');
  if (repositoryId && !(await findRepositoryById(services, viewer, repositoryId, { id: true })))
    throw forbidden(`${WHY}: you may not read its repository`);
  const origin = { namespaceId, repositoryId, ref: sourceRef(job) };
  const demandSecrets = (secretNames: readonly string[]) =>
    demandValues(services, account, {
      origin,
      names: { secretNames, variableNames: [] },
      own: { env: {}, secrets: {} },
    });
  const hasAllSecrets = await demandPart(viewer, job, () => demandSecrets(job.secretNames));
  // One that is missing hides whether the others are allowed.
  if (!hasAllSecrets)
    for (const name of job.secretNames) await demandPart(viewer, job, () => demandSecrets([name]));
  const { permissions = null, idTokens = [] } = readJobCredentials(job);
  const source = repositoryId ? { repositoryId, branch: job.branch } : null;
  if (job.identity !== null && job.repo !== null && source === null)
    demandEverything(viewer, job, 'its repository was deleted');
  await demandPart(viewer, job, () =>
    demandCredentials(services, viewer, { permissions, idTokens }, { namespaceId, source }),
  );
}

/** @throws AppError 403 if the job or its namespace has none, for admins too */
async function demandShellAccess(
  { db }: Deps,
  { shellAccess, namespaceId }: ShellJob,
): Promise<void> {
  if (shellAccess === 'none')
    throw forbidden(
      'This job has no shells: it was created with --no-shell, shellAccess NONE or "shell: none"',
    );
  const namespace = await db.namespace.findUnique({
    where: { id: namespaceId },
    select: { name: true, shellAccess: true },
  });
  if (namespace?.shellAccess === 'none')
    throw forbidden(`Shells in jobs are switched off in the settings of ${namespace.name}`);
}

/** @throws AppError 403 if the operator has switched shells off */
export function demandShellsOn({ jobShell }: Deps['config']): void {
  if (jobShell === 'off')
    throw forbidden('Shells in jobs are switched off on this server (LOAM_JOB_SHELL)');
}

const WHY = 'A shell reads everything that the job has';

/**
 * Checks a part of what the job has as for a new job. If the part is gone or has moved since, nobody can say who might have it,
 * and only admins may.
 * @returns false in that case
 */
async function demandPart(
  viewer: Viewer,
  job: ShellJob,
  check: () => Promise<void>,
): Promise<boolean> {
  try {
    await check();
    return true;
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    if (error.code === 'permission_denied') throw forbidden(`${WHY}: ${error.message}`);
    demandEverything(viewer, job, error.message);
    return false;
  }
}

function demandEverything(viewer: Viewer, job: ShellJob, why: string): void {
  if (!can(viewer, 'job.shellAny', job)) throw forbidden(`${WHY}: ${why}`);
}

/** Whether the user has created the job, and all jobs that it repeats. Those that were deleted are of unknown users. */
async function hasCreatedAll({ pool }: Deps, userId: string, { id }: ShellJob): Promise<boolean> {
  const { rows } = await pool.query<{ has_all: boolean }>(
    `with recursive repeated as (
      select created_by_id, rerun_of_id, 1 as depth from jobs where id = $1
      union all
      select j.created_by_id, j.rerun_of_id, depth + 1
      from repeated r join jobs j on j.id = r.rerun_of_id where depth < ${MAX_REPEATED}
    )
    select coalesce(bool_and(created_by_id is not distinct from $2) and bool_or(rerun_of_id is null), false) as has_all from repeated`,
    [id, userId],
  );
  return rows[0]?.has_all ?? false;
}
