/** Making a container, with the limits that the engine itself can hold it to. */
import type Docker from 'dockerode';
import { RunnerFault } from '../runner.ts';
import { type Engine, EngineError } from './engine.ts';
import type { EngineFacts } from './facts.ts';
import type { Image } from './images.ts';

/** `--storage-opt is supported only for …` of overlay, `Filesystem does not support, or has not enabled quotas` of vfs. */
const CANNOT_LIMIT = /storage.opt|quota/i;

/**
 * @returns what makes a container of which the image's own folders take `diskBytes` at most, where the engine's storage
 *   can do that (overlay over XFS with project quotas, btrfs, ZFS). None tells beforehand, so the first is tried with it.
 *   What is watched (`disk.ts`) is watched all the same: the job's folders are not on that storage.
 * @throws RunnerFault for a failure of the engine's own, RunnerAway
 */
export function openCreation(engine: Engine, facts: () => Promise<EngineFacts>) {
  let isLimiting = true;

  async function create(options: Docker.ContainerCreateOptions): Promise<void> {
    await engine.call((docker) => docker.createContainer(options));
  }

  return async (
    options: Docker.ContainerCreateOptions,
    image: Image,
    diskBytes: number,
  ): Promise<void> => {
    // An overlay counts what the container changed, and the others all that it sees.
    const seen = (await facts()).storage.startsWith('overlay') ? 0 : image.bytes;
    const StorageOpt = { size: String(seen + diskBytes) };
    const limited = { ...options, HostConfig: { ...options.HostConfig, StorageOpt } };
    try {
      if (!isLimiting) return await create(options);
      try {
        await create(limited);
      } catch (error) {
        if (!(error instanceof EngineError && CANNOT_LIMIT.test(error.message))) throw error;
        isLimiting = false;
        await create(options);
      }
    } catch (error) {
      const isFault = error instanceof EngineError && (error.status >= 500 || error.status === 409);
      throw isFault ? new RunnerFault(error.message, { cause: error }) : error;
    }
  };
}
