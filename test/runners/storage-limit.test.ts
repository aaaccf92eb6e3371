/** Engines whose storage cannot limit a container: it is made without the limit, and so are those after it. */
import type Docker from 'dockerode';
import { expect, test } from 'vitest';
import { openContainerCreator } from '../../src/runners/docker/container.ts';
import { type Engine, EngineError } from '../../src/runners/docker/engine.ts';
import type { EngineFacts } from '../../src/runners/docker/engine-facts.ts';
import { RunnerFault } from '../../src/runners/runner.ts';

const image = { id: 'sha256:0', user: '', volumes: [], bytes: 0 };

/** What was asked of an engine that answers a limit with an error. */
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
  const make = openContainerCreator(engine, async () => ({ storage }) as EngineFacts);
  for (let round = 0; round < 2; round++) await make({}, image, 2 ** 30);
  return asked.map(({ HostConfig }) => HostConfig?.StorageOpt !== undefined);
}

test.each([
  ['overlay2', "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"],
  [
    'vfs',
    'error creating aufs mount to /x: Filesystem does not support, or has not enabled quotas',
  ],
])('storage of the kind %s', async (storage, message) => {
  expect(await create(storage, message)).toEqual([true, false, false]);
});

test('any other failure is not taken for it', async () => {
  await expect(create('overlay2', 'no space left on device')).rejects.toThrow(RunnerFault);
});
