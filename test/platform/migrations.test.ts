/** Migrations at startup, and the one-time step for databases with the 49 earlier migrations. */
import pg from 'pg';
import { expect, inject, test } from 'vitest';
import { baseline } from '../../prisma/baseline.ts';
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

test('migrations are applied once, and a record of the earlier migrations is replaced by the baseline alone', async () => {
  await using made = await emptyDatabase();
  const migrations = await readMigrations();
  const names = migrations.map(({ name }) => name);
  expect(await migrate(made.target)).toEqual(names);
  expect(await migrate(made.target)).toEqual([]);

  const { pool } = made;
  await pool.query('update _prisma_migrations set migration_name = $1', ['20261121000000_init']);
  await expect(migrate(made.target)).rejects.toThrow(/Run npm run migrate:baseline once/);
  await expect(baseline(pool)).rejects.toThrow(
    `has ${names.length} migrations up to 20261121000000_init, not the 49`,
  );

  // The schema of the 49 is that of the first two migrations.
  await pool.query(`
    delete from _prisma_migrations;
    create schema kept; alter table _prisma_migrations set schema kept;
    drop schema public cascade; create schema public;
    alter table kept._prisma_migrations set schema public`);
  for (const { sql } of migrations.slice(0, 2)) await pool.query(sql);
  await pool.query(`
    insert into _prisma_migrations (id, checksum, migration_name, finished_at)
    select n::text, 'old', case n when 49 then '20261126050000_list_counts_without_ranges'
      else '20261121' || lpad(n::text, 6, '0') || '_old' end, now()
    from generate_series(1, 49) n`);
  await baseline(pool);
  expect(await migrate(made.target)).toEqual(names.slice(2));
  await pool.query(
    `update _prisma_migrations set migration_name = '29991231000000_later' where migration_name = $1`,
    [names.at(-1)],
  );
  await expect(migrate(made.target)).rejects.toThrow(/Start the newer version/);
});
