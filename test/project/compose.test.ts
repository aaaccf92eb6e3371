/** The Compose files, checked without Docker: every server starts with their settings. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseEnv } from 'node:util';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { readConfig } from '../../src/base/config/config.ts';
import { needs } from '../support/needs.ts';

const ROOT = join(import.meta.dirname, '../..');
const IMAGE = { HOST: '0.0.0.0', LOAM_DATA_DIR: '/data' };

type Service = {
  image: string;
  restart?: string;
  environment?: Record<string, string | number>;
  volumes: string[];
  read_only?: boolean;
  cap_drop?: string[];
  security_opt?: string[];
};

function servicesOf(file: string): Record<string, Service> {
  const text = readFileSync(join(ROOT, file), 'utf8');
  // Substitutes the defaults, as Compose does without a .env.
  return parse(text.replaceAll(/\$\{\w+:-(.*?)\}/g, '$1'), { merge: true }).services;
}

/** The services that are Loam servers, with their environment. */
function servers(file: string, secrets: Record<string, string | undefined> = {}) {
  return Object.entries(servicesOf(file))
    .filter(([, { image, restart }]) => image === 'loam' && restart === 'unless-stopped')
    .map(([name, service]) => {
      const set = Object.entries(service.environment ?? {}).map(([n, value]) => [n, String(value)]);
      return { name, ...service, env: { ...IMAGE, ...secrets, ...Object.fromEntries(set) } };
    });
}

test('secrets are created once, and each server starts with them', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-secrets-'));
  try {
    const make = () => execFileSync('sh', [join(ROOT, 'deploy/secrets.sh'), dir]);
    make();
    const made = await readFile(join(dir, 'env'), 'utf8');
    make();
    expect(await readFile(join(dir, 'env'), 'utf8')).toBe(made);

    const configs = servers('docker-compose.yml', parseEnv(made)).map(({ env }) => readConfig(env));
    expect(configs.map(({ role }) => role)).toEqual(['serve', 'serve', 'work', 'work']);
    for (const { database, redis, storage, secretKey } of configs) {
      expect(secretKey).toHaveLength(32);
      expect([database.kind, storage.kind, Boolean(redis)]).toEqual(['url', 's3', true]);
    }
    const folders = configs.filter(({ role }) => role === 'serve').map((c) => c.repositoriesDir);
    expect(folders).toEqual(['/repositories', '/repositories']);
    expect(new Set(configs.map(({ internalUrl }) => internalUrl)).size).toBe(4);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
});

test('servers have no capabilities and a read-only file system, and only those that run jobs are unconfined', () => {
  for (const { name, read_only, cap_drop, security_opt } of [
    ...servers('docker-compose.yml'),
    ...servers('compose.single.yml'),
  ]) {
    expect([name, read_only, cap_drop]).toEqual([name, true, ['ALL']]);
    const unconfined = security_opt?.filter((option) => option.endsWith('=unconfined'));
    expect([name, unconfined]).toEqual([name, name.startsWith('serve') ? [] : expect.any(Array)]);
    expect(security_opt).toContain('no-new-privileges:true');
  }
});

test('the proxy accepts its configuration, which names each server', (ctx) => {
  needs(ctx, 'haproxy');
  const file = join(ROOT, 'deploy/haproxy.cfg');
  execFileSync('haproxy', ['-c', '-f', file], { stdio: 'pipe' });
  const named = [...readFileSync(file, 'utf8').matchAll(/^ {2}server (\S+) \1:3000$/gm)];
  const serving = servers('docker-compose.yml').map(({ name }) => name);
  expect(named.map(([, name]) => name)).toEqual(serving.filter((name) => name.startsWith('serve')));
});
