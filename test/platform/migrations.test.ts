/** Migrations and functions of the database at startup. */
import pg from 'pg';
import { expect, inject, test } from 'vitest';
import {
  migrate,
  RELEASE,
  readFunctions,
  readMigrations,
} from '../../src/platform/database/migrate.ts';
import { isDatabaseUnavailable } from '../../src/platform/database/outage.ts';
import { eventually } from '../support/eventually.ts';

/** An empty database of its own. */
async function emptyDatabase() {
  await using cleanup = new AsyncDisposableStack();
  const postgres = inject('postgres');
  const database = `migrations_${process.pid}`;
  const server = new pg.Client({ ...postgres, database: 'postgres' });
  await server.connect();
  cleanup.defer(() => server.end());
  await server.query(`create database ${database}`);
  // The backends of a client end a moment after the client.
  cleanup.defer(() => eventually(() => server.query(`drop database ${database}`)).then(() => {}));
  const target = { ...postgres, database };
  const pool = new pg.Pool(target);
  cleanup.defer(() => pool.end());
  const owned = cleanup.move();
  return { target, pool, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

test('migrations are applied once, and databases of other versions are refused', async () => {
  await using made = await emptyDatabase();
  const names = (await readMigrations()).map(({ name }) => name);
  expect(await migrate(made.target)).toEqual(names);
  expect(await migrate(made.target)).toEqual([]);

  const rename = (name: string) =>
    made.pool.query('update _prisma_migrations set migration_name = $1', [name]);
  await rename('20261121000000_init');
  await expect(migrate(made.target)).rejects.toThrow(
    /before the first release.*20261121000000_init/,
  );
  await rename('20261128130001_other');
  await expect(migrate(made.target)).rejects.toThrow(
    /does not know. Start the version that has it/,
  );
});

test('a server accepts a database of the previous and of the next release, and no other', async () => {
  await using made = await emptyDatabase();
  await migrate(made.target);
  const release = async () => {
    const { rows } = await made.pool.query("select value from settings where name = 'release'");
    return Number(rows[0].value);
  };
  const set = (value: number) =>
    made.pool.query("update settings set value = $1 where name = 'release'", [
      Buffer.from(`${value}`),
    ]);
  expect(await release()).toBe(RELEASE);
  // Of the next release, with a migration that this one does not know.
  await made.pool.query(`
    insert into _prisma_migrations (id, checksum, migration_name, finished_at)
    values ('later', 'unknown', '29991231000000_later', now())`);
  await set(RELEASE + 1);
  expect(await migrate(made.target)).toEqual([]);
  expect(await release()).toBe(RELEASE + 1);
  await set(RELEASE + 2);
  await expect(migrate(made.target)).rejects.toThrow(
    `The database is of release ${RELEASE + 2}, and this is release ${RELEASE} of Loam: start release`,
  );
  await set(RELEASE - 1);
  expect(await migrate(made.target)).toEqual([]);
  expect(await release()).toBe(RELEASE);
  await set(RELEASE - 2);
  await expect(migrate(made.target)).rejects.toThrow('start each release between them once');
});

test('a migration waits for locks only briefly, and the start is tried again', async () => {
  await using made = await emptyDatabase();
  await migrate(made.target);
  await made.pool.query("delete from settings where name = 'functions'");
  const reader = await made.pool.connect();
  await reader.query('begin; select from events limit 1');
  const failure = await migrate(made.target).catch((error) => error);
  expect(failure.message).toMatch(/functions.sql failed: canceling statement due to lock timeout/);
  expect(isDatabaseUnavailable(failure)).toBe(true);
  await reader.query('rollback');
  reader.release();
  await migrate(made.target);
});

test('functions are applied again when their file has changed', async () => {
  await using made = await emptyDatabase();
  await migrate(made.target);
  const { pool } = made;
  const change = () =>
    pool.query(`
      create or replace function event_horizon() returns xid8 language sql as $$ select '1'::xid8 $$;
      drop trigger if exists count_jobs on jobs`);
  const isOurs = async () => {
    const { rows } = await pool.query(`
      select event_horizon() <> '1'::xid8 and exists (select from pg_trigger where tgname = 'count_jobs') as ours`);
    return rows[0].ours;
  };
  await change();
  await migrate(made.target);
  expect(await isOurs()).toBe(false);
  // A newer version has applied its own.
  const { version } = await readFunctions();
  const set = (value: string) =>
    pool.query("update settings set value = $1 where name = 'functions'", [Buffer.from(value)]);
  await set(`${version + 1} ${'0'.repeat(64)}`);
  await migrate(made.target);
  expect(await isOurs()).toBe(false);
  // Only in development, and in databases from before the versions.
  for (const other of [`${version} ${'0'.repeat(64)}`, '\u0000'.repeat(32)]) {
    await change();
    await set(other);
    await migrate(made.target);
    expect(await isOurs()).toBe(true);
  }
});

test('each change of functions.sql raises its version', async () => {
  const { version, checksum } = await readFunctions();
  const advice =
    'functions.sql has changed: raise the version in its first line, and write both here';
  expect({ version, checksum }, advice).toEqual({
    version: 5,
    checksum: 'e760905c0a8c67d8d0c71dc29bfdddaa3ede0ab067e505fc5bfbacbdd232fc5e',
  });
});

/** What servers of the previous release could still use, or would violate. Dropping an index harms only speed. */
const NOT_ADDITIVE =
  /\bdrop (?!index\b)|\brename\b|\balter column \S+ (?:set data )?type\b|\bset not null\b|\badd column (?=.*\bnot null\b)(?!.*\bdefault\b)|\btruncate\b/i;

/** @returns the statements of a migration that are neither additive nor marked: `-- Unused since release 3` */
function findHarmful(sql: string): string[] {
  return sql.split(/;\s*\n/).filter((statement) => {
    const since = Number(/^-- Unused since release (\d+)$/m.exec(statement)?.[1] ?? RELEASE);
    const code = statement.replace(/--.*/g, '').replace(/\s+/g, ' ').trim();
    return since >= RELEASE && code.split(/,(?![^(]*\))/).some((part) => NOT_ADDITIVE.test(part));
  });
}

test('migrations remove and change nothing that the previous release uses', async () => {
  const harmful = [
    'ALTER TABLE "jobs" DROP COLUMN "name"',
    'DROP TABLE "jobs"',
    'ALTER TABLE "jobs" RENAME COLUMN "name" TO "title"',
    'ALTER TABLE "jobs" ALTER COLUMN "cpu" SET DATA TYPE BIGINT',
    'ALTER TABLE "jobs" ADD COLUMN "a" INTEGER NOT NULL DEFAULT 0,\nADD COLUMN "b" TEXT NOT NULL',
    'ALTER TABLE "jobs" ALTER COLUMN "region" SET NOT NULL',
    "ALTER TYPE \"Plan\" RENAME VALUE 'team' TO 'group'",
  ];
  for (const statement of harmful) expect(findHarmful(`${statement};\n`)).toHaveLength(1);
  const harmless = [
    'CREATE TABLE "a" ("type" TEXT NOT NULL, "b" DECIMAL(12, 2) NOT NULL)',
    "CREATE TYPE \"Kind\" AS ENUM ('a', 'b')",
    'ALTER TYPE "Plan" ADD VALUE \'huge\'',
    'ALTER TABLE "jobs" ADD COLUMN "a" DECIMAL(12, 2) NOT NULL DEFAULT 0',
    'DROP INDEX "jobs_name"',
    `-- Unused since release ${RELEASE - 1}\nALTER TABLE "jobs" DROP COLUMN "name"`,
  ];
  for (const statement of harmless) expect(findHarmful(`${statement};\n`)).toEqual([]);
  // The first one makes the tables.
  const [, ...later] = await readMigrations();
  for (const { name, sql } of later) expect([name, ...findHarmful(sql)]).toEqual([name]);
});
