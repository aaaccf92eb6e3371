/** Locks of files (`src/lfs/locks.ts`), as the judge of pushes heeds them. */
import type { Db } from '../../database/client.ts';
import { changedPaths } from '../../git/objects/walk.ts';
import type { Verdict } from '../../git/transport/hooks.ts';
import type { Services } from '../../services.ts';
import { type Brought, refused } from './brought.ts';

/** Shown of what a push changes in spite of a lock. */
const MAX_SHOWN = 5;

/**
 * Refuses what changes files that others have locked. A repository without such locks costs one query.
 *
 * A commit that is here already was judged when it came, so that merging the work of a lock's owner is no change.
 */
export async function judgeLocks(
  { db }: Pick<Services, 'db'>,
  { repository, by, tips, place }: Brought,
): Promise<Verdict> {
  if (tips.length === 0) return { accepted: true };
  const locks = await locksOfOthers(db, repository.id, by.userId);
  const found = new Set<string>();
  if (locks.size === 0) return { accepted: true };
  for await (const path of changedPaths(place, tips)) {
    const owner = locks.get(path);
    if (owner) found.add(`  ${path} is locked by ${owner}`);
    if (found.size >= MAX_SHOWN) break;
  }
  if (found.size === 0) return { accepted: true };
  return refused(
    'The push changes files that others have locked:',
    ...found,
    'Ask them to push their work and to unlock the files (git lfs unlock).',
  );
}

/** Path → the owner's name. `userId` null: a pusher that can own no lock. */
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
