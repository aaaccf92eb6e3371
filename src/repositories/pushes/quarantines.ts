/** What was left of pushes to a repository that were cut off is removed by the server that has it, between its own pushes. */

import type { Logger } from '../../base/log.ts';
import { onServerOf } from '../../cluster/calls.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import type { Git } from '../../git/git.ts';
import type { Db } from '../../platform/database/client.ts';

const remove = onServerOf<null, null>('removeQuarantines', async ({ git }, id) => {
  await git.quarantines.remove(id);
  return null;
});

/** @throws AppError 503 when that server does not answer */
export async function removeQuarantines(
  services: { db: Db; git: Git; log: Logger; cluster: Cluster },
  id: string,
): Promise<void> {
  await remove(services, id, null);
}
