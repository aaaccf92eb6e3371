/** What attempts of this server have left, with this process or an earlier one: folders here, and containers and volumes of the engine. */
import { readdir } from 'node:fs/promises';
import { LABEL_ATTEMPT, LABEL_READER, LABEL_WORKER } from './container.ts';
import type { Engine } from './engine.ts';

export type Remains = {
  /** Ids of attempts that have a folder or a container, and are not to be kept. */
  attempts: string[];
  /** Ids of containers in which an earlier process read a file of an image. */
  readers: string[];
  /** Names of volumes that were made for such an attempt, and that no container has any more. */
  volumes: string[];
};

type Owner = {
  /** Where the folders of attempts lie. */
  dir: string;
  /** Of all containers of this server. */
  worker: string;
  /** Of those in which this process reads. */
  reader: string;
  /** Ids of attempts that are under way. */
  keep: ReadonlySet<string>;
};

/** @throws RunnerAway */
export async function findRemains(
  engine: Engine,
  { dir, worker, reader, keep }: Owner,
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
  const isOver = (attempt: string | undefined) => attempt === undefined || !keep.has(attempt);
  // The engine answers null for none.
  const unused = (Volumes ?? []).filter(({ Labels }) => isOver(Labels[LABEL_ATTEMPT]));
  return {
    attempts: [...new Set([...folders, ...named])].filter(isOver),
    readers: readers.map(({ Id }) => Id),
    volumes: unused.map(({ Name }) => Name),
  };
}
