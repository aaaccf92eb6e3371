/**
 * Starting the command line that `confinement.ts` composed. What it needs to know is on descriptors, because
 * `ps` shows arguments to everyone (`first-process.ts` opens them):
 *   3  the sandbox writes the pid of its first process, and how the command ended
 *   4  the sandbox reads how to set itself up
 *   5  the command's environment, as a script for `entry.ts`
 *
 * Imports nothing but Node and the files beside it: a job's start waits for it.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { constants as os, tmpdir } from 'node:os';
import { join } from 'node:path';
import { MARKER, signalOne } from '../supervisor/proc.ts';
import type { Cgroup } from './cgroup.ts';
import { type Exited, startFirstProcess } from './first-process.ts';
import { type Network, type NetworkSpec, openNetwork } from './namespace.ts';

export const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

const TRIAL_MS = 10_000;
/** 128 + SIGKILL. */
const KILLED = 137;

/** JSON, so that it can be given to the shim. */
export type Command = {
  argv: string[];
  cwd: string;
  /** For descriptor 4; null: there is no sandbox, and nothing comes from descriptor 3. */
  setup: string | null;
  /** For descriptor 5. */
  env: string;
  /** What the command runs under; null: our own user. */
  uid: number | null;
  network: NetworkSpec | null;
};

/** `ran`: false when the sandbox could not be set up; what it said is in the log. */
export type Ended = { exitCode: number; ran: boolean; error?: string };

export type Launched = {
  /** Of what was started; undefined when it could not be. */
  pid: number | undefined;
  /** Settles when the work runs, with the pid of its first process. */
  up: Promise<number>;
  /** Settles after the end of the command, or of what should have run it. */
  ended: Promise<Ended>;
  network: Network | null;
};

/**
 * Settles when the command line has its descriptors.
 * @throws Error when its network does not come up, or the disk is full
 */
export async function launch(work: {
  attempt: string;
  command: Command;
  /** Orders for the shell before it becomes the command line, which set limits. */
  orders: readonly string[];
  /** For files that are there for a moment. */
  dir: string;
  /** Paths. */
  out: string;
  err: string;
  /** What its processes are in, which is there. */
  cgroup: Cgroup | null;
  /** Its network, where that is being opened already. */
  connected?: Promise<Network> | undefined;
}): Promise<Launched> {
  const { attempt, command, orders, dir, out, err, cgroup, connected } = work;
  const inSandbox = command.setup !== null;
  // Before the network is open: to join a control group takes as long.
  const first = startFirstProcess(cgroup, environmentOf(attempt), { ownSession: !inSandbox });
  const network = await networkFor(command, connected).catch(async (error) => {
    await first.end();
    throw error;
  });
  const up = Promise.withResolvers<number>();
  if (inSandbox)
    first.onReport((said) => {
      const init = /"child-pid": *(\d+)/.exec(said)?.[1];
      if (init) up.resolve(Number(init));
    });
  const hasBegun = await first.become({
    argv: [...(network?.enter ?? []), ...command.argv],
    orders,
    env: environmentOf(attempt),
    cwd: command.cwd,
    dir,
    out,
    err,
    setup: command.setup ?? '',
    input: { text: command.env, reader: command.uid },
  });
  const { pid } = first;
  if (!inSandbox && pid !== undefined) up.resolve(pid);
  const ended = async (): Promise<Ended> => {
    const exit = endedBy(await first.exited);
    if (!hasBegun) return { ...exit, ran: false };
    if (!inSandbox) return exit;
    const status = await first.reported;
    if (status.includes('"exit-code"')) return exit;
    // Killed with its first process; the exit code that util-linux 2.38 then gives is one of a failure.
    if (status.includes('"set-up"')) return { exitCode: KILLED, ran: true };
    // A sandbox that was killed did not fail.
    return { ...exit, ran: exit.exitCode === KILLED };
  };
  return { pid, up: up.promise, ended: ended(), network };
}

async function networkFor(
  { network }: Command,
  connected?: Promise<Network>,
): Promise<Network | null> {
  return network && (await (connected ?? openNetwork(network, environmentOf())));
}

/**
 * Nothing of the job's: these programs have more rights than the job has.
 * @param attempt marks them as processes of the attempt
 */
export function environmentOf(attempt?: string): Record<string, string> {
  return attempt === undefined ? { PATH } : { PATH, [MARKER]: attempt };
}

function endedBy({ code, signal, error }: Exited): Ended {
  if (error) return { exitCode: 125, ran: false, error: error.message };
  return { exitCode: code ?? 128 + (signal ? os.signals[signal] : 0), ran: true };
}

/** Runs it to its end. @returns why it cannot be run here, or null. */
export async function tryCommand(command: Command): Promise<string | null> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-trial-'));
  const out = join(dir, 'out');
  try {
    writeFileSync(out, '', { mode: 0o600 });
    const { pid, ended } = await launch({
      ...{ attempt: '', command, orders: [], dir, out, err: out },
      cgroup: null,
    });
    const timer = setTimeout(() => pid && signalOne(pid, 'SIGKILL'), TRIAL_MS);
    const { exitCode, ran, error } = await ended;
    clearTimeout(timer);
    if (ran && exitCode === 0) return null;
    const [said = ''] = readFileSync(out, 'utf8').trim().split('\n');
    const missing = exitCode === 127 && /exec: .*?([\w.-]+): not found$/.exec(said)?.[1];
    if (missing) return `${missing} is not installed`;
    return error ?? (said || `it ended with ${exitCode}`);
  } finally {
    await rm(dir, { recursive: true });
  }
}
