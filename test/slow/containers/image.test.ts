/**
 * Loam's own image as users run it: built from the Dockerfile, with a read-only file system and an ordinary user. It is
 * built on the official base images, or on those of test/support/base-images.sh if that script has created them.
 */
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream';
import { promisify } from 'node:util';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { remote, Workspace } from '../../support/git.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { lines, submit, until } from '../../support/submit.ts';

const ROOT = join(import.meta.dirname, '../../..');
const IMAGE = `loam-test/loam-${process.pid}`;
const TOKEN = 'loam_pat_a1b2c3d4e5f6g7h8i9j0k1l2m3n4o5p6q7r8s9t0u';
/** Most of the time is for downloading packages. */
const BUILD_MS = 1_800_000;
const MIB = 2 ** 20;

/** Options that docs/operations.md recommends: LOCKED for all servers, SANDBOX in addition for servers that run jobs. */
const LOCKED = [
  '--read-only',
  '--tmpfs=/tmp',
  '--cap-drop=ALL',
  '--security-opt=no-new-privileges',
];
const SANDBOX = ['seccomp', 'apparmor', 'systempaths'].map((o) => `--security-opt=${o}=unconfined`);

const run = promisify(execFile);
const docker = async (...args: string[]): Promise<string> =>
  (await run('docker', args, { cwd: ROOT })).stdout.trim();

beforeEach((ctx) => needs(ctx, 'docker'));

beforeAll(async () => {
  if (!has('docker')) return;
  const own = await docker('images', '--quiet', 'loam-test/node').catch(() => '');
  const bases = ['NODE_IMAGE=loam-test/node', 'BASE_IMAGE=loam-test/debian'];
  const args = own ? bases.flatMap((base) => ['--build-arg', base]) : [];
  await docker('build', '--quiet', '--tag', IMAGE, ...args, '.');
}, BUILD_MS);

afterAll(async () => {
  // After a failed build there is no image.
  if (has('docker')) await docker('rmi', '--force', IMAGE).catch(() => {});
});

type Container = AsyncDisposable & {
  name: string;
  /** A client of the administrator. It looks up the port, which may change with each start. */
  admin(): Promise<Client>;
  inspect(format: string): Promise<string>;
};

/** State, processes and last output of a container, for error messages. */
async function story(name: string): Promise<string> {
  const ask = async (...args: string[]) => {
    const { stdout, stderr } = await run('docker', args).catch((error) => error);
    return `${args[0]}:\n${stdout}${stderr}`;
  };
  const state = '{{json .State}} {{json .NetworkSettings.Networks}}';
  const parts = [
    ask('inspect', '--format', state, name),
    ask('top', name),
    ask('logs', '--tail=50', name),
    ask('ps', '--format', '{{.Names}} {{.Status}} {{.Ports}}'),
  ];
  return (await Promise.all(parts)).join('\n');
}

/** Starts a server on a free port. Disposing of it removes the container and its volume. */
async function start(options: string[]): Promise<Container> {
  const name = `loam-test-${crypto.randomUUID().slice(0, 8)}`;
  const volume = `--volume=${name}:/data`;
  const env = ['--env', `LOAM_ADMIN_TOKEN=${TOKEN}`, '--env', 'LOAM_RATE_LIMITS=off'];
  const health = ['--health-interval=1s'];
  const publish = '--publish=127.0.0.1:0:3000';
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(async () => {
    await docker('rm', '--force', '--volumes', name);
    await docker('volume', 'rm', '--force', name);
  });
  await docker('run', '-d', '--name', name, volume, publish, ...env, ...health, ...options, IMAGE);
  const owned = cleanup.move();
  return {
    name,
    async admin() {
      const address = await docker('port', name, '3000/tcp');
      const client = new Client(`http://${address}`, `Bearer ${TOKEN}`);
      const isReady = async () => expect((await client.get('/readyz')).status).toBe(200);
      await eventually(isReady, 240_000).catch(async (cause) => {
        throw new Error(`not ready at ${address}: ${await story(name)}`, { cause });
      });
      return client;
    },
    inspect: (format) => docker('inspect', '--format', `{{${format}}}`, name),
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

test('the image contains neither npm, development tools nor files of npm', async () => {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const config = JSON.parse(await docker('inspect', '--format', '{{json .Config}}', IMAGE));
  expect(config).toMatchObject({
    User: '1000:0',
    Volumes: { '/data': {} },
    Healthcheck: { Test: ['CMD', 'node', 'deploy/health.mjs', '/livez'] },
    Labels: { 'org.opencontainers.image.version': version },
  });
  const look = `for p in npm prisma tsc curl; do command -v $p; done; find / -xdev -name .package-lock.json -o -name .npmrc
    node --version; du -sm /loam | cut -f1; find /loam -writable ! -path '/loam/compiled*'`;
  const [node, size, ...more] = (
    await docker('run', '--rm', '--entrypoint=sh', IMAGE, '-c', look)
  ).split('\n');
  expect(node).toMatch(/^v26\./);
  expect(Number(size), 'MiB; the table in docs/operations.md').toBeLessThan(400);
  expect(more).toEqual([]);
});

test('with a read-only file system, the server runs sandboxed jobs and stops cleanly', async () => {
  await using server = await start([...LOCKED, ...SANDBOX]);
  const admin = await server.admin();
  expect((await admin.get('/docs/jobs')).text).toContain('<h2 id="inputs">');
  await using workspace = await Workspace.open();
  expect((await admin.post('/auth/v1/repository/admin', { name: 'tour' })).status).toBe(201);
  await workspace.clone(admin, 'admin/tour');
  const pushed = await workspace.commit('tour', { 'weights.bin': Buffer.alloc(MIB, 'w') });
  await workspace.git('tour', 'push', '-q', 'origin', 'HEAD');

  const command = 'test ! -e /data && test ! -e /loam && echo confined && wc -c < weights.bin';
  await submit(admin, { namespace: 'admin', name: 'look', command, repo: 'admin/tour' });
  await until(admin, 'admin', 'look', 'SUCCEEDED');
  expect(await lines(admin, 'admin', 'look')).toEqual(['confined', String(MIB)]);
  await eventually(async () =>
    expect(await server.inspect('.State.Health.Status')).toBe('healthy'),
  );

  // After ten seconds Docker would kill it, with exit code 137.
  await docker('stop', server.name);
  expect(await server.inspect('.State.ExitCode')).toBe('0');
  await docker('start', server.name);
  const again = await server.admin();
  expect(await workspace.git('.', 'ls-remote', remote(again, 'admin/tour'), 'HEAD')).toContain(
    pushed,
  );
  expect(await lines(again, 'admin', 'look')).toContain('confined');
});

test('runs under any user id, with an external PostgreSQL', async () => {
  await using cleanup = new AsyncDisposableStack();
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  const url = new URL(database.url);
  const folder = cleanup.use(await openSocket(`${url.searchParams.get('host')}/.s.PGSQL.5432`));
  url.searchParams.set('host', '/postgres');
  const server = cleanup.use(
    await start([
      ...LOCKED,
      '--user=12345:0',
      `--volume=${folder.path}:/postgres`,
      `--env=DATABASE_URL=${url}`,
    ]),
  );
  const admin = await server.admin();
  expect((await admin.post('/auth/v1/repository/admin', { name: 'first' })).status).toBe(201);
  await docker('stop', server.name);
  expect(await server.inspect('.State.ExitCode')).toBe('0');
});

/** A folder with a socket that everyone may open, and that forwards to PostgreSQL's socket, which only one user may open. */
async function openSocket(target: string): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'loam-socket-'));
  const relay = createServer((near) => {
    const far = connect(target);
    pipeline(near, far, near, () => {});
  });
  const socket = join(path, '.s.PGSQL.5432');
  await once(relay.listen(socket), 'listening');
  await Promise.all([chmod(path, 0o755), chmod(socket, 0o777)]);
  return {
    path,
    async [Symbol.asyncDispose]() {
      await once(relay.close(), 'close');
      await rm(path, { recursive: true });
    },
  };
}
