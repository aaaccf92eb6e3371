import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ConfigError, readConfig, VARIABLES } from '../src/config.ts';
import { planLimits } from '../src/limits/plans.ts';

test('the documented table is the table of the code', () => {
  const page = readFileSync(join(import.meta.dirname, '../docs/configuration.md'), 'utf8');
  const rows = [...page.matchAll(/^\| `([A-Z_]+)` \| (.*?) \| (.*?) \|$/gm)].map(
    ([, ...cells]) => cells,
  );
  const code = Object.entries(VARIABLES).map(([name, [fallback, meaning]]) => [
    name,
    fallback && `\`${fallback}\``,
    meaning,
  ]);
  expect(rows).toEqual(code);
});

test('what is unset or empty takes its default', () => {
  const config = readConfig({ PORT: '' });
  expect(config).toMatchObject({ host: '127.0.0.1', port: 3000, database: { kind: 'embedded' } });
  expect(config.rateLimits).toEqual(planLimits);
});

test('proxies are trusted by count or by address, and none are by default', () => {
  const proxies = (text: string) => readConfig({ LOAM_TRUSTED_PROXIES: text }).trustedProxies;
  expect(proxies('')).toBe(false);
  expect(proxies('2')).toBe(2);
  expect(proxies('loopback, 10.0.0.0/8,::1')).toEqual(['loopback', '10.0.0.0/8', '::1']);
});

test('a plan table is overridden number by number', () => {
  const { rateLimits } = readConfig({ LOAM_RATE_LIMITS: '{"free": {"perMinute": 7}}' });
  expect(rateLimits).toMatchObject({
    free: { perMinute: 7, perSecond: 10 },
    team: { perMinute: 300 },
  });
  expect(readConfig({ LOAM_RATE_LIMITS: 'off' }).rateLimits).toBe('off');
});

test('a Redis is named by its URL, of which all but the host may be left out', () => {
  const redis = (url: string) => readConfig({ LOAM_REDIS_URL: url }).redis;
  expect(redis('')).toBeUndefined();
  expect(redis('redis://cache/')).toEqual({ host: 'cache', port: 6379, db: 0 });
  expect(redis('rediss://ada:p%40ss%2Fword@[::1]:7000/3')).toEqual({
    host: '::1',
    port: 7000,
    db: 3,
    username: 'ada',
    password: 'p@ss/word',
    tls: {},
  });
});

test.each([
  'cache:6379',
  'http://:hidden@cache',
  'redis://',
  'redis:///0',
  'redis://:hidden@cache/db',
  'redis://:hidden@cache?db=1',
  'redis://:hidden@cache#1',
  'redis://:hidden@cache:70000',
  'redis://:hidden%@cache',
  'redis://hidden@cache',
])('LOAM_REDIS_URL=%s is refused, and not shown', (url) => {
  const read = () => readConfig({ LOAM_REDIS_URL: url });
  expect(read).toThrow(/^LOAM_REDIS_URL: must /);
  expect(read).not.toThrow(/hidden|cache/);
});

test.each([
  ['PORT', '3000.5'],
  ['PORT', '65536'],
  ['LOAM_RATE_LIMITS', '{"free": {"perMinute": -1}}'],
  ['LOAM_RATE_LIMITS', '{"free": {"perHour": 1}}'],
  ['LOAM_RATE_LIMITS', '{"__proto__": {"perMinute": 1}}'],
  ['LOAM_RATE_LIMITS', '[]'],
  ['LOAM_RATE_LIMITS', 'none'],
  ['LOAM_BASE_URL', 'https://example.com/loam/'],
  ['LOAM_BASE_URL', 'https://example.com/?a=b'],
  ['LOAM_LOG_LEVEL', 'loud'],
  ['LOAM_TRUSTED_PROXIES', 'nginx'],
  ['LOAM_TRUSTED_PROXIES', '10.0.0.0/33'],
  ['LOAM_TRUSTED_PROXIES', '10.0.0.1,'],
  ['LOAM_TRUSTED_PROXIES', '99'],
  ['LOAM_JOB_NETWORK', 'lan'],
  ['LOAM_JOB_UIDS', '0-100'],
  ['LOAM_JOB_UIDS', '70000'],
  ['LOAM_JOB_UIDS', '70000-4294967295'],
])('%s=%s is refused by name', (name, value) => {
  expect(() => readConfig({ [name]: value })).toThrow(ConfigError);
  expect(() => readConfig({ [name]: value })).toThrow(new RegExp(`^${name}: `));
});
