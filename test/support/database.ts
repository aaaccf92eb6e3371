/** Starts an embedded PostgreSQL once per run, with the migrated template database that every test clones. */
import { mkdir, rm } from 'node:fs/promises';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { startPostgres } from '../../src/platform/database/embedded.ts';
import { migrate } from '../../src/platform/database/migrate.ts';
import { databaseFolder } from './leftovers.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The socket's folder and the user; the template is the database `loam`. */
    postgres: { host: string; user: string };
  }
}

export default async function setup(project: TestProject) {
  const dir = databaseFolder(process.pid);
  await mkdir(dir);
  const postgres = await startPostgres(dir);
  await migrate(postgres.target);
  const { host, user } = postgres.target;
  // Nothing here outlives the run. Durability is tested on servers with their own PostgreSQL.
  const client = new pg.Client(postgres.target);
  await client.connect();
  for (const setting of ['fsync', 'full_page_writes'])
    await client.query(`alter system set ${setting} = off`);
  await client.query('select pg_reload_conf()');
  await client.end();
  project.provide('postgres', { host, user });
  return async () => {
    await postgres.stop();
    await rm(dir, { recursive: true, force: true });
  };
}
