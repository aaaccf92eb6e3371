/**
 * Applies `prisma/migrations` and `prisma/functions.sql` at startup with `pg` alone, and keeps Prisma's own record of migrations
 * (the same table, columns and checksums).
 */
import { createHash, randomUUID } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { MIGRATION_LOCK } from '../../base/advisory-locks.ts';
import { ConfigError } from '../../base/config/config.ts';
import type { DatabaseTarget } from './embedded.ts';

const FOLDER = join(import.meta.dirname, '../../../prisma/migrations');
/** Functions and triggers. Each statement also works if its object exists. */
const FUNCTIONS = join(import.meta.dirname, '../../../prisma/functions.sql');

type Applied = {
  migration_name: string;
  checksum: string;
  finished_at: Date | null;
  rolled_back_at: Date | null;
};

/**
 * Migrates the database to the schema of this version. A migration and its record are one transaction. The functions are applied
 * again when their file has changed.
 * @returns the names of the applied migrations
 * @throws ConfigError if a migration was edited after it was applied, has failed before, or is unknown to this version
 */
export async function migrate(target: DatabaseTarget): Promise<string[]> {
  const client = new pg.Client(target);
  // If the connection breaks, its running query fails; an `error` event without a listener would end the process.
  client.on('error', () => {});
  await client.connect();
  try {
    await client.query('select pg_advisory_lock($1)', [MIGRATION_LOCK]);
    await client.query(CREATE_RECORD_TABLE);
    const { rows } = await client.query<Applied>(
      'select * from _prisma_migrations order by started_at',
    );
    const migrations = await readMigrations();
    const pending = planMigrations(migrations, rows);
    for (const migration of pending) await apply(client, migration);
    await applyFunctions(client);
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
          ? `The database was made by a version of Loam before the first release, which cannot be upgraded (it has the migration ${name}). Use an empty database.`
          : `The database has the migration ${name}, which this version of Loam does not know. Start the newer version.`,
      );
    if (!row.finished_at)
      throw new ConfigError(
        `The migration ${name} failed earlier. Repair the database, then run prisma migrate resolve.`,
      );
    if (row.checksum !== migration.checksum)
      throw new ConfigError(
        `The migration ${name} was edited after it was applied. Restore its original file.`,
      );
    done.add(name);
  }
  return migrations.filter((m) => !done.has(m.name));
}

/** @returns the SQL, and its SHA-256 */
export async function readFunctions(): Promise<{ sql: string; checksum: Buffer }> {
  const sql = await readFile(FUNCTIONS, 'utf8');
  return { sql, checksum: createHash('sha256').update(sql).digest() };
}

async function applyFunctions(client: pg.Client): Promise<void> {
  const { sql, checksum } = await readFunctions();
  const { rows } = await client.query<{ value: Buffer }>(
    "select value from settings where name = 'functions'",
  );
  if (rows[0]?.value.equals(checksum)) return;
  await inOneTransaction(client, 'prisma/functions.sql', async () => {
    await client.query(sql);
    await client.query(
      `insert into settings (name, value) values ('functions', $1)
       on conflict (name) do update set value = excluded.value`,
      [checksum],
    );
  });
}

async function apply(client: pg.Client, { name, sql, checksum }: Migration): Promise<void> {
  await inOneTransaction(client, `The migration ${name}`, async () => {
    await client.query(sql);
    await client.query(
      `insert into _prisma_migrations (id, checksum, migration_name, started_at, finished_at, applied_steps_count)
       values ($1, $2, $3, now(), clock_timestamp(), 1)`,
      [randomUUID(), checksum, name],
    );
  });
}

/** @param subject of the error message */
async function inOneTransaction(
  client: pg.Client,
  subject: string,
  work: () => Promise<void>,
): Promise<void> {
  await client.query('begin');
  try {
    await work();
    await client.query('commit');
  } catch (error) {
    await client.query('rollback');
    throw new Error(`${subject} failed: ${(error as Error).message}`, { cause: error });
  }
}

const CREATE_RECORD_TABLE = `
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
