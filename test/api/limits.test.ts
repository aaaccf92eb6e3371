import { expect, test } from 'vitest';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';
import { eventually } from '../support/eventually.ts';
import { type Answer, startApp } from '../support/harness.ts';

const rates = ({ headers }: Answer) => ({
  limit: Number(headers.get('x-ratelimit-limit')),
  remaining: Number(headers.get('x-ratelimit-remaining')),
  reset: Number(headers.get('x-ratelimit-reset')),
});

test('every response of the API has the rate limit headers, whatever its status', async () => {
  await using app = await startApp();
  const wrong = app.client('Bearer wrong');
  const answers = await Promise.all([
    app.admin.get('/auth/v1/whoami'),
    app.anonymous.get('/auth/v1/whoami'),
    app.anonymous.get('/auth/v1/health'),
    app.anonymous.get('/auth/v1/nowhere'),
    app.admin.get('/auth/v1/whoami?page=%'),
    app.admin.get('/auth/v1/pat/%ff'),
    app.admin.delete('/auth/v1/whoami'),
    app.admin.request('OPTIONS', '/auth/v1/whoami'),
    app.admin.post('/graphql', { query: '{ health { status } }' }),
    wrong.get('/auth/v1/whoami'),
    wrong.post('/graphql', { query: '{ health { status } }' }),
  ]);
  const now = Date.now() / 1_000;
  for (const answer of answers) {
    const { limit, remaining, reset } = rates(answer);
    expect([limit, remaining], `${answer.status} ${answer.text}`).toEqual([1_000_000, 1_000_000]);
    expect(reset).toBeGreaterThan(now);
    expect(reset).toBeLessThanOrEqual(now + 61);
  }
  expect(answers.map(({ status }) => status)).toEqual([
    200, 401, 200, 404, 200, 400, 405, 204, 200, 401, 401,
  ]);
});

test('a credential has the rate of its plan, and does not use up the rate of others', async () => {
  const limits = { ...PLAN_LIMITS, free: { ...PLAN_LIMITS.free, perMinute: 8, perSecond: 4 } };
  await using app = await startApp({ config: { rateLimits: limits } });
  const alice = await app.user('alice', 'free');
  const bob = await app.user('bob', 'free');
  expect(rates(await app.admin.get('/auth/v1/whoami')).limit).toBe(1_000_000);

  const statuses = async (times: number) => {
    const all = await Promise.all(
      Array.from({ length: times }, () => alice.get('/auth/v1/whoami')),
    );
    return all.map(({ status }) => status).sort();
  };
  // A request refused by the limit per second does not count for the minute.
  expect(await statuses(6)).toEqual([200, 200, 200, 200, 429, 429]);
  await eventually(async () => expect((await alice.get('/auth/v1/whoami')).status).toBe(200));
  await eventually(async () => {
    const { status, headers } = await alice.get('/auth/v1/whoami');
    expect([status, Number(headers.get('retry-after'))]).toEqual([429, expect.toBeOneOf(minute)]);
  });
  const refused = await alice.post('/graphql', { query: '{ viewer { id } }' });
  const retryAfter = Number(refused.headers.get('retry-after'));
  expect(refused.body.error).toEqual({
    code: 'rate_limit_exceeded',
    message: expect.any(String),
    retry_after: retryAfter,
  });
  expect(refused.body.errors[0].extensions.code).toBe('RATE_LIMIT_EXCEEDED');
  expect(rates(refused)).toMatchObject({ limit: 8, remaining: 0 });
  expect(rates(refused).reset - Date.now() / 1_000).toBeCloseTo(retryAfter, -0.5);

  expect(rates(await bob.get('/auth/v1/whoami'))).toMatchObject({ limit: 8, remaining: 7 });
});
const minute = Array.from({ length: 60 }, (_, i) => i + 2);

test('retry_after is the time until a request passes both limits, per second and per minute', async () => {
  const limits = { ...PLAN_LIMITS, free: { ...PLAN_LIMITS.free, perMinute: 3, perSecond: 3 } };
  await using app = await startApp({ config: { rateLimits: limits } });
  const alice = await app.user('alice', 'free');
  const answers = await Promise.all(Array.from({ length: 4 }, () => alice.get('/auth/v1/whoami')));
  const refused = answers.find(({ status }) => status === 429) as Answer;
  // Both limits are used up. In a second, only that of the minute still is.
  expect(refused.body.error.retry_after).toBeOneOf(minute);
  expect(refused.headers.get('retry-after')).toBe(String(refused.body.error.retry_after));
  expect(refused.body.error.message).toContain(`${refused.body.error.retry_after} s`);
});

test('a preflight has the rate limit headers on every path, and does not count', async () => {
  const limits = { ...PLAN_LIMITS, free: { ...PLAN_LIMITS.free, perMinute: 2, perSecond: 2 } };
  await using app = await startApp({ config: { rateLimits: limits } });
  const headers = { Origin: 'https://example.com', 'Access-Control-Request-Method': 'GET' };
  for (const path of ['/auth/v1/whoami', '/graphql', '/docs', '/alice/hello.git/info/refs']) {
    const answer = await app.anonymous.request('OPTIONS', path, { headers });
    expect([path, answer.status, rates(answer).limit]).toEqual([path, 204, 2]);
    expect(answer.headers.get('access-control-allow-methods')).toContain('GET');
  }
  expect((await app.anonymous.get('/auth/v1/whoami')).status).toBe(401);
});

test('requests without credentials are limited per address, except health and version', async () => {
  const limits = {
    ...PLAN_LIMITS,
    free: { ...PLAN_LIMITS.free, perMinute: 3, perSecond: 3 },
    team: { ...PLAN_LIMITS.team, perMinute: 5, perSecond: 5 },
  };
  await using app = await startApp({ config: { rateLimits: limits } });
  const wrong = app.client('Bearer wrong');
  const times = async (count: number, request: () => Promise<Answer>) => {
    const statuses: number[] = [];
    for (let i = 0; i < count; i++) statuses.push((await request()).status);
    return statuses;
  };
  const forwarded = { 'X-Forwarded-For': '192.0.2.1' };
  expect(await times(4, () => app.anonymous.get('/auth/v1/whoami'))).toEqual([401, 401, 401, 429]);
  expect((await app.anonymous.get('/auth/v1/whoami', forwarded)).status).toBe(429);
  expect(await times(7, () => wrong.get('/auth/v1/whoami'))).toEqual([
    401, 401, 401, 401, 401, 429, 429,
  ]);
  expect(await times(5, () => wrong.get('/auth/v1/health'))).toEqual([200, 200, 200, 200, 200]);
  expect(rates(await app.anonymous.get('/auth/v1/version'))).toMatchObject({
    limit: 3,
    remaining: 0,
  });
  // A caller with a credential is not limited by others at the same address.
  expect((await app.admin.get('/auth/v1/whoami')).status).toBe(200);
});

test('behind trusted proxies, the client address is the one that the last proxy names', async () => {
  const limits = { ...PLAN_LIMITS, free: { ...PLAN_LIMITS.free, perMinute: 1 } };
  const config = { rateLimits: limits, trustedProxies: ['loopback', '10.0.0.0/8'] };
  await using app = await startApp({ config });
  const statusOf = async (forwarded: string) =>
    (await app.anonymous.get('/auth/v1/whoami', { 'X-Forwarded-For': forwarded })).status;
  expect(await statusOf('192.0.2.1')).toBe(401);
  expect(await statusOf('192.0.2.2, 10.1.2.3')).toBe(401);
  expect(await statusOf('192.0.2.2')).toBe(429);
  // The client can have written the addresses before it.
  expect(await statusOf('203.0.113.9, 192.0.2.1')).toBe(429);
  expect(await statusOf('2001:db8:0:1::1')).toBe(401);
  expect(await statusOf('2001:db8:0:1:ffff::2')).toBe(429);
});
