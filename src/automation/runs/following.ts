/** Follows the runs of a repository. */

import type { Viewer } from '../../identity/permissions.ts';
import type { Rechecks } from '../../identity/rechecks.ts';
import { whileAllowed } from '../../identity/rechecks.ts';
import type { Bus } from '../../platform/events/bus.ts';
import {
  getRepository,
  gitAccessRule,
  type RepositoryKey,
  type RepositoryReadDeps,
} from '../../repositories/repositories.ts';

type Deps = RepositoryReadDeps & { bus: Bus; rechecks: Rechecks };

/** Something changed in the runs of the repository. `number` is that of the followed run. */
export type RunChange = { repositoryId: string; number: number | null };

/**
 * Yields at once, and whenever a run of the repository was created or has changed.
 * @throws AppError 401, 404 immediately; later when the viewer loses the permission to read the repository
 */
export async function followRuns(
  services: Deps,
  viewer: Viewer,
  { number = null, ...key }: RepositoryKey & { number?: number | null },
): Promise<(signal: AbortSignal) => AsyncGenerator<RunChange>> {
  const { id } = await getRepository(services, viewer, key, {});
  const rule = gitAccessRule(services, id, 'repository.read');
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      for await (const why of services.bus.wakes(`runs:${id}`, ended))
        if (why !== 'idle') yield { repositoryId: id, number };
    });
}
