/**
 * Measures the volumes of this machine, one at a time and with the lowest priority. The workers share the work: the worker that
 * finds a volume due sets the time of its next measurement.
 */
import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { runProgram } from '../../platform/processes/starter.ts';
import { LOCAL_MACHINE, type Runner } from '../../runners/runner.ts';
import { readVolumes } from './volumes.ts';

type Deps = {
  pool: pg.Pool;
  config: Pick<Config, 'volumes'>;
  runner: Pick<Runner, 'machines'>;
};

/** Between measurements of a volume whose size is limited, and of others, which may have hundreds of millions of files. */
const LIMITED_MINUTES = 10;
const OTHER_MINUTES = 24 * 60;
/** A volume that many jobs write to is measured once in this time. */
const WRITTEN_MINUTES = 1;
const TIMEOUT_MS = 60 * 60_000;

/** Measures the volumes that are due. */
export async function measureVolumes(
  { pool, config, runner }: Deps,
  signal: AbortSignal,
): Promise<void> {
  const machine = runner.machines.find(({ id }) => id === LOCAL_MACHINE);
  const here = config.volumes.current.filter(({ name }) => machine?.volumes?.includes(name));
  if (here.length === 0) return;
  const { rows } = await pool.query<{ name: string }>(
    'select name from volume_usage where name = any ($1) and due_at > now()',
    [here.map(({ name }) => name)],
  );
  for (const { name, path, maxGb } of here) {
    if (signal.aborted) return;
    if (path === null || rows.some((row) => row.name === name)) continue;
    const minutes = maxGb === null ? OTHER_MINUTES : LIMITED_MINUTES;
    const { rowCount } = await pool.query(
      `insert into volume_usage as v (name, due_at) values ($1, now() + make_interval(mins => $2))
       on conflict (name) do update set due_at = excluded.due_at where v.due_at <= now()`,
      [name, minutes],
    );
    if (rowCount === 0) continue;
    const bytes = await measureFolder(path, signal);
    if (bytes !== null)
      await pool.query('update volume_usage set bytes = $2, measured_at = now() where name = $1', [
        name,
        bytes,
      ]);
  }
}

/**
 * The disk space of all files in the folder, without those of other file systems in it. Files that this process may not see
 * are left out.
 * @returns null if it cannot be measured
 */
async function measureFolder(path: string, signal: AbortSignal): Promise<number | null> {
  const script =
    'set -- nice -n 19 du -skx -- "$1/."; command -v ionice >/dev/null && set -- ionice -c 3 "$@"; exec "$@"';
  const args = ['-c', script, 'sh', path];
  const env = { PATH: process.env.PATH ?? '/usr/bin:/bin' };
  const options = { signal, timeoutMs: TIMEOUT_MS };
  const { stdout } = await runProgram({ file: '/bin/sh', args, env, cwd: '/' }, options);
  const kib = /^(\d+)\s/.exec(Buffer.from(stdout).toString())?.[1];
  return kib === undefined ? null : Number(kib) * 1_024;
}

/** Moves the next measurement of limited volumes forward, after a job that could write to them. */
export async function scheduleMeasurement(
  { pool, config }: Pick<Deps, 'pool' | 'config'>,
  job: { volumes: unknown },
): Promise<void> {
  const written = readVolumes(job).filter(
    ({ name, readOnly }) => !readOnly && (config.volumes.find(name)?.maxGb ?? null) !== null,
  );
  if (written.length === 0) return;
  // Locks rows by name, as all statements on several volumes do, to avoid deadlocks.
  await pool.query(
    `update volume_usage
     set due_at = least(due_at, greatest(now(), measured_at + make_interval(mins => $2)))
     where name in (select name from volume_usage where name = any ($1) order by name for update)`,
    [written.map(({ name }) => name), WRITTEN_MINUTES],
  );
}
