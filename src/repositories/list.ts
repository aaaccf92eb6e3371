/** Lists of repositories by page. */
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import type { Visibility } from '../../prisma/generated/enums.ts';
import { notFound } from '../base/errors.ts';
import { ownNamespaces } from '../identity/accounts.ts';
import { can, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import type { Sorting } from '../platform/database/keyset.ts';
import type { CountedList } from '../platform/database/list-counts.ts';
import { offsetPage } from '../platform/database/offset-page.ts';
import {
  type OffsetPage,
  type PageRequest,
  type Slice,
  type SliceRequest,
  toOffset,
} from '../platform/database/paging.ts';
import { unionPage } from '../platform/database/union-page.ts';
import { accessColumns, canExist, type Row, type Select, target } from './repositories.ts';
import { repositoryRows } from './rows.ts';
import { countedSql, visibleSql } from './visibility.ts';

/** Each total by the id, so that pages never overlap. Names sort ignoring case, as they are unique. */
const COLUMNS = {
  name: 'nameKey',
  created_at: 'createdAt',
  updated_at: 'updatedAt',
  size: 'sizeBytes',
} as const;

const TYPES = { name: 'text', created_at: 'time', updated_at: 'time', size: 'integer' } as const;

export type Sort = keyof typeof COLUMNS;
export type Order = 'asc' | 'desc';
export const SORTS = Object.keys(COLUMNS) as Sort[];

type Sorted = { sort: Sort; order: Order; visibility?: Visibility | null };
export type ListInput = PageRequest & Sorted & { namespace: string };

/** What GraphQL asks lists with. */
export type SliceInput = SliceRequest & Sorted;

/** Those of namespaces that the viewer may see, after a cursor. @throws AppError 400 */
export async function sliceRepositories<S extends Select>(
  { db, pool }: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  namespaceIds: readonly string[],
  { sort, order, visibility, ...range }: SliceInput,
  select: S,
): Promise<Slice<Row<S>>> {
  const sorting: Sorting = { name: sort, column: COLUMNS[sort], type: TYPES[sort], order };
  const { sql } = Prisma;
  const filter = visibility ? sql`r.visibility = ${visibility}::"Visibility"` : sql`true`;
  const table = { pool, rows: repositoryRows, prisma: shownBy(db, viewer) };
  const counted = countedOf(viewer, visibility);
  return unionPage<Row<S>>(table, sorting, range, {
    from: 'repositories',
    parts: [{ alias: 'n', column: 'namespace_id', type: 'text', values: namespaceIds }],
    where: sql`${visibleSql(viewer)} and ${filter}`,
    isFiltered: visibility != null,
    counted: counted && { ...counted, namespaceIds },
    select,
  });
}

/** Those of all namespaces that a user is a member of: for that user. @throws AppError 400, 401, 403 */
export async function sliceRepositoriesOf<S extends Select>(
  services: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  userId: string,
  input: SliceInput,
  select: S,
): Promise<Slice<Row<S>>> {
  return sliceRepositories(services, viewer, ownNamespaces(viewer, userId), input, select);
}

/** Those of a namespace that the viewer may see. @throws AppError 400, 401 for refused credentials, 404. */
export async function listRepositories<S extends Select>(
  { db, pool }: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  { namespace, page, perPage, sort, order, visibility }: ListInput,
  select: S,
): Promise<OffsetPage<Row<S>>> {
  if (viewer.kind === 'anonymous' && viewer.failure) throw viewer.failure;
  const request = { page, perPage };
  toOffset(request);
  if (!canExist({ namespace })) throw notFound('Namespace');
  const { sql } = Prisma;
  const filter = visibility ? sql`r.visibility = ${visibility}::"Visibility"` : sql`true`;
  const where = sql`${visibleSql(viewer)} and ${filter}`;
  const table = { pool, rows: repositoryRows, prisma: shownBy(db, viewer) };
  const sorting = { column: COLUMNS[sort], order, unique: sort === 'name' };
  const asked = {
    from: 'repositories',
    namespace,
    where,
    isFiltered: visibility != null,
    counted: countedOf(viewer, visibility),
    select,
  };
  const found = await offsetPage<Row<S>>(table, sorting, request, asked);
  if (!found) throw notFound('Namespace');
  return { ...request, nodes: found.nodes, total: found.total };
}

/**
 * Those of a page that Prisma alone reads are looked at once more, as they are then: since the page was found, one may have
 * been made private, or another may have its name.
 */
function shownBy(db: Db, viewer: Viewer) {
  return {
    async findMany({ select, ...query }: { select?: object }) {
      const rows = await db.repository.findMany({
        ...query,
        select: { ...select, ...accessColumns },
      });
      return rows.filter((row) => can(viewer, 'repository.read', target(row)));
    },
  };
}

/** Null for rights that the counts do not know. */
function countedOf(viewer: Viewer, visibility?: Visibility | null): CountedList | null {
  const { sql } = Prisma;
  const seen = countedSql(viewer);
  const filter = visibility ? sql`c.value = ${visibility}` : sql`true`;
  return seen && { list: 'repositories', where: sql`${seen} and ${filter}` };
}
