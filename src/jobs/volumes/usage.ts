/** The sizes and the last uses of volumes, in the database, because the machines that have a volume are others than the servers. */
import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import type { Volume } from '../../base/config/volumes-file.ts';
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
  const sizes = new Map(rows.map(({ name, bytes }) => [name, bytes]));
  return new Map(
    limited.flatMap(({ name, maxGb }) => {
      const bytes = sizes.get(name) ?? null;
      return bytes !== null && isFull({ maxGb }, bytes)
        ? [[name, `${Math.floor((bytes / GB) * 10) / 10} of ${maxGb} GB`] as const]
        : [];
    }),
  );
}

/** @param bytes the size of the volume; null: it is not known */
export function isFull({ maxGb }: Pick<Volume, 'maxGb'>, bytes: number | null): boolean {
  return maxGb !== null && bytes !== null && bytes / GB >= maxGb;
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
