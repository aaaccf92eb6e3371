/**
 * Kills the server while `loam listen` forwards events: each event arrives once and in order, also those that happen while
 * no server runs.
 */
import { Webhook } from 'standardwebhooks';
import { expect, test } from 'vitest';
import { newId } from '../../../src/base/ids.ts';
import { eventually } from '../../support/eventually.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { LoamUser } from '../../support/loam-command.ts';
import { startLocalReceiver } from '../../support/local-receiver.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 3);
const EVENTS = 40;

test(`loam listen forwards each event once through ${KILLS} kills of the server`, {
  timeout: 300_000 + KILLS * 20_000,
}, async (ctx) => {
  const server = await startKillableServer(ctx, { LOAM_ROLE: 'serve' });
  const { pool, token, cleanup } = server;
  const local = cleanup.use(await startLocalReceiver());

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
    await server.kill();
    await happening;
    await happen();
    await server.start();
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
