/** Which process stops the embedded PostgreSQL: the process that started it, if no other Loam process uses it. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { expect, test } from 'vitest';
import { startPostgres } from '../../src/platform/database/embedded.ts';
import { runningPostmaster } from '../../src/platform/database/postmaster.ts';
import { eventually } from '../support/eventually.ts';

test('it is stopped despite connections of its own process, and keeps running for connections of another process', async ({
  onTestFinished,
}) => {
  const folder = await mkdtemp(join(tmpdir(), 'loam-embedded-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const cluster = join(folder, 'cluster');
  const connected = async (target: pg.ClientConfig) => {
    const client = new pg.Client(target);
    client.on('error', () => {});
    await client.connect();
    return client;
  };

  const first = await startPostgres(folder);
  // Still listed as a connection, as a connection is for a moment after it was closed.
  await connected(first.target);
  const other = await connected({ ...first.target, application_name: 'another Loam' });
  await first.stop();
  expect(await runningPostmaster(cluster)).toBeDefined();
  await other.end();
  await eventually(async () => {
    await first.stop();
    expect(await runningPostmaster(cluster)).toBeUndefined();
  });
});
