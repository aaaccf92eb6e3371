/** Once per run: an embedded PostgreSQL with the migrated database that every test's own is cloned from. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { startPostgres } from '../../src/database/embedded.ts';
import { migrate } from '../../src/database/migrate.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The socket's folder and the user; the template is the database `loam`. */
    postgres: { host: string; user: string };
  }
}

export default async function setup(project: TestProject) {
  const dir = await mkdtemp(join(tmpdir(), 'loam-test-'));
  const postgres = await startPostgres(dir);
  await migrate(postgres.target);
  const { host, user } = postgres.target;
  project.provide('postgres', { host, user });
  return async () => {
    await postgres.stop();
    await rm(dir, { recursive: true, force: true });
  };
}
