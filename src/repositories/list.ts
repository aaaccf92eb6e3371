/** Pages of repositories: by cursor for GraphQL, by page number for REST. */
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import type { Visibility } from '../../prisma/generated/enums.ts';
import { notFound } from '../base/errors.ts';
import { listOwnNamespaceIds } from '../identity/accounts.ts';
import { can, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import type { Sorting } from '../platform/database/keyset.ts';
import type { CountedList } from '../platform/database/list-counts.ts';
import { offsetPage } from '../platform/database/offset-page.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  type OffsetPage,
  type OffsetPageRequest,
  toOffset,
} from '../platform/database/paging.ts';
import { unionPage } from '../platform/database/union-page.ts';
import {
  accessColumns,
  accessTarget,
  isPossibleKey,
  type Row,
  type Select,
} from './repositories.ts';
import { repositoryRows } from './rows.ts';
import { countedSql, visibleSql } from './visibility.ts';

/**
 * The id breaks ties, so pages never overlap. Names sort case-insensitively because they are unique that way.
 */
const SORT_COLUMNS = {
  name: 'nameKey',
  created_at: 'createdAt',
  updated_at: 'updatedAt',
  size: 'sizeBytes',
} as const;

const SORT_TYPES = {
  name: 'text',
  created_at: 'time',
  updated_at: 'time',
  size: 'integer',
} as const;

export type Sort = keyof typeof SORT_COLUMNS;
type Order = 'asc' | 'desc';
export const SORTS = Object.keys(SORT_COLUMNS) as Sort[];

type ListOptions = { sort: Sort; order: Order; visibility?: Visibility | null };
type ListInput = OffsetPageRequest & ListOptions & { namespace: string };

/** Options of a list in GraphQL. */
export type SliceInput = CursorPageRequest & ListOptions;

/**
 * Lists the repositories of the given namespaces that the viewer may see, after a cursor. @throws AppError 400
 */
export async function sliceRepositories<S extends Select>(
  { db, pool }: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  namespaceIds: readonly string[],
  { sort, order, visibility, ...range }: SliceInput,
  select: S,
): Promise<CursorPage<Row<S>>> {
  const sorting: Sorting = {
    name: sort,
    column: SORT_COLUMNS[sort],
    type: SORT_TYPES[sort],
    order,
  };
  const { table, counted, ...filters } = visibleRows({ db, pool }, viewer, visibility);
  return unionPage<Row<S>>(table, sorting, range, {
    ...filters,
    parts: [{ alias: 'n', column: 'namespace_id', type: 'text', values: namespaceIds }],
    counted: counted && { ...counted, namespaceIds },
    select,
  });
}

/**
 * Lists the repositories of all namespaces of a user. Only that user may read this list. @throws AppError 400,
 * 401, 403
 */
export async function sliceRepositoriesOf<S extends Select>(
  services: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  userId: string,
  input: SliceInput,
  select: S,
): Promise<CursorPage<Row<S>>> {
  return sliceRepositories(services, viewer, listOwnNamespaceIds(viewer, userId), input, select);
}

/**
 * Lists the repositories of a namespace that the viewer may see. @throws AppError 400, 401 for rejected
 * credentials, 404.
 */
export async function listRepositories<S extends Select>(
  { db, pool }: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  { namespace, page, perPage, sort, order, visibility }: ListInput,
  select: S,
): Promise<OffsetPage<Row<S>>> {
  if (viewer.kind === 'anonymous' && viewer.failure) throw viewer.failure;
  const request = { page, perPage };
  toOffset(request);
  if (!isPossibleKey({ namespace })) throw notFound('Namespace');
  const sorting = { column: SORT_COLUMNS[sort], order, unique: sort === 'name' };
  const { table, ...filters } = visibleRows({ db, pool }, viewer, visibility);
  const query = { ...filters, namespace, select };
  const found = await offsetPage<Row<S>>(table, sorting, request, query);
  if (!found) throw notFound('Namespace');
  return { ...request, nodes: found.nodes, total: found.total };
}

/** The parts of a list query that both kinds of pages share. */
function visibleRows(
  { db, pool }: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  visibility?: Visibility | null,
) {
  const { sql } = Prisma;
  const filter = visibility ? sql`r.visibility = ${visibility}::"Visibility"` : sql`true`;
  return {
    table: { pool, rows: repositoryRows, prisma: visibleRowsReader(db, viewer) },
    from: 'repositories',
    where: sql`${visibleSql(viewer)} and ${filter}`,
    isFiltered: visibility != null,
    counted: storedCountsFor(viewer, visibility),
  };
}

/**
 * When Prisma reads the rows of a page in a second query, their permissions are checked again: after the page
 * was found, a repository may have been made private, or its name may have passed to a different repository.
 */
function visibleRowsReader(db: Db, viewer: Viewer) {
  return {
    async findMany({ select, ...query }: { select?: object }) {
      const rows = await db.repository.findMany({
        ...query,
        select: { ...select, ...accessColumns },
      });
      return rows.filter((row) => can(viewer, 'repository.read', accessTarget(row)));
    },
  };
}

/** Null if the stored counts cannot answer for the permissions of this viewer. */
function storedCountsFor(viewer: Viewer, visibility?: Visibility | null): CountedList | null {
  const { sql } = Prisma;
  const seen = countedSql(viewer);
  const filter = visibility ? sql`c.value = ${visibility}` : sql`true`;
  return seen && { list: 'repositories', where: sql`${seen} and ${filter}` };
}
