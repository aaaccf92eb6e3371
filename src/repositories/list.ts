/** Pages of repositories: by cursor for GraphQL, by page number for REST. */
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import type { Visibility } from '../../prisma/generated/enums.ts';
import { notFound } from '../base/errors.ts';
import { listOwnNamespaceIds } from '../identity/accounts.ts';
import type { Viewer } from '../identity/permissions.ts';
import type { Sorting } from '../platform/database/keyset.ts';
import type { CountedList } from '../platform/database/list-counts.ts';
import { readNumberedPage, readPage } from '../platform/database/page.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  type OffsetPage,
  type OffsetPageRequest,
  toOffset,
} from '../platform/database/paging.ts';
import { isPossibleKey, type Row, type Select } from './repositories.ts';
import { repositoryRows } from './rows.ts';
import { countedSql, visibleSql } from './visibility.ts';

/**
 * Sort keys of the API and their columns; the paging functions break ties by id. `nameKey` is the name in lower case,
 * because names are unique regardless of case.
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

/** Options of a list in GraphQL. `slice…` functions return a page by cursor, `list…` functions one by number. */
export type SliceInput = CursorPageRequest & ListOptions;

/**
 * Returns a page of the repositories in the given namespaces that are visible to the viewer.
 * @throws AppError 400
 */
export async function sliceRepositories<S extends Select>(
  { pool }: { pool: pg.Pool },
  viewer: Viewer,
  namespaceIds: readonly string[],
  { sort, order, visibility, ...range }: SliceInput,
  select: S,
): Promise<CursorPage<Row<S>>> {
  const table = { pool, rows: repositoryRows };
  const query = { ...visibleRowsQuery(viewer, visibility), select };
  return readPage<Row<S>>(table, sortingOf(sort, order), range, namespaceIds, query);
}

/**
 * Returns a page of the repositories in the user's own namespace and in those that the user is a member of. Only that
 * user may read this list.
 * @throws AppError 400, 401, 403
 */
export async function sliceRepositoriesOfUser<S extends Select>(
  services: { pool: pg.Pool },
  viewer: Viewer,
  userId: string,
  input: SliceInput,
  select: S,
): Promise<CursorPage<Row<S>>> {
  return sliceRepositories(services, viewer, listOwnNamespaceIds(viewer, userId), input, select);
}

/**
 * Lists the repositories of a namespace that are visible to the viewer.
 * @throws AppError 400, 401 for rejected credentials, 404
 */
export async function listRepositories<S extends Select>(
  { pool }: { pool: pg.Pool },
  viewer: Viewer,
  { namespace, page, perPage, sort, order, visibility }: ListInput,
  select: S,
): Promise<OffsetPage<Row<S>>> {
  if (viewer.kind === 'anonymous' && viewer.failure) throw viewer.failure;
  const request = { page, perPage };
  // Called for its error: 400 if the page is out of range.
  toOffset(request);
  if (!isPossibleKey({ namespace })) throw notFound('Namespace', namespace);
  const table = { pool, rows: repositoryRows };
  const sorting = sortingOf(sort, order);
  const query = { ...visibleRowsQuery(viewer, visibility), select };
  const found = await readNumberedPage<Row<S>>(table, sorting, request, namespace, query);
  // Null if the namespace does not exist; an empty namespace has an empty page.
  if (!found) throw notFound('Namespace', namespace);
  return { ...request, nodes: found.nodes, total: found.total };
}

function sortingOf(sort: Sort, order: Order): Sorting {
  const [column, type] = [SORT_COLUMNS[sort], SORT_TYPES[sort]];
  return { name: sort, column, type, order, unique: sort === 'name' };
}

/** The parts of a list query that pages by cursor and by number share. */
function visibleRowsQuery(viewer: Viewer, visibility?: Visibility | null) {
  const { sql } = Prisma;
  const filter = visibility ? sql`r.visibility = ${visibility}::"Visibility"` : sql`true`;
  return {
    from: 'repositories',
    where: sql`${visibleSql(viewer)} and ${filter}`,
    isFiltered: visibility != null,
    counted: storedCountsFor(viewer, visibility),
  };
}

/** Null if the stored counts do not tell what this viewer may see. `c` is the alias of the stored counts. */
function storedCountsFor(viewer: Viewer, visibility?: Visibility | null): CountedList | null {
  const { sql } = Prisma;
  const visibleCounts = countedSql(viewer);
  const filter = visibility ? sql`c.value = ${visibility}` : sql`true`;
  return visibleCounts && { list: 'repositories', where: sql`${visibleCounts} and ${filter}` };
}
