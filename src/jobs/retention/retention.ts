/**
 * Retention: after how many days the finished jobs of a namespace, their logs and their artifacts are removed. The rules of a
 * namespace are one row, and `retention-sweep.ts` applies them. A job with the label `keep` is exempt.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import { invalid } from '../../base/errors.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { recordAudit } from '../../identity/audit.ts';
import { anyTargetIn, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction } from '../../platform/database/client.ts';
import { runStatement, type Transaction } from '../../platform/database/statement.ts';
import { KEEP_LABEL, MAX_LABELS } from '../record/labels.ts';
import { findJobForAction, type JobKey } from '../requests/jobs.ts';

/** Days after the end of a job; null: never. */
export type RetentionDays = {
  jobDays: number | null;
  logDays: number | null;
  artifactDays: number | null;
};

export type RetentionRules = RetentionDays & { updatedBy: string; updatedAt: Date };

/** Ten years. Rules of less than a day would remove jobs before anybody has seen their result. */
const RETENTION_DAYS = { min: 1, max: 3_650 } as const;

type Input = {
  jobDays?: number | null;
  logDays?: number | null;
  artifactDays?: number | null;
};

/** @throws AppError 400 naming the field */
function checkDays(input: Input): RetentionDays {
  const { min, max } = RETENTION_DAYS;
  const days = {
    jobDays: input.jobDays ?? null,
    logDays: input.logDays ?? null,
    artifactDays: input.artifactDays ?? null,
  };
  for (const [field, value] of Object.entries(days))
    if (value !== null && (value < min || value > max))
      throw invalid(field, `must be from ${min} to ${max}`);
  // A log is deleted together with its job. The age of artifacts is counted from the end of their job. Once the job is deleted,
  // that time is unknown.
  const { jobDays } = days;
  for (const field of ['logDays', 'artifactDays'] as const)
    if (jobDays !== null && (days[field] ?? 0) > jobDays)
      throw invalid(field, `must not be more than jobDays (${jobDays})`);
  return days;
}

/** Replaces the rules of a namespace; without any days, nothing is removed. @throws AppError 400, 401, 403, 404 */
export async function setRetention(
  { db, pool }: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  { namespace: name, ...input }: Input & { namespace: string },
): Promise<string> {
  const account = demandAccount(viewer);
  const namespace = await resolveNamespace(pool, name);
  const namespaceId = namespace.id;
  demand(viewer, 'retention.administer', { namespaceId });
  const days = checkDays(input);
  await inTransaction(db, async (tx) => {
    const isEmpty = Object.values(days).every((value) => value === null);
    const rules = {
      ...days,
      // The sweep starts again, because more may be due now.
      jobsUntil: null,
      logsUntil: null,
      artifactsUntil: null,
      updatedBy: account.username,
      updatedAt: new Date(),
    };
    if (isEmpty) await tx.retentionRules.deleteMany({ where: { namespaceId } });
    else
      await tx.retentionRules.upsert({
        where: { namespaceId },
        create: { namespaceId, ...rules },
        update: rules,
      });
    await recordAudit(tx, account, {
      action: 'retention.set',
      namespaceIds: [namespaceId],
      subject: namespaceId,
      name: namespace.name,
      details: days,
    });
  });
  return namespaceId;
}

/** The rules of a namespace, which all members may see; null: nothing is removed. @throws AppError 401, 403 */
export function readRetention(
  { db }: { db: Db },
  viewer: Viewer,
  namespaceId: string,
): Promise<RetentionRules | null> {
  demand(viewer, 'job.read', anyTargetIn(viewer, namespaceId));
  return db.retentionRules.findUnique({
    where: { namespaceId },
    select: { jobDays: true, logDays: true, artifactDays: true, updatedBy: true, updatedAt: true },
  });
}

/** What the rules can remove: whole jobs, their logs, their artifacts, and artifacts of jobs that were deleted before. */
export type RetentionKind = 'jobs' | 'logs' | 'artifacts';

/** SQL: whether the job `j` still has what would be removed. */
export const HAS_KIND: Readonly<Record<RetentionKind, string>> = {
  jobs: 'true',
  logs: 'j.log_bytes > 0',
  artifacts: 'j.artifact_bytes is not null',
};

export const IS_EXEMPT = `exists (
  select from job_labels where job_id = j.id and key = '${KEEP_LABEL}')`;

/** SQL: whether the job `j` is over and its last attempt, too: it may still store artifacts and lines of the log. */
export const IS_SETTLED = `j.completed_at is not null and not exists (
  select from job_attempts where job_id = j.id and ended_at is null)`;

/**
 * Returns the jobs among `ids` that queued or running jobs need: these jobs wait for them, or their artifacts are inputs.
 */
export async function findNeededJobs(
  tx: Transaction,
  namespaceId: string,
  ids: readonly string[],
): Promise<Set<string>> {
  if (ids.length === 0) return new Set();
  const rows = await runStatement<{ id: string }>(tx, NEEDED_JOBS, [namespaceId, ids]);
  return new Set(rows.map(({ id }) => id));
}

const NEEDED_JOBS = `
  select distinct input ->> 'jobId' as id
  from jobs j cross join lateral jsonb_array_elements(j.inputs) input
  where j.namespace_id = $1 and j.status in ('queued', 'running') and j.inputs <> '[]'
    and input ->> 'jobId' = any ($2::text[])
  union
  select n.needed_id from job_needs n join jobs j on j.id = n.job_id
  where n.needed_id = any ($2::text[]) and j.status in ('queued', 'running')`;

/** What rules would remove now: at most `PREVIEW_LIMIT` of each kind are counted. */
export type RetentionPreview = {
  kind: RetentionKind;
  count: number;
  /** Of logs and artifacts that would be removed, also with their jobs. */
  bytes: bigint;
  /** Of some of the jobs, oldest first. */
  names: string[];
};

export const PREVIEW_LIMIT = 10_000;
const PREVIEW_NAMES = 10;

/**
 * Counts what the given rules would remove now, without removing anything. Artifacts that a waiting job needs are counted, too.
 * @throws AppError 400, 401, 403
 */
export async function previewRetention(
  { pool }: { pool: pg.Pool },
  viewer: Viewer,
  namespaceId: string,
  input: Input,
): Promise<RetentionPreview[]> {
  demand(viewer, 'retention.administer', { namespaceId });
  const days = checkDays(input);
  const previews: RetentionPreview[] = [];
  for (const [kind, after] of Object.entries(daysByKind(days)) as [RetentionKind, number][]) {
    const { rows } = await pool.query<{ count: number; bytes: string; names: string[] }>({
      text: previewSql(kind),
      values: [namespaceId, after],
    });
    const { count = 0, bytes = 0, names = [] } = rows[0] ?? {};
    previews.push({ kind, count, bytes: BigInt(bytes), names });
  }
  return previews;
}

/** Kind → days, without the kinds that are never removed. */
export function daysByKind({
  jobDays,
  logDays,
  artifactDays,
}: RetentionDays): Partial<Record<RetentionKind, number>> {
  return {
    // Jobs last, so that the artifacts of a job are removed before its row.
    ...(logDays !== null && { logs: logDays }),
    ...(artifactDays !== null && { artifacts: artifactDays }),
    ...(jobDays !== null && { jobs: jobDays }),
  };
}

const BYTES: Readonly<Record<RetentionKind, string>> = {
  jobs: 'j.log_bytes',
  logs: 'j.log_bytes',
  artifacts: 'j.artifact_bytes',
};

function previewSql(kind: RetentionKind): string {
  const cutoff = 'now() - make_interval(days => $2::int)';
  const kept = `
    union all
    select name, deleted_at, size_bytes from (
      select name, deleted_at, size_bytes from kept_artifacts
      where namespace_id = $1 and not removing and not exempt and deleted_at < ${cutoff}
      order by deleted_at limit ${PREVIEW_LIMIT}
    ) kept`;
  return `
    select count(*)::int as count, coalesce(sum(bytes), 0)::text as bytes,
      coalesce((array_agg(name order by at, name))[:${PREVIEW_NAMES}], '{}') as names
    from (
      select name, at, bytes from (
        select j.name, j.completed_at as at, ${BYTES[kind]} as bytes from jobs j
        where j.namespace_id = $1 and j.completed_at < ${cutoff} and ${IS_SETTLED}
          and ${HAS_KIND[kind]} and not ${IS_EXEMPT}
        order by j.completed_at, j.id limit ${PREVIEW_LIMIT}
      ) job ${kind === 'artifacts' ? kept : ''}
      limit ${PREVIEW_LIMIT}
    ) due`;
}

/**
 * Sets or removes the label that exempts a job from retention. A job keeps its other labels.
 * @throws AppError 400 if it has too many labels, 401, 403, 404
 */
export async function setJobKept<S extends Prisma.JobSelect>(
  services: { db: Db },
  viewer: Viewer,
  { isKept, ...key }: JobKey & { isKept: boolean },
  select: S,
): Promise<Prisma.JobGetPayload<{ select: S }>> {
  const author = demandAccount(viewer);
  const { id, namespaceId } = await findJobForAction(services, viewer, 'job.keep', key);
  return inTransaction(services.db, async (tx) => {
    // The sweep checks the label under this lock.
    await tx.$executeRaw`select from jobs where id = ${id} for update`;
    const labels = await tx.jobLabel.findMany({ where: { jobId: id }, select: { key: true } });
    const wasKept = labels.some((label) => label.key === KEEP_LABEL);
    if (isKept && !wasKept) {
      if (labels.length >= MAX_LABELS)
        throw invalid(null, `The job has ${MAX_LABELS} labels, which is the maximum`);
      await tx.jobLabel.create({ data: { jobId: id, key: KEEP_LABEL, value: '', namespaceId } });
    }
    if (!isKept && wasKept) {
      await tx.jobLabel.delete({ where: { jobId_key: { jobId: id, key: KEEP_LABEL } } });
      // The sweep may have passed it.
      await tx.retentionRules.updateMany({
        where: { namespaceId },
        data: { jobsUntil: null, logsUntil: null, artifactsUntil: null },
      });
    }
    if (isKept !== wasKept)
      await recordAudit(tx, author, {
        action: 'job.keep',
        namespaceIds: [namespaceId],
        subject: id,
        name: key.name,
        details: { kept: isKept },
      });
    const job = await tx.job.findUniqueOrThrow({ where: { id }, select });
    return job as unknown as Prisma.JobGetPayload<{ select: S }>;
  });
}
