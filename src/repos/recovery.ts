/**
 * The first thing after a start: what a killed server had begun with repositories is finished or undone. What
 * fails does not stop the start: a push is tried again in the background, the rest at the next start.
 */
import type { Begun } from '../git/disk/disk.ts';
import type { Services } from '../services.ts';
import type { BegunPush } from './pushes/record.ts';

type Deps = Pick<Services, 'db' | 'git' | 'log' | 'pushes'>;

/** Its work is that which was in flight, never that of all repositories. */
export async function recoverRepositories(services: Deps): Promise<void> {
  const { disk, tasks } = services.git;
  const byRepository = Map.groupBy(await disk.begun(), ({ id }) => id);
  for (const [id, begun] of byRepository) {
    try {
      await finish(services, id, begun);
      services.log.info({ repository: id, begun: begun.length }, 'finished what had been begun');
    } catch (error) {
      services.log.error({ err: error, repository: id }, 'what had been begun is not finished yet');
    }
  }
  tasks.background(() => disk.emptyTrash());
}

async function finish({ db, git, pushes }: Deps, id: string, begun: Begun[]): Promise<void> {
  const row = await db.repository.findUnique({ where: { id }, select: { id: true } });
  // Created but never committed, or deleted but not removed.
  if (!row) await git.disk.remove(id);
  const [pushed, others] = row
    ? [begun.filter(isPush), begun.filter((one) => !isPush(one))]
    : [[], begun];
  for (const { done } of others) await done();
  // By their times; those of an earlier version have none, and come first.
  pushed.sort((a, b) => ((a.data.at ?? '') < (b.data.at ?? '') ? -1 : 1));
  if (pushed.length > 0) await pushes.recover(id, pushed);
}

function isPush(begun: Begun): begun is Begun<BegunPush> {
  return (begun.data as { kind?: unknown } | null)?.kind === 'push';
}
