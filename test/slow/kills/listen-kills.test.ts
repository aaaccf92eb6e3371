/**
 * Kills the server while `loam listen` forwards events: each event arrives once and in order, also those that happen while
 * no server runs.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { Webhook } from 'standardwebhooks';
import { expect, test } from 'vitest';
import { newId } from '../../../src/base/ids.ts';
import { newToken } from '../../../src/identity/credentials.ts';
import { eventually } from '../../support/eventually.ts';
import { cloneDatabase } from '../../support/harness.ts';
import { LoamUser } from '../../support/loam-command.ts';
import { startLocalReceiver } from '../../support/local-receiver.ts';
import { freePort } from '../../support/ports.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 3);
const EVENTS = 40;

test(`loam listen forwards each event once through ${KILLS} kills of the server`, {
  timeout: 300_000 + KILLS * 20_000,
}, async (ctx) => {
  // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  const local = cleanup.use(await startLocalReceiver());
  const database = await cloneDatabase();
  cleanup.defer(() => eventually(() => database.drop()));
  const folder = await mkdtemp(join(tmpdir(), 'loam-listen-'));
  cleanup.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const pool = new pg.Pool({ connectionString: database.url, max: 1 });
  cleanup.defer(() => pool.end());
  const token = newToken();
  const port = await freePort();
  const start = () =>
    startServer({
      PORT: `${port}`,
      DATABASE_URL: database.url,
      LOAM_ROLE: 'serve',
      LOAM_DATA_DIR: folder,
      LOAM_STORAGE: join(folder, 'storage'),
      LOAM_ADMIN_TOKEN: token,
      LOAM_RATE_LIMITS: 'off',
    });
  let server: ServerProcess = await start();
  cleanup.defer(async () => void (await server.stop('SIGKILL')));

  const user = cleanup.use(await LoamUser.open());
  const listener = user.start(['listen', '--forward', local.url], {
    env: { LOAM_URL: server.base, LOAM_TOKEN: token },
  });
  const [, secret = ''] = await listener.said(/The secret of this session is (whsec_\S+)\n/);
  await listener.said(/Events of admin on .*:\n/);

  const ids: string[] = [];
  const happen = async () => {
    for (let left = EVENTS; left > 0; left--) {
      const id = newId('evt');
      await pool.query(
        `with written as (
           insert into events (id, type, namespace_id, subject, data, timestamp)
           select $1, 'job.succeeded', (select id from namespaces where name = 'admin'), 'job_x',
             '{"job": {"id": "job_x", "namespace": "admin"}}', clock_timestamp()
         ) select pg_notify('loam', 'events')`,
        [id],
      );
      ids.push(id);
    }
  };
  for (let kill = 0; kill < KILLS; kill++) {
    const before = local.received.length;
    const happening = happen();
    // In the middle of the events, of which some happen while no server runs.
    await eventually(() => expect(local.received.length).toBeGreaterThan(before));
    await server.stop('SIGKILL');
    await happening;
    await happen();
    server = await start();
  }
  await eventually(() => expect(local.received.length).toBeGreaterThanOrEqual(ids.length));
  expect(local.received.map(({ headers }) => headers['webhook-id'])).toEqual(ids);
  for (const { body, headers } of local.received)
    expect(new Webhook(secret).verify(body, headers as Record<string, string>)).toMatchObject({
      type: 'job.completed',
    });
  listener.child.kill('SIGINT');
  expect((await listener.result()).code).toBe(130);
});
