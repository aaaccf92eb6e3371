/** What was left of pushes to a repository that were cut off is removed by the server that has it, between its own pushes. */
import { onServerOf } from '../../cluster/calls.ts';
import type { Services } from '../../services.ts';

const remove = onServerOf<null, null>('removeQuarantines', async ({ git }, id) => {
  await git.quarantines.remove(id);
  return null;
});

/** @throws AppError 503 when that server does not answer */
export async function removeQuarantines(
  services: Pick<Services, 'db' | 'git' | 'log' | 'cluster'>,
  id: string,
): Promise<void> {
  await remove(services, id, null);
}
