/**
 * PostgreSQL is killed, stopped, suspended and starved of disk space while jobs, log followers, writers and pushers are
 * active: no acknowledged change is lost, and recovery needs no manual restart.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { mkdtemp, readFile, rm, statfs, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer, connect as dial, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { expect, inject, test } from 'vitest';
import { createLog } from '../../../src/base/log.ts';
import { socketTarget, startPostgres } from '../../../src/platform/database/embedded.ts';
import { openSession } from '../../../src/platform/database/session.ts';
import { openProcessRunner } from '../../../src/runners/process/runner.ts';
import { listDescendants } from '../../../src/runners/supervisor/proc.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';
import { followStream, type StreamEvent } from '../../support/sse.ts';
import { cancel, job, lines, submit, submitRaw, until } from '../../support/submit.ts';

const TOKEN = 'a-token-for-the-losses';
const COUNT = 'i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i; sleep 0.05; done; echo total $i';
/** Each job has its own process; some must be running at every loss. */
const MAX_JOBS = 12;

type Place = AsyncDisposable & { path: string; server: ServerProcess; client: Client };

/** A server with its embedded PostgreSQL, in a folder of its own. */
async function serve(path: string, env: Record<string, string> = {}): Promise<Place> {
  const server = await startServer({
    LOAM_DATA_DIR: path,
    LOAM_ADMIN_TOKEN: TOKEN,
    LOAM_RATE_LIMITS: 'off',
    LOAM_LOG_LEVEL: 'fatal',
    ...env,
  });
  return {
    path,
    server,
    client: new Client(server.base, `Bearer ${TOKEN}`),
    async [Symbol.asyncDispose]() {
      await server.stop();
      await using runner = await openProcessRunner({
        dir: join(path, 'attempts'),
        hidden: [path],
      });
      await runner.sweep(new Set());
    },
  };
}

async function dataFolder(): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'loam-loss-'));
  return {
    path,
    [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true, maxRetries: 5 }),
  };
}

async function postmasterOf({ path }: Place): Promise<number> {
  const text = await readFile(join(path, 'postgres/cluster/postmaster.pid'), 'utf8');
  return Number(text.split('\n')[0]);
}

/** The postmaster and all its child processes. */
async function postgresOf(place: Place): Promise<number[]> {
  const postmaster = await postmasterOf(place);
  return [postmaster, ...listDescendants(postmaster)];
}

async function healthy({ client }: Place): Promise<void> {
  const { status, body } = await client.get('/auth/v1/health');
  expect([status, body]).toEqual([200, { status: 'ok' }]);
}

async function degraded({ client }: Place): Promise<void> {
  const { status, body } = await client.get('/auth/v1/health');
  expect([status, body]).toEqual([503, { status: 'degraded' }]);
}

/** Writers and pushers that retry, as good clients do, and record the acknowledged changes. */
function work(client: Client, workspace: Workspace) {
  const promised = { repositories: [] as string[], jobs: [] as string[], commit: '' };
  let stopped = false;

  const loop = async (step: (n: number) => Promise<unknown>) => {
    for (let n = 1; !stopped; n++) {
      await step(n).catch(() => {});
      await delay(50);
    }
  };
  const write = loop(async (n) => {
    const { status } = await client.post('/auth/v1/repository/admin', { name: `r${n}` });
    if (status === 201) promised.repositories.push(`r${n}`);
    if (promised.jobs.length >= MAX_JOBS) return;
    const name = `j${n}`;
    const made = await client.post('/auth/v1/seed/admin/jobs', {
      name,
      command: 'sleep 0.3; echo ran',
      repo: 'admin/code',
      gpu: 'none',
      cpu: 2,
      memory_gb: 2,
    });
    if (made.status === 201) promised.jobs.push(name);
  });
  const push = loop(async (n) => {
    const commit = await workspace.commit('code', { 'n.txt': `${n}` });
    const { code } = await workspace.try('code', 'push', '-q', 'origin', 'main');
    if (code === 0) promised.commit = commit;
  });
  return {
    promised,
    async rest() {
      stopped = true;
      await Promise.all([write, push]);
    },
  };
}

/** Follows a job's log to its end, and resumes after each disconnection. */
function follow(client: Client, name: string) {
  const told: StreamEvent[] = [];
  const done = (async () => {
    while (told.at(-1)?.event !== 'end') {
      await followStream(client, `/admin/job/${name}/logs?stream=true&tail=10000`, told.at(-1)?.id)
        .each((event) => void told.push(event))
        .catch(() => delay(50));
    }
  })();
  return { told, done };
}

/** Every printed number was sent once, followed by the end. */
function onceEach(told: readonly StreamEvent[]): void {
  const said = told.filter(({ event }) => event === 'log').map(({ data }) => data.message);
  const total = said.length - 1;
  expect(said).toEqual([...Array.from({ length: total }, (_, i) => `${i + 1}`), `total ${total}`]);
  expect(told.at(-1)?.data).toEqual({ status: 'succeeded', exit_code: 0 });
}

/** Makes the counting jobs finish. */
async function stopCounting({ path }: Place): Promise<void> {
  const attempts = join(path, 'attempts');
  for (const attempt of readdirSync(attempts).filter((name) => name.startsWith('att_')))
    await writeFile(join(attempts, attempt, 'work/stop'), '').catch(() => {});
}

async function repositories(client: Client): Promise<Set<string>> {
  const names = new Set<string>();
  for (let page = 1, pages = 1; page <= pages; page++) {
    const { body } = await client.get(`/auth/v1/repository/admin?per_page=100&page=${page}`);
    for (const { name } of body.data) names.add(name);
    pages = body.pagination.total_pages;
  }
  return names;
}

test('PostgreSQL killed, stopped, crashed and suspended: the server recovers by itself', async () => {
  await using folder = await dataFolder();
  await using place = await serve(folder.path);
  await using workspace = await Workspace.open();
  const { client, server } = place;
  await client.post('/auth/v1/repository/admin', { name: 'code' });
  await workspace.clone(client, 'admin/code');
  await submit(client, {
    namespace: 'admin',
    name: 'count',
    repo: 'admin/code',
    command: COUNT,
  });
  await until(client, 'admin', 'count', 'RUNNING');
  const at = work(client, workspace);
  const follower = follow(client, 'count');
  const progress = () => ({
    repositories: at.promised.repositories.length,
    lines: follower.told.length,
    commit: at.promised.commit,
  });
  const goesOn = async () => {
    await eventually(() => healthy(place));
    const before = progress();
    await eventually(() => {
      const now = progress();
      expect(now.repositories).toBeGreaterThan(before.repositories);
      expect(now.lines).toBeGreaterThan(before.lines);
      expect(now.commit).not.toBe(before.commit);
    });
  };

  await goesOn();
  for (const signal of ['SIGKILL', 'SIGINT', 'SIGKILL'] as const) {
    const postmaster = await postmasterOf(place);
    process.kill(postmaster, signal);
    await eventually(async () => expect(await postmasterOf(place)).not.toBe(postmaster));
    await goesOn();
  }

  // A crashed backend takes down all other backends, but not the postmaster, which recovers by itself.
  const processes = await postgresOf(place);
  process.kill(processes.at(-1) as number, 'SIGKILL');
  await eventually(() => {
    expect(() => process.kill(processes[1] as number, 0)).toThrow();
  });
  await goesOn();

  const suspended = await postgresOf(place);
  for (const pid of suspended) process.kill(pid, 'SIGSTOP');
  await eventually(() => degraded(place));
  expect((await client.get('/livez')).status).toBe(200);
  for (const pid of suspended) process.kill(pid, 'SIGCONT');
  await goesOn();

  await at.rest();
  expect(await job(client, 'admin', 'count')).toMatchObject({
    status: 'RUNNING',
    attempts: { nodes: [{ number: 1 }] },
  });
  await stopCounting(place);
  await follower.done;
  onceEach(follower.told);
  for (const name of at.promised.jobs) {
    const { attempts: run } = await until(client, 'admin', name, 'SUCCEEDED');
    expect(run, name).toMatchObject({ nodes: [{ number: 1, exitCode: 0 }] });
    expect(await lines(client, 'admin', name)).toEqual(['ran']);
  }
  const names = await repositories(client);
  expect(at.promised.repositories.filter((name) => !names.has(name))).toEqual([]);
  const known = await workspace.git('code', 'ls-remote', 'origin', 'refs/heads/main');
  await workspace.git(
    'code',
    'merge-base',
    '--is-ancestor',
    at.promised.commit,
    known.slice(0, 40),
  );
  // Every push is recorded in the database, so none waits for the next start to be recorded.
  const begun = join(place.path, 'repositories/begun');
  await eventually(async () => {
    for (const server of readdirSync(begun))
      for (const note of readdirSync(join(begun, server)))
        expect(await readFile(join(begun, server, note), 'utf8')).not.toContain('"push"');
  });
  expect(server.child.exitCode).toBe(null);
});

test('a disk that fills up: writes are refused, then PostgreSQL dies, and the server recovers when there is space', async (ctx) => {
  needs(ctx, 'root', 'mount');
  await using folder = await dataFolder();
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=300m', 'none', folder.path]);
  await using _mounted = {
    [Symbol.asyncDispose]: async () => void execFileSync('umount', [folder.path]),
  };
  const filler = join(folder.path, 'filler');
  const leave = async (bytes: number) => {
    const { bavail, bsize } = await statfs(folder.path);
    const size = Math.max(0, bavail * bsize - bytes);
    await writeFile(filler, Buffer.alloc(size), { flag: 'a' }).catch((error) => {
      if (error.code !== 'ENOSPC') throw error;
    });
  };
  await using place = await serve(folder.path, { LOAM_DISK_FLOOR: '64MiB', LOAM_JOB_SLOTS: '2' });
  await using workspace = await Workspace.open();
  const { client, server } = place;
  await client.post('/auth/v1/repository/admin', { name: 'code' });
  await client.post('/auth/v1/repository/admin', { name: 'unloved' });
  await workspace.clone(client, 'admin/code');
  const run = { namespace: 'admin', repo: 'admin/code' };
  await submit(client, { ...run, name: 'count', command: COUNT, outputPath: 'out' });
  await until(client, 'admin', 'count', 'RUNNING');
  const follower = follow(client, 'count');
  await submit(client, { ...run, name: 'quiet', command: 'sleep 600' });
  await until(client, 'admin', 'quiet', 'RUNNING');
  await submit(client, { ...run, name: 'next', command: 'echo ran' });

  await leave(40 * 2 ** 20);
  await eventually(() => degraded(place));
  const refused = await client.post('/auth/v1/repository/admin', { name: 'late' });
  const message = expect.stringMatching(/disk is nearly full, so nothing was changed/);
  expect(refused).toMatchObject({
    status: 500,
    body: { error: { code: 'internal_error', message } },
  });
  const { errors } = await submitRaw(client, { ...run, name: 'late', command: 'true' });
  expect(errors).toMatchObject([{ message, extensions: { code: 'INTERNAL_ERROR' } }]);
  const commit = await workspace.commit('code', { 'a.txt': 'a' });
  const push = await workspace.try('code', 'push', '-q', 'origin', 'main');
  expect(push).toMatchObject({ code: expect.any(Number), stderr: message });
  // Reads still work, and so do requests that free space.
  expect(await repositories(client)).toEqual(new Set(['code', 'unloved']));
  expect((await client.get('/readyz')).status).toBe(200);
  await workspace.clone(client, 'admin/code', 'read');
  const { body } = await client.get('/auth/v1/repository/admin');
  const unloved = body.data.find(({ name }: { name: string }) => name === 'unloved');
  expect((await client.delete(`/auth/v1/repository/admin/${unloved.id}`)).status).toBe(204);
  await cancel(client, 'admin', 'quiet');
  await eventually(async () => {
    const { attempts } = await job(client, 'admin', 'quiet');
    expect(attempts).toMatchObject({ nodes: [{ exitCode: 143 }] });
  });
  // A slot is free now, and a job would take it within a few milliseconds.
  await delay(1_000);
  expect(await job(client, 'admin', 'next')).toMatchObject({
    status: 'QUEUED',
    attempts: { nodes: [] },
  });
  await stopCounting(place);

  // The disk is filled to the last byte, so that PostgreSQL crashes at its next write.
  await leave(0);
  await exhaust(socketTarget(join(folder.path, 'postgres')));
  expect((await client.get('/livez')).status).toBe(200);
  await rm(filler);

  await eventually(() => healthy(place));
  await eventually(async () => {
    expect((await client.post('/auth/v1/repository/admin', { name: 'late' })).status).toBe(201);
  });
  await until(client, 'admin', 'next', 'SUCCEEDED');
  expect(await lines(client, 'admin', 'next')).toEqual(['ran']);
  await follower.done;
  onceEach(follower.told);
  await workspace.git('code', 'push', '-q', 'origin', 'main');
  expect(await workspace.git('code', 'ls-remote', 'origin', 'refs/heads/main')).toContain(commit);
  expect(server.child.exitCode).toBe(null);
});

/** Writes until PostgreSQL closes the connection. */
async function exhaust(target: pg.ClientConfig): Promise<void> {
  const client = new pg.Client(target);
  client.on('error', () => {});
  await client.connect();
  const filling = (async () => {
    await client.query('create table if not exists filling (text text)');
    for (;;) {
      await client.query('insert into filling select repeat(md5(random()::text), 100)');
      await client.query('select pg_switch_wal()');
    }
  })();
  await expect(filling).rejects.toThrow();
  await client.end().catch(() => {});
}

/** The session that holds the lock of a data folder, as the server's database knows it. */
const HOLDER = `
  select l.pid from pg_locks l where l.locktype = 'advisory' and l.granted
    and (l.classid::bigint << 32 | l.objid::bigint) = $1`;

async function lockOf(dataDir: string): Promise<bigint> {
  const id = await readFile(join(dataDir, 'instance-id'));
  return createHash('sha256').update(id).digest().readBigInt64BE();
}

test('an external database fails and returns; the data folder stays locked by this server', async () => {
  await using folder = await dataFolder();
  await using own = await dataFolder();
  let postgres = await startPostgres(own.path);
  const env = {
    DATABASE_URL: `postgresql://loam@localhost/loam?host=${encodeURIComponent(postgres.target.host)}`,
  };
  try {
    await using place = await serve(folder.path, env);
    const { client } = place;
    await client.post('/auth/v1/repository/admin', { name: 'before' });
    const { pid } = await onlyRow(postgres.target, HOLDER, [await lockOf(folder.path)]);
    // Sessions are terminated, as by an administrator who stops the database.
    postgres.takeOwnership(createLog('silent'));
    await postgres.stop();
    const away = await client.get('/auth/v1/repository/admin');
    expect(away).toMatchObject({ status: 503, body: { error: { code: 'internal_error' } } });
    expect(away.headers.get('retry-after')).toBe('1');
    expect((await client.graphql('{ viewer { username } }')).errors).toHaveLength(1);
    await degraded(place);

    postgres = await startPostgres(own.path);
    await eventually(() => healthy(place));
    const { body } = await client.get('/auth/v1/repository/admin');
    expect(body.data).toMatchObject([{ name: 'before' }]);
    const again = await eventually(async () => {
      const row = await onlyRow(postgres.target, HOLDER, [await lockOf(folder.path)]);
      return row;
    });
    expect(again.pid).not.toBe(pid);
    await expect(serve(folder.path, env)).rejects.toThrow(/^LOAM_DATA_DIR: another Loam server/m);
  } finally {
    postgres.takeOwnership(createLog('silent'));
    await postgres.stop();
  }
});

test('a server whose folder lock was taken by another server exits with one line', async () => {
  await using folder = await dataFolder();
  const database = await cloneDatabase();
  await using place = await serve(folder.path, { DATABASE_URL: database.url });
  const lock = await lockOf(folder.path);
  const other = new pg.Client({ connectionString: database.url });
  await other.connect();
  // This session is queued for the lock, and gets it the moment the server's session ends.
  const taking = other.query('select pg_advisory_lock($1)', [lock]);
  const { pid } = await onlyRow({ connectionString: database.url }, HOLDER, [lock]);
  await onlyRow({ connectionString: database.url }, 'select pg_terminate_backend($1)', [pid]);
  await taking;
  const code = place.server.child.exitCode ?? (await once(place.server.child, 'exit'))[0];
  expect(code).toBe(1);
  expect(place.server.output()).toMatch(/^LOAM_DATA_DIR: another Loam server is using/m);
  await other.end();
  await database.drop();
});

test('an earlier session of this server that the database still considers open does not count as another server', async () => {
  await using folder = await dataFolder();
  const database = await cloneDatabase();
  const url = new URL(database.url);
  await using path = await pathTo(`${url.searchParams.get('host')}/.s.PGSQL.5432`);
  url.host = `127.0.0.1:${path.port}`;
  url.search = '';
  await writeFile(join(folder.path, 'instance-id'), 'this-folder\n');
  const lost: Error[] = [];
  const heard: (string | null)[] = [];
  const session = await openSession({
    target: { connectionString: url.href },
    id: 'this-folder',
    dataDir: folder.path,
    log: createLog('silent'),
    notify: (text) => heard.push(text),
    onFolderLost: (error) => lost.push(error),
  });
  const lock = await lockOf(folder.path);
  const first = await onlyRow({ connectionString: database.url }, HOLDER, [lock]);
  path.forgetClients();
  await eventually(() => expect(heard).toEqual([null]));
  const second = await onlyRow({ connectionString: database.url }, HOLDER, [lock]);
  expect(second.pid).not.toBe(first.pid);
  expect(lost).toEqual([]);
  await session.close();
  await path[Symbol.asyncDispose]();
  await database.drop();
});

test('a session that breaks while it takes the lock causes an error, not the end of the process', async () => {
  await using folder = await dataFolder();
  const { host, user } = inject('postgres');
  await using path = await pathTo(`${host}/.s.PGSQL.5432`, 'pg_try_advisory_lock');
  const opening = openSession({
    target: { connectionString: `postgresql://${user}@127.0.0.1:${path.port}/postgres` },
    id: 'this-folder',
    dataDir: folder.path,
    log: createLog('silent'),
    notify: () => {},
    onFolderLost: () => {},
  });
  await expect(opening).rejects.toThrow(/terminated/);
});

async function onlyRow(target: pg.ClientConfig, sql: string, values: unknown[]) {
  const client = new pg.Client(target);
  await client.connect();
  const { rows } = await client.query(sql, values).finally(() => client.end());
  expect(rows).toHaveLength(1);
  return rows[0];
}

type Path = AsyncDisposable & {
  port: number;
  /** Disconnects clients in a way that the database does not notice. */
  forgetClients(): void;
};

/** TCP in front of PostgreSQL's socket. A client that sends `breakAt` is disconnected. */
async function pathTo(socket: string, breakAt?: string): Promise<Path> {
  const near = new Set<Socket>();
  const far = new Set<Socket>();
  const server = createServer((client) => {
    const database = dial(socket);
    near.add(client);
    far.add(database);
    client.on('error', () => {});
    database.on('error', () => {});
    database.pipe(client);
    client.on('data', (data) => {
      if (breakAt && data.includes(breakAt)) client.destroy();
      else database.write(data);
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    forgetClients() {
      for (const client of near) client.destroy();
    },
    async [Symbol.asyncDispose]() {
      for (const one of [...near, ...far]) one.destroy();
      server.close();
    },
  };
}
