/** Finds the jobs of a comparison, which may be in several namespaces. */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { AppError, invalid } from '../../base/errors.ts';
import {
  anyTargetIn,
  can,
  demand,
  demandAccount,
  type Viewer,
} from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { ComparedMetrics } from '../metrics/comparison.ts';
import { jobRows } from '../record/job-rows.ts';
import { repositoryColumns } from '../record/repository-name.ts';
import { runtimeColumns } from '../record/runtime.ts';
import { visibleSql } from '../record/visibility.ts';
import { buildConditions, type Filter } from './filter.ts';
import { findNamespace } from './jobs.ts';
import { checkJobName } from './request.ts';

/** Jobs of a namespace that meet a filter, or have given names. */
export type JobSelection = {
  namespace: string;
  names?: readonly string[] | null;
  filter?: Filter | null;
};

/** Maximum number of jobs in a comparison. */
export const MAX_COMPARED = 1_000;
/** Maximum number of selections in a comparison. */
const MAX_SELECTIONS = 20;

const comparedColumns = {
  id: true,
  name: true,
  namespace: { select: { name: true } },
  ...repositoryColumns,
  branch: true,
  commitSha: true,
  image: true,
  gpu: true,
  gpuCount: true,
  cpu: true,
  memoryGb: true,
  diskGb: true,
  region: true,
  arrayIndex: true,
  matrixValues: true,
  labels: { select: { key: true, value: true }, orderBy: { key: 'asc' } },
  costPerHour: true,
  artifactBytes: true,
  artifactFiles: true,
  createdAt: true,
  startedAt: true,
  completedAt: true,
  ...runtimeColumns,
} as const satisfies Prisma.JobSelect;
export type ComparedJob = Prisma.JobGetPayload<{ select: typeof comparedColumns }>;

export type JobComparison = {
  jobs: ComparedJob[];
  metrics: ComparedMetrics;
  /** Whether the selections have more jobs. */
  isTruncated: boolean;
  /** The `namespace/name` of jobs that were selected by name, and do not exist or are not visible to the viewer. */
  missing: string[];
};

type Deps = { db: Db; pool: pg.Pool };
type Found = { id: string; name: string; createdAt: Date };

/**
 * Reads the jobs of the selections, in the order of their creation. Of more than `MAX_COMPARED`, it reads the newest ones.
 * @throws AppError 400, 401, 403, 404
 */
export async function compareJobs(
  services: Deps,
  viewer: Viewer,
  selections: readonly JobSelection[],
): Promise<JobComparison> {
  demandAccount(viewer);
  checkSelections(selections);
  const found = new Map<string, Found>();
  const missing = new Set<string>();
  for (const selection of selections) {
    const rows = await findSelected(services, viewer, selection);
    for (const row of rows) found.set(row.id, row);
    const names = new Set(rows.map(({ name }) => name));
    for (const name of selection.names ?? [])
      if (!names.has(name)) missing.add(`${selection.namespace}/${name}`);
  }
  const newest = [...found.values()].sort(
    (a, b) => b.createdAt.getTime() - a.createdAt.getTime() || (a.id < b.id ? 1 : -1),
  );
  const ids = newest
    .slice(0, MAX_COMPARED)
    .map(({ id }) => id)
    .reverse();
  const condition = 'where r.id = any ($1) order by array_position($1, r.id)';
  const statement = jobRows.statement(comparedColumns, {}, condition);
  const jobs = (await statement.read(services.pool, [ids])) as ComparedJob[];
  const metrics = new ComparedMetrics(
    services.pool,
    jobs.map(({ id }) => id),
  );
  return { jobs, metrics, isTruncated: newest.length > MAX_COMPARED, missing: [...missing] };
}

function checkSelections(selections: readonly JobSelection[]): void {
  if (selections.length > MAX_SELECTIONS)
    throw invalid('jobs', `must not have more than ${MAX_SELECTIONS} entries`);
  for (const { names, filter } of selections) {
    if (names == null && filter == null)
      throw invalid('jobs', 'filter or names is required; an empty filter selects all jobs');
    if (names && names.length > MAX_COMPARED)
      throw invalid('names', `must not have more than ${MAX_COMPARED} entries`);
    for (const name of names ?? []) checkJobName('names', name);
  }
}

/** Finds at most one job more than a comparison has, the newest ones. */
async function findSelected(
  services: Deps,
  viewer: Viewer,
  { namespace: name, names, filter }: JobSelection,
): Promise<Found[]> {
  const { sql, join } = Prisma;
  const namespace = await findNamespace(services, name).catch((error) => {
    if (names && error instanceof AppError && error.code === 'not_found') return null;
    throw error;
  });
  if (!namespace) return [];
  const target = anyTargetIn(viewer, namespace.id);
  // A job of a namespace that the viewer may not see is missing, like a job that was deleted.
  if (names && !can(viewer, 'job.read', target)) return [];
  demand(viewer, 'job.read', target);
  const { gpus, statuses, where } = await buildConditions(services, viewer, filter ?? {});
  if (gpus) where.push(sql`r.gpu = any(${[...gpus]})`);
  if (statuses) where.push(sql`r.status = any(${[...statuses]}::"JobStatus"[])`);
  if (names) where.push(sql`r.name = any(${[...names]})`);
  const { text, values } = sql`
    select r.id, r.name, r.created_at as "createdAt"
    from jobs r where r.namespace_id = ${namespace.id} and ${visibleSql(viewer)}
      and ${join([sql`true`, ...where], ' and ')}
    order by r.created_at desc, r.id desc limit ${MAX_COMPARED + 1}`;
  return (await services.pool.query<Found>(text, values)).rows;
}
