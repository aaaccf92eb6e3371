import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import {
  appendFile,
  chmod,
  mkdtemp,
  readFile,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { expect, onTestFinished, test, vi } from 'vitest';
import { ConfigError } from '../../../src/base/config/config.ts';
import { retryStartup } from '../../../src/platform/database/startup-retry.ts';
import { openCuttableProxy } from '../../support/cut.ts';
import { eventually } from '../../support/eventually.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';

async function dataFolder(): Promise<AsyncDisposable & { path: string }> {
  // Only the owner may enter folders of mkdtemp, so when run as root this also shows that PostgreSQL can enter.
  const path = await mkdtemp(join(tmpdir(), 'loam-start-'));
  return {
    path,
    [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true, maxRetries: 5 }),
  };
}

const whoami = (base: string, token = '') =>
  fetch(`${base}/graphql`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
    body: JSON.stringify({ query: '{ whoami { username } }' }),
  }).then(async (r) => (await r.json()) as { data?: { whoami: { username: string } } });

async function postmasterPid(folder: string): Promise<number> {
  const text = await readFile(join(folder, 'postgres/cluster/postmaster.pid'), 'utf8');
  return Number(text.split('\n')[0]);
}

test('the first start creates the operator and prints its token once; SIGTERM stops all processes', async () => {
  await using folder = await dataFolder();
  const env = { LOAM_DATA_DIR: folder.path, LOAM_ADMIN: 'ada' };
  let token: string | undefined;
  {
    await using server = await startServer(env);
    token = /loam_pat_\w+/.exec(server.output())?.[0];
    expect((await whoami(server.base, token)).data?.whoami.username).toBe('ada');
    expect((await server.stop('SIGTERM')).code).toBe(0);
    expect(existsSync(join(folder.path, 'postgres/cluster/postmaster.pid'))).toBe(false);
  }
  await using again = await startServer(env);
  expect(again.output()).not.toContain('loam_pat_');
  expect((await whoami(again.base, token)).data?.whoami.username).toBe('ada');
});

test('under npm, SIGTERM reaches the server and npm waits for it; one Ctrl-C counts once', async () => {
  await using folder = await dataFolder();
  const env = { LOAM_DATA_DIR: folder.path };
  const pidFile = join(folder.path, 'postgres/cluster/postmaster.pid');
  const options = { command: ['npm', 'start', '--silent'], detached: true };
  {
    await using server = await startServer(env, options);
    expect((await server.stop('SIGTERM')).code).toBe(0);
    expect(existsSync(pidFile)).toBe(false);
  }
  await using server = await startServer(env, options);
  // A terminal sends SIGINT to npm and to the server, and npm forwards its own.
  process.kill(-(server.child.pid as number), 'SIGINT');
  await once(server.child, 'close');
  expect(server.child.exitCode).toBe(0);
  expect(existsSync(pidFile)).toBe(false);
});

test('a start after kill -9 adopts the PostgreSQL that is still running', async () => {
  await using folder = await dataFolder();
  const env = { LOAM_DATA_DIR: folder.path, LOAM_ADMIN_TOKEN: 'a-token-of-some-length' };
  const killed = await startServer(env);
  await killed.stop('SIGKILL');
  const leftOver = await postmasterPid(folder.path);

  await using server = await startServer(env);
  expect(await postmasterPid(folder.path)).toBe(leftOver);
  expect((await whoami(server.base, env.LOAM_ADMIN_TOKEN)).data?.whoami.username).toBe('admin');
});

test('a start after kills of the server and its PostgreSQL recovers', async () => {
  await using folder = await dataFolder();
  const env = { LOAM_DATA_DIR: folder.path, LOAM_ADMIN_TOKEN: 'a-token-of-some-length' };
  const killed = await startServer(env);
  const postmaster = await postmasterPid(folder.path);
  await killed.stop('SIGKILL');
  process.kill(postmaster, 'SIGKILL');
  await eventually(() => expect(existsSync(`/proc/${postmaster}`)).toBe(false));
  const log = join(folder.path, 'postgres/postgres.log');
  await appendFile(log, 'x'.repeat(5 * 2 ** 20));

  await using server = await startServer(env);
  // The log is new, and does not contain errors of clients.
  expect((await stat(`${log}.1`)).size).toBeGreaterThan(5 * 2 ** 20);
  const client = new Client(server.base, `Bearer ${env.LOAM_ADMIN_TOKEN}`);
  for (const status of [201, 409])
    expect((await client.post('/auth/v1/repository/admin', { name: 'a' })).status).toBe(status);
  expect(await readFile(log, 'utf8')).not.toMatch(/ERROR|xxx/);
  expect((await whoami(server.base, env.LOAM_ADMIN_TOKEN)).data?.whoami.username).toBe('admin');
});

test('a second server on the same folder is refused, and the first keeps running', async () => {
  await using folder = await dataFolder();
  const env = { LOAM_DATA_DIR: folder.path, LOAM_ADMIN_TOKEN: 'a-token-of-some-length' };
  await using first = await startServer(env);
  await expect(startServer(env)).rejects.toThrow(/^LOAM_DATA_DIR: another Loam server is using/m);
  expect((await whoami(first.base, env.LOAM_ADMIN_TOKEN)).data?.whoami.username).toBe('admin');
});

test('if two servers start at once on a new folder, one of them serves', async () => {
  await using folder = await dataFolder();
  const env = { LOAM_DATA_DIR: folder.path, LOAM_ADMIN_TOKEN: 'a-token-of-some-length' };
  const starts = await Promise.allSettled([startServer(env), startServer(env)]);
  const running = starts.filter((s) => s.status === 'fulfilled');
  expect(running).toHaveLength(1);
  await using server = (running[0] as PromiseFulfilledResult<ServerProcess>).value;
  expect((await whoami(server.base, env.LOAM_ADMIN_TOKEN)).data?.whoami.username).toBe('admin');
});

test('if the port is in use, the first start stops before it creates a token that nobody would see', async () => {
  await using folder = await dataFolder();
  const taken = createServer();
  taken.listen(0, '127.0.0.1');
  await once(taken, 'listening');
  const { port } = taken.address() as AddressInfo;
  const env = { LOAM_DATA_DIR: folder.path };
  await expect(startServer({ ...env, PORT: `${port}` })).rejects.toThrow(/PORT: \d+ is in use/);
  taken.close();
  await using server = await startServer(env);
  expect(server.output()).toMatch(/loam_pat_/);
});

test('from the moment that the server listens, each request is answered', async () => {
  await using folder = await dataFolder();
  const database = await cloneDatabase();
  // The test holds Prisma's migration lock, so that the start waits as for another server that migrates.
  const migrating = new pg.Client({ connectionString: database.url });
  await migrating.connect();
  await migrating.query('select pg_advisory_lock(72707369)');
  const port = await freePort();
  const base = `http://127.0.0.1:${port}`;
  const starting = startServer({
    LOAM_DATA_DIR: folder.path,
    DATABASE_URL: database.url,
    PORT: `${port}`,
  });
  const livez = await eventually(() => fetch(`${base}/livez`));
  expect(livez.status).toBe(200);
  const client = new Client(base, null);
  expect(await client.get('/auth/v1/health')).toMatchObject({
    status: 503,
    body: { status: 'degraded' },
  });
  expect((await client.get('/readyz')).status).toBe(503);
  const refused = await client.get('/auth/v1/whoami', { 'X-Request-Id': 'early' });
  expect(refused).toMatchObject({
    status: 503,
    body: { error: { code: 'internal_error', request_id: 'early' } },
  });
  for (const name of ['retry-after', 'x-ratelimit-limit', 'x-request-id'])
    expect(refused.headers.has(name), name).toBe(true);
  expect((await client.graphql('{ version { build } }')).errors).toHaveLength(1);
  for (const path of ['/', '/ada/-/jobs', '/login']) {
    const page = await client.get(path, { accept: 'text/html' });
    expect(page.status, path).toBe(503);
    expect(page.text, path).toContain('<meta http-equiv="refresh" content="2">');
  }
  await migrating.end();

  await using server = await starting;
  expect((await client.get('/auth/v1/health')).status).toBe(200);
  expect((await client.get('/auth/v1/whoami')).status).toBe(401);
  await server.stop();
  await database.drop();
});

test('a start waits for an unavailable database, also if it fails during startup, and logs the wait once', async () => {
  await using folder = await dataFolder();
  const database = await cloneDatabase();
  await using way = openCuttableProxy();
  const url = await way.via(database.url);
  await way.cut();
  const migrating = new pg.Client({ connectionString: database.url });
  await migrating.connect();
  await migrating.query('select pg_advisory_lock(72707369)');
  let said = '';
  const starting = startServer(
    { LOAM_DATA_DIR: folder.path, DATABASE_URL: url },
    { spawned: (child) => child.stderr?.on('data', (text) => (said += text)) },
  );
  starting.catch(() => {});
  await eventually(() => expect(said).toMatch(/nothing listens at .* The start waits for the/));
  await way.mend();
  await eventually(async () => {
    const { rows } = await migrating.query(
      `select 1 from pg_locks where locktype = 'advisory' and not granted
         and database = (select oid from pg_database where datname = current_database())`,
    );
    expect(rows).toHaveLength(1);
  });
  await way.cut();
  await migrating.end();
  await way.mend();

  await using server = await starting;
  expect(said.trim().split('\n')).toHaveLength(1);
  await server.stop();
  await database.drop();
});

test('a database that stays unavailable ends the start with one line', async () => {
  // The time limit ends during the second start.
  vi.useFakeTimers({ toFake: ['Date'] });
  onTestFinished(() => void vi.useRealTimers());
  const said: string[] = [];
  const options = { report: (line: string) => void said.push(line), timeoutMs: 60_000 };
  const away = Object.assign(new Error('\nInvalid `x` invocation:\n\ntoo many clients'), {
    code: '53300',
  });
  let starts = 0;
  const start = () => {
    vi.setSystemTime(Date.now() + 40_000);
    return Promise.reject(starts++ < 9 ? away : new Error('no end'));
  };
  await expect(retryStartup(start, options)).rejects.toThrow(
    new ConfigError('The database became unavailable during startup: too many clients'),
  );
  expect([starts, said.length]).toEqual([2, 1]);
  const fault = new Error('a fault of ours');
  await expect(retryStartup(() => Promise.reject(fault), options)).rejects.toBe(fault);
});

test('a start that waits indefinitely is ended by a signal', async ({ onTestFinished }) => {
  await using folder = await dataFolder();
  const database = await cloneDatabase();
  const migrating = new pg.Client({ connectionString: database.url });
  await migrating.connect();
  await migrating.query('select pg_advisory_lock(72707369)');
  const port = await freePort();
  const env = { LOAM_DATA_DIR: folder.path, DATABASE_URL: database.url, PORT: `${port}` };
  let child: ChildProcess | undefined;
  onTestFinished(() => void child?.kill('SIGKILL'));
  const starting = startServer(env, { spawned: (started) => (child = started) });
  starting.catch(() => {});
  await eventually(() => fetch(`http://127.0.0.1:${port}/livez`));
  child?.kill('SIGTERM');
  await expect(starting).rejects.toThrow(/ended with 1 .*\nStopped before the start was done/);
  await migrating.end();
  await database.drop();
});

test('an invalid value stops the start with a line that names the variable', async () => {
  await expect(startServer({ LOAM_RUNNER: 'cloud' })).rejects.toThrow(
    /:\nLOAM_RUNNER: must be one of/,
  );
});

test('SIGHUP reads the files of hardware and volumes again, and keeps the former if they have mistakes', async () => {
  await using folder = await dataFolder();
  const file = join(folder.path, 'hardware.yml');
  await writeFile(file, 'regions: [lab]');
  const volumes = join(folder.path, 'volumes.yml');
  await writeFile(volumes, 'volumes: [{ name: data, path: /srv/data }]');
  await using server = await startServer({
    LOAM_DATA_DIR: folder.path,
    LOAM_HARDWARE: file,
    LOAM_VOLUMES: volumes,
    LOAM_LOG_LEVEL: 'info',
  });
  const regions = async () => {
    const { components } = (await fetch(`${server.base}/openapi.json`).then((r) => r.json())) as {
      components: { schemas: { Region: { enum: string[] } } };
    };
    return components.schemas.Region.enum;
  };
  const hangUp = async (text: string, said: RegExp) => {
    await writeFile(file, text);
    server.child.kill('SIGHUP');
    await eventually(() => expect(server.output()).toMatch(said));
    return regions();
  };
  expect(await regions()).toEqual(['lab']);
  expect(await hangUp('regions: []', /stays as it was.*1 mistake/)).toEqual(['lab']);
  expect(server.output()).toContain('Read LOAM_VOLUMES again');
  await writeFile(volumes, 'volumes: [{ name: data }]');
  expect(await hangUp('regions: [moon]', /Read LOAM_HARDWARE again/)).toEqual(['moon']);
  await eventually(() =>
    expect(server.output()).toMatch(/LOAM_VOLUMES stays as it was.*\(volume data\)/),
  );
});

test('if the embedded PostgreSQL does not start, the reason is printed with the remedy', async (ctx) => {
  needs(ctx, 'root', 'shared-checkout');
  await using folder = await dataFolder();
  // Without setpriv, `nobody` cannot enter this folder, which only root may enter.
  await symlink('/usr/bin/git', join(folder.path, 'git'));
  const bare = { LOAM_DATA_DIR: folder.path, PATH: folder.path };
  await expect(startServer(bare)).rejects.toThrow(
    /^LOAM_DATA_DIR: .* runs as the user "nobody", who may not enter .* install util-linux/m,
  );
  await chmod(folder.path, 0o777);
  const stranger = { LOAM_DATA_DIR: join(folder.path, 'theirs') };
  await expect(startServer(stranger, { user: '61999' })).rejects.toThrow(
    /^LOAM_DATA_DIR: .* user ID 61999: user does not exist; give this user an entry in \/etc\/passwd/m,
  );
});
