/** The sizes and the last uses of volumes, in the database, because the machines that have a volume are others than the servers. */
import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import type { JobVolume } from './volumes.ts';

/** Volumes that have reached their size: name → the size in words, such as `501 of 500 GB`. */
export type FullVolumes = ReadonlyMap<string, string>;

export const NO_FULL_VOLUMES: FullVolumes = new Map();

type Deps = { pool: pg.Pool; config: Pick<Config, 'volumes'> };

const GB = 2 ** 30;

/** Reads which of the volumes are full. */
export async function readFullVolumes({ pool, config }: Deps): Promise<FullVolumes> {
  const limited = config.volumes.current.filter(({ maxGb }) => maxGb !== null);
  if (limited.length === 0) return NO_FULL_VOLUMES;
  const { rows } = await pool.query<{ name: string; bytes: number }>(
    `select name, bytes::float8 as bytes from volume_usage
     where name = any ($1) and bytes is not null`,
    [limited.map(({ name }) => name)],
  );
  const sizes = new Map(rows.map(({ name, bytes }) => [name, bytes / GB]));
  return new Map(
    limited.flatMap(({ name, maxGb }) => {
      const gb = sizes.get(name);
      if (gb === undefined || maxGb === null || gb < maxGb) return [];
      return [[name, `${Math.floor(gb * 10) / 10} of ${maxGb} GB`] as const];
    }),
  );
}

/** Records that an attempt begins that mounts the volumes. */
export async function recordVolumeUse(
  { pool }: Pick<Deps, 'pool'>,
  volumes: readonly JobVolume[],
): Promise<void> {
  if (volumes.length === 0) return;
  await pool.query(
    `insert into volume_usage (name, last_used_at) select distinct name, now() from unnest($1::text[]) name
     order by name on conflict (name) do update set last_used_at = now()`,
    [volumes.map(({ name }) => name)],
  );
}
