import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import express from 'express';
import { expect, test } from 'vitest';
import { ConfigError, readConfig, VARIABLES } from '../../src/base/config/config.ts';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';

test('docs/configuration.md has the same table as the code', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/configuration.md'), 'utf8');
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

test('unset and empty variables take their defaults', () => {
  const config = readConfig({ PORT: '' });
  expect(config).toMatchObject({ host: '127.0.0.1', port: 3000, database: { kind: 'embedded' } });
  expect(config.rateLimits).toEqual(PLAN_LIMITS);
});

test('proxies are trusted by count or by address, and none are by default', () => {
  const proxies = (text: string) => readConfig({ LOAM_TRUSTED_PROXIES: text }).trustedProxies;
  expect(proxies('')).toBe(false);
  expect(proxies('2')).toBe(2);
  expect(proxies('loopback, 10.1.0.0/16,::1')).toEqual([
    ...['127.0.0.0/8', '::1'],
    ...['10.1.0.0/16', '::1'],
  ]);
  expect(proxies('linklocal,uniquelocal')).toEqual([
    ...['169.254.0.0/16', 'fe80::/10'],
    ...['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'],
  ]);
});

test('limits of plans can be overridden one by one', () => {
  const { rateLimits } = readConfig({ LOAM_RATE_LIMITS: '{"free": {"perMinute": 7}}' });
  expect(rateLimits).toMatchObject({
    free: { perMinute: 7, perSecond: 10 },
    team: { perMinute: 300 },
  });
  expect(readConfig({ LOAM_RATE_LIMITS: 'off' }).rateLimits).toBe('off');
});

test('a Redis URL needs only a host', () => {
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

test('LOAM_DOCKER_HOSTS names several engines, each with its own options', () => {
  const { engines } = readConfig({
    LOAM_DOCKER_HOSTS:
      'here=unix:///var/run/docker.sock, gpu1=tcp://10.0.0.5:2376?certs=/etc/loam/gpu1&network=jobs&gpus=H100-80GB:8+T4:1',
    DOCKER_CONFIG: '/etc/docker',
  });
  const common = { named: true, configFolder: '/etc/docker' };
  expect(engines).toEqual([
    { ...common, name: 'here', host: 'unix:///var/run/docker.sock', tlsVerify: false },
    {
      ...common,
      name: 'gpu1',
      host: 'tcp://10.0.0.5:2376',
      tlsVerify: true,
      certPath: '/etc/loam/gpu1',
      network: 'jobs',
      gpus: { 'H100-80GB': 8, T4: 1 },
    },
  ]);
});

test("certificates of an engine are read where Docker's command line looks for them", () => {
  const path = (env: Record<string, string>) => readConfig(env).docker.certPath;
  const verify = { DOCKER_HOST: 'tcp://10.0.0.5:2376', DOCKER_TLS_VERIFY: '1' };
  expect(path({ ...verify, DOCKER_CERT_PATH: '/etc/certs' })).toBe('/etc/certs');
  expect(path({ ...verify, DOCKER_CONFIG: '/etc/docker' })).toBe('/etc/docker');
  expect(path(verify)).toBe(join(homedir(), '.docker'));
  expect(path({ DOCKER_HOST: 'tcp://10.0.0.5:2376' })).toBe(undefined);
});

test.each([
  ['tcp://10.0.0.5:2376', 'must begin with a name'],
  ['local=unix:///run/a.sock', 'must begin with a name'],
  ['Gpu=unix:///run/a.sock', 'must begin with a name'],
  ['gpu1=ssh://gpu1', 'cannot be ssh://; forward the socket'],
  ['gpu1=http://gpu1', 'must begin with unix:// or tcp://'],
  ['a=unix:///run/a.sock,a=unix:///run/b.sock', 'names an engine a second time'],
  ['a=unix:///run/a.sock,b=unix:///run/a.sock', 'names an engine a second time'],
  ['a=unix:///run/a.sock?certs=relative', 'may have after a ? only'],
  ['a=unix:///run/a.sock?colour=red', 'may have after a ? only'],
  ['a=unix:///run/a.sock?gpus=RTX 4090:1', 'must have gpus as'],
  ['a=unix:///run/a.sock?gpus=none:1', 'must have gpus as'],
  ['a=unix:///run/a.sock,', 'must begin with a name'],
])('LOAM_DOCKER_HOSTS=%s is refused', (text, why) => {
  expect(() => readConfig({ LOAM_DOCKER_HOSTS: text })).toThrow(why);
});

test('jobs on Slurm get no network of their own', () => {
  const read = (network: string) =>
    readConfig({ LOAM_RUNNER: 'slurm', LOAM_JOB_NETWORK: network }).jobNetwork;
  expect(() => read('none')).toThrow('LOAM_JOB_NETWORK: must be host or unset');
  expect(read('host')).toBe('host');
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
])('LOAM_REDIS_URL=%s is refused without showing its value', (url) => {
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
  ['LOAM_TRUSTED_PROXIES', 'constructor'],
  ['LOAM_SECRET_KEY', Buffer.alloc(32).toString('base64')],
  ['LOAM_SECRET_KEY', Buffer.alloc(32, 255).toString('base64')],
  ['LOAM_ROLE', 'both'],
  ['LOAM_WEBHOOK_ALLOW', 'internal.example'],
  ['LOAM_WEBHOOK_ALLOW', '0.0.0.0/0'],
  ['LOAM_WEBHOOK_ALLOW', '10.0.0.0/8,'],
  ['LOAM_INTERNAL_URL', 'https://example.com/loam'],
  ['LOAM_JOB_NETWORK', 'lan'],
  ['LOAM_APPS_DOMAIN', 'https://apps.example.com'],
  ['LOAM_APPS_DOMAIN', '*.example.com'],
  ['LOAM_APPS_DOMAIN', 'apps.example.com.'],
  ['LOAM_APPS_DOMAIN', 'apps.example.com:0'],
  ['LOAM_APPS_DOMAIN', 'apps.example.com:65536'],
  ['LOAM_APPS_DOMAIN', '127.0.0.1'],
  ['LOAM_JOB_UIDS', '0-100'],
  ['LOAM_JOB_UIDS', '70000'],
  ['LOAM_JOB_UIDS', '70000-4294967295'],
])('%s=%s is refused with a message that names the variable', (name, value) => {
  expect(() => readConfig({ [name]: value })).toThrow(ConfigError);
  expect(() => readConfig({ [name]: value })).toThrow(new RegExp(`^${name}: `));
});

test('programs of jobs get no host of this service', () => {
  const read = (LOAM_APPS_DOMAIN: string, more: Record<string, string>) => () =>
    readConfig({ LOAM_APPS_DOMAIN, ...more }).appsDomain;
  const base = { LOAM_BASE_URL: 'https://Loam.example.com' };
  const refusal = 'LOAM_APPS_DOMAIN: must be neither the host of LOAM_BASE_URL nor a parent of it';
  for (const domain of ['loam.example.com', 'LOAM.example.com:8443', 'example.com', 'com'])
    expect(read(domain, base)).toThrow(refusal);
  expect(read('a.example', { LOAM_INTERNAL_URL: 'http://one.a.example' })).toThrow(
    'LOAM_INTERNAL_URL',
  );
  expect(read('Apps.Loam.example.com', base)()).toEqual({ name: 'apps.loam.example.com' });
  expect(read('m.example.com:8443', base)()).toEqual({ name: 'm.example.com', port: 8443 });
});

test('variables that contradict each other are refused', () => {
  const shared = { DATABASE_URL: 'postgres://database/loam', LOAM_STORAGE: 's3://bucket' };
  const env = {
    ...shared,
    LOAM_ROLE: 'work',
    AWS_ACCESS_KEY_ID: 'id',
    AWS_SECRET_ACCESS_KEY: 'key',
  };
  expect(readConfig(env)).toMatchObject({
    role: 'work',
    storage: { bucket: 'bucket', prefix: '' },
  });
  const without = (name: string) => () => readConfig({ ...env, [name]: '' });
  expect(without('DATABASE_URL')).toThrow('LOAM_ROLE: needs DATABASE_URL');
  expect(without('LOAM_STORAGE')).toThrow('LOAM_ROLE: needs LOAM_STORAGE');
  expect(without('AWS_ACCESS_KEY_ID')).toThrow('LOAM_STORAGE: needs both AWS_ACCESS_KEY_ID');
});

test('the S3 server is set by AWS_ENDPOINT_URL_S3, or by AWS_ENDPOINT_URL', () => {
  const storage = (env: Record<string, string>) =>
    readConfig({ LOAM_STORAGE: 's3://bucket', ...env }).storage;
  const all = { AWS_ENDPOINT_URL: 'http://all.example/', AWS_DEFAULT_REGION: 'eu-1' };
  expect(storage(all)).toMatchObject({ endpoint: 'http://all.example', region: 'eu-1' });
  const own = { ...all, AWS_ENDPOINT_URL_S3: 'https://s3.example:8443/path' };
  expect(storage(own)).toMatchObject({ endpoint: 'https://s3.example:8443/path' });
  expect(() => storage({ AWS_ENDPOINT_URL: 's3.example' })).toThrow(
    'AWS_ENDPOINT_URL: must be a URL',
  );
  expect(readConfig({ AWS_ENDPOINT_URL: 's3.example' }).storage.kind).toBe('folder');
});

test('every value is accepted, or refused with one short line that begins with the name', () => {
  const values = [
    ...[
      ' ',
      '\t',
      '\n',
      '1 ',
      ' 1',
      '3000\r',
      '-1',
      '1e3',
      '0x10',
      '٣',
      '9'.repeat(400),
      '0',
      '00',
      '1,2',
    ],
    ...[
      'ü',
      '例',
      '😀',
      '\ud800',
      '\u202e',
      'a'.repeat(100_000),
      '例/'.repeat(50_000),
      '[]',
      '{}',
      'null',
      '"',
    ],
    ...[
      '{"\\n": {}}',
      '{"free": {"\\n": 1}}',
      '['.repeat(100_000),
      '{"free": {"perMinute": 1e999}}',
      '%',
      '..',
    ],
    ...[
      'http://',
      '//',
      '://',
      'http://例.example',
      'https://h/例?x',
      'http://u:p@h',
      'http://[::1',
      's3://',
    ],
    ...[
      's3://bucket/..',
      's3://UPPER',
      'redis://例',
      'postgres://',
      '10.0.0.0/0',
      '::/0',
      'fe80::1%eth0',
    ],
    ...['1.2.3.4/08', '1.2.3.4/255.0.0.0', '::ffff:10.0.0.0/104', '1-4294967295', '1-2-3', '１-２'],
  ];
  const s3 = { LOAM_STORAGE: 's3://bucket', AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'key' };
  const ofS3 = [...Object.keys(s3).slice(1), 'AWS_SESSION_TOKEN', 'AWS_REGION', 'AWS_ENDPOINT_URL'];
  for (const name of [...Object.keys(VARIABLES), ...ofS3])
    for (const value of values) {
      try {
        const {
          trustedProxies,
          baseUrl = '',
          artifactUrl = '',
        } = readConfig({
          ...(ofS3.includes(name) && s3),
          [name]: value,
        });
        // Accepted values must be usable.
        express().set('trust proxy', trustedProxies);
        new Headers({ link: baseUrl + artifactUrl });
      } catch (error) {
        expect(error, `${name}=${value.slice(0, 50)}`).toBeInstanceOf(ConfigError);
        expect((error as Error).message.slice(0, 600)).toMatch(
          new RegExp(`^${name}: [^\\p{Cc}]{10,500}$`, 'u'),
        );
      }
    }
});
