/** Engines whose storage has no quotas: the container is created again without a quota, and later containers without a try. */
import type Docker from 'dockerode';
import { expect, test } from 'vitest';
import { ContainerCreator } from '../../src/runners/docker/container.ts';
import { type Engine, EngineError } from '../../src/runners/docker/engine.ts';
import type { EngineFacts } from '../../src/runners/docker/engine-facts.ts';
import { RunnerFault } from '../../src/runners/runner.ts';

const image = { id: 'sha256:0', user: '', volumes: [], bytes: 0 };

/** @returns for each request to create a container, whether it asked for a quota, which the engine answers with an error */
async function create(storage: string, message: string) {
  const asked: Docker.ContainerCreateOptions[] = [];
  const engine = {
    async call(request: (docker: Docker) => Promise<unknown>) {
      const createContainer = async (options: Docker.ContainerCreateOptions) => {
        asked.push(options);
        if (options.HostConfig?.StorageOpt) throw new EngineError(500, message);
      };
      return request({ createContainer } as unknown as Docker);
    },
  } as Engine;
  const creator = new ContainerCreator(engine, async () => ({ storage }) as EngineFacts);
  for (let round = 0; round < 2; round++) await creator.create({}, image, 2 ** 30);
  return asked.map(({ HostConfig }) => HostConfig?.StorageOpt !== undefined);
}

test.each([
  ['overlay2', "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"],
  [
    'vfs',
    'error creating aufs mount to /x: Filesystem does not support, or has not enabled quotas',
  ],
])('the storage driver %s without quotas', async (storage, message) => {
  expect(await create(storage, message)).toEqual([true, false, false]);
});

test('other failures are not mistaken for missing quotas', async () => {
  await expect(create('overlay2', 'no space left on device')).rejects.toThrow(RunnerFault);
});
