/**
 * Snapshots: working directories that clients push to run them as a job, without a branch. A client pushes a commit to
 * `refs/loam/snapshots/<id>` with an id of its choice, and creates a job with this id.
 *
 * A snapshot requires the right to push, is checked like any push, and counts as storage. But it is neither listed nor
 * fetched, and causes no event. It stays while a job has it, and for a day after it was pushed.
 */
import { HIDDEN_PREFIX } from '../git/objects/refs.ts';
import { refTip } from '../git/objects/resolve.ts';
import { git } from '../git/processes/run.ts';
import { type ReceivedRefUpdate, ZERO_ID } from '../git/transport/hooks.ts';
import { defineFolderTask, type RepositoryReadDeps } from './folder.ts';

const PREFIX = `${HIDDEN_PREFIX}snapshots/`;
const ID = /^[0-9a-f]{32}$/;
const BATCH = 100;

export function isSnapshotId(text: string): boolean {
  return ID.test(text);
}

/** The ref of a snapshot. */
export function snapshotRef(id: string): string {
  return PREFIX + id;
}

/** Returns the id of the snapshot that a push creates; null for another ref. */
export function snapshotIdOf({ ref }: Pick<ReceivedRefUpdate, 'ref'>): string | null {
  return ref.startsWith(PREFIX) ? ref.slice(PREFIX.length) : null;
}

/** Returns why a push may not update a hidden ref in this way, or undefined if it may. */
export function findSnapshotProblem(command: ReceivedRefUpdate): string | undefined {
  const { ref, before, after } = command;
  if (!ref.startsWith(HIDDEN_PREFIX)) return undefined;
  const id = snapshotIdOf(command);
  if (id === null || !isSnapshotId(id))
    return `is reserved: only ${PREFIX} and 32 lowercase hexadecimal digits can be pushed`;
  if (before !== ZERO_ID || after === ZERO_ID)
    return 'cannot be changed or deleted: the server removes it';
  return undefined;
}

/** The commit of a snapshot; null if the snapshot does not exist. */
export const findSnapshotCommit = defineFolderTask(
  'snapshotCommit',
  ({ git }, dir, id: string): Promise<string | null> => refTip(git.objects, dir, snapshotRef(id)),
);

const removeRefs = defineFolderTask('removeSnapshots', async (_services, dir, ids: string[]) => {
  const input = ids.map((id) => `delete ${PREFIX}${id}\n`).join('');
  await git(['update-ref', '--stdin'], { dir, input });
  return null;
});

/**
 * Maintenance task: removes a batch of snapshots that were pushed more than a day ago and that no job has. The rows go
 * last, so that an interrupted removal is repeated. A repository that is damaged, or on a server that is down, does not stop
 * the removal in others, so the batch is random.
 * @returns whether there may be more to remove
 * @throws the first error of a repository, after the batch
 */
export async function removeUnusedSnapshots(services: RepositoryReadDeps): Promise<boolean> {
  const { rows } = await services.pool.query<{ id: string; repositoryId: string }>(
    `select id, repository_id as "repositoryId" from snapshots
     where created_at < now() - interval '1 day'
       and not exists (select from jobs where snapshot_id = snapshots.id and repository_id = snapshots.repository_id)
     order by random() limit ${BATCH}`,
  );
  const errors: unknown[] = [];
  for (const [repositoryId, unused] of Map.groupBy(rows, (row) => row.repositoryId)) {
    const ids = unused.map(({ id }) => id);
    try {
      await removeRefs(services, repositoryId, ids);
      await services.pool.query(
        'delete from snapshots where repository_id = $1 and id = any ($2)',
        [repositoryId, ids],
      );
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
  return rows.length === BATCH;
}
