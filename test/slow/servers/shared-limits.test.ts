/** Rate limits that several servers share in a real Redis, with failures of Redis. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { getCACertificates, setDefaultCACertificates } from 'node:tls';
import { pino } from 'pino';
import { expect, test } from 'vitest';
import { type Config, readConfig } from '../../../src/base/config/config.ts';
import { PLAN_LIMITS } from '../../../src/base/config/plans.ts';
import { makeCertificate } from '../../support/certificate.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp, type TestApp } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { startProcessClock } from '../../support/process-clock.ts';
import { startRedis } from '../../support/redis.ts';

const PASSWORD = 'p@ss%word';

/** Twenty requests per minute without a credential. */
const rateLimits = {
  ...PLAN_LIMITS,
  free: { ...PLAN_LIMITS.free, perMinute: 20, perSecond: 1_000 },
};

async function startWith(url: string, changes: Partial<Config> = {}) {
  const said: string[] = [];
  const log = pino({ level: 'info' }, { write: (line) => void said.push(line) });
  const config = { rateLimits, redis: readConfig({ LOAM_REDIS_URL: url }).redis, ...changes };
  const app = await startApp({ config, overrides: { log } });
  const about = (lines: string[]) =>
    lines.map((line) => JSON.parse(line)).filter(({ msg }) => /Redis/.test(msg));
  return {
    app,
    /** What the log says about Redis: `true` if Redis counts, otherwise the reason why not. */
    told: () => about(said).map(({ level, reason }) => (level < 40 ? true : reason)),
    text: () => said.join(''),
    [Symbol.asyncDispose]: () => app[Symbol.asyncDispose](),
  };
}

/** The remaining requests of this address after one more request, which is answered 401, or 429 over the limit. */
async function left({ anonymous }: TestApp): Promise<number> {
  const { status, headers } = await anonymous.get('/auth/v1/whoami');
  expect([401, 429]).toContain(status);
  const remaining = Number(headers.get('x-ratelimit-remaining'));
  return status === 429 ? -1 : remaining;
}

const counting = (...servers: { told(): unknown[] }[]) =>
  eventually(() => {
    for (const { told } of servers) expect(told().at(-1)).toBe(true);
  });

test('servers on one Redis share each count while Redis is available', async (ctx) => {
  needs(ctx, 'redis');
  await using redis = await startRedis();
  const url = `redis://127.0.0.1:${redis.port}/3`;
  await using one = await startWith(url);
  await using two = await startWith(url);
  await counting(one, two);

  expect(await left(one.app)).toBe(19);
  expect(await left(two.app)).toBe(18);
  using usual = startProcessClock();
  const many = await Promise.all(
    Array.from({ length: 24 }, (_, i) => left([one.app, two.app][i % 2] as TestApp)),
  );
  const usualMs = usual.ms;
  expect(many.sort((a, b) => b - a)).toEqual([
    ...Array.from({ length: 18 }, (_, i) => 17 - i),
    ...Array(6).fill(-1),
  ]);
  const refused = await two.app.anonymous.get('/auth/v1/whoami');
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(45);
  // A credential counts by its id, and each key expires with its window.
  await one.app.admin.get('/auth/v1/whoami');
  const database = await redis.command('info', 'keyspace');
  expect(database).toMatch(/db3:keys=(\d+),expires=\1,/);

  // Redis is stopped: no request is refused or waits for it, and each server counts separately.
  await redis.signal('SIGKILL');
  expect(await left(one.app)).toBe(19);
  expect(await left(two.app)).toBe(19);
  await eventually(() => {
    expect(one.told()).toEqual([true, expect.stringMatching(/closed|ECONN/)]);
    expect(two.told()).toHaveLength(2);
  });
  await redis.start();
  await counting(one, two);
  expect([one.told().length, two.told().length]).toEqual([3, 3]);
  expect(await left(one.app)).toBe(19);
  expect(await left(two.app)).toBe(18);

  // Redis is frozen: connections stay open, and the kernel accepts new ones.
  await redis.signal('SIGSTOP');
  using frozen = startProcessClock();
  const during = await Promise.all(Array.from({ length: 10 }, () => left(one.app)));
  expect(during.sort((a, b) => b - a)).toEqual(Array.from({ length: 10 }, (_, i) => 18 - i));
  expect(frozen.ms).toBeLessThan(3 * usualMs + 1_000);
  expect(await left(two.app)).toBe(18);
  expect(one.told()).toEqual([true, expect.anything(), true, 'no answer within 200 ms']);
  using again = startProcessClock();
  for (let i = 0; i < 5; i++) await left(one.app);
  // Less than the 200 ms that each would wait for Redis.
  expect(again.ms).toBeLessThan(3 * usualMs + 500);
  await redis.signal('SIGCONT');
  await counting(one, two);
  expect(one.told()).toHaveLength(5);
});

test('a start does not wait for an unreachable Redis, and logs that once', async (ctx) => {
  needs(ctx, 'redis');
  await using redis = await startRedis('--requirepass', PASSWORD);
  const host = `127.0.0.1:${redis.port}`;
  await redis.signal('SIGSTOP');
  await using one = await startWith(`redis://:${encodeURIComponent(PASSWORD)}@${host}`);
  expect(await left(one.app)).toBe(19);
  await eventually(() => expect(one.told()).toEqual([expect.any(String)]));
  await redis.signal('SIGCONT');
  await counting(one);
  expect(await left(one.app)).toBe(19);

  // The logged reason contains no password.
  await using wrong = await startWith(`redis://:guessed-wrong@${host}`);
  await eventually(() => expect(wrong.told()).toEqual([expect.stringMatching(/^WRONGPASS/)]));
  expect(await left(wrong.app)).toBe(19);
  expect(one.text() + wrong.text()).not.toMatch(/guessed|p@ss|p%40ss/);
});

test('a Redis that refuses to write counts as unavailable', async (ctx) => {
  needs(ctx, 'redis');
  await using redis = await startRedis('--maxmemory-policy', 'noeviction');
  await using one = await startWith(`redis://127.0.0.1:${redis.port}`);
  await counting(one);
  expect(await left(one.app)).toBe(19);
  await redis.command('config', 'set', 'maxmemory', 1);
  expect(await left(one.app)).toBe(19);
  expect(await left(one.app)).toBe(18);
  expect(one.told()).toEqual([true, expect.stringMatching(/^OOM/)]);
  await redis.command('config', 'set', 'maxmemory', 0);
  await counting(one);
  expect(await left(one.app)).toBe(18);

  // A foreign value under one of our keys is replaced, without an error.
  const key = 'loam:rates:free:minute:127.0.0.1';
  expect(await redis.command('del', key)).toBe(1);
  await redis.command('rpush', key, 'a', 'b');
  expect(await left(one.app)).toBe(19);
  await redis.command('set', key, 'no number');
  expect(await left(one.app)).toBe(19);
  expect(await left(one.app)).toBe(18);
  expect(await redis.command('ttl', key)).toBeGreaterThan(55);
  expect(one.told()).toHaveLength(3);
});

test('over TLS the certificate is verified', async (ctx) => {
  needs(ctx, 'redis', 'openssl');
  const dir = await mkdtemp(join(tmpdir(), 'loam-redis-'));
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  const { pem, key } = makeCertificate(dir);
  const port = await freePort();
  const files = ['--tls-cert-file', pem, '--tls-key-file', key, '--tls-auth-clients', 'no'];
  cleanup.use(await startRedis('--tls-port', `${port}`, ...files));
  const url = `rediss://localhost:${port}`;
  const stranger = cleanup.use(await startWith(url));
  await eventually(() => expect(stranger.told()).toEqual([expect.stringMatching(/certificate/)]));
  expect(await left(stranger.app)).toBe(19);

  // As NODE_EXTRA_CA_CERTS does for a whole process.
  const known = getCACertificates();
  cleanup.defer(() => setDefaultCACertificates(known));
  setDefaultCACertificates([...known, await readFile(pem, 'utf8')]);
  await counting(stranger);
  expect(stranger.told()).toHaveLength(2);
});

test('if its database is missing, or there are no limits, nothing is counted in Redis', async (ctx) => {
  needs(ctx, 'redis');
  await using redis = await startRedis();
  {
    await using beyond = await startWith(`redis://127.0.0.1:${redis.port}/16`);
    await eventually(() =>
      expect(beyond.told()).toEqual([expect.stringMatching(/index is out of range/)]),
    );
    expect(await left(beyond.app)).toBe(19);
    await eventually(async () =>
      expect(await redis.command('info', 'commandstats')).toMatch(
        /cmdstat_select:calls=([3-9]|\d\d)/,
      ),
    );
    expect(await redis.command('dbsize')).toBe(0);
    expect(beyond.told()).toHaveLength(1);
  }
  await using one = await startWith(`redis://127.0.0.1:${redis.port}`, { rateLimits: 'off' });
  await one.app.anonymous.get('/auth/v1/whoami');
  // The only connection is that of this query.
  expect(
    String(await redis.command('client', 'list'))
      .trim()
      .split('\n'),
  ).toHaveLength(1);
  expect(one.told()).toEqual([]);
});
