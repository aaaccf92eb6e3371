/**
 * Randomly kills servers while events occur and receivers fail at random: every event reaches each of its webhooks under
 * one id, as one delivery for each webhook.
 *
 * `LOAM_TEST_KILLS=100 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/webhook-kills.test.ts`
 */
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { expect, test } from 'vitest';
import { newId } from '../../../src/base/ids.ts';
import { newToken } from '../../../src/identity/credentials.ts';
import { eventually } from '../../support/eventually.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';
import { makeAuthority, makeDeliveriesDue, startReceiver } from '../../support/webhook-receiver.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 2);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
const SERVERS = 2;
const WEBHOOKS = 3;
/** The longest time from the restart of a server to the next kill. */
const BETWEEN_MS = 1_000;
const EVENTS_EVERY_MS = 40;
const HURRY_MS = 300;

test(`every event reaches its webhooks through ${KILLS} kills`, {
  timeout: 300_000 + KILLS * 20_000,
}, async (ctx) => {
  // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const random = numbersFrom(SEED);
  const authority = cleanup.use(await makeAuthority());
  const receiver = cleanup.use(await startReceiver(authority));
  /** Ids of the accepted messages, by path. */
  const taken = new Map<string, string[]>();
  receiver.answer = (response, { path, headers }, request) => {
    const chance = random();
    // The first endpoint always answers, and the error rate rises from one endpoint to the next.
    const failing = Number(path.slice(1)) * 0.15;
    if (chance < failing / 3) return void request.socket.destroy();
    if (chance < failing) return void response.writeHead(500).end();
    taken.set(path, [...(taken.get(path) ?? []), `${headers['webhook-id']}`]);
    setTimeout(() => response.writeHead(204).end(), chance * 20);
  };

  const database = await cloneDatabase();
  cleanup.defer(() => eventually(() => database.drop()));
  const folder = await mkdtemp(join(tmpdir(), 'loam-kills-'));
  cleanup.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const pool = new pg.Pool({ connectionString: database.url, max: 3 });
  cleanup.defer(() => pool.end());
  const token = newToken();
  const key = randomBytes(32).toString('base64');
  const start = (name: string) =>
    startServer({
      PORT: '0',
      DATABASE_URL: database.url,
      LOAM_ROLE: 'serve',
      LOAM_DATA_DIR: join(folder, name),
      LOAM_REPOSITORIES_DIR: join(folder, 'repositories'),
      LOAM_STORAGE: join(folder, 'storage'),
      LOAM_SECRET_KEY: key,
      LOAM_ADMIN_TOKEN: token,
      LOAM_RATE_LIMITS: 'off',
      LOAM_WEBHOOK_ALLOW: '127.0.0.0/8',
      LOAM_WEBHOOK_CA: authority.file,
    });
  const servers: ServerProcess[] = [];
  cleanup.defer(() => Promise.all(servers.map((server) => server.stop())).then(() => {}));
  for (let i = 0; i < SERVERS; i++) servers.push(await start(`server-${i}`));

  const admin = new Client(servers[0]?.base ?? '', `Bearer ${token}`);
  for (let i = 0; i < WEBHOOKS; i++) {
    const { status, text } = await admin.post('/auth/v1/seed/webhooks', {
      name: `hook-${i}`,
      url: `${receiver.url}/${i}`,
      event_types: ['job.completed'],
      namespaces: ['admin'],
    });
    expect(status, text).toBe(201);
  }

  const ids: string[] = [];
  const over = new AbortController();
  const done = new AbortController();
  cleanup.defer(() => {
    over.abort();
    done.abort();
  });
  const happening = (async () => {
    while (!over.signal.aborted) {
      const some = Array.from({ length: 1 + Math.floor(random() * 5) }, () => newId('evt'));
      await pool.query(
        `with written as (
           insert into events (id, type, namespace_id, subject, data, timestamp)
           select id, 'job.succeeded', (select id from namespaces where name = 'admin'), 'job_x',
             '{"job": {"id": "job_x", "namespace": "admin"}}', clock_timestamp()
           from unnest($1::text[]) as event (id)
         ) select pg_notify('loam', 'events')`,
        [some],
      );
      ids.push(...some);
      await delay(EVENTS_EVERY_MS);
    }
  })();
  happening.catch(() => {});
  // Failed deliveries are retried early, not after their 5 seconds and more.
  const hurrying = (async () => {
    for (; !ctx.signal.aborted && !done.signal.aborted; await delay(HURRY_MS))
      await makeDeliveriesDue(pool);
  })();
  hurrying.catch(() => {});

  for (let kill = 1; kill <= KILLS; kill++) {
    await delay(random() * BETWEEN_MS, undefined, { signal: ctx.signal });
    const victim = Math.floor(random() * SERVERS);
    await servers[victim]?.stop('SIGKILL');
    console.log(`${kill}: server-${victim} is killed after ${ids.length} events`);
    servers[victim] = await start(`server-${victim}`);
  }
  over.abort();
  await happening;
  await eventually(async () => {
    const { rows } = await pool.query('select count(*)::int as count from deliveries');
    expect(rows[0].count).toBe(ids.length * WEBHOOKS);
  });
  // Waits as long as the number of open deliveries falls.
  const pending = async () =>
    (await pool.query(`select count(*)::int as count from deliveries where status = 'pending'`))
      .rows[0].count as number;
  for (let left = await pending(); left > 0; left = await pending())
    await eventually(async () => expect(await pending()).toBeLessThan(left));
  done.abort();
  await hurrying;

  const { rows } = await pool.query(
    'select status, count(*)::int as count, count(distinct (webhook_id, message_id))::int as pairs from deliveries group by status',
  );
  const all = ids.length * WEBHOOKS;
  expect(rows).toEqual([{ status: 'succeeded', count: all, pairs: all }]);
  const sent = new Set(ids);
  for (let i = 0; i < WEBHOOKS; i++) {
    const got = taken.get(`/${i}`) ?? [];
    expect(new Set(got)).toEqual(sent);
    console.log(`endpoint ${i}: ${sent.size} events, ${got.length - sent.size} of them twice`);
  }
});

/** Pseudo-random numbers from 0 to 1, the same for the same seed. */
function numbersFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1_103_515_245 + 12_345) % 2 ** 31;
    return state / 2 ** 31;
  };
}
