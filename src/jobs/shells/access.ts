/**
 * Who may open a shell in a running job: who could create it as it is, because a shell reads everything that the job has, its
 * secrets and tokens too. That is its creator and the admins of its namespace, each as far as they may use its stored secrets
 * and give it its permissions.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Config } from '../../base/config/config.ts';
import { AppError, forbidden } from '../../base/errors.ts';
import { demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { AccessRule } from '../../identity/rechecks.ts';
import type { Db } from '../../platform/database/client.ts';
import { sourceRef } from '../../repositories/repositories.ts';
import { demandValues } from '../../repositories/secrets/secrets.ts';
import { demandCredentials, readJobCredentials } from '../record/job-credentials.ts';
import { getJob, type JobKey } from '../requests/jobs.ts';

export type Deps = { db: Db; pool: pg.Pool; config: Pick<Config, 'jobShell'> };

export type ShellTarget = {
  jobId: string;
  attemptId: string;
  /** The process that supervises the attempt. */
  workerId: string;
  /** Must hold while the shell is open. */
  rule: AccessRule;
};

const shellColumns = {
  id: true,
  namespaceId: true,
  repositoryId: true,
  createdById: true,
  status: true,
  attemptId: true,
  repo: true,
  branch: true,
  commitSha: true,
  snapshotId: true,
  tag: true,
  secretNames: true,
  variableNames: true,
  commandFromRef: true,
  identity: true,
} as const satisfies Prisma.JobSelect;
type ShellJob = Prisma.JobGetPayload<{ select: typeof shellColumns }>;

/** @throws AppError 401, 403, 404, 409 if the job does not run */
export async function authorizeShell(
  services: Deps,
  viewer: Viewer,
  key: JobKey,
): Promise<ShellTarget> {
  const job = await getJob(services, viewer, key, shellColumns);
  await demandShell(services, viewer, job);
  if (job.status !== 'running' || job.attemptId === null)
    throw new AppError('conflict', `The job is ${job.status}; a shell needs a running job`);
  const where = { id: job.attemptId };
  const attempt = await services.db.jobAttempt.findUnique({ where, select: { workerId: true } });
  if (!attempt) throw new AppError('conflict', 'The job has just ended');
  return {
    jobId: job.id,
    attemptId: job.attemptId,
    workerId: attempt.workerId,
    rule: {
      key: `shell ${job.id}`,
      demand: (current) => demandShell(services, current, job),
    },
  };
}

async function demandShell(services: Deps, viewer: Viewer, job: ShellJob): Promise<void> {
  const account = demandAccount(viewer);
  if (services.config.jobShell === 'off')
    throw forbidden('The operator of this server has switched shells off');
  demand(viewer, job.createdById === account.userId ? 'job.shellOwn' : 'job.shellAny', job);
  const { namespaceId, repositoryId } = job;
  const source = repositoryId ? { ...job, repositoryId } : null;
  try {
    await demandValues(services, account, {
      origin: { namespaceId, repositoryId, ref: sourceRef(job) },
      names: job,
      own: { env: {}, secrets: {} },
    });
    const { permissions = null, idTokens = [] } = readJobCredentials(job);
    const about = { namespaceId, source, isFromRef: false };
    await demandCredentials(services, viewer, { permissions, idTokens }, about);
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    // A secret that was deleted meanwhile is no reason.
    if (error.code !== 'permission_denied') return;
    throw forbidden(`A shell reads everything that the job has: ${error.message}`);
  }
}
