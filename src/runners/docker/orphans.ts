/** Finds orphans of earlier attempts of this server: folders on this machine, containers and volumes of the engine. */
import { readdir } from 'node:fs/promises';
import { LABEL_ATTEMPT, LABEL_READER, LABEL_WORKER } from './container.ts';
import type { Engine } from './engine.ts';

type Orphans = {
  /** Ids of attempts that have a folder or a container and are not in `keep`. */
  attempts: string[];
  /** Ids of containers in which an earlier process of this server read a file of an image. */
  readers: string[];
  /** Names of volumes of such attempts that no container uses any more. */
  volumes: string[];
};

type Scope = {
  /** Parent of the attempt folders. */
  dir: string;
  /** Label value of all containers of this server. */
  worker: string;
  /** Label value of the containers in which this process reads files of images. */
  reader: string;
  /** Ids of running attempts. */
  keep: ReadonlySet<string>;
};

/** @throws RunnerUnavailable */
export async function findOrphans(
  engine: Engine,
  { dir, worker, reader, keep }: Scope,
): Promise<Orphans> {
  const label = [`${LABEL_WORKER}=${worker}`];
  const containers = await engine.call((docker) =>
    docker.listContainers({ all: true, filters: { label } }),
  );
  const { Volumes } = await engine.call((docker) =>
    docker.listVolumes({ filters: { label, dangling: ['true'] } }),
  );
  const folders = (await readdir(dir)).filter((name) => !name.startsWith('.'));
  const labelled = containers.flatMap(({ Labels }) => Labels[LABEL_ATTEMPT] ?? []);
  const readers = containers.filter(
    ({ Labels: { [LABEL_READER]: by } }) => by !== undefined && by !== reader,
  );
  const isOrphan = (attempt: string | undefined) => attempt === undefined || !keep.has(attempt);
  // The engine returns null for an empty list.
  const volumes = (Volumes ?? []).filter(({ Labels }) => isOrphan(Labels[LABEL_ATTEMPT]));
  return {
    attempts: [...new Set([...folders, ...labelled])].filter(isOrphan),
    readers: readers.map(({ Id }) => Id),
    volumes: volumes.map(({ Name }) => Name),
  };
}
