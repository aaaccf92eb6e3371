/**
 * Finds out at startup how jobs can be confined on this machine, by trying each sandbox, best first:
 *
 * - `bubblewrap`: own mounts, pids, message queues and host name.
 * - `unshare`: the same, built from the tools of util-linux.
 * - `none`: an ordinary process. A root server runs it as another user; otherwise it can do whatever the server can.
 */
import { chmodSync, chownSync, mkdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { chmod, mkdir, readdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { ConfigError } from '../../base/config/config.ts';
import { findExposedSecrets } from '../../base/config/environment.ts';
import { run } from '../../platform/processes/starter.ts';
import {
  type AttemptSpec,
  FILES_DIR,
  MOUNTS,
  type MountedFolder,
  type NetworkMode,
  resultVariables,
} from '../runner.ts';
import {
  type Account,
  type Accounts,
  openAccounts,
  type UidRange,
} from '../supervisor/accounts.ts';
import { createMountPoints, linkVolumes } from '../supervisor/mounted-folders.ts';
import { changeOwner } from '../supervisor/ownership.ts';
import { limitMark, USES_LIMIT_MARK } from '../supervisor/proc.ts';
import { providedVariables, writeProvidedFiles } from '../supervisor/provided-files.ts';
import { createResultsFolder } from '../supervisor/result-files.ts';
import { setprivPrefix } from '../supervisor/user.ts';
import { bubblewrapOptions } from './bubblewrap.ts';
import { cleanupIpc } from './cleanup-ipc.ts';
import { openUserFiles } from './etc.ts';
import type { ExecPlan } from './exec.ts';
import { Fifos } from './fifos.ts';
import { findKeyringGuard } from './keyrings.ts';
import {
  BASE_ENV,
  type Command,
  entryCommand,
  environmentScript,
  PATH,
  tryCommand,
} from './launch.ts';
import type { NetworkSpec } from './namespace.ts';
import { findInternetProblem, planInternet, tunDevicePrefix } from './network.ts';
import { unshareCommand } from './unshare.ts';
import { listAttemptMounts, type Mount, openView, RESOLV_CONF_MOUNT } from './view.ts';

export type Sandbox = 'bubblewrap' | 'unshare' | 'none';

export type ConfinementOptions = {
  /** Contains the folders of attempts. */
  dir: string;
  /** Folders that jobs must not see, wherever they are mounted. */
  hidden: readonly string[];
  /** `auto` takes the best sandbox that works. */
  sandbox: Sandbox | 'auto';
  /** Unset: `internet` where it works, else `host`. */
  network: NetworkMode | undefined;
  /** Non-public IPv4 networks that jobs may reach. */
  allow: readonly string[];
  uids: UidRange;
};

export type AttemptResources = {
  /** Null: the job runs as the server's own user. */
  account: Account | null;
  /** Null: the job has no network of its own, or a network without a connection. */
  internet: { spec: NetworkSpec; nameserver: string } | null;
};

export type ConfinedJob = {
  attempt: string;
  command: string;
  env: Record<string, string>;
  files: AttemptSpec['files'];
  devices: readonly string[];
  mounts: readonly MountedFolder[];
};

/** @throws ConfigError when the configured sandbox or network does not work here */
export async function findConfinement(options: ConfinementOptions): Promise<Confinement> {
  const { dir, hidden } = options;
  const warnings: string[] = [];
  // The mount point of every attempt's own root. The folder itself stays empty.
  const root = join(dir, '.root');
  await mkdir(root, { recursive: true, mode: 0o755 });
  await markTopdir(dir);
  const found = await openAccounts(options.uids, dir);
  const accounts = found && !('missing' in found) ? found : null;
  if (found && 'missing' in found)
    warnings.push(`Jobs run as the server's own user, root: ${found.missing}.`);

  const trial = accounts ? { uid: options.uids.first, networkUid: options.uids.first + 1 } : null;
  const machineMounts = openView(join(dir, '.etc'), hidden);
  const { prefix, warning: keyringWarning } = await findKeyringGuard();
  if (keyringWarning) warnings.push(keyringWarning);
  const trialOptions = { prefix, root };
  const { sandbox, reasons } = await findSandbox(
    options.sandbox,
    trialOptions,
    trial,
    machineMounts,
  );
  if (sandbox === 'none') warnings.push(...(await prepareUnconfined(options, accounts, reasons)));
  const { network, warning } = await findNetwork(options.network, sandbox, trial);
  if (warning) warnings.push(warning);

  const isUnconfined = sandbox === 'none';
  const canMark =
    isUnconfined && USES_LIMIT_MARK && (await succeeds([...limitMarkPrefix(''), '/bin/true']));
  const canDropRights = isUnconfined && (await succeeds([...NO_NEW_RIGHTS, '/bin/true']));
  return new Confinement({
    sandbox,
    network,
    allow: options.allow,
    warnings,
    keyringPrefix: [...prefix],
    shimPrefix: [...prefix, ...(network === 'internet' ? tunDevicePrefix(trial) : [])],
    accounts,
    root,
    machineMounts,
    userFiles: openUserFiles(join(dir, '.etc-of-users')),
    fifos: new Fifos(join(dir, '.fifos')),
    unconfinedPrefix: (attempt) => [
      ...(canMark ? limitMarkPrefix(attempt) : []),
      ...(canDropRights ? NO_NEW_RIGHTS : []),
    ],
  });
}

type Findings = {
  sandbox: Sandbox;
  network: NetworkMode;
  allow: readonly string[];
  warnings: string[];
  keyringPrefix: string[];
  shimPrefix: string[];
  /** Null: jobs run as the server's own user. */
  accounts: Accounts | null;
  root: string;
  machineMounts: () => readonly Mount[];
  userFiles: ReturnType<typeof openUserFiles>;
  fifos: Fifos;
  unconfinedPrefix: (attempt: string) => string[];
};

export class Confinement {
  readonly sandbox: Sandbox;
  readonly network: NetworkMode;
  /** Complete sentences for the operator. */
  readonly warnings: readonly string[];
  /** The beginning of the command line of shims, which open networks and start jobs. */
  readonly shimPrefix: string[];
  readonly #findings: Findings;

  constructor(findings: Findings) {
    this.sandbox = findings.sandbox;
    this.network = findings.network;
    this.warnings = findings.warnings;
    this.shimPrefix = findings.shimPrefix;
    this.#findings = findings;
  }

  /** Creates the folder of an attempt with the folders that a job needs, except its working directory. */
  async createFolder(folder: string): Promise<void> {
    const { sandbox, accounts } = this.#findings;
    mkdirSync(folder, { mode: sandbox === 'none' && accounts ? 0o711 : 0o700 });
    for (const name of ['tmp', 'home']) mkdirSync(join(folder, name));
    createResultsFolder(join(folder, 'tmp'));
  }

  /** Allocates a user and plans a network for the attempt. A repeated call returns the same user. */
  async allocate(folder: string): Promise<AttemptResources> {
    const account = (await this.#findings.accounts?.allocate(folder)) ?? null;
    // The last attempt of this user may have ended while no server ran.
    if (account && this.sandbox === 'none') await cleanupIpc(account.uid);
    return {
      account,
      internet: this.network === 'internet' ? planInternet(account, this.#findings.allow) : null,
    };
  }

  /** Creates the FIFOs for the job's output. Called while the job's folders are being filled, because it may start a program. */
  async createOutputs(folder: string, { account }: AttemptResources): Promise<void> {
    const outputs = OUTPUTS.map((name) => join(folder, name));
    for (const output of outputs) await this.#findings.fifos.take(output);
    if (!account) return;
    // The job opens its output through /dev/stdout too. The server stays the owner, so that the job cannot change the mode.
    for (const output of outputs) {
      chownSync(output, 0, account.uid);
      chmodSync(output, 0o620);
    }
  }

  /**
   * Prepares the folders of the job for its volumes. Called before `giveFolders`.
   * @throws Unstartable
   */
  placeVolumes(folder: string, mounts: readonly MountedFolder[]): void {
    if (this.sandbox !== 'none') createMountPoints(folder, mounts);
    else linkVolumes(folder, mounts, 'on this machine, where no sandbox works,');
  }

  /** Gives the completed folders of the job to the user that it will run as. */
  async giveFolders(folder: string, { account }: AttemptResources): Promise<void> {
    if (!account) return;
    const folders = Object.keys(MOUNTS).map((name) => join(folder, name));
    await changeOwner({ uid: account.uid, gid: account.uid }, folders);
    for (const each of folders) chmodSync(each, 0o700);
  }

  /** Writes the files that the job can read and not change. Their folder belongs to the server. */
  async writeFiles(folder: string, files: AttemptSpec['files']): Promise<void> {
    const account = await this.#findings.accounts?.find(folder);
    const owner = account ? { uid: account.uid, gid: account.uid } : null;
    writeProvidedFiles(join(folder, FILES), files, owner);
  }

  /** How other commands run beside that of the job (`exec.ts`). */
  planExec(
    folder: string,
    attempt: string,
    { account }: AttemptResources,
  ): Omit<ExecPlan, 'limitCommands'> {
    const isUnconfined = this.sandbox === 'none';
    const own = isUnconfined ? this.#findings.unconfinedPrefix(attempt) : SANDBOXED_RIGHTS;
    return {
      prefix: this.#findings.keyringPrefix,
      uid: account?.uid ?? null,
      rights: account ? setprivPrefix(account.uid) : own,
      cwd: isUnconfined ? join(folder, 'work') : MOUNTS.work,
    };
  }

  /** Kills all processes of the attempt's user. In a sandbox they have died with its first process. */
  async killProcesses(folder: string): Promise<void> {
    if (this.sandbox === 'none') await this.#findings.accounts?.killProcesses(folder);
  }

  /** Removes the user's files outside the attempt's folder, and releases the user. Called when it has no process any more. */
  async release(folder: string): Promise<void> {
    const { accounts } = this.#findings;
    const account = this.sandbox === 'none' ? await accounts?.find(folder) : undefined;
    if (account) await cleanupIpc(account.uid);
    await accounts?.release(folder);
  }

  /** Composes the command line for an attempt whose folders (work, tmp, home) are in `folder`. */
  async compose(folder: string, job: ConfinedJob, resources: AttemptResources): Promise<Command> {
    return this.sandbox === 'none'
      ? this.#composeUnconfined(folder, job, resources)
      : this.#composeSandboxed(this.sandbox, folder, job, resources);
  }

  #composeUnconfined(folder: string, job: ConfinedJob, { account }: AttemptResources): Command {
    const prefix = account
      ? setprivPrefix(account.uid)
      : this.#findings.unconfinedPrefix(job.attempt);
    const tmp = join(folder, 'tmp');
    const dirs = { HOME: join(folder, 'home'), TMPDIR: tmp, ...resultVariables(tmp) };
    return {
      argv: [...prefix, ...entryCommand(job.command)],
      cwd: '/',
      setup: null,
      env: environmentScript(
        { ...BASE_ENV, ...dirs, ...job.env, ...providedVariables(join(folder, FILES), job.files) },
        join(folder, 'work'),
      ),
      uid: account?.uid ?? null,
      network: null,
    };
  }

  #composeSandboxed(
    sandbox: 'bubblewrap' | 'unshare',
    folder: string,
    { command, env, files: provided, devices, mounts: volumes }: ConfinedJob,
    { account, internet }: AttemptResources,
  ): Command {
    const { machineMounts, userFiles, root } = this.#findings;
    const files = userFiles(account?.uid ?? 1000, internet?.nameserver);
    const hasFiles = Object.keys(provided).length > 0;
    const mounts = [
      ...machineMounts(),
      ...(this.network === 'host' ? [RESOLV_CONF_MOUNT] : []),
      ...devices.map((path): Mount => ({ kind: 'device', from: path, to: path })),
      ...listAttemptMounts(folder, files),
      ...(hasFiles ? [{ kind: 'read', from: join(folder, FILES), to: FILES_DIR } as const] : []),
      ...volumes.map(({ from, to, readOnly }): Mount => ({ kind: 'volume', from, to, readOnly })),
    ];
    const { home, tmp } = MOUNTS;
    const dirs = { HOME: home, TMPDIR: tmp, ...resultVariables(tmp) };
    const view = { mounts, root, uid: account?.uid ?? null };
    return {
      ...sandboxCommand(sandbox, view, this.network === 'none' ? 'none' : 'shared', command),
      env: environmentScript(
        { ...BASE_ENV, ...dirs, ...env, ...providedVariables(FILES_DIR, provided) },
        MOUNTS.work,
      ),
      network: internet?.spec ?? null,
    };
  }
}

type SandboxView = { mounts: readonly Mount[]; root: string; uid: number | null };

function sandboxCommand(
  sandbox: 'bubblewrap' | 'unshare',
  { mounts, root, uid }: SandboxView,
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
      ...(uid === null ? [] : setprivPrefix(uid)),
      ...entry,
    ],
    setup: options.map((option) => `${option}\0`).join(''),
  };
}

/** The folder of the provided files in the folder of an attempt. */
const FILES = 'files';

/** The FIFOs that the shim reads. Node itself cannot create FIFOs. */
const OUTPUTS = ['out', 'err'];

/** Makes `sudo` and other setuid programs give no rights. */
const NO_NEW_RIGHTS = ['setpriv', '--no-new-privs', '--'];

/** Of a command that an ordinary user starts in the user namespace of a sandbox. */
const SANDBOXED_RIGHTS = ['setpriv', '--no-new-privs', '--inh-caps=-all', '--'];

/** Marks processes that have neither a user nor a sandbox of their own, so that they can be found. */
function limitMarkPrefix(attempt: string): string[] {
  const limit = limitMark(attempt);
  return ['prlimit', `--rttime=${limit}:${limit}`, '--'];
}

async function findSandbox(
  wanted: Sandbox | 'auto',
  own: { prefix: readonly string[]; root: string },
  trial: Account | null,
  machineMounts: () => readonly Mount[],
): Promise<{ sandbox: Sandbox; reasons: string }> {
  const reasons: string[] = [];
  for (const sandbox of ['bubblewrap', 'unshare'] as const) {
    if (wanted !== 'auto' && wanted !== sandbox) continue;
    const problem = await findSandboxProblem(sandbox, {
      mounts: machineMounts(),
      ...own,
      uid: trial?.uid ?? null,
    });
    if (problem === null) return { sandbox, reasons: '' };
    reasons.push(`${sandbox}: ${problem}`);
    if (wanted !== 'auto') throw new Error(reasons[0]);
  }
  return { sandbox: 'none', reasons: reasons.join('; ') || 'it is switched off' };
}

function succeeds([program = '', ...args]: string[]): Promise<boolean> {
  return run(program, args).then(
    () => true,
    () => false,
  );
}

/** Results of trials, by their inputs. A process with several runners, as in tests, makes each trial once. */
const trials = new Map<string, Promise<string | null>>();

type Trial = SandboxView & { prefix: readonly string[] };

/** @returns why the sandbox does not work here, or null */
function findSandboxProblem(
  sandbox: 'bubblewrap' | 'unshare',
  trial: Trial,
): Promise<string | null> {
  if (process.platform !== 'linux') return Promise.resolve('it exists on Linux only');
  const { mounts, uid, prefix } = trial;
  const targets = mounts.map(({ kind, to }) => [kind, to]);
  const inputs = JSON.stringify([sandbox, prefix, targets, uid]);
  return trials.getOrInsertComputed(inputs, () => {
    const command = sandboxCommand(sandbox, trial, 'shared', 'true');
    return tryCommand({ ...command, argv: [...prefix, ...command.argv], env: '' });
  });
}

/** @throws ConfigError when the configured mode does not work here */
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
  const inputs = JSON.stringify(['internet', trial]);
  const problem = await trials.getOrInsertComputed(inputs, () => findInternetProblem(trial));
  if (problem === null) return { network: 'internet' };
  if (wanted)
    throw new ConfigError(`LOAM_JOB_NETWORK: jobs cannot have "${wanted}" here: ${problem}`);
  return {
    network: 'host',
    warning:
      'Jobs share the network of this machine and can reach services on its loopback and in its networks ' +
      `(LOAM_JOB_NETWORK=host): they cannot have a network of their own, because ${problem}.`,
  };
}

/**
 * Protects the data folder as far as possible from unconfined jobs.
 * @returns warnings about the access that these jobs still have
 * @throws ConfigError when jobs could not reach their own folders
 */
async function prepareUnconfined(
  { dir, hidden, uids }: ConfinementOptions,
  accounts: Accounts | null,
  reasons: string,
): Promise<string[]> {
  const warn = (rights: string) => [
    `Jobs run UNCONFINED, ${rights} No sandbox works here (${reasons}).`,
  ];
  if (!accounts)
    return [
      ...warn(
        'with the rights of this server: a job can read and change its keys, repositories and database, ' +
          'other jobs, and everything else that its user can. Accept jobs only from people whom you would give a shell.',
      ),
      ...findExposedSecrets().map(
        ({ name, pid, program }) =>
          `A job can read ${name} in the environment of process ${pid} (${program}): start the server by ` +
          '`node src/main.ts` with it, from a shell that does not have it.',
      ),
    ];
  // The users of jobs may pass through the folder of attempts but not list it. The folders of an attempt are open to
  // its own user only.
  for (const folder of [...hidden, dir]) {
    for (const name of folder === dir ? [] : await readdir(folder)) {
      const path = join(folder, name);
      if (path !== dir) await chmod(path, (await stat(path)).mode & 0o700);
    }
    await chmod(folder, `${dir}/`.startsWith(`${folder}/`) ? 0o711 : 0o700);
  }
  if (!(await succeeds([...setprivPrefix(uids.first), '/bin/sh', '-c', 'cd "$1"', 'sh', dir])))
    throw new ConfigError(
      `LOAM_DATA_DIR: jobs run as users of their own here, who cannot pass through the folders above ${dir}; ` +
        'choose a folder that they can reach, such as one in /var/lib',
    );
  return warn(
    'each as a user of its own: a job cannot read the data folder, but sees the processes and the ' +
      'world-readable files of this machine and can reach services on its loopback.',
  );
}

/*
 * Spreads the folders of attempts over the disk on an ext4 without a journal, which many virtual machines have.
 *
 * Such an ext4 does not reuse an inode for minutes after its deletion, and checks each deleted inode when a file is created
 * nearby (`recently_deleted` in fs/ext4/ialloc.c). A job creates and deletes about 25 files: at 30 jobs a second the search
 * took a quarter of all CPU time, and more with every job. The attribute T (`topdir`) of a folder places its subfolders in
 * separate block groups. With a journal there is no search, and the attribute would cost 4 %.
 */

/** Sets the attribute on an ext4 without a journal. */
async function markTopdir(dir: string): Promise<void> {
  // Where this is not permitted, jobs are only slower.
  if (hasNoJournal(dir)) await run('chattr', ['+T', dir]).catch(() => {});
}

function hasNoJournal(dir: string): boolean {
  try {
    const { dev } = statSync(dir);
    // As the kernel's `makedev` encodes it, for numbers that fit into 12 and 20 bits.
    const [major, minor] = [(dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00)];
    const disk = basename(readlinkSync(`/sys/dev/block/${major}:${minor}`));
    return readFileSync(`/sys/fs/ext4/${disk}/journal_task`, 'utf8').trim() === '<none>';
  } catch {
    // Not ext4, or not Linux.
    return false;
  }
}
