/** Lists of repositories by page. */
import { Prisma } from '../../prisma/generated/client.ts';
import type { Visibility } from '../../prisma/generated/enums.ts';
import { ownNamespaces } from '../auth/accounts.ts';
import type { Viewer } from '../auth/permissions.ts';
import { columnOf, type Sorting } from '../database/keyset.ts';
import { readMergedSlice } from '../database/merged.ts';
import {
  type NumberedPage,
  type PageRequest,
  type Slice,
  type SliceRequest,
  toOffset,
} from '../database/paging.ts';
import { notFound } from '../errors.ts';
import type { Services } from '../services.ts';
import { canExist, type Row, type Select } from './repos.ts';
import { visibleSql } from './visibility.ts';

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
  { db, pool }: Pick<Services, 'db' | 'pool'>,
  viewer: Viewer,
  namespaceIds: readonly string[],
  { sort, order, visibility, ...range }: SliceInput,
  select: S,
): Promise<Slice<Row<S>>> {
  const sorting: Sorting = { name: sort, column: COLUMNS[sort], type: TYPES[sort], order };
  const { sql } = Prisma;
  const filter = visibility ? sql`r.visibility = ${visibility}::"Visibility"` : sql`true`;
  return readMergedSlice<Row<S>>(pool, db.repository, sorting, range, {
    from: 'repositories',
    parts: [{ alias: 'n', column: 'namespace_id', type: 'text', values: namespaceIds }],
    where: sql`${visibleSql(viewer)} and ${filter}`,
    select,
  });
}

/** Those of all namespaces that a user is a member of: for that user. @throws AppError 400, 401, 403 */
export async function sliceRepositoriesOf<S extends Select>(
  services: Pick<Services, 'db' | 'pool'>,
  viewer: Viewer,
  userId: string,
  input: SliceInput,
  select: S,
): Promise<Slice<Row<S>>> {
  return sliceRepositories(services, viewer, ownNamespaces(viewer, userId), input, select);
}

/**
 * Those of a namespace that the viewer may see. One query reads the namespace, the total and the page; a
 * second one only what `select` asks for beyond the columns of repositories and the owner's name.
 * @throws AppError 400, 401 for refused credentials, 404.
 */
export async function listRepositories<S extends Select>(
  { db }: Pick<Services, 'db'>,
  viewer: Viewer,
  input: ListInput,
  select: S,
): Promise<NumberedPage<Row<S>>> {
  if (viewer.kind === 'anonymous' && viewer.failure) throw viewer.failure;
  const { page, perPage } = input;
  const statement = pageStatement(viewer, input, toOffset(input));
  if (!canExist(input)) throw notFound('Namespace');
  const rows = await db.$queryRaw<PageRow[]>(statement);
  const [first] = rows;
  if (!first) throw notFound('Namespace');
  const found = rows.filter(({ id }) => id !== null);
  const nodes = isPlain(select)
    ? found.map(({ owner, total: _, ...row }) => ({ ...row, namespace: owner }))
    : await readAll(db, found, select);
  return { nodes: nodes as unknown as Row<S>[], page, perPage, total: Number(first.total) };
}

/** `id` is null in the one row of a page without repositories. */
type PageRow = { owner: { id: string; name: string }; total: bigint; id: string | null };

/**
 * By hand, because Prisma's form of it joins every repository of the namespace before it cuts the page: of
 * 20,000, a page near the end took 500 ms against 35, the first 30 against 18, most of it the counting.
 */
function pageStatement(
  viewer: Viewer,
  { namespace, sort, order, visibility }: ListInput,
  { skip, take }: { skip: number; take: number },
): Prisma.Sql {
  const { sql, join, raw } = Prisma;
  const filter = visibility ? sql`r.visibility = ${visibility}::"Visibility"` : sql`true`;
  const where = sql`r.namespace_id = n.id and ${visibleSql(viewer)} and ${filter}`;
  const by = (alias: string) =>
    raw([COLUMNS[sort], 'id'].map((name) => `${alias}.${columnOf(name)} ${order}`).join(', '));
  const columns = join(
    Object.values(Prisma.RepositoryScalarFieldEnum).map((name) =>
      raw(`r.${columnOf(name)} as "${name}"`),
    ),
  );
  return sql`
    select json_build_object('id', n.id, 'name', n.name) as owner, t.total, ${columns}
      from namespaces n
      cross join lateral (select count(*) as total from repositories r where ${where}) t
      left join lateral (
        select r.* from repositories r where ${where} order by ${by('r')} limit ${take} offset ${skip}
      ) r on true
      where n.name = ${namespace.toLowerCase()}
      order by ${by('r')}`;
}

/** Whether the page's own query reads all that is asked for. */
function isPlain({ namespace, ...columns }: Select): boolean {
  const owner = typeof namespace === 'object' ? namespace.select : {};
  return (
    namespace !== true &&
    Object.keys(owner ?? { all: true }).every((name) => name === 'id' || name === 'name') &&
    Object.keys(columns).every((name) => name in Prisma.RepositoryScalarFieldEnum)
  );
}

/** In the order of `page`. One deleted since the page was read is left out. */
async function readAll(db: Services['db'], page: readonly { id: string | null }[], select: Select) {
  const ids = page.map(({ id }) => id as string);
  const rows = await db.repository.findMany({
    where: { id: { in: ids } },
    select: { ...select, id: true },
    relationLoadStrategy: 'join',
  });
  const byId = new Map(rows.map((row) => [row.id, row]));
  return ids.flatMap((id) => byId.get(id) ?? []);
}
