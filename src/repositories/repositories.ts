/**
 * Finding repositories, for those who may read them or push to them.
 *
 * Callers say with `select` which columns they want, so that one query serves both them and the rules here.
 */
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import { AppError, invalid, notFound, unauthenticated } from '../base/errors.ts';
import { isId } from '../base/ids.ts';
import { canBeNamespace } from '../base/names.ts';
import type { Urls } from '../base/urls.ts';
import { branchTip, resolveCommit } from '../git/objects/resolve.ts';
import { type Action, can, demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Rule } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import { columnOf } from '../platform/database/keyset.ts';
import type { DiskSpace } from '../platform/storage/disk-space.ts';
import { folderWork, type Reads } from './folder.ts';
import { isRepositoryName, nameKey } from './names.ts';
import { repositoryRows } from './rows.ts';
import { visibleTo } from './visibility.ts';

export type { RepositoryEventData } from './payload.ts';

export type Select = Prisma.RepositorySelect;
export type Row<S extends Select> = Prisma.RepositoryGetPayload<{ select: S }>;

/** Whether the viewer may read it: of rows that come with others, as a job's repository does. */
export function isVisible(viewer: Viewer, row: Omit<AccessRow, 'defaultBranch'>): boolean {
  return can(viewer, 'repository.read', target(row));
}

/** One by its id; null when there is none that the viewer may see. */
export async function findRepositoryById<S extends Select>(
  { db }: { db: Db },
  viewer: Viewer,
  id: string,
  select: S,
): Promise<Row<S> | null> {
  const row = await db.repository.findUnique({
    where: { id, AND: [visibleTo(viewer)] },
    select,
  });
  return row as unknown as Row<S> | null;
}

/** By id or by name. */
export type RepositoryKey = { namespace: string; id?: string | null; name?: string | null };

/** What the rules need of every row. */
export const accessColumns = {
  id: true,
  namespaceId: true,
  visibility: true,
  defaultBranch: true,
} as const;
export type AccessRow = Row<typeof accessColumns>;

/**
 * One that the viewer may read. By name, one that the viewer may not see does not exist: names can be guessed.
 * @throws AppError 401 for refused credentials, 404; by id also 401 and 403.
 */
export async function getRepository<S extends Select>(
  services: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  key: RepositoryKey,
  select: S,
): Promise<AccessRow & Row<S>> {
  if (viewer.kind === 'anonymous' && viewer.failure) throw viewer.failure;
  if (!key.id && !key.name) throw invalid(null, 'give the id or the name of the repository');
  const row = canExist(key) ? await findRepository(services, key, select) : null;
  if (row && (key.id || can(viewer, 'repository.read', target(row)))) {
    demand(viewer, 'repository.read', target(row));
    return row;
  }
  throw noRepository(key.id);
}

/** By id; the namespace, when given, must be the owner's. */
export type RepositoryId = { id: string; namespace?: string | null };

const ownerColumns = { namespace: { select: { name: true } } } as const;

/** The row, with these columns, of one that an account is about to change. @throws AppError 401, 403, 404 */
export async function demandRepository<S extends Select>(
  db: Db,
  viewer: Viewer,
  { id, namespace }: RepositoryId,
  action: Action,
  columns: S,
): Promise<AccessRow & Row<typeof ownerColumns> & Row<S>> {
  demandAccount(viewer);
  const select = { ...columns, ...accessColumns, ...ownerColumns };
  const found = isId('repo', id)
    ? await db.repository.findUnique({ where: { id }, select, relationLoadStrategy: 'join' })
    : null;
  const row = found as (AccessRow & Row<typeof ownerColumns> & Row<S>) | null;
  if (!row || (namespace != null && row.namespace.name !== namespace.toLowerCase()))
    throw noRepository(id);
  demand(viewer, action, target(row));
  return row;
}

/** 404. Who gives a name where the id belongs is told so. */
export function noRepository(id?: string | null): AppError {
  if (!id || isId('repo', id)) return notFound('Repository');
  return new AppError('not_found', 'Repository not found: give its id (repo_…), not its name');
}

async function findRepository<S extends Select>(
  { db, pool }: { db: Db; pool: pg.Pool },
  key: RepositoryKey,
  select: S,
): Promise<(AccessRow & Row<S>) | null> {
  type Found = AccessRow & Row<S>;
  const namespace = key.namespace.toLowerCase();
  const byId = key.id ? { id: key.id } : {};
  const byName = key.name ? { nameKey: nameKey(key.name) } : {};
  const given = Object.entries({ ...byId, ...byName });
  const conditions = given.map(([field], at) => `and r.${columnOf(field)} = $${at + 2}`).join(' ');
  const statement = repositoryRows.statement(
    select,
    accessColumns,
    `where n.name = $1 ${conditions}`,
  );
  if (statement) {
    const [row] = await statement.read(pool, [namespace, ...given.map(([, value]) => value)]);
    return (row ?? null) as Found | null;
  }
  const row = await db.repository.findFirst({
    where: { ...byId, ...byName, namespace: { name: namespace } },
    select: { ...select, ...accessColumns },
    relationLoadStrategy: 'join',
  });
  return row as unknown as Found | null;
}

/** Until the transaction ends, nobody else changes or deletes it. @returns whether it is there */
export async function lockRepository(tx: Prisma.TransactionClient, id: string): Promise<boolean> {
  if (!isId('repo', id)) return false;
  const count = await tx.$executeRaw`
    select from repositories where id = ${id} for no key update`;
  return count > 0;
}

export type GitAction = 'repository.read' | 'repository.push';

/**
 * The id of a repository, for a git client that may do `action`.
 * @throws AppError 401 for the anonymous, whether it does not exist or is not theirs to see, and for refused
 * credentials; 403 where it may be read and no more; 404; 500 for a push when the disk is nearly full.
 */
export async function openForGit(
  services: { db: Db; pool: pg.Pool; space: DiskSpace },
  viewer: Viewer,
  key: { namespace: string; name: string },
  action: GitAction,
): Promise<string> {
  const row = await getRepository(services, viewer, key, {}).catch((error) => {
    // Git asks its user for credentials only when it gets a 401.
    const hidden = viewer.kind === 'anonymous' && error.code === 'not_found';
    throw hidden ? unauthenticated() : error;
  });
  demand(viewer, action, target(row));
  if (action === 'repository.push') services.space.demand();
  return row.id;
}

/**
 * The rule that must hold while a transfer of a repository is under way, which may take hours. By id: a rename
 * changes nothing.
 */
export function ruleOfGit({ db }: { db: Db }, id: string, action: GitAction): Rule {
  return {
    key: `${action} ${id}`,
    async demand(now) {
      const row = await db.repository.findUnique({ where: { id }, select: accessColumns });
      if (!row) throw notFound('Repository');
      demand(now, action, target(row));
    },
  };
}

/** What a job checks out. */
export type Source = {
  repositoryId: string;
  /** The present `namespace/name`. */
  repo: string;
  branch: string;
  commitSha: string;
};

/**
 * The commit that a branch of `namespace/name` stands at, for whoever may read it. Without a branch, `main` is taken where it
 * exists, else the default branch, as for `ref`.
 * @throws AppError 400 for what is no such pair, 401, 404 for the repository or the branch.
 */
export async function resolveBranch(
  services: Reads,
  viewer: Viewer,
  { repo, branch }: { repo: string; branch: string | null },
): Promise<Source> {
  const row = await getRepository(services, viewer, keyOf('repo', repo), nameColumns);
  const branches = branch === null ? ['main', row.defaultBranch] : [branch];
  return {
    repositoryId: row.id,
    repo: fullName(row),
    ...(await tipOf(services, row.id, branches)),
  };
}

/**
 * The present `namespace/name` of a repository, for whoever may read it, and whether it has a commit.
 * @throws AppError 404
 */
export async function lookForCommit(
  services: Reads,
  viewer: Viewer,
  { repositoryId, commitSha }: { repositoryId: string; commitSha: string },
): Promise<{ fullName: string; isThere: boolean }> {
  const row = await findRepositoryById(services, viewer, repositoryId, nameColumns);
  if (!row) throw notFound('Repository');
  return { fullName: fullName(row), isThere: await hasCommit(services, repositoryId, commitSha) };
}

const hasCommit = folderWork('hasCommit', async ({ git }, dir, sha: string) => {
  return (await resolveCommit(git.objects, dir, sha)) !== null;
});

/** @throws AppError 400 naming `field` for what is no `namespace/name`. */
export function keyOf(field: string, fullName: string): { namespace: string; name: string } {
  const [namespace, name, ...rest] = fullName.split('/');
  if (!namespace || !name || rest.length > 0) throw invalid(field, 'must be "namespace/name"');
  return { namespace, name };
}

/** The first of the branches that exists. */
const tipOf = folderWork('tipOf', async ({ git }, dir, branches: string[]) => {
  for (const branch of branches) {
    const commitSha = await branchTip(git.objects, dir, branch);
    if (commitSha) return { branch, commitSha };
  }
  throw notFound('Branch');
});

const nameColumns = { name: true, namespace: { select: { name: true } } } as const;
type Called = { name: string; namespace: { name: string } };

export function fullName({ name, namespace }: Called): string {
  return `${namespace.name}/${name}`;
}

export function cloneUrls(
  { urls }: { urls: Urls },
  repository: Called,
): { http: string; ssh: string } {
  const path = `${fullName(repository)}.git`;
  return { http: `${urls.base}/${path}`, ssh: `${urls.ssh}/${path}` };
}

/** What `demand` needs to know of a repository. */
export function target({ id, namespaceId, visibility }: Omit<AccessRow, 'defaultBranch'>) {
  return { namespaceId, repositoryId: id, visibility };
}

/** What is no name or id at all is not there; the database is not asked, and never sees a NUL. */
export function canExist({ namespace, id, name }: RepositoryKey): boolean {
  return (
    canBeNamespace(namespace) && (!id || isId('repo', id)) && (!name || isRepositoryName(name))
  );
}
