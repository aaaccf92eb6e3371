/**
 * Runs many servers as an operator does: separate processes that share a database, a folder of repositories and an S3
 * server, behind HAProxy with the configuration of docs/proxy.md.
 *
 *   await using loam = await startServers({ serve: 3, work: 2 });
 *   await loam.of('serve-2').kill();
 *   await loam.of('serve-2').start();
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import type { S3Config } from '../../src/base/config/s3.ts';
import { createLog } from '../../src/base/log.ts';
import { newToken } from '../../src/identity/credentials.ts';
import { startPostgres } from '../../src/platform/database/embedded.ts';
import { migrate } from '../../src/platform/database/migrate.ts';
import { openProcessRunner } from '../../src/runners/process/runner.ts';
import { eventually } from './eventually.ts';
import { Client, clientsOf, type Loam } from './harness.ts';
import { freePorts } from './ports.ts';
import { type ServerProcess, startServer } from './process.ts';
import { startS3 } from './s3-server.ts';

/** On two busy cores, five servers start in 10 s. */
const START_MS = 120_000;
const PAGE = readFileSync(join(import.meta.dirname, '../../docs/proxy.md'), 'utf8');

export type Role = 'all' | 'serve' | 'work';

export type OneServer = {
  name: string;
  role: Role;
  /** The address of this server, without the proxy. */
  base: string;
  dataDir: string;
  /** The folder of its temporary files. */
  tmpDir: string;
  readonly pid: number | undefined;
  /** Resolves when the server reports that it is ready. `root`: the folder of other sources, from now on. */
  start(root?: string): Promise<void>;
  /** Sends SIGKILL, in whatever state the server is. */
  kill(): Promise<void>;
  /** Sends SIGTERM, as an operator does. */
  stop(): Promise<void>;
  /** Its output since the first start: warnings and errors. */
  said(): string;
  /** Whether it has ended although nobody killed or stopped it. */
  hasDied(): boolean;
};

export type Servers = AsyncDisposable &
  Loam & {
    servers: readonly OneServer[];
    /** The servers that answer requests. */
    serving: readonly OneServer[];
    working: readonly OneServer[];
    of(name: string): OneServer;
    /** A client that connects to this server directly, with the same credentials. */
    at(server: OneServer, client?: Client): Client;
    /** As an operator takes a server out of the proxy and puts it back (docs/operations.md). */
    setProxyState(server: OneServer, state: 'drain' | 'ready'): Promise<void>;
    /** The messages of the proxy: which servers it takes for available, and why not. */
    proxySaid(): string;
    /** Resolves when it is dead; it restarts by itself. */
    killDatabase(): Promise<void>;
    /** The folder that contains all files of the servers. */
    root: string;
    repositoriesDir: string;
    s3: S3Config;
  };

export type ServersOptions = Partial<Record<Role, number>> & {
  /** Environment variables of all servers. */
  env?: Record<string, string>;
  /** Additional variables of the servers with these names. */
  envOf?: Record<string, Record<string, string>>;
  /** The folder of the servers' sources, which then migrate the database; unset: this checkout. */
  root?: string;
};

export async function startServers({
  env,
  envOf = {},
  root: sources,
  ...counts
}: ServersOptions): Promise<Servers> {
  await using cleanup = new AsyncDisposableStack();
  const root = await mkdtemp(join(tmpdir(), 'loam-servers-'));
  cleanup.defer(() => rm(root, { recursive: true, force: true, maxRetries: 5 }));
  // Not the database server that the other tests share: five servers may use all of its connections.
  const postgres = await startPostgres(join(root, 'database'));
  cleanup.defer(() => postgres.stop());
  if (!sources) await migrate(postgres.target);
  // Restarts it when it is killed.
  postgres.takeOwnership(createLog('silent'));
  const { host, user } = postgres.target;
  const pool = new pg.Pool({ host, user, database: 'loam', max: 3 });
  pool.on('error', () => {});
  cleanup.defer(() => pool.end());
  const s3 = cleanup.use(await startS3()).config;

  const repositoriesDir = join(root, 'repositories');
  await mkdir(repositoriesDir);
  const ports = await freePorts(1 + Object.values(counts).reduce((sum, count) => sum + count, 0));
  const proxyPort = ports.pop();
  const base = `http://127.0.0.1:${proxyPort}`;
  const token = newToken();
  const common = {
    DATABASE_URL: `postgresql://${user}@localhost/loam?host=${encodeURIComponent(host)}`,
    LOAM_BASE_URL: base,
    // Callers from other addresses of this machine count as strangers.
    LOAM_TRUSTED_PROXIES: '127.0.0.1',
    LOAM_SECRET_KEY: randomBytes(32).toString('base64'),
    LOAM_ADMIN_TOKEN: token,
    LOAM_RATE_LIMITS: 'off',
    LOAM_WEBHOOK_ALLOW: '127.0.0.1',
    LOAM_STORAGE: `s3://${s3.bucket}/${s3.prefix}`,
    AWS_ENDPOINT_URL_S3: s3.endpoint ?? '',
    AWS_REGION: s3.region ?? '',
    AWS_ACCESS_KEY_ID: s3.credentials?.accessKeyId ?? '',
    AWS_SECRET_ACCESS_KEY: s3.credentials?.secretAccessKey ?? '',
    ...env,
  };
  const tmp = join(root, 'tmp');
  const servers = (['all', 'serve', 'work'] as const).flatMap((role) =>
    Array.from({ length: counts[role] ?? 0 }, (_, at) => {
      const name = `${role}-${at + 1}`;
      const port = ports.pop() as number;
      const own = { ...common, ...envOf[name] };
      return oneServer(
        { name, role, port, dataDir: join(root, name), tmpDir: join(tmp, name) },
        // A worker has no repositories: it checks out over HTTP.
        role === 'work' ? own : { ...own, LOAM_REPOSITORIES_DIR: repositoriesDir },
      );
    }),
  );
  const serving = servers.filter(({ role }) => role !== 'work');
  const working = servers.filter(({ role }) => role !== 'serve');
  // Jobs outlive their worker by design, and would outlive the test.
  cleanup.defer(async () => {
    for (const { dataDir } of working) await endJobs(join(dataDir, 'attempts'));
  });
  cleanup.defer(async () => {
    await Promise.all(servers.map((server) => server.stop()));
  });
  // All at once, on an empty database.
  await Promise.all(servers.map((server) => server.start(sources)));
  const proxy = cleanup.use(await startProxy(root, proxyPort as number, serving));

  const callers = clientsOf(base, token);
  await eventually(async () => {
    const { status } = await callers.admin.get('/auth/v1/whoami');
    if (status !== 200) throw new Error(`the proxy answers ${status}`);
  });
  const owned = cleanup.move();
  return {
    ...callers,
    pool,
    servers,
    serving,
    working,
    of(name) {
      const found = servers.find((server) => server.name === name);
      if (!found) throw new Error(`there is no ${name}`);
      return found;
    },
    at: (server, client = callers.admin) => new Client(server.base, client.authorization),
    setProxyState: ({ name }, state) => askProxy(root, `set server loam/${name} state ${state}`),
    proxySaid: () => proxy.said(),
    killDatabase: () => killPostmaster(join(root, 'database')),
    root,
    repositoriesDir,
    s3,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

type Place = { name: string; role: Role; port: number; dataDir: string; tmpDir: string };

function oneServer(
  { name, role, port, dataDir, tmpDir }: Place,
  common: Record<string, string>,
): OneServer {
  let child: ServerProcess['child'] | undefined;
  let running: Promise<ServerProcess> | undefined;
  let said = '';
  let sources: string | undefined;
  const end = async (signal: NodeJS.Signals) => {
    const ended = child;
    child = undefined;
    // Its output, if it had ended by itself, is in `said`.
    if (ended && ended.exitCode === null && ended.signalCode === null) {
      const closed = once(ended, 'close');
      ended.kill(signal);
      await closed;
    }
    await running?.catch(() => {});
    running = undefined;
  };
  return {
    name,
    role,
    base: `http://127.0.0.1:${port}`,
    dataDir,
    tmpDir,
    get pid() {
      return child?.pid;
    },
    async start(root) {
      sources = root ?? sources;
      await mkdir(tmpDir, { recursive: true });
      running = startServer(
        {
          ...common,
          LOAM_ROLE: role,
          PORT: String(port),
          LOAM_DATA_DIR: dataDir,
          TMPDIR: tmpDir,
        },
        {
          ...(sources && { root: sources }),
          spawned(process) {
            child = process;
            for (const stream of [process.stdout, process.stderr])
              stream?.on('data', (text) => {
                said += text;
              });
          },
        },
      );
      running.catch(() => {});
      const waiting = new AbortController();
      const { signal } = waiting;
      const late = delay(START_MS, undefined, { signal }).then(() => {
        throw new Error(`${name} is not ready after ${START_MS} ms:\n${said}`);
      });
      await Promise.race([running, late]).finally(() => waiting.abort());
    },
    kill: () => end('SIGKILL'),
    stop: () => end('SIGTERM'),
    said: () => said,
    hasDied: () => !!child && (child.exitCode !== null || child.signalCode !== null),
  };
}

async function killPostmaster(dir: string): Promise<void> {
  const file = join(dir, 'cluster/postmaster.pid');
  const pid = Number(readFileSync(file, 'utf8').split('\n')[0]);
  process.kill(pid, 'SIGKILL');
  await eventually(() => {
    if (existsSync(`/proc/${pid}`)) throw new Error('the postmaster is not dead yet');
  });
}

async function endJobs(attempts: string): Promise<void> {
  const left = await readdir(attempts).catch(() => []);
  if (left.length === 0) return;
  await using runner = await openProcessRunner({ dir: attempts });
  await runner.sweep(new Set());
}

/** HAProxy with the configuration of docs/proxy.md for several servers, without TLS. */
async function startProxy(
  root: string,
  port: number,
  servers: readonly OneServer[],
): Promise<AsyncDisposable & { said(): string }> {
  const [, documented = ''] = /## Several servers.*?```haproxy\n(.*?)```/s.exec(PAGE) ?? [];
  const lines = servers.map(({ name, base }) => `  server ${name} ${new URL(base).host}\n`);
  const config = documented
    .replace(/bind .*/, `bind 127.0.0.1:${port}`)
    .replace(/stats socket \S+/, `stats socket ${proxySocket(root)}`)
    .replace(/( {2}server .*\n)+$/, lines.join(''));
  const file = join(root, 'haproxy.cfg');
  writeFileSync(file, config);
  const child = spawn('haproxy', ['-db', '-f', file], { stdio: ['ignore', 'pipe', 'pipe'] });
  const closed = once(child, 'close');
  let said = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (text) => {
      said += text;
    });
  const stop = async () => {
    child.kill('SIGKILL');
    await closed;
  };
  try {
    await eventually(() => listening(port));
  } catch {
    await stop();
    throw new Error(`HAProxy does not listen:\n${said}\n${config}`);
  }
  return { said: () => said, [Symbol.asyncDispose]: stop };
}

const proxySocket = (root: string) => join(root, 'haproxy.sock');

/** @throws Error with the answer of HAProxy, which is empty for a valid command */
async function askProxy(root: string, command: string): Promise<void> {
  const socket = connect(proxySocket(root));
  socket.end(`${command}\n`);
  const answer = (await text(socket)).trim();
  if (answer) throw new Error(`HAProxy answers "${command}" with: ${answer}`);
}

async function listening(port: number): Promise<void> {
  await fetch(`http://127.0.0.1:${port}/livez`);
}
