/**
 * How jobs are confined on this machine: found out once, at the start, by trying it, best first.
 *
 * - `bubblewrap`: own mounts, pids, message queues and host name.
 * - `unshare`: the same, made with util-linux.
 * - `none`: an ordinary process. As root it runs under another user; as anyone else it can do what we can.
 */
import { chmodSync, chownSync, mkdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { chmod, mkdir, readdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { ConfigError } from '../../base/config/config.ts';
import { findExposedSecrets } from '../../base/config/environment.ts';
import { run } from '../../platform/processes/starter.ts';
import { MOUNTS, type NetworkMode } from '../runner.ts';
import {
  type Account,
  type Accounts,
  openAccounts,
  type UidRange,
} from '../supervisor/accounts.ts';
import { limitMark, MARKS_LIMITS } from '../supervisor/proc.ts';
import { giveTo } from '../supervisor/small-trees.ts';
import { asUser } from '../supervisor/user.ts';
import { bubblewrapOptions } from './bubblewrap.ts';
import { cleanupIpc } from './cleanup-ipc.ts';
import { openOwnFiles } from './etc.ts';
import { findKeyringGuard } from './keyrings.ts';
import { type Command, PATH, tryCommand } from './launch.ts';
import { type NetworkSpec, quote } from './namespace.ts';
import { internetFor, whyNoInternet, withOpenTun } from './network.ts';
import { unshareCommand } from './unshare.ts';
import { attemptView, type Mount, openView, RESOLVER } from './view.ts';

export type Sandbox = 'bubblewrap' | 'unshare' | 'none';

export type ConfinementOptions = {
  /** Where the folders of attempts lie. */
  dir: string;
  /** Folders that jobs must not see, wherever they lie. */
  hidden: readonly string[];
  /** The best that works, or this one. */
  sandbox: Sandbox | 'auto';
  /** Unset: `internet` where that can be had, else `host`. */
  network: NetworkMode | undefined;
  uids: UidRange;
};

export type Confinement = {
  sandbox: Sandbox;
  network: NetworkMode;
  /** What the operator must know, in whole sentences. */
  warnings: string[];
  /** Makes the folder of an attempt, with the folders in it that a job needs but for the working folder. */
  place(place: string): Promise<void>;
  /** What the attempt in this folder has of the machine; again, the same user. */
  reserve(place: string): Promise<Reserved>;
  /** The beginning of the command line of shims, which open networks and start jobs. */
  aroundShims: string[];
  /** Makes the FIFOs for its output, while its folders are filled: it starts a program. */
  open(place: string, reserved: Reserved): Promise<void>;
  /** Gives the job's folders, now complete, to the user that it will run under. */
  give(place: string, reserved: Reserved): Promise<void>;
  /** Kills what runs under the attempt's user. */
  end(place: string): Promise<void>;
  /** Gives the attempt's user back, when nothing runs under it any more, and removes what it left elsewhere. */
  release(place: string): Promise<void>;
  /** The command line for an attempt whose folders (work, tmp, home) stand in `place`. */
  compose(place: string, job: Job, reserved: Reserved): Promise<Command>;
};

export type Reserved = {
  /** Null: our own user. */
  account: Account | null;
  /** Null: it has none of its own, or one that leads nowhere. */
  internet: { spec: NetworkSpec; nameserver: string } | null;
};

export type Job = {
  attempt: string;
  command: string;
  env: Record<string, string>;
  devices: readonly string[];
};

/** @throws ConfigError when what was asked for cannot be had here. */
export async function findConfinement(options: ConfinementOptions): Promise<Confinement> {
  const { dir, hidden } = options;
  const warnings: string[] = [];
  // The mount point of every attempt's own root. Nothing is ever written to the folder itself.
  const root = join(dir, '.root');
  await mkdir(root, { recursive: true, mode: 0o755 });
  await markTopdir(dir);
  const found = await openAccounts(options.uids, dir);
  const accounts = found && !('missing' in found) ? found : null;
  if (found && 'missing' in found)
    warnings.push(`Jobs run under the server's own user, root: ${found.missing}.`);

  const trial = accounts ? { uid: options.uids.first, networkUid: options.uids.first + 1 } : null;
  const viewNow = openView(join(dir, '.etc'), hidden);
  const ownFiles = openOwnFiles(join(dir, '.etc-of-users'), MOUNTS.home);
  const { around, warning: unguarded } = await findKeyringGuard();
  if (unguarded) warnings.push(unguarded);
  const { sandbox, reasons } = await findSandbox(options.sandbox, { around, root }, trial, viewNow);
  if (sandbox === 'none') warnings.push(...(await prepareUnconfined(options, accounts, reasons)));
  const { network, warning } = await findNetwork(options.network, sandbox, trial);
  if (warning) warnings.push(warning);

  const canMark =
    sandbox === 'none' && MARKS_LIMITS && (await works([...limited(''), '/bin/true']));
  const drop =
    sandbox === 'none' && (await works([...NO_NEW_RIGHTS, '/bin/true'])) ? NO_NEW_RIGHTS : [];

  return {
    sandbox,
    network,
    warnings,
    async place(place) {
      mkdirSync(place, { mode: sandbox === 'none' && accounts ? 0o711 : 0o700 });
      for (const name of ['tmp', 'home']) mkdirSync(join(place, name));
    },
    aroundShims: [...around, ...(network === 'internet' ? withOpenTun(trial) : [])],
    async reserve(place) {
      const account = (await accounts?.reserve(place)) ?? null;
      // Of an attempt whose end this server has not seen.
      if (account && sandbox === 'none') await cleanupIpc(account.uid);
      return { account, internet: network === 'internet' ? internetFor(account) : null };
    },
    async open(place, { account }) {
      const outputs = OUTPUTS.map((name) => join(place, name));
      await run('mkfifo', ['-m', '600', ...outputs]);
      if (!account) return;
      // The job opens its output by /dev/stdout too. It stays ours, so that the job cannot open it to others.
      for (const output of outputs) {
        chownSync(output, 0, account.uid);
        chmodSync(output, 0o620);
      }
    },
    async give(place, { account }) {
      if (!account) return;
      const folders = Object.keys(MOUNTS).map((name) => join(place, name));
      await giveTo({ uid: account.uid, gid: account.uid }, folders);
      for (const folder of folders) chmodSync(folder, 0o700);
    },
    async end(place) {
      // In a sandbox all have died with its first process.
      if (sandbox === 'none') await accounts?.end(place);
    },
    async release(place) {
      const account = sandbox === 'none' ? await accounts?.of(place) : undefined;
      if (account) await cleanupIpc(account.uid);
      await accounts?.release(place);
    },
    async compose(place, { attempt, command, env, devices }, { account, internet }) {
      const base = { PATH, LANG: 'C.UTF-8', USER: 'job' };
      if (sandbox === 'none') {
        const own = { ...base, HOME: join(place, 'home'), TMPDIR: join(place, 'tmp'), ...env };
        return {
          ...unconfined(account, [...(canMark ? limited(attempt) : []), ...drop], command),
          env: environmentScript(own, join(place, 'work')),
        };
      }
      const files = ownFiles(account?.uid ?? 1000, internet?.nameserver);
      const mounts = [
        ...viewNow(),
        ...(network === 'host' ? [RESOLVER] : []),
        ...devices.map((path): Mount => ({ kind: 'device', from: path, to: path })),
        ...attemptView(place, files),
      ];
      const own = { ...base, HOME: MOUNTS.home, TMPDIR: MOUNTS.tmp, ...env };
      const inside = { mounts, root, uid: account?.uid ?? null };
      return {
        ...confined(sandbox, inside, network === 'none' ? 'none' : 'shared', command),
        env: environmentScript(own, MOUNTS.work),
        network: internet?.spec ?? null,
      };
    },
  };
}

type Inside = { mounts: readonly Mount[]; root: string; uid: number | null };

function confined(
  sandbox: 'bubblewrap' | 'unshare',
  { mounts, root, uid }: Inside,
  network: 'shared' | 'none',
  command: string,
): Omit<Command, 'env'> {
  const entry = entryCommand(command);
  const rest = { cwd: '/', uid, network: null };
  if (sandbox === 'unshare') {
    const { argv, table } = unshareCommand(mounts, { root, uid, network });
    return { ...rest, argv: [...argv, ...entry], setup: table };
  }
  const options = bubblewrapOptions(mounts, { asRoot: uid !== null, network, path: PATH });
  return {
    ...rest,
    argv: [
      ...['bwrap', '--args', '4', '--json-status-fd', '3', '--'],
      ...(uid === null ? [] : asUser(uid)),
      ...entry,
    ],
    setup: options.map((option) => `${option}\0`).join(''),
  };
}

/** FIFOs, as the shim knows them. Node makes none. */
const OUTPUTS = ['out', 'err'];

/** `sudo` and the like then give no rights any more. */
const NO_NEW_RIGHTS = ['setpriv', '--no-new-privs', '--'];

/** Where the processes of a job have neither a user nor a sandbox of their own. */
function limited(attempt: string): string[] {
  const limit = limitMark(attempt);
  return ['prlimit', `--rttime=${limit}:${limit}`, '--'];
}

/** `begin`: what a command starts with that has no user of its own. */
function unconfined(
  account: Account | null,
  begin: string[],
  command: string,
): Omit<Command, 'env'> {
  const uid = account?.uid ?? null;
  return {
    argv: [...(account ? asUser(account.uid) : begin), ...entryCommand(command)],
    cwd: '/',
    setup: null,
    uid,
    network: null,
  };
}

async function findSandbox(
  wanted: Sandbox | 'auto',
  own: { around: readonly string[]; root: string },
  trial: Account | null,
  view: () => readonly Mount[],
): Promise<{ sandbox: Sandbox; reasons: string }> {
  const reasons: string[] = [];
  for (const sandbox of ['bubblewrap', 'unshare'] as const) {
    if (wanted !== 'auto' && wanted !== sandbox) continue;
    const inside = { mounts: view(), ...own, uid: trial?.uid ?? null };
    const why = await whyNot(sandbox, inside);
    if (why === null) return { sandbox, reasons: '' };
    reasons.push(`${sandbox}: ${why}`);
    if (wanted !== 'auto') throw new Error(reasons[0]);
  }
  return { sandbox: 'none', reasons: reasons.join('; ') || 'it is switched off' };
}

function works([program = '', ...args]: string[]): Promise<boolean> {
  return run(program, args).then(
    () => true,
    () => false,
  );
}

/** What a machine can do is tried once; a process with several runners, as in tests, need not try again. */
const tried = new Map<string, Promise<string | null>>();

function memoizeAttempt(
  key: unknown,
  attempt: () => Promise<string | null>,
): Promise<string | null> {
  const name = JSON.stringify(key);
  const known = tried.get(name) ?? attempt();
  tried.set(name, known);
  return known;
}

type Trial = Inside & { around: readonly string[] };

function whyNot(sandbox: 'bubblewrap' | 'unshare', inside: Trial): Promise<string | null> {
  if (process.platform !== 'linux') return Promise.resolve('it exists on Linux alone');
  const { mounts, uid, around } = inside;
  const places = mounts.map(({ kind, to }) => [kind, to]);
  return memoizeAttempt([sandbox, around, places, uid], () => {
    const command = confined(sandbox, inside, 'shared', 'true');
    return tryCommand({ ...command, argv: [...around, ...command.argv], env: '' });
  });
}

/** @throws ConfigError when the mode was asked for and cannot be had. */
async function findNetwork(
  wanted: NetworkMode | undefined,
  sandbox: Sandbox,
  trial: Account | null,
): Promise<{ network: NetworkMode; warning?: string }> {
  if (wanted === 'host') return { network: 'host' };
  if (sandbox === 'none' && wanted)
    throw new ConfigError(
      `LOAM_JOB_NETWORK: "${wanted}" needs bubblewrap or unshare, and neither works here`,
    );
  if (sandbox === 'none') return { network: 'host' };
  if (wanted === 'none') return { network: 'none' };
  const why = await memoizeAttempt(['internet', trial], () => whyNoInternet(trial));
  if (why === null) return { network: 'internet' };
  if (wanted) throw new ConfigError(`LOAM_JOB_NETWORK: jobs cannot have "${wanted}" here: ${why}`);
  return {
    network: 'host',
    warning:
      'Jobs share the network of this machine and reach what listens on its loopback and in its networks ' +
      `(LOAM_JOB_NETWORK=host): a network of their own cannot be had, because ${why}.`,
  };
}

/**
 * Makes the data folder as safe as it can be from jobs that see it, and says how safe that is.
 * @throws ConfigError when jobs could not reach their own folders.
 */
async function prepareUnconfined(
  { dir, hidden, uids }: ConfinementOptions,
  accounts: Accounts | null,
  reasons: string,
): Promise<string[]> {
  const says = (what: string) => [
    `Jobs run UNCONFINED, ${what} No sandbox works here (${reasons}).`,
  ];
  if (!accounts)
    return [
      ...says(
        'with the rights of this server: a job can read and change its keys, repositories and database, ' +
          'other jobs, and all else that its user can. Take none from people you would not give a shell.',
      ),
      ...findExposedSecrets().map(
        ({ name, pid, program }) =>
          `A job can read ${name} in the environment of process ${pid} (${program}): start the server by ` +
          '`node src/main.ts` with it, from a shell that does not have it.',
      ),
    ];
  // What holds the attempts is passed through by the jobs' users, but not listed; each attempt's own folders are its
  // user's alone.
  for (const folder of [...hidden, dir]) {
    for (const name of folder === dir ? [] : await readdir(folder)) {
      const path = join(folder, name);
      if (path !== dir) await chmod(path, (await stat(path)).mode & 0o700);
    }
    await chmod(folder, `${dir}/`.startsWith(`${folder}/`) ? 0o711 : 0o700);
  }
  if (!(await works([...asUser(uids.first), '/bin/sh', '-c', 'cd "$1"', 'sh', dir])))
    throw new ConfigError(
      `LOAM_DATA_DIR: jobs run under users of their own here, who cannot pass through the folders above ${dir}; ` +
        'choose a folder that they can, such as one in /var/lib',
    );
  return says(
    'each under a user of its own: a job cannot read the data folder, but sees the processes and the ' +
      'world-readable files of this machine and reaches what listens on its loopback.',
  );
}

/*
 * The last step before the job's command, the same in every confinement: the environment is read from
 * descriptor 5 by a shell that has no rights any more.
 *
 * It must not be set earlier. What sets up the confinement runs with more rights than the job, and
 * `LD_PRELOAD` in its environment would give those to the job; and as arguments everyone could read it in `ps`.
 */

/** Follows whatever confines the job. */
function entryCommand(command: string): string[] {
  const script = '. /dev/fd/5; exec 3<&- 4<&- 5<&-; exec /bin/sh -c "$1"';
  return ['/bin/sh', '-c', script, 'sh', command];
}

/**
 * The environment, and where the command starts: root without its rights could not enter a folder of the job.
 * Names are those of shell variables. Some belong to the shell (`PPID`, in bash `UID`) and cannot be set:
 * `command` keeps such a one from ending the script.
 */
function environmentScript(env: Record<string, string>, cwd: string): string {
  const lines = Object.entries(env).map(
    ([name, value]) => `command export ${name}=${quote(value)}\n`,
  );
  return `cd ${quote(cwd)} && unset OLDPWD\n{ :\n${lines.join('')}} 2>/dev/null\n`;
}

/*
 * Spreads the folders of attempts over the disk, where that is an ext4 without a journal, as on many virtual machines.
 *
 * Such an ext4 does not reuse an inode for minutes after it was deleted, and looks at each of them whenever a file is made
 * near them (`recently_deleted` in fs/ext4/ialloc.c). A job makes and deletes some 25 files: at 30 jobs a second the search
 * took a quarter of all CPU time, and more with every job. The attribute T (`topdir`) of a folder has the folders in it placed
 * in block groups of their own, so that each attempt has inodes of its own. With a journal there is no search, and the
 * attribute would cost 4 %.
 */

/** Sets the attribute where that pays. */
async function markTopdir(dir: string): Promise<void> {
  // Where the file system or our user may not, jobs are only slower.
  if (hasNoJournal(dir)) await run('chattr', ['+T', dir]).catch(() => {});
}

function hasNoJournal(dir: string): boolean {
  try {
    const { dev } = statSync(dir);
    // As `makedev` of the kernel has it, for numbers that fit into 12 and 20 bits.
    const [major, minor] = [(dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00)];
    const disk = basename(readlinkSync(`/sys/dev/block/${major}:${minor}`));
    return readFileSync(`/sys/fs/ext4/${disk}/journal_task`, 'utf8').trim() === '<none>';
  } catch {
    // Not ext4, or not Linux.
    return false;
  }
}
