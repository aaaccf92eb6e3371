/** A database as an earlier version left it, for the tests of migrations. */
import pg from 'pg';
import { inject } from 'vitest';
import { readMigrations } from '../../src/platform/database/migrate.ts';
import { eventually } from './eventually.ts';

export type Earlier = AsyncDisposable & {
  pool: pg.Pool;
  /** Applies the migration, and with `toNow` all that came after it. */
  migrate(options?: { toNow: boolean }): Promise<void>;
};

/** One of its own, with all migrations before that whose name ends so. */
export async function beforeMigration(name: string): Promise<Earlier> {
  await using cleanup = new AsyncDisposableStack();
  const postgres = inject('postgres');
  const database = `before_${name}_${process.pid}`;
  const server = new pg.Client({ ...postgres, database: 'postgres' });
  await server.connect();
  cleanup.defer(() => server.end());
  await server.query(`create database ${database}`);
  // Backends take a moment to go after their client has.
  cleanup.defer(() => eventually(() => server.query(`drop database ${database}`)).then(() => {}));
  const pool = new pg.Pool({ ...postgres, database });
  cleanup.defer(() => pool.end());
  const migrations = await readMigrations();
  const change = migrations.findIndex((one) => one.name.endsWith(name));
  if (change < 0) throw new Error(`there is no migration ${name}`);
  for (const { sql } of migrations.slice(0, change)) await pool.query(sql);
  const owned = cleanup.move();
  return {
    pool,
    async migrate({ toNow } = { toNow: false }) {
      for (const { sql } of migrations.slice(change, toNow ? undefined : change + 1))
        await pool.query(sql);
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
