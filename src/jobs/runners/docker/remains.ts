/** What attempts of this server have left, with this process or an earlier one: folders here, and containers and volumes of the engine. */
import { readdir } from 'node:fs/promises';
import { LABEL_ATTEMPT, LABEL_READER, LABEL_WORKER } from './container.ts';
import type { Engine } from './engine.ts';

export type Remains = {
  /** Ids of attempts that have a folder or a container. */
  attempts: Set<string>;
  /** Ids of containers in which an earlier process read a file of an image. */
  readers: string[];
  /** Those that no container has any more, and the attempts for which they were made. */
  volumes: { name: string; attempt: string }[];
};

type Owner = {
  /** Where the folders of attempts lie. */
  dir: string;
  /** Of all containers of this server. */
  worker: string;
  /** Of those in which this process reads. */
  reader: string;
};

/** @throws RunnerAway */
export async function findRemains(
  engine: Engine,
  { dir, worker, reader }: Owner,
): Promise<Remains> {
  const label = [`${LABEL_WORKER}=${worker}`];
  const containers = await engine.call((docker) =>
    docker.listContainers({ all: true, filters: { label } }),
  );
  const { Volumes } = await engine.call((docker) =>
    docker.listVolumes({ filters: { label, dangling: ['true'] } }),
  );
  const folders = (await readdir(dir)).filter((name) => !name.startsWith('.'));
  const named = containers.flatMap(({ Labels }) => Labels[LABEL_ATTEMPT] ?? []);
  const readers = containers.filter(
    ({ Labels: { [LABEL_READER]: by } }) => by !== undefined && by !== reader,
  );
  return {
    attempts: new Set([...folders, ...named]),
    readers: readers.map(({ Id }) => Id),
    // The engine answers null for none.
    volumes: (Volumes ?? []).map(({ Name, Labels }) => ({
      name: Name,
      attempt: Labels[LABEL_ATTEMPT] ?? '',
    })),
  };
}
