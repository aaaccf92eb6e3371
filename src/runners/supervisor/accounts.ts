/**
 * Assigns user ids to jobs of a root server, so that a job can neither read root's files nor signal processes of other jobs.
 * The ids need no entry in /etc/passwd. Each attempt gets two consecutive ids: the second is for the process that carries the
 * job's traffic (`process/network.ts`), which the job must not control.
 *
 * Taken ids are recorded for the whole machine, because it may run several servers: a symbolic link
 * `/run/loam/job-uids/<uid>` points to the folder of the attempt. Creating a link is atomic, and a link survives this server.
 * An id is free again when the folder of its link is gone.
 */
import { execFile } from 'node:child_process';
import {
  lstatSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  symlinkSync,
  unlinkSync,
} from 'node:fs';
import { lstat, mkdir, readdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ConfigError } from '../../base/config/config.ts';
import { memoizeTtl } from './memoize-ttl.ts';
import { listPids } from './proc.ts';
import { setprivPrefix, signalUserCommand } from './user.ts';

const run = promisify(execFile);

/** The group has the same number as the user. */
export type Account = { uid: number; networkUid: number };
/** `last` is included. */
export type UidRange = { first: number; last: number };

export type Accounts = {
  /** Allocates two ids to the attempt in this existing folder, or returns the ids that it already has. */
  allocate(folder: string): Promise<Account>;
  find(folder: string): Promise<Account | undefined>;
  /** Kills all processes of the attempt's user. */
  killProcesses(folder: string): Promise<void>;
  /** Frees the ids. Called when the attempt has no process any more. */
  release(folder: string): Promise<void>;
};

/** Neither systemd nor Debian assigns these ids, and containers with 65,536 ids have them too. */
export const DEFAULT_UIDS: UidRange = { first: 60_578, last: 61_183 };

const REGISTRY = '/run/loam/job-uids';
/** Listing all processes blocks this thread for a millisecond, and for longer on a large machine. */
const USERS_TTL_MS = 1_000;

/**
 * @returns null when this server is not root; `missing`: why a root server cannot run programs as another user
 * @throws ConfigError when a user or group of this machine has an id in the range
 */
export async function openAccounts(
  range: UidRange,
  dir: string,
): Promise<Accounts | { missing: string } | null> {
  if (process.getuid?.() !== 0) return null;
  refuseExistingUsers(range);
  try {
    for (const uid of [range.first, range.last]) {
      const [program = '', ...args] = setprivPrefix(uid);
      await run(program, [...args, '/bin/true'], { timeout: 5_000 });
    }
  } catch (error) {
    const message = (error as { stderr?: string }).stderr?.trim();
    return { missing: message || 'setpriv of util-linux is not installed' };
  }
  const registry = await openRegistry(dir);
  await removeDeadLinks(registry);
  /** Ids that this process has taken, by folder. */
  const taken = new Map<string, Account>();

  /** Finds ids that stray processes use and that are not in the registry. */
  const readProcessUsers = memoizeTtl(USERS_TTL_MS, listProcessUsers);

  async function take(folder: string): Promise<Account | null> {
    const names = new Set(readdirSync(registry));
    const inUse = readProcessUsers();
    for (let uid = range.first; uid < range.last; uid += 2) {
      if (names.has(String(uid)) || inUse.has(uid) || inUse.has(uid + 1)) continue;
      try {
        symlinkSync(folder, join(registry, String(uid)));
        return { uid, networkUid: uid + 1 };
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      }
    }
    return null;
  }

  async function find(folder: string): Promise<Account | undefined> {
    const known = taken.get(folder);
    if (known) return known;
    for (const name of readdirSync(registry)) {
      if (readLinkTarget(join(registry, name)) === folder)
        return { uid: Number(name), networkUid: Number(name) + 1 };
    }
    return undefined;
  }

  return {
    find,
    async allocate(folder) {
      let account = (await find(folder)) ?? (await take(folder));
      if (!account) {
        await removeDeadLinks(registry);
        account = await take(folder);
      }
      if (account) {
        taken.set(folder, account);
        return account;
      }
      throw new Error(`No user id in LOAM_JOB_UIDS (${range.first}-${range.last}) is free`);
    },
    async killProcesses(folder) {
      const account = await find(folder);
      if (!account) return;
      const [program = '', ...args] = signalUserCommand(account.uid, 'KILL');
      // `kill` fails when there is no process.
      await run(program, args).catch(() => {});
    },
    async release(folder) {
      const account = await find(folder);
      const link = account && join(registry, String(account.uid));
      // A dead link may have been removed, and the id may belong to another attempt by now.
      if (link && readLinkTarget(link) === folder) unlinkSync(link);
      taken.delete(folder);
    },
  };
}

/** Creates the registry of the whole machine, or one of this server where that is not permitted. */
async function openRegistry(dir: string): Promise<string> {
  try {
    await mkdir(REGISTRY, { recursive: true, mode: 0o755 });
    return REGISTRY;
  } catch {
    const own = join(dir, '.uids');
    await mkdir(own, { recursive: true });
    return own;
  }
}

/** Removes links to folders that are gone. */
async function removeDeadLinks(registry: string): Promise<void> {
  for (const name of await readdir(registry)) {
    const link = join(registry, name);
    const target = readLinkTarget(link);
    if (target === undefined || (await lstat(target).catch(() => undefined))) continue;
    await unlink(link).catch(() => {});
  }
}

function readLinkTarget(link: string): string | undefined {
  try {
    return readlinkSync(link);
  } catch {
    return undefined;
  }
}

/** @throws ConfigError, because jobs would own the files of an existing user, and ending a job would kill its processes */
function refuseExistingUsers({ first, last }: UidRange): void {
  for (const file of ['passwd', 'group']) {
    let text = '';
    try {
      text = readFileSync(`/etc/${file}`, 'utf8');
    } catch {
      // A container without the file has no users except root.
    }
    for (const line of text.split('\n')) {
      const [name, , id] = line.split(':');
      if (id && Number(id) >= first && Number(id) <= last)
        throw new ConfigError(
          `LOAM_JOB_UIDS: ${id} is ${name} in /etc/${file}; choose a range without users and groups (got "${first}-${last}")`,
        );
    }
  }
}

/** /proc shows root as the owner of a process that is not dumpable. Such a process is not a job's. */
function listProcessUsers(): Set<number> {
  const users = new Set<number>();
  for (const pid of listPids()) {
    const stat = lstatSync(`/proc/${pid}`, { throwIfNoEntry: false });
    if (stat) users.add(stat.uid);
  }
  return users;
}
