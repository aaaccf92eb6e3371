/**
 * Applies `prisma/migrations` and `prisma/functions.sql` at startup with `pg` alone, and keeps Prisma's own record of migrations
 * (the same table, columns and checksums).
 *
 * Servers of two consecutive releases may use one database at the same time, so that an upgrade stops nothing. The newer one
 * migrates while the older one answers requests. Afterwards the older one may start again: it accepts the migrations of the next
 * release, which add and remove nothing that it uses, and leaves the newer functions as they are.
 */
import { createHash, randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { MIGRATION_LOCK } from '../../base/advisory-locks.ts';
import { ConfigError } from '../../base/config/config.ts';
import type { DatabaseTarget } from './embedded.ts';

const ROOT = join(import.meta.dirname, '../../..');
const FOLDER = join(ROOT, 'prisma/migrations');
/** Functions and triggers. Each statement also works if its object exists. */
const FUNCTIONS = join(ROOT, 'prisma/functions.sql');

/** The second number of the version, which counts the releases. */
export const RELEASE = Number(
  JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')).version.split('.')[1],
);
/** The release of databases that do not name theirs. */
const FIRST_RELEASE = 1;

/**
 * How long a statement waits for a lock; then the start is tried again (`startup-retry.ts`). Meanwhile it blocks the requests of
 * other servers, and may wait for one of them that waits for it. Less than the second after which PostgreSQL looks for deadlocks,
 * so that no request is the victim.
 */
const LOCK_TIMEOUT_MS = 300;

type Applied = {
  migration_name: string;
  checksum: string;
  finished_at: Date | null;
  rolled_back_at: Date | null;
};

/**
 * Migrates the database to the schema of this version. A migration and its record are one transaction. The functions are applied
 * when they are newer than those of the database.
 * @returns the names of the applied migrations
 * @throws ConfigError if the database is more than one release ahead or behind; if a migration was edited after it was applied,
 *   has failed before, or is unknown to this version and not later than its own
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
    if (rows.length > 0) await requireNeighbour(client);
    const pending = planMigrations(migrations, rows);
    for (const migration of pending) await apply(client, migration);
    await applyFunctions(client);
    await writeSetting(client, 'release', String(Math.max(RELEASE, await readRelease(client))));
    return pending.map((m) => m.name);
  } finally {
    await client.end();
  }
}

async function readSetting(client: pg.Client, name: string): Promise<string | undefined> {
  const { rows } = await client.query<{ value: Buffer }>(
    'select value from settings where name = $1',
    [name],
  );
  return rows[0]?.value.toString();
}

async function writeSetting(client: pg.Client, name: string, value: string): Promise<void> {
  await client.query(
    `insert into settings (name, value) values ($1, $2)
     on conflict (name) do update set value = excluded.value`,
    [name, Buffer.from(value)],
  );
}

async function readRelease(client: pg.Client): Promise<number> {
  return Number((await readSetting(client, 'release')) ?? FIRST_RELEASE);
}

async function requireNeighbour(client: pg.Client): Promise<void> {
  const release = await readRelease(client);
  if (release < RELEASE - 1)
    throw new ConfigError(
      `The database is of release ${release}, and this is release ${RELEASE} of Loam: start each release between them once, in order.`,
    );
  if (release > RELEASE + 1)
    throw new ConfigError(
      `The database is of release ${release}, and this is release ${RELEASE} of Loam: start release ${release} or ${release - 1}.`,
    );
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
  const first = migrations[0]?.name ?? '';
  const last = migrations.at(-1)?.name ?? '';
  const known = new Map(migrations.map((m) => [m.name, m]));
  const done = new Set<string>();
  for (const row of applied) {
    if (row.rolled_back_at) continue;
    const name = row.migration_name;
    const migration = known.get(name);
    if (!row.finished_at)
      throw new ConfigError(
        `The migration ${name} failed earlier. Repair the database, then run prisma migrate resolve.`,
      );
    if (!migration && name > last) continue;
    if (!migration)
      throw new ConfigError(
        name < first
          ? `The database was made by a version of Loam before the first release, which cannot be upgraded (it has the migration ${name}). Use an empty database.`
          : `The database has the migration ${name}, which this version of Loam does not know. Start the version that has it.`,
      );
    if (row.checksum !== migration.checksum)
      throw new ConfigError(
        `The migration ${name} was edited after it was applied. Restore its original file.`,
      );
    done.add(name);
  }
  return migrations.filter((m) => !done.has(m.name));
}

/**
 * @returns the SQL, its SHA-256, and its version, which its first line names. The version orders the functions of releases: a
 *   server that was not upgraded yet must not put its own back
 */
export async function readFunctions(): Promise<{ sql: string; checksum: string; version: number }> {
  const sql = await readFile(FUNCTIONS, 'utf8');
  const version = Number(/^-- Version (\d+)\n/.exec(sql)?.[1]);
  return { sql, checksum: createHash('sha256').update(sql).digest('hex'), version };
}

async function applyFunctions(client: pg.Client): Promise<void> {
  const { sql, checksum, version } = await readFunctions();
  const own = `${version} ${checksum}`;
  const applied = (await readSetting(client, 'functions')) ?? '';
  // Databases before the versions have a checksum of 32 bytes.
  const appliedVersion = Number(/^(\d+) [\da-f]{64}$/.exec(applied)?.[1] ?? 0);
  if (applied === own || appliedVersion > version) return;
  await inOneTransaction(client, 'prisma/functions.sql', async () => {
    await client.query(sql);
    await writeSetting(client, 'functions', own);
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
  await client.query(`begin; set local lock_timeout = ${LOCK_TIMEOUT_MS}`);
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
