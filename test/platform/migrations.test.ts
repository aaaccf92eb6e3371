/** Migrations and functions of the database at startup. */
import pg from 'pg';
import { expect, inject, test } from 'vitest';
import { migrate, readMigrations } from '../../src/platform/database/migrate.ts';
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
  await rename('29991231000000_later');
  await expect(migrate(made.target)).rejects.toThrow(/Start the newer version/);
});

test('functions are applied again when their file has changed', async () => {
  await using made = await emptyDatabase();
  await migrate(made.target);
  const { pool } = made;
  const change = () =>
    pool.query(`
      create or replace function event_horizon() returns xid8 language sql as $$ select '1'::xid8 $$;
      drop trigger count_jobs on jobs`);
  const isOurs = async () => {
    const { rows } = await pool.query(`
      select event_horizon() <> '1'::xid8 and exists (select from pg_trigger where tgname = 'count_jobs') as ours`);
    return rows[0].ours;
  };
  await change();
  await migrate(made.target);
  expect(await isOurs()).toBe(false);
  await pool.query("update settings set value = 'other' where name = 'functions'");
  await migrate(made.target);
  expect(await isOurs()).toBe(true);
});
