/**
 * `npm run migrate:baseline`: the one-time step for a database that was made while the schema was 49 migrations.
 * The same schema is the first two migrations now, so only Prisma's record of them is replaced. Run it with the server stopped, once
 * the last version with the 49 has started on the database and so has applied them all.
 */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import type pg from 'pg';
import { ConfigError, readConfig } from '../src/base/config/config.ts';
import { attachDatabase, inPoolTransaction } from '../src/platform/database/client.ts';
import { readMigrations } from '../src/platform/database/migrate.ts';

const NEW_COUNT = 2;
const OLD_COUNT = 49;
const OLD_LAST = '20261126050000_list_counts_without_ranges';

/** @throws ConfigError when the database does not have exactly the 49 migrations; it is unchanged then */
export async function baseline(pool: pg.Pool): Promise<void> {
  // Later ones are applied by the next start.
  const migrations = (await readMigrations()).slice(0, NEW_COUNT);
  await inPoolTransaction(pool, async (client) => {
    await client.query('lock table _prisma_migrations');
    const { rows } = await client.query<{ count: number; last: string }>(
      `select count(*)::int as count, max(migration_name) as last from _prisma_migrations
       where finished_at is not null and rolled_back_at is null`,
    );
    const [found] = rows;
    if (found?.count !== OLD_COUNT || found.last !== OLD_LAST)
      throw new ConfigError(
        `The database has ${found?.count ?? 0} migrations up to ${found?.last ?? 'none'}, not the ${OLD_COUNT} up to ${OLD_LAST}. ` +
          'Start the last version that has them once, then run this again.',
      );
    await client.query('delete from _prisma_migrations');
    for (const { name, checksum } of migrations)
      await client.query(
        `insert into _prisma_migrations (id, checksum, migration_name, started_at, finished_at, applied_steps_count)
         values ($1, $2, $3, now(), clock_timestamp(), 1)`,
        [randomUUID(), checksum, name],
      );
  });
}

if (import.meta.main) {
  const config = readConfig();
  const database = await attachDatabase(config.database, join(config.dataDir, 'postgres'));
  try {
    await baseline(database.pool);
    console.log(
      'The database has the first two migrations of this version now. The next start applies the others.',
    );
  } catch (error) {
    console.error(error instanceof ConfigError ? error.message : error);
    process.exitCode = 1;
  } finally {
    await database.close();
  }
}
