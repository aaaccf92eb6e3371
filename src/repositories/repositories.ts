/**
 * Looks up repositories and checks the viewer's permission to read or push to them. Callers pass a Prisma
 * `select`; the columns that the permission check needs are added to the same query.
 */
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import { AppError, invalid, notFound, unauthenticated } from '../base/errors.ts';
import { isId } from '../base/ids.ts';
import { isPossibleNamespaceName } from '../base/names.ts';
import type { Urls } from '../base/urls.ts';
import { REF_PREFIX } from '../git/objects/refs.ts';
import { branchTip, resolveCommit } from '../git/objects/resolve.ts';
import { type Action, can, demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import type { AccessRule } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import { toColumnName } from '../platform/database/keyset.ts';
import type { DiskSpace } from '../platform/storage/disk-space.ts';
import { defineFolderTask, type RepositoryReadDeps } from './folder.ts';
import { isRepositoryName, nameKey } from './names.ts';
import { repositoryRows } from './rows.ts';
import { findSnapshotCommit, snapshotRef } from './snapshots.ts';
import { visibleTo } from './visibility.ts';

export { type MatchingWork, matchesPattern, Pattern, validatePattern } from './branch-patterns.ts';
export {
  isProtected,
  mayPushTo,
  type Pusher,
  readBranchProtection,
  toPusher,
} from './branch-protection.ts';
export { defineFolderTask, type RepositoryReadDeps } from './folder.ts';
export type { RepositoryEventData } from './payload.ts';
export { removeRunStatuses, reportRunStatuses } from './run-statuses.ts';
export { isSnapshotId } from './snapshots.ts';

export type Select = Prisma.RepositorySelect;
export type Row<S extends Select> = Prisma.RepositoryGetPayload<{ select: S }>;

/** Checks a repository row that was read as part of another query, such as the repository of a job. */
export function isVisible(viewer: Viewer, row: Omit<AccessRow, 'defaultBranch'>): boolean {
  return can(viewer, 'repository.read', accessTarget(row));
}

/** Returns null when the repository does not exist or the viewer may not read it. */
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

/** Names a repository by its id or by its name. */
export type RepositoryKey = { namespace: string; id?: string | null; name?: string | null };

/** The columns that every permission check needs. */
export const accessColumns = {
  id: true,
  namespaceId: true,
  visibility: true,
  defaultBranch: true,
} as const;
export type AccessRow = Row<typeof accessColumns>;

/**
 * Reads a repository that the viewer may read. By name, a repository that the viewer may not see is reported as
 * not found, because names can be guessed.
 * @throws AppError 401 for rejected credentials, 404; by id also 401 and 403.
 */
export async function getRepository<S extends Select>(
  services: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  key: RepositoryKey,
  select: S,
): Promise<AccessRow & Row<S>> {
  if (viewer.kind === 'anonymous' && viewer.failure) throw viewer.failure;
  if (!key.id && !key.name) throw invalid(null, 'Give the id or the name of the repository');
  const row = isPossibleKey(key) ? await findRepository(services, key, select) : null;
  if (row && (key.id || can(viewer, 'repository.read', accessTarget(row)))) {
    demand(viewer, 'repository.read', accessTarget(row));
    return row;
  }
  throw key.id
    ? repositoryNotFound(key.id)
    : notFound('Repository', `${key.namespace}/${key.name}`);
}

/** If `namespace` is given, it must be the name of the owner. */
export type RepositoryId = { id: string; namespace?: string | null };

const ownerColumns = { namespace: { select: { name: true } } } as const;

/** Reads the row of a repository that the viewer is about to change. @throws AppError 401, 403, 404 */
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
    throw repositoryNotFound(id);
  demand(viewer, action, accessTarget(row));
  return row;
}

/** A 404 error. Its message says so when a name was given instead of an id. */
export function repositoryNotFound(id?: string | null): AppError {
  if (!id || isId('repo', id)) return notFound('Repository', id);
  return new AppError('not_found', 'Repository not found: give its id (repo_…), not its name');
}

async function findRepository<S extends Select>(
  { pool }: { pool: pg.Pool },
  key: RepositoryKey,
  select: S,
): Promise<(AccessRow & Row<S>) | null> {
  const namespace = key.namespace.toLowerCase();
  const byId = key.id ? { id: key.id } : {};
  const byName = key.name ? { nameKey: nameKey(key.name) } : {};
  const given = Object.entries({ ...byId, ...byName });
  const conditions = given
    .map(([field], at) => `and r.${toColumnName(field)} = $${at + 2}`)
    .join(' ');
  const statement = repositoryRows.statement(
    select,
    accessColumns,
    `where n.name = $1 ${conditions}`,
  );
  const [row] = await statement.read(pool, [namespace, ...given.map(([, value]) => value)]);
  return (row ?? null) as (AccessRow & Row<S>) | null;
}

/** Locks the row against changes and deletion until the transaction ends. @returns whether the row exists */
export async function lockRepository(tx: Db, id: string): Promise<boolean> {
  if (!isId('repo', id)) return false;
  const count = await tx.$executeRaw`
    select from repositories where id = ${id} for no key update`;
  return count > 0;
}

export type GitAction = 'repository.read' | 'repository.push';

/**
 * Returns the id of a repository after checking that a git client may perform `action`.
 * @throws AppError 401 for anonymous clients, whether the repository does not exist or is not visible to them,
 *   and for rejected credentials; 403 if the client may read but not push; 404; 500 for a push when the disk is
 *   nearly full.
 */
export async function authorizeGit(
  services: { db: Db; pool: pg.Pool; space: DiskSpace },
  viewer: Viewer,
  key: { namespace: string; name: string },
  action: GitAction,
): Promise<string> {
  const row = await getRepository(services, viewer, key, {}).catch((error) => {
    // Git prompts for credentials only after a 401.
    const hidden = viewer.kind === 'anonymous' && error.code === 'not_found';
    throw hidden ? unauthenticated() : error;
  });
  demand(viewer, action, accessTarget(row));
  if (action === 'repository.push') services.space.demand();
  return row.id;
}

/**
 * The permission rule for a running transfer, which may take hours. It uses the id, so a rename does not affect
 * it.
 */
export function gitAccessRule({ db }: { db: Db }, id: string, action: GitAction): AccessRule {
  return {
    key: `${action} ${id}`,
    async demand(now) {
      const row = await db.repository.findUnique({ where: { id }, select: accessColumns });
      if (!row) throw notFound('Repository');
      demand(now, action, accessTarget(row));
    },
  };
}

/** The commit that a job checks out. */
export type CommitSource = {
  repositoryId: string;
  /** The current `namespace/name`. */
  repo: string;
  /** Null for a snapshot. */
  branch: string | null;
  commitSha: string;
  /** The snapshot whose commit this is; null for the tip of a branch. */
  snapshotId: string | null;
  /** The tag whose commit this is. */
  tag?: string | null;
};

/** The full name of the ref from which the server took a commit; null without one. */
export function sourceRef({
  branch,
  tag,
  snapshotId,
}: Pick<CommitSource, 'branch' | 'tag' | 'snapshotId'>): string | null {
  if (branch !== null) return REF_PREFIX.branch + branch;
  if (tag != null) return REF_PREFIX.tag + tag;
  return snapshotId === null ? null : snapshotRef(snapshotId);
}

/**
 * Resolves a branch of `namespace/name` to its commit. Without a branch: `main` if it exists, else the default
 * branch, as for `ref`.
 * @throws AppError 400 if `repo` is not `namespace/name`, 401, 404 for the repository or the branch.
 */
export async function resolveBranch(
  services: RepositoryReadDeps,
  viewer: Viewer,
  { repo, branch }: { repo: string; branch: string | null },
): Promise<CommitSource> {
  const row = await getRepository(services, viewer, parseFullName('repo', repo), nameColumns);
  const branches = branch === null ? ['main', row.defaultBranch] : [branch];
  return {
    repositoryId: row.id,
    repo: fullName(row),
    ...(await resolveFirstBranch(services, row.id, branches)),
    snapshotId: null,
  };
}

/**
 * Resolves a snapshot of `namespace/name` to its commit.
 * @throws AppError 400, 401, 404 for the repository or the snapshot
 */
export async function resolveSnapshot(
  services: RepositoryReadDeps,
  viewer: Viewer,
  { repo, snapshot }: { repo: string; snapshot: string },
): Promise<CommitSource> {
  const row = await getRepository(services, viewer, parseFullName('repo', repo), nameColumns);
  const commitSha = await findSnapshotCommit(services, row.id, snapshot);
  if (commitSha === null) throw notFound('Snapshot', snapshot);
  return {
    repositoryId: row.id,
    repo: fullName(row),
    branch: null,
    commitSha,
    snapshotId: snapshot,
  };
}

/**
 * Checks that the viewer may push a snapshot to `namespace/name`.
 * @returns the commit of a snapshot, with ids of zeros
 * @throws AppError as `authorizeGit`
 */
export async function planSnapshot(
  services: { db: Db; pool: pg.Pool; space: DiskSpace },
  viewer: Viewer,
  repo: string,
): Promise<CommitSource> {
  const key = parseFullName('repo', repo);
  const repositoryId = await authorizeGit(services, viewer, key, 'repository.push');
  const commitSha = '0'.repeat(40);
  return { repositoryId, repo, branch: null, commitSha, snapshotId: '0'.repeat(32) };
}

/**
 * Returns the current `namespace/name` of a repository and whether it contains the commit.
 * @throws AppError 404
 */
export async function findCommitSource(
  services: RepositoryReadDeps,
  viewer: Viewer,
  { repositoryId, commitSha }: { repositoryId: string; commitSha: string },
): Promise<{ fullName: string; isThere: boolean }> {
  const row = await findRepositoryById(services, viewer, repositoryId, nameColumns);
  if (!row) throw notFound('Repository');
  return { fullName: fullName(row), isThere: await hasCommit(services, repositoryId, commitSha) };
}

const hasCommit = defineFolderTask('hasCommit', async ({ git }, dir, sha: string) => {
  return (await resolveCommit(git.objects, dir, sha)) !== null;
});

/** @throws AppError 400 naming `field` if `fullName` is not `namespace/name`. */
export function parseFullName(
  field: string,
  fullName: string,
): { namespace: string; name: string } {
  const [namespace, name, ...rest] = fullName.split('/');
  if (!namespace || !name || rest.length > 0) throw invalid(field, 'must be "namespace/name"');
  return { namespace, name };
}

/** Resolves the first of the branches that exists. */
const resolveFirstBranch = defineFolderTask('tipOf', async ({ git }, dir, branches: string[]) => {
  for (const branch of branches) {
    const commitSha = await branchTip(git.objects, dir, branch);
    if (commitSha) return { branch, commitSha };
  }
  throw notFound('Branch', branches[0]);
});

const nameColumns = { name: true, namespace: { select: { name: true } } } as const;
type NamedRepository = { name: string; namespace: { name: string } };

export function fullName({ name, namespace }: NamedRepository): string {
  return `${namespace.name}/${name}`;
}

export function cloneUrls(
  { urls }: { urls: Urls },
  repository: NamedRepository,
): { http: string; ssh: string } {
  const path = `${fullName(repository)}.git`;
  return { http: `${urls.base}/${path}`, ssh: `${urls.ssh}/${path}` };
}

/** Converts a repository to the target that `demand` and `can` take. */
export function accessTarget({ id, namespaceId, visibility }: Omit<AccessRow, 'defaultBranch'>) {
  return { namespaceId, repositoryId: id, visibility };
}

/**
 * False for text that cannot be a name or an id. Such lookups skip the database, which also rejects NUL
 * characters.
 */
export function isPossibleKey({ namespace, id, name }: RepositoryKey): boolean {
  return (
    isPossibleNamespaceName(namespace) &&
    (!id || isId('repo', id)) &&
    (!name || isRepositoryName(name))
  );
}
