/**
 * Starts the command line that `confinement.ts` composed. Its input is passed by file descriptors, because `ps` shows
 * arguments to everyone (`first-process.ts` opens them):
 *   3  the sandbox writes the pid of its first process, and how the command ended
 *   4  the sandbox reads its own setup
 *   5  the command's environment, as a shell script (`entryCommand`)
 *
 * The shim imports this file, so it imports only Node and a few small files: the start of a job waits for the shim.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { constants as os, tmpdir } from 'node:os';
import { join } from 'node:path';
import { ATTEMPT_ID_VARIABLE, signalOne } from '../supervisor/proc.ts';
import type { Cgroup } from './cgroup.ts';
import { type Exited, startFirstProcess } from './first-process.ts';
import { type Network, type NetworkSpec, openNetwork, quoteForShell } from './namespace.ts';

export const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
/** The environment of every job, which its own variables may replace. */
export const BASE_ENV = { PATH, LANG: 'C.UTF-8', USER: 'job' };

const TRIAL_TIMEOUT_MS = 10_000;
/** 128 + SIGKILL. */
const KILLED = 137;

/** JSON, because the shim reads it from a file. */
export type Command = {
  argv: string[];
  cwd: string;
  /** The text of descriptor 4; null: there is no sandbox, and nothing is written to descriptor 3. */
  setup: string | null;
  /** The text of descriptor 5. */
  env: string;
  /** The user of the command; null: the server's own user. */
  uid: number | null;
  network: NetworkSpec | null;
};

/** `ran`: false when the sandbox could not be set up; its messages are in the log. */
type CommandEnd = { exitCode: number; ran: boolean; error?: string };

type Launched = {
  /** The started process; undefined when it could not be started. */
  pid: number | undefined;
  /** Settles when the command runs, with the pid of its first process. */
  up: Promise<number>;
  /** Settles when the command, or the sandbox before it, has ended. */
  ended: Promise<CommandEnd>;
  network: Network | null;
};

/**
 * Settles when the process has opened its descriptors.
 * @throws Error when the network cannot be opened, or the disk is full
 */
export async function launch(work: {
  attempt: string;
  command: Command;
  /** Shell commands that set the limits of the process. */
  limitCommands: readonly string[];
  /** A folder for temporary files. */
  dir: string;
  /** Paths of the files for stdout and stderr. */
  out: string;
  err: string;
  /** The existing group that the processes join. */
  cgroup: Cgroup | null;
  /** The command's network, if it is being opened already. */
  connected?: Promise<Network> | undefined;
}): Promise<Launched> {
  const { attempt, command, limitCommands, dir, out, err, cgroup, connected } = work;
  const inSandbox = command.setup !== null;
  // Started before the network is open, because joining a control group takes as long.
  const first = startFirstProcess(cgroup, baseEnvironment(attempt), { ownSession: !inSandbox });
  const network = await connectNetwork(command, connected).catch(async (error) => {
    await first.cancel();
    throw error;
  });
  const up = Promise.withResolvers<number>();
  if (inSandbox)
    first.onReport((report) => {
      const init = /"child-pid": *(\d+)/.exec(report)?.[1];
      if (init) up.resolve(Number(init));
    });
  const hasBegun = await first.exec({
    argv: [...(network?.enter ?? []), ...command.argv],
    limitCommands,
    env: baseEnvironment(attempt),
    cwd: command.cwd,
    dir,
    out,
    err,
    setup: command.setup ?? '',
    input: { text: command.env, reader: command.uid },
  });
  const { pid } = first;
  if (!inSandbox && pid !== undefined) up.resolve(pid);
  const ended = async (): Promise<CommandEnd> => {
    const exit = toCommandEnd(await first.exited);
    if (!hasBegun) return { ...exit, ran: false };
    if (!inSandbox) return exit;
    const status = await first.reported;
    if (status.includes('"exit-code"')) return exit;
    // The command was killed together with its first process. util-linux 2.38 then exits with the code of a failure.
    if (status.includes('"set-up"')) return { exitCode: KILLED, ran: true };
    // A sandbox that was killed did not fail.
    return { ...exit, ran: exit.exitCode === KILLED };
  };
  return { pid, up: up.promise, ended: ended(), network };
}

async function connectNetwork(
  { network }: Command,
  connected?: Promise<Network>,
): Promise<Network | null> {
  return network && (await (connected ?? openNetwork(network, baseEnvironment())));
}

/**
 * The environment of programs that set up the confinement. It has no variables of the job, because these programs have more
 * rights than the job.
 * @param attempt marks the programs as processes of the attempt
 */
export function baseEnvironment(attempt?: string): Record<string, string> {
  return attempt === undefined ? { PATH } : { PATH, [ATTEMPT_ID_VARIABLE]: attempt };
}

function toCommandEnd({ code, signal, error }: Exited): CommandEnd {
  if (error) return { exitCode: 125, ran: false, error: error.message };
  return { exitCode: code ?? 128 + (signal ? os.signals[signal] : 0), ran: true };
}

/** Runs the command to its end. @returns why the command does not work here, or null */
export async function tryCommand(command: Command): Promise<string | null> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-trial-'));
  const out = join(dir, 'out');
  try {
    writeFileSync(out, '', { mode: 0o600 });
    const { pid, ended } = await launch({
      attempt: '',
      command,
      limitCommands: [],
      dir,
      out,
      err: out,
      cgroup: null,
    });
    const timer = setTimeout(() => pid && signalOne(pid, 'SIGKILL'), TRIAL_TIMEOUT_MS);
    const { exitCode, ran, error } = await ended;
    clearTimeout(timer);
    if (ran && exitCode === 0) return null;
    const [message = ''] = readFileSync(out, 'utf8').trim().split('\n');
    const missing = exitCode === 127 && /exec: .*?([\w.-]+): not found$/.exec(message)?.[1];
    if (missing) return `${missing} is not installed`;
    return error ?? (message || `it ended with ${exitCode}`);
  } finally {
    await rm(dir, { recursive: true });
  }
}

/*
 * The last step before the job's command, the same in every confinement: a shell without any rights reads the environment
 * from descriptor 5.
 *
 * The environment must not be set earlier. The programs that set up the confinement have more rights than the job, and
 * `LD_PRELOAD` would pass those rights to the job. It must not be passed as arguments, which `ps` shows to everyone.
 */

export function entryCommand(command: string): string[] {
  const script = '. /dev/fd/5; exec 3<&- 4<&- 5<&-; exec /bin/sh -c "$1"';
  return ['/bin/sh', '-c', script, 'sh', command];
}

/** Sets the environment and enters the working directory, which root without its rights could not enter. */
export function environmentScript(env: Record<string, string>, cwd: string): string {
  return `cd ${quoteForShell(cwd)} && unset OLDPWD\n${exportScript(env)}`;
}

/**
 * Sets variables. Some belong to the shell (`PPID`, in bash `UID`) and cannot be set: `command` prevents them from ending the
 * script.
 */
export function exportScript(env: Readonly<Record<string, string>>): string {
  const lines = Object.entries(env).map(
    ([name, value]) => `command export ${name}=${quoteForShell(value)}\n`,
  );
  return `{ :\n${lines.join('')}} 2>/dev/null\n`;
}
