/** Lists of jobs: after a cursor and filtered, as GraphQL has them, and by page number, as REST has them. */
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { notFound } from '../base/errors.ts';
import { canBeNamespace } from '../base/names.ts';
import { ownNamespaces } from '../identity/accounts.ts';
import { anyIn, demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import type { CountedList } from '../platform/database/list-counts.ts';
import { offsetPage } from '../platform/database/offset-page.ts';
import {
  type OffsetPage,
  type PageRequest,
  type Slice,
  type SliceRequest,
  toOffset,
} from '../platform/database/paging.ts';
import { type Part, unionPage } from '../platform/database/union-page.ts';
import { conditions, type Filter } from './filter.ts';
import { jobRows } from './payload.ts';
import { countedSql, visibleSql } from './visibility.ts';

type Select = Prisma.JobSelect;
type Row<S extends Select> = Prisma.JobGetPayload<{ select: S }>;
type Order = 'asc' | 'desc';

export const SORTS = ['created_at', 'started_at', 'completed_at', 'name'] as const;
export type Sort = (typeof SORTS)[number];

type Sorted = { sort: Sort; order: Order; status?: JobStatus | null };
export type ListInput = PageRequest & Sorted & { namespace: string };

type Deps = { db: Db; pool: pg.Pool };

/** What GraphQL asks lists with. */
export type SliceInput = SliceRequest & Sorted & { filter?: Filter | null };

/** Those of namespaces that the viewer may see, after a cursor. @throws AppError 400, 404 */
export async function sliceJobs<S extends Select>(
  services: Deps,
  viewer: Viewer,
  namespaceIds: readonly string[],
  { sort, order, status, filter, ...range }: SliceInput,
  select: S,
): Promise<Slice<Row<S>>> {
  const { statuses, gpus, where } = await conditions(services, viewer, filter ?? {});
  const parts: Part[] = [
    { alias: 'n', column: 'namespace_id', type: 'text', values: namespaceIds },
  ];
  const wanted = status ? [status].filter((it) => statuses?.includes(it) ?? true) : statuses;
  const isByMore = gpus !== null || where.length > 0;
  const counted = countedOf(viewer, wanted);
  // Indexes have the jobs of each GPU and of each status by time of creation, and by nothing else.
  const isByGpu = gpus !== null && sort === 'created_at';
  if (isByGpu) parts.push({ alias: 'g', column: 'gpu', type: 'text', values: gpus });
  else if (gpus) where.push(Prisma.sql`r.gpu = any(${[...gpus]})`);
  if (wanted && sort === 'created_at' && !isByGpu)
    parts.push({ alias: 's', column: 'status', type: '"JobStatus"', values: wanted });
  else if (wanted) where.push(Prisma.sql`r.status = any(${[...wanted]}::"JobStatus"[])`);
  return unionPage<Row<S>>(
    { pool: services.pool, rows: jobRows, prisma: services.db.job },
    { ...SORTINGS[sort], name: sort, order },
    range,
    {
      from: 'jobs',
      parts,
      where: Prisma.join([visibleSql(viewer), ...where], ' and '),
      isFiltered: isByMore || wanted !== null,
      counted: counted && !isByMore ? { ...counted, namespaceIds } : null,
      select,
    },
  );
}

/** Those of all namespaces that a user is a member of, as `sliceJobs`: for that user. @throws AppError 400, 401, 403, 404 */
export async function sliceJobsOf<S extends Select>(
  services: Deps,
  viewer: Viewer,
  userId: string,
  input: SliceInput,
  select: S,
): Promise<Slice<Row<S>>> {
  return sliceJobs(services, viewer, ownNamespaces(viewer, userId), input, select);
}

/** Null for rights that the counts do not know. */
function countedOf(viewer: Viewer, statuses: readonly JobStatus[] | null): CountedList | null {
  const { sql } = Prisma;
  const seen = countedSql(viewer);
  const filter = statuses ? sql`c.value = any(${[...statuses]}::text[])` : sql`true`;
  return seen && { list: 'jobs', where: sql`${seen} and ${filter}` };
}

const SORTINGS = {
  created_at: { column: 'createdAt', type: 'time' },
  started_at: { column: 'startedAt', type: 'time', nullable: true },
  completed_at: { column: 'completedAt', type: 'time', nullable: true },
  name: { column: 'name', type: 'text', unique: true },
} as const;

/** @throws AppError 400, 401, 403, 404. */
export async function listJobs<S extends Select>(
  { db, pool }: Deps,
  viewer: Viewer,
  { namespace, page, perPage, sort, order, status }: ListInput,
  select: S,
): Promise<OffsetPage<Row<S>>> {
  const request = { page, perPage };
  toOffset(request);
  demandAccount(viewer);
  if (!canBeNamespace(namespace)) throw notFound('Namespace');
  const { sql } = Prisma;
  const filter = status ? sql`r.status = ${status}::"JobStatus"` : sql`true`;
  // What is read is what the viewer may see, so whether the namespace may be asked at all can be judged behind it.
  const where = sql`${visibleSql(viewer)} and ${filter}`;
  const table = { pool, rows: jobRows, prisma: db.job };
  const asked = {
    from: 'jobs',
    namespace,
    where,
    isFiltered: status != null,
    counted: countedOf(viewer, status ? [status] : null),
    select,
  };
  const found = await offsetPage<Row<S>>(table, { ...SORTINGS[sort], order }, request, asked);
  if (!found) throw notFound('Namespace');
  demand(viewer, 'job.read', anyIn(viewer, found.namespaceId));
  return { ...request, nodes: found.nodes, total: found.total };
}
