/**
 * User ids that jobs run under when the server is root: one for each attempt at a time, so that a job can
 * neither read the files of root nor touch the processes of another job. No entry in /etc/passwd is needed.
 *
 * Each attempt takes two neighbouring ids: the first for the job, the second for the process that carries its
 * traffic (`network.ts`), over which the job must have no power.
 *
 * Which are taken is written down for the whole machine, because several servers may run on it: a symbolic
 * link `/run/loam/job-uids/<uid>` to the folder of the attempt. A link is made by one of several callers alone,
 * survives this server, and is void when the folder is gone.
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
import { allPids } from './proc.ts';
import { asUser, signalUser } from './user.ts';

const run = promisify(execFile);

/** The group has the same number as the user. */
export type Account = { uid: number; networkUid: number };
/** Both ends belong to it. */
export type UidRange = { first: number; last: number };

export type Accounts = {
  /** Two ids for the attempt in this folder, which exists; the same ones when it has some already. */
  reserve(folder: string): Promise<Account>;
  of(folder: string): Promise<Account | undefined>;
  /** Kills what runs under the attempt's ids. */
  end(folder: string): Promise<void>;
  /** Gives the ids back, when nothing of the attempt runs any more. */
  release(folder: string): Promise<void>;
};

/** Both systemd and Debian leave these to the machine, and they exist in containers with 65,536 ids too. */
export const DEFAULT_UIDS: UidRange = { first: 60_578, last: 61_183 };

const REGISTRY = '/run/loam/job-uids';
/** To look at all processes takes a millisecond of this thread, and more on a large machine. */
const SEEN_MS = 1_000;

/**
 * Null when this server is not root; `missing` when it is and cannot change its user all the same.
 * @throws ConfigError when the range is of users that this machine has.
 */
export async function openAccounts(
  range: UidRange,
  dir: string,
): Promise<Accounts | { missing: string } | null> {
  if (process.getuid?.() !== 0) return null;
  refuseUsers(range);
  try {
    for (const uid of [range.first, range.last]) {
      const [program = '', ...args] = asUser(uid);
      await run(program, [...args, '/bin/true'], { timeout: 5_000 });
    }
  } catch (error) {
    const said = (error as { stderr?: string }).stderr?.trim();
    return { missing: said || 'setpriv of util-linux is not installed' };
  }
  const registry = await openRegistry(dir);
  await discardVoid(registry);
  /** What this process has given out. */
  const given = new Map<string, Account>();

  /** Of processes that belong to no attempt any more; those of attempts are in the registry. */
  const usersNow = memoizeTtl(SEEN_MS, usersOfProcesses);

  async function take(folder: string): Promise<Account | null> {
    const names = new Set(readdirSync(registry));
    const inUse = usersNow();
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

  async function of(folder: string): Promise<Account | undefined> {
    const known = given.get(folder);
    if (known) return known;
    for (const name of readdirSync(registry)) {
      if (targetOf(join(registry, name)) === folder)
        return { uid: Number(name), networkUid: Number(name) + 1 };
    }
    return undefined;
  }

  return {
    of,
    async reserve(folder) {
      let account = (await of(folder)) ?? (await take(folder));
      if (!account) {
        await discardVoid(registry);
        account = await take(folder);
      }
      if (account) {
        given.set(folder, account);
        return account;
      }
      throw new Error(`No user id of ${range.first}-${range.last} is free (LOAM_JOB_UIDS)`);
    },
    async end(folder) {
      const account = await of(folder);
      if (!account) return;
      const [program = '', ...args] = signalUser(account.uid, 'KILL');
      // `kill` fails where there is nobody to kill.
      await run(program, args).catch(() => {});
    },
    async release(folder) {
      const account = await of(folder);
      const link = account && join(registry, String(account.uid));
      // Void, it may have been removed, and the id be another's by now.
      if (link && targetOf(link) === folder) unlinkSync(link);
      given.delete(folder);
    },
  };
}

/** For the whole machine where that is possible, else for this server alone. */
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

/** Removes the links to folders that are gone. */
async function discardVoid(registry: string): Promise<void> {
  for (const name of await readdir(registry)) {
    const link = join(registry, name);
    const target = targetOf(link);
    if (target === undefined || (await lstat(target).catch(() => undefined))) continue;
    await unlink(link).catch(() => {});
  }
}

function targetOf(link: string): string | undefined {
  try {
    return readlinkSync(link);
  } catch {
    return undefined;
  }
}

/** @throws ConfigError: jobs would own the files of a user, and their end would end that user's processes. */
function refuseUsers({ first, last }: UidRange): void {
  for (const file of ['passwd', 'group']) {
    let text = '';
    try {
      text = readFileSync(`/etc/${file}`, 'utf8');
    } catch {
      // A container without it has no users but root.
    }
    for (const line of text.split('\n')) {
      const [name, , id] = line.split(':');
      if (id && Number(id) >= first && Number(id) <= last)
        throw new ConfigError(
          `LOAM_JOB_UIDS: ${id} is ${name} in /etc/${file}; name a range that nobody has (got "${first}-${last}")`,
        );
    }
  }
}

/** Of a process that hides its memory /proc shows root as the owner; such a one was not started by us. */
function usersOfProcesses(): Set<number> {
  const users = new Set<number>();
  for (const pid of allPids()) {
    const stat = lstatSync(`/proc/${pid}`, { throwIfNoEntry: false });
    if (stat) users.add(stat.uid);
  }
  return users;
}
