/**
 * Search for namespaces, repositories and jobs by name.
 *
 * The cost is bounded. A name prefix finds any object through the indexes of names. Words inside names find only recently
 * changed or created objects, because an index of name parts would be written with each job. `acme/tr` searches only the
 * namespace `acme`.
 */
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import { invalid } from '../base/errors.ts';
import {
  type Account,
  demandAccount,
  namespacesAsMember,
  type Viewer,
} from '../identity/permissions.ts';
import {
  visibleSql as visibleJobs,
  visibleTo as visibleToJobs,
} from '../jobs/record/visibility.ts';
import type { Db } from '../platform/database/client.ts';
import { checkFirst } from '../platform/database/paging.ts';
import { visibleSql as visibleRepositories, visibleTo } from '../repositories/visibility.ts';

const MAX_TEXT = 200;
/** Recent objects whose names are searched for words: in all namespaces together, and at least per namespace. */
const MAX_RECENT = 5_000;
const MIN_RECENT_PER_NAMESPACE = 20;

export type ResultKind = 'Namespace' | 'Repository' | 'Job';
/** The columns to read of each kind. */
type Selects = Record<ResultKind, object>;
export type SearchHit = { __typename: ResultKind; id: string };

type Deps = { db: Db; pool: pg.Pool };
type Candidate = { kind: ResultKind; id: string; name: string; at: Date };
type Query = { namespaceIds: string[]; prefix: string; words: string[]; first: number };

/**
 * Results by quality of the match: the name is the text, begins with it, has parts that begin with its words, or contains
 * them. Equal matches are sorted by kind (namespaces, repositories, jobs), then newest first.
 * @throws AppError 400, 401
 */
export async function search(
  services: Deps,
  viewer: Viewer,
  { text, first }: { text: string; first: number },
  selects: Selects,
): Promise<SearchHit[]> {
  const account = demandAccount(viewer);
  checkFirst(first);
  const trimmed = text.trim().toLowerCase();
  if (trimmed.length > MAX_TEXT) throw invalid('text', `must be at most ${MAX_TEXT} characters`);
  // Names contain only these characters.
  if (!/^[\x20-\x7e]+$/.test(trimmed)) return [];
  const slash = trimmed.indexOf('/');
  const prefix = trimmed.slice(slash + 1);
  const words = prefix.split(/\s+/).filter((word) => word !== '');
  const within = slash === -1 ? null : await resolveNamespaceId(services, trimmed.slice(0, slash));
  if (slash !== -1 && within === null) return [];
  const query: Query = {
    namespaceIds: within ? [within] : namespacesAsMember(account, 'read'),
    prefix,
    words,
    first,
  };
  const found = await Promise.all([
    within ? [] : findNamespaces(services, account, query),
    findRepositories(services, account, query, within === null),
    findJobs(services, account, query),
  ]);
  return loadHits(services, account, pickBest(found.flat(), query), selects);
}

async function resolveNamespaceId({ db }: Deps, name: string): Promise<string | null> {
  const row = await db.namespace.findUnique({ where: { name }, select: { id: true } });
  return row?.id ?? null;
}

/** The names of all namespaces are visible to every user, but words inside names find only the viewer's namespaces. */
async function findNamespaces(
  { db }: Deps,
  { namespaces: narrowed }: Account,
  { namespaceIds, prefix, words, first }: Query,
): Promise<Candidate[]> {
  const rows = await db.namespace.findMany({
    where: {
      deletedAt: null,
      OR: [
        {
          name: { startsWith: escapeLike(prefix) },
          ...(narrowed && { id: { in: [...narrowed] } }),
        },
        {
          id: { in: namespaceIds },
          AND: words.map((word) => ({ name: { contains: escapeLike(word) } })),
        },
      ],
    },
    select: { id: true, name: true, createdAt: true },
    orderBy: { name: 'asc' },
    take: first + namespaceIds.length,
  });
  return rows.map(({ createdAt, ...row }) => ({ ...row, kind: 'Namespace', at: createdAt }));
}

async function findRepositories(
  { pool }: Deps,
  viewer: Account,
  query: Query,
  everywhere: boolean,
): Promise<Candidate[]> {
  const { sql, empty } = Prisma;
  const { prefix, first } = query;
  const visible = visibleRepositories(viewer);
  const everywhereSql = sql`
    union all (
      select r.id, r.name, r.updated_at as at from repositories r join namespaces n on n.id = r.namespace_id
      where r.visibility <> 'private' and r.name_key like ${`${escapeLike(prefix)}%`} and ${visible}
      order by r.name_key limit ${first})`;
  return readCandidates(pool, 'Repository', query, {
    named: sql`
      select r.id, r.name, r.updated_at as at from repositories r
      where r.namespace_id = n.id and r.name_key like ${`${escapeLike(prefix)}%`} and ${visible}
      order by r.name_key limit ${first}`,
    recent: sql`
      select r.id, r.name, r.updated_at as at from repositories r
      where r.namespace_id = n.id and ${visible}
      order by r.updated_at desc, r.id desc`,
    more: everywhere ? everywhereSql : empty,
  });
}

/** Names of jobs are case-sensitive in the index. */
async function findJobs({ pool }: Deps, viewer: Account, query: Query): Promise<Candidate[]> {
  const { sql, empty } = Prisma;
  const visible = visibleJobs(viewer);
  return readCandidates(pool, 'Job', query, {
    named: sql`
      select r.id, r.name, r.created_at as at from jobs r
      where r.namespace_id = n.id and r.name like ${`${escapeLike(query.prefix)}%`} and ${visible}
      order by r.name limit ${query.first}`,
    recent: sql`
      select r.id, r.name, r.created_at as at from jobs r
      where r.namespace_id = n.id and ${visible}
      order by r.created_at desc, r.id desc`,
    more: empty,
  });
}

/** Run through pg, so that PostgreSQL plans the statement for these values. */
async function readCandidates(
  pool: pg.Pool,
  kind: ResultKind,
  { namespaceIds, words }: Query,
  { named, recent, more }: Record<'named' | 'recent' | 'more', Prisma.Sql>,
): Promise<Candidate[]> {
  const { sql } = Prisma;
  const perNamespace = Math.max(
    MIN_RECENT_PER_NAMESPACE,
    Math.floor(MAX_RECENT / Math.max(1, namespaceIds.length)),
  );
  const patterns = words.map((word) => `%${escapeLike(word)}%`);
  const { text, values } = sql`
    with mine as (select unnest(${namespaceIds}::text[]) as id)
    select f.* from mine n cross join lateral (${named}) f
    union all
    select f.* from mine n cross join lateral (${recent} limit ${perNamespace}) f
      where lower(f.name) like all(${patterns}::text[])
    ${more}`;
  const { rows } = await pool.query<Omit<Candidate, 'kind'>>(text, values);
  return rows.map((row) => ({ ...row, kind }));
}

/** Escapes the wildcards of LIKE. */
function escapeLike(text: string): string {
  return text.replace(/[\\%_]/g, (character) => `\\${character}`);
}

const KINDS: readonly ResultKind[] = ['Namespace', 'Repository', 'Job'];

function pickBest(found: readonly Candidate[], { prefix, words, first }: Query): Candidate[] {
  const unique = [...new Map(found.map((one) => [one.id, one])).values()];
  const ranks = new Map(
    unique.map(({ id, name }) => [id, rankOf(name.toLowerCase(), prefix, words)]),
  );
  const rank = ({ id }: Candidate) => ranks.get(id) ?? 0;
  return unique
    .sort(
      (a, b) =>
        rank(a) - rank(b) ||
        KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind) ||
        b.at.getTime() - a.at.getTime() ||
        (a.id < b.id ? 1 : -1),
    )
    .slice(0, first);
}

function rankOf(name: string, prefix: string, words: readonly string[]): number {
  if (name === prefix) return 0;
  if (name.startsWith(prefix)) return 1;
  const parts = name.split(/[-_.]/);
  return words.every((word) => parts.some((part) => part.startsWith(word))) ? 2 : 3;
}

/** Reads the rows in the order of `found`, without those that were deleted since. */
async function loadHits(
  { db }: Deps,
  viewer: Account,
  found: readonly Candidate[],
  selects: Selects,
): Promise<SearchHit[]> {
  const ids = (kind: ResultKind) => found.filter((one) => one.kind === kind).map(({ id }) => id);
  const query = (kind: ResultKind, visible: object) => ({
    where: { id: { in: ids(kind) }, AND: [visible] },
    select: { ...selects[kind], id: true as const },
    relationLoadStrategy: 'join' as const,
  });
  const tables = {
    Namespace: () => db.namespace.findMany(query('Namespace', {})),
    Repository: () => db.repository.findMany(query('Repository', visibleTo(viewer))),
    Job: () => db.job.findMany(query('Job', visibleToJobs(viewer))),
  };
  const rows = await Promise.all(
    KINDS.filter((kind) => ids(kind).length > 0).map(async (kind) =>
      (await tables[kind]()).map((row) => ({ ...row, __typename: kind })),
    ),
  );
  const byId = new Map(rows.flat().map((row) => [row.id, row]));
  return found.flatMap(({ id }) => byId.get(id) ?? []);
}
