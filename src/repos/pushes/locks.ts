/** Locks of files (`src/lfs/locks.ts`), as the judge of pushes heeds them. */
import type { Db } from '../../database/client.ts';
import { changedPaths, type Quarantined } from '../../git/objects/walk.ts';

/** Shown of what a push changes in spite of a lock. */
const MAX_SHOWN = 5;

/**
 * What commits reachable from `tips`, and from no ref yet, change of files that others than `userId` have locked: a
 * line for each of the first. A repository without such locks costs one query.
 *
 * A commit that is here already was judged when it came, so that merging the work of a lock's owner is no change.
 * @param userId null: a pusher that can own no lock
 */
export async function changesOfLocked(
  db: Db,
  { repositoryId, userId }: { repositoryId: string; userId: string | null },
  place: Quarantined,
  tips: readonly string[],
): Promise<string[]> {
  if (tips.length === 0) return [];
  const locks = await locksOfOthers(db, repositoryId, userId);
  const found = new Set<string>();
  if (locks.size === 0) return [];
  for await (const path of changedPaths(place, tips)) {
    const owner = locks.get(path);
    if (owner) found.add(`  ${path} is locked by ${owner}`);
    if (found.size >= MAX_SHOWN) break;
  }
  return [...found];
}

/** Path → the owner's name. */
async function locksOfOthers(
  db: Db,
  repositoryId: string,
  userId: string | null,
): Promise<Map<string, string>> {
  const rows = await db.fileLock.findMany({
    where: { repositoryId, ...(userId && { ownerId: { not: userId } }) },
    select: { path: true, owner: { select: { username: true } } },
    relationLoadStrategy: 'join',
  });
  return new Map(rows.map(({ path, owner }) => [path, owner.username]));
}
