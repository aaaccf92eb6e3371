/** Lists of jobs: by cursor and with filters for GraphQL, and by page number for REST. */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { notFound } from '../../base/errors.ts';
import { isPossibleNamespaceName } from '../../base/names.ts';
import { listOwnNamespaceIds } from '../../identity/accounts.ts';
import { anyTargetIn, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import type { CountedList } from '../../platform/database/list-counts.ts';
import { readNumberedPage, readPage, type TablePart } from '../../platform/database/page.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  type OffsetPage,
  type OffsetPageRequest,
  toOffset,
} from '../../platform/database/paging.ts';
import { jobRows } from '../record/job-rows.ts';
import { visibleCountsSql, visibleSql } from '../record/visibility.ts';
import { buildConditions, type Filter } from './filter.ts';

type Select = Prisma.JobSelect;
type Row<S extends Select> = Prisma.JobGetPayload<{ select: S }>;
type Order = 'asc' | 'desc';

const SORTS = ['created_at', 'started_at', 'completed_at', 'name'] as const;
export type Sort = (typeof SORTS)[number];

type SortInput = { sort: Sort; order: Order; status?: JobStatus | null };
export type PageListInput = OffsetPageRequest & SortInput & { namespace: string };

type Deps = { db: Db; pool: pg.Pool };

/** The arguments of job lists in GraphQL. */
export type CursorListInput = CursorPageRequest &
  SortInput & {
    filter?: Filter | null;
    /** Lists one job of each array: the first one that has the status. */
    foldArrays?: boolean | null;
  };

/** Lists by cursor the jobs of the given namespaces that the viewer may see. @throws AppError 400, 404 */
export async function listJobsByCursor<S extends Select>(
  services: Deps,
  viewer: Viewer,
  namespaceIds: readonly string[],
  { sort, order, status, filter, foldArrays, ...range }: CursorListInput,
  select: S,
): Promise<CursorPage<Row<S>>> {
  const { statuses, gpus, where } = await buildConditions(services, viewer, filter ?? {});
  const parts: TablePart[] = [];
  const selectedStatuses = status
    ? [status].filter((value) => statuses?.includes(value) ?? true)
    : statuses;
  const folding = foldArrays ? foldArraysSql(selectedStatuses, filter?.namePrefix ?? null) : null;
  if (folding) where.push(folding.where);
  const hasOtherFilters = gpus !== null || where.length > 0;
  const counted = countsFor(viewer, selectedStatuses);
  // The indexes by GPU and by status are only ordered by creation time.
  const isByGpu = gpus !== null && sort === 'created_at';
  if (isByGpu) parts.push({ alias: 'g', column: 'gpu', type: 'text', values: gpus });
  else if (gpus) where.push(Prisma.sql`r.gpu = any(${[...gpus]})`);
  if (selectedStatuses && sort === 'created_at' && !isByGpu)
    parts.push({ alias: 's', column: 'status', type: '"JobStatus"', values: selectedStatuses });
  else if (selectedStatuses)
    where.push(Prisma.sql`r.status = any(${[...selectedStatuses]}::"JobStatus"[])`);
  return readPage<Row<S>>(
    { pool: services.pool, rows: jobRows },
    { ...SORTINGS[sort], name: sort, order },
    range,
    namespaceIds,
    {
      from: 'jobs',
      parts,
      join: folding?.join,
      where: Prisma.join([visibleSql(viewer), ...where], ' and '),
      isFiltered: hasOtherFilters || selectedStatuses !== null,
      counted: hasOtherFilters ? null : counted,
      select,
    },
  );
}

/**
 * Hides all jobs of an array but one. Those of which a name prefix selects only some (`train-1`) are not hidden.
 * @returns a condition, and a join that it needs
 */
function foldArraysSql(
  statuses: readonly JobStatus[] | null,
  namePrefix: string | null,
): { join?: Prisma.Sql; where: Prisma.Sql } {
  const { sql, join } = Prisma;
  // A flag marks the first job of all. For the first one with a status there is an index. As a join (`offset 0` keeps it one),
  // the database looks it up once for each array and not once for each of its ten thousand jobs.
  const firstIds = [...new Set(statuses)].map(
    (status) => sql`(select min(j.id) from jobs j
      where j.array_id = r.array_id and j.status = ${status}::"JobStatus")`,
  );
  const isByStatus = firstIds.length > 0;
  const isShown = isByStatus ? sql`r.array_id is null or r.id = f.id` : sql`not r.folded`;
  const isPartial = sql`not exists (select 1 from job_arrays a
    where a.id = r.array_id and starts_with(a.name || '-', ${namePrefix}))`;
  return {
    ...(isByStatus && {
      join: sql`left join lateral (select least(${join(firstIds)}) as id offset 0) f on true`,
    }),
    where: namePrefix === null ? sql`(${isShown})` : sql`(${isShown} or ${isPartial})`,
  };
}

/** Lists by cursor the jobs of all namespaces of a user. Only that user may list them. @throws AppError 400, 401, 403, 404 */
export async function listJobsOfUserByCursor<S extends Select>(
  services: Deps,
  viewer: Viewer,
  userId: string,
  input: CursorListInput,
  select: S,
): Promise<CursorPage<Row<S>>> {
  return listJobsByCursor(services, viewer, listOwnNamespaceIds(viewer, userId), input, select);
}

/** Selects the stored counts for a list; null if the viewer may see only a part of the counted jobs. */
function countsFor(viewer: Viewer, statuses: readonly JobStatus[] | null): CountedList | null {
  const { sql } = Prisma;
  const visible = visibleCountsSql(viewer);
  const filter = statuses ? sql`c.value = any(${[...statuses]}::text[])` : sql`true`;
  return visible && { list: 'jobs', where: sql`${visible} and ${filter}` };
}

const SORTINGS = {
  created_at: { column: 'createdAt', type: 'time' },
  started_at: { column: 'startedAt', type: 'time', nullable: true },
  completed_at: { column: 'completedAt', type: 'time', nullable: true },
  name: { column: 'name', type: 'text', unique: true },
} as const;

/** Lists the jobs of a namespace by page number. @throws AppError 400, 401, 403, 404 */
export async function listJobsByPage<S extends Select>(
  { pool }: Deps,
  viewer: Viewer,
  { namespace, page, perPage, sort, order, status }: PageListInput,
  select: S,
): Promise<OffsetPage<Row<S>>> {
  const request = { page, perPage };
  toOffset(request);
  demandAccount(viewer);
  if (!isPossibleNamespaceName(namespace)) throw notFound('Namespace', namespace);
  const { sql } = Prisma;
  const filter = status ? sql`r.status = ${status}::"JobStatus"` : sql`true`;
  // The query returns only visible jobs, so access to the namespace can be checked after it.
  const where = sql`${visibleSql(viewer)} and ${filter}`;
  const query = {
    from: 'jobs',
    where,
    isFiltered: status != null,
    counted: countsFor(viewer, status ? [status] : null),
    select,
  };
  const sorting = { ...SORTINGS[sort], name: sort, order };
  const table = { pool, rows: jobRows };
  const found = await readNumberedPage<Row<S>>(table, sorting, request, namespace, query);
  if (!found) throw notFound('Namespace', namespace);
  demand(viewer, 'job.read', anyTargetIn(viewer, found.namespaceId));
  return { ...request, nodes: found.nodes, total: found.total };
}
