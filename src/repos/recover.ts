/** The first thing after a start: what a killed server had begun with repositories is finished or undone. */
import type { Begun } from '../git/disk.ts';
import type { Services } from '../services.ts';
import { type BegunPush, recordPush } from './record.ts';

/** Its work is that which was in flight, never that of all repositories. */
export async function recoverRepositories(
  services: Pick<Services, 'db' | 'git' | 'log'>,
): Promise<void> {
  const { disk, tasks } = services.git;
  for (const begun of await disk.begun()) await finish(services, begun);
  tasks.background(() => disk.emptyTrash());
}

async function finish(
  services: Pick<Services, 'db' | 'git' | 'log'>,
  { id, data, done }: Begun,
): Promise<void> {
  const row = await services.db.repository.findUnique({ where: { id }, select: { id: true } });
  // Created but never committed, or deleted but not removed.
  if (!row) await services.git.disk.remove(id);
  else if (isPush(data)) await recordPush(services, { ...data, id });
  services.log.info({ repository: id, begun: data }, 'finished what a stopped server had begun');
  await done();
}

function isPush(data: unknown): data is BegunPush {
  return (data as { kind?: unknown } | null)?.kind === 'push';
}
