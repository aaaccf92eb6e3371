/**
 * Which caches a job may read and write. A cache is code for whoever restores it, so it is kept apart by ref, as on GitHub: a job
 * reads what jobs of its own ref and of the default branch have saved, and writes only for its own ref. Whoever chooses the
 * command of a job must be allowed to push to that ref; otherwise the job only reads. Jobs of snapshots only read.
 *
 * Entries belong to the id of a repository, so a repository of the same name never gets them.
 */
import type pg from 'pg';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { readRole } from '../../identity/members.ts';
import { type Account, can } from '../../identity/permissions.ts';
import {
  mayPushTo,
  type Pusher,
  readBranchProtection,
  sourceRef,
  toPusher,
} from '../../repositories/repositories.ts';

type Deps = { pool: pg.Pool };

/** The ref whose commit a job runs. */
type Source = { branch: string | null; tag: string | null; snapshotId: string | null };

/** Full names of refs. */
export type CacheScopes = {
  /** In the order in which caches are looked for. */
  read: readonly string[];
  /** Null: the job saves none. */
  write: string | null;
};

const NO_SCOPES: CacheScopes = { read: [], write: null };

/**
 * Whether the creator of a job may let it save caches, at its creation.
 * @param viewer null for a job whose command is that of a file at its ref
 */
export async function mayWriteCaches(
  deps: Deps,
  viewer: Account | null,
  { repositoryId, ...source }: Source & { repositoryId: string },
): Promise<boolean> {
  if (viewer === null) return true;
  // The job would choose the commands of the jobs that it creates.
  if (viewer.credential.kind === 'job') return false;
  const protection = await readBranchProtection(deps, repositoryId);
  if (!protection) return false;
  const { namespaceId } = protection;
  if (!can(viewer, 'repository.push', { namespaceId, repositoryId })) return false;
  return mayWrite(protection, toPusher(viewer, namespaceId), source.branch);
}

function mayWrite(
  protection: NonNullable<Awaited<ReturnType<typeof readBranchProtection>>>,
  pusher: Pusher,
  branch: string | null,
): boolean {
  if (pusher.role !== 'write' && pusher.role !== 'admin') return false;
  return branch === null || mayPushTo(protection, pusher, branch);
}

type StartingJob = Source & {
  namespaceId: string;
  repositoryId: string | null;
  createdById: string | null;
  commandFromRef: boolean;
};

/** The scopes of an attempt that starts or has ended. */
export async function readScopes(deps: Deps, job: StartingJob): Promise<CacheScopes> {
  const { repositoryId, namespaceId, createdById, commandFromRef } = job;
  const protection = repositoryId && (await readBranchProtection(deps, repositoryId));
  // Members of the job's namespace see what the job sees. A repository of another namespace is not theirs.
  if (!protection || protection.namespaceId !== namespaceId) return NO_SCOPES;
  const ref = sourceRef(job);
  const isSnapshot = job.branch === null && job.tag === null;
  const own = isSnapshot ? null : ref;
  const standard = REF_PREFIX.branch + protection.defaultBranch;
  const read = own === null || own === standard ? [standard] : [own, standard];
  if (own === null) return { read, write: null };
  if (commandFromRef) return { read, write: own };
  const role = createdById && (await readRole(deps, { namespaceId, userId: createdById }));
  const pusher = { userId: createdById, role: role || null };
  return { read, write: mayWrite(protection, pusher, job.branch) ? own : null };
}
