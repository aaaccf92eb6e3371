/** Reads arrays of jobs. */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { notFound } from '../../base/errors.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { anyTargetIn, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { visibleTo } from '../record/visibility.ts';

const memberColumns = {
  id: true,
  name: true,
  namespaceId: true,
  repositoryId: true,
  status: true,
  outputPath: true,
  artifactBytes: true,
  arrayIndex: true,
  matrixValues: true,
} as const satisfies Prisma.JobSelect;

type ArrayMember = Prisma.JobGetPayload<{ select: typeof memberColumns }>;

/** An array with the jobs of it that exist, in their order. `size` counts those that were deleted, too. */
export type FoundArray = { id: string; name: string; size: number; jobs: ArrayMember[] };

/**
 * Finds arrays by their names, of several with the same name the newest one.
 * @param checkCount is called with the number of their jobs before these are read
 */
export async function findArrays(
  db: Pick<Db, 'job' | 'jobArray'>,
  namespaceId: string,
  names: readonly string[],
  checkCount: (count: number) => void,
): Promise<Map<string, FoundArray>> {
  if (names.length === 0) return new Map();
  const rows = await db.jobArray.findMany({
    where: { namespaceId, name: { in: [...names] } },
    select: { id: true, name: true, size: true },
    orderBy: [{ name: 'asc' }, { id: 'desc' }],
    distinct: ['name'],
  });
  checkCount(rows.reduce((sum, { size }) => sum + size, 0));
  const jobs = await db.job.findMany({
    where: { arrayId: { in: rows.map(({ id }) => id) } },
    select: { ...memberColumns, arrayId: true },
    orderBy: { id: 'asc' },
  });
  const byArray = Map.groupBy(jobs, ({ arrayId }) => arrayId);
  return new Map(
    rows.map((row) => [row.name, { ...row, jobs: byArray.get(row.id) ?? [] }] as const),
  );
}

/**
 * Reads the newest array with a name.
 * @throws AppError 401, 403, 404
 */
export async function getArray(
  { db }: { db: Db },
  viewer: Viewer,
  { namespace, name }: { namespace: string; name: string },
): Promise<ArrayRow> {
  demandAccount(viewer);
  const { id } = await resolveNamespace(db, namespace);
  demand(viewer, 'job.read', anyTargetIn(viewer, id));
  const array = await db.jobArray.findFirst({
    where: { namespaceId: id, name, jobs: { some: visibleTo(viewer) } },
    orderBy: { id: 'desc' },
  });
  if (!array) throw notFound('Array');
  return array;
}

export type ArrayRow = Prisma.JobArrayGetPayload<object>;

/** Reads an array by its id; null if it does not exist or the viewer may not see its jobs. */
export function findArray(
  { db }: { db: Db },
  viewer: Viewer,
  id: string,
): Promise<ArrayRow | null> {
  return db.jobArray.findFirst({ where: { id, jobs: { some: visibleTo(viewer) } } });
}

/** The viewer may see a job of the array, and so all of them: they have the same repository. */
export async function countArrayJobs(
  { pool }: { pool: pg.Pool },
  arrayId: string,
): Promise<{ status: JobStatus; count: number }[]> {
  const { rows } = await pool.query<{ status: JobStatus; count: number }>({
    name: 'loam-array-counts',
    text: `select status, count(*)::int as count from jobs where array_id = $1 and array_id is not null
      group by status order by status`,
    values: [arrayId],
  });
  return rows;
}

export type ArrayTotals = {
  startedAt: Date | null;
  completedAt: Date | null;
  totalCost: Prisma.Decimal;
};

/** Sums up the jobs of an array as `record/runtime.ts` computes them for one job. The viewer may see all jobs, as for the counts. */
export async function readArrayTotals(
  { pool }: { pool: pg.Pool },
  arrayId: string,
): Promise<ArrayTotals> {
  const { rows } = await pool.query<{
    started_at: Date | null;
    completed_at: Date | null;
    cost: string;
  }>({
    name: 'loam-array-totals',
    text: `select min(j.started_at) as started_at,
        case when bool_and(j.completed_at is not null) then max(j.completed_at) end as completed_at,
        coalesce(sum(round(j.cost_per_hour * s.seconds / 3600, 4)), 0) as cost
      from jobs j
      left join lateral (select a.started_at, a.exited_at from job_attempts a
        where j.status = 'running' and a.job_id = j.id and a.ended_at is null order by a.number desc limit 1) a on true
      cross join lateral (select j.runtime_seconds + coalesce(greatest(0,
        round(extract(epoch from coalesce(a.exited_at, now()) - a.started_at))), 0) as seconds) s
      where j.array_id = $1 and j.array_id is not null`,
    values: [arrayId],
  });
  const [row] = rows;
  return {
    startedAt: row?.started_at ?? null,
    completedAt: row?.completed_at ?? null,
    totalCost: new Prisma.Decimal(row?.cost ?? 0),
  };
}
