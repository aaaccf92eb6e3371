/**
 * Applies `prisma/migrations` at start, with `pg` alone, and keeps Prisma's own record of it:
 * the same table, columns and checksums, so `prisma migrate deploy` stays possible.
 */
import { createHash, randomUUID } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { ConfigError } from '../../base/config/config.ts';
import type { DatabaseTarget } from './embedded.ts';

/** Prisma Migrate's own advisory lock: whichever of us comes second waits. */
const MIGRATION_LOCK = 72707369;
const FOLDER = join(import.meta.dirname, '../../../prisma/migrations');

type Applied = {
  migration_name: string;
  checksum: string;
  finished_at: Date | null;
  rolled_back_at: Date | null;
};

/**
 * Brings the database to this version's schema; each migration is one transaction with its record.
 * @throws ConfigError when one was edited after it was applied, failed before, or is unknown to this version.
 */
export async function migrate(target: DatabaseTarget): Promise<string[]> {
  const client = new pg.Client(target);
  // When it breaks, the query under way fails; an `error` without a listener would end the process.
  client.on('error', () => {});
  await client.connect();
  try {
    await client.query('select pg_advisory_lock($1)', [MIGRATION_LOCK]);
    await client.query(RECORD);
    const { rows } = await client.query<Applied>(
      'select * from _prisma_migrations order by started_at',
    );
    const migrations = await readMigrations();
    const pending = planMigrations(migrations, rows);
    for (const migration of pending) await apply(client, migration);
    return pending.map((m) => m.name);
  } finally {
    await client.end();
  }
}

type Migration = { name: string; sql: string; checksum: string };

export async function readMigrations(): Promise<Migration[]> {
  const entries = await readdir(FOLDER, { withFileTypes: true });
  const names = entries.filter((e) => e.isDirectory()).map((e) => e.name);
  return Promise.all(
    names.sort().map(async (name) => {
      const sql = await readFile(join(FOLDER, name, 'migration.sql'), 'utf8');
      return { name, sql, checksum: createHash('sha256').update(sql).digest('hex') };
    }),
  );
}

function planMigrations(migrations: Migration[], applied: Applied[]): Migration[] {
  const known = new Map(migrations.map((m) => [m.name, m]));
  const done = new Set<string>();
  for (const row of applied) {
    if (row.rolled_back_at) continue;
    const name = row.migration_name;
    const migration = known.get(name);
    if (!migration)
      throw new ConfigError(
        name < (migrations[0]?.name ?? '')
          ? `The database has the migration ${name}, which is part of ${migrations[0]?.name} now: run npm run migrate:baseline once (docs/operations.md, "Upgrading").`
          : `The database has the migration ${name}, unknown to this version of Loam: start the newer one.`,
      );
    if (!row.finished_at)
      throw new ConfigError(`The migration ${name} failed before and must be resolved by hand.`);
    if (row.checksum !== migration.checksum)
      throw new ConfigError(`The migration ${name} was edited after it was applied.`);
    done.add(name);
  }
  return migrations.filter((m) => !done.has(m.name));
}

async function apply(client: pg.Client, { name, sql, checksum }: Migration): Promise<void> {
  await client.query('begin');
  try {
    await client.query(sql);
    await client.query(
      `insert into _prisma_migrations (id, checksum, migration_name, started_at, finished_at, applied_steps_count)
       values ($1, $2, $3, now(), clock_timestamp(), 1)`,
      [randomUUID(), checksum, name],
    );
    await client.query('commit');
  } catch (error) {
    await client.query('rollback');
    throw new Error(`The migration ${name} failed: ${(error as Error).message}`, { cause: error });
  }
}

const RECORD = `
  create table if not exists _prisma_migrations (
    id varchar(36) primary key,
    checksum varchar(64) not null,
    finished_at timestamptz,
    migration_name varchar(255) not null,
    logs text,
    rolled_back_at timestamptz,
    started_at timestamptz not null default now(),
    applied_steps_count integer not null default 0
  )`;
