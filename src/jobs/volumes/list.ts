/** Lists the volumes that jobs may mount, with their sizes. */
import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { mayMount, type Volume } from '../../base/config/volumes-file.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import {
  anyTargetIn,
  demand,
  demandAccount,
  hasFullRights,
  type Viewer,
} from '../../identity/permissions.ts';
import { isFull } from './usage.ts';

/** `place`: null for all but operators. */
export type ListedVolume = Pick<Volume, 'name' | 'access' | 'perNamespace' | 'maxGb'> & {
  sizeBytes: number | null;
  measuredAt: Date | null;
  lastUsedAt: Date | null;
  isFull: boolean;
  place: Pick<Volume, 'path' | 'claim' | 'namespaces'> | null;
};

type UsageRow = {
  name: string;
  bytes: number | null;
  measured_at: Date | null;
  last_used_at: Date | null;
};

/**
 * Lists the volumes by name.
 * @param namespace those that its jobs may mount; null: those for the jobs of all namespaces, and for operators all
 * @throws AppError 401, 403, 404
 */
export async function listVolumes(
  { pool, config }: { pool: pg.Pool; config: Pick<Config, 'volumes'> },
  viewer: Viewer,
  namespace?: string | null,
): Promise<ListedVolume[]> {
  const account = demandAccount(viewer);
  const isOperator = account.operator && hasFullRights(account);
  const found = namespace == null ? null : await resolveNamespace(pool, namespace);
  if (found) demand(viewer, 'job.read', anyTargetIn(viewer, found.id));
  const shown = config.volumes.current.filter((volume) =>
    found ? mayMount(volume, found.name) : isOperator || volume.namespaces === null,
  );
  if (shown.length === 0) return [];
  const { rows } = await pool.query<UsageRow>(
    `select name, bytes::float8 as bytes, measured_at, last_used_at from volume_usage
     where name = any ($1)`,
    [shown.map(({ name }) => name)],
  );
  const usage = new Map(rows.map((row) => [row.name, row]));
  return shown
    .map(({ name, access, perNamespace, maxGb, ...place }) => {
      const { bytes = null, measured_at = null, last_used_at = null } = usage.get(name) ?? {};
      return {
        name,
        access,
        perNamespace,
        maxGb,
        sizeBytes: bytes,
        measuredAt: measured_at,
        lastUsedAt: last_used_at,
        isFull: isFull({ maxGb }, bytes),
        place: isOperator ? place : null,
      };
    })
    .sort((a, b) => (a.name < b.name ? -1 : 1));
}
