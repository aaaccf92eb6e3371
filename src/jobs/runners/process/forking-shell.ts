/**
 * A shell in the network of a shim, which forks the first process of one job after the other. A shim that starts them itself
 * copies the page tables of Node, and starts a shell and `nsenter` for each: 4 of the 45 ms of CPU time of a short job, where
 * this takes less than 1. So a network that is kept for another attempt is given one.
 *
 * It ends with the shim: by the kernel, because what it forks may ask to end with its parent, as sandboxes do.
 *
 * Imports nothing but Node and the files beside it: a shim does.
 */
import { spawn } from 'node:child_process';
import type { Socket } from 'node:net';
import { basename, dirname } from 'node:path';
import { type Cgroup, JOB_PROCS } from './cgroup.ts';
import {
  type Exited,
  type FirstProcess,
  firstProcess,
  JOIN_AND_WAIT,
  openReport,
  type Report,
} from './first-process.ts';

export type ForkingShell = {
  /** @returns null when it cannot now */
  fork(group: Cgroup): FirstProcess | null;
  /** When nothing that it has forked is to go on. */
  close(): void;
};

/**
 * It says on descriptor 3 that it waits for a line, and what it has forked says everything else there, until the shell says
 * that this has ended. A line is `group` and the name of the group to join, and the folders that have groups are arguments: a
 * shell reads each character of a line by itself. What was forked reads the next line, and when that was killed, the shell
 * passes the line over.
 */
const SCRIPT = `echo free >&3
while IFS=' ' read -r word name <&3; do
  [ "$word" = group ] || continue
  (
    read -r pid rest < /proc/self/stat && echo "pid $pid" >&3
    for parent; do set -- "$@" "$parent/$name/${JOB_PROCS}"; shift; done
    set -- "$@" --
    ${JOIN_AND_WAIT}
  )
  echo "exit $?" >&3
done`;

type Fork = { pid?: number; report: Report; exit(exited: Exited): void };

/**
 * @param enter the beginning of a command line that runs in the network
 * @param groups a group beside which those will be that are to be joined
 */
export function openForkingShell(
  enter: readonly string[],
  groups: Cgroup,
  env: Record<string, string>,
): ForkingShell {
  const parents = parentsOf(groups);
  const shell = ['setpriv', '--pdeathsig', 'KILL', '--', '/bin/sh', '-c', SCRIPT, 'sh'];
  const [program = '', ...args] = [...enter, ...shell, ...parents];
  const child = spawn(program, args, {
    cwd: '/',
    env,
    stdio: ['ignore', 'ignore', 'ignore', 'pipe'],
  });
  let isFree = false;
  let isOpen = true;
  let current: Fork | undefined;

  function end(exited: Exited): void {
    isFree = isOpen;
    current?.exit(exited);
    current?.report.close();
    current = undefined;
  }

  function hear(line: string): void {
    const [word = '', number = ''] = line.split(' ', 2);
    if (word === 'free') isFree = isOpen;
    else if (word === 'pid' && current) current.pid = Number(number);
    else if (word === 'exit') end({ code: Number(number), signal: null });
    else current?.report.add(`${line}\n`);
  }

  // There is none where no descriptor was free.
  const socket = child.stdio?.[3] as Socket | undefined;
  const closed = () => {
    isOpen = false;
    // What it forked ends with it, or sees the end of its input.
    socket?.destroy();
    end({ code: null, signal: 'SIGKILL' });
  };
  child.once('exit', closed);
  child.once('error', closed);
  socket?.on('error', () => {});
  socket?.once('close', closed);
  let said = '';
  socket?.on('data', (chunk: Buffer) => {
    const lines = `${said}${chunk}`.split('\n');
    said = lines.pop() ?? '';
    for (const line of lines) hear(line);
  });
  const tell = (line: string) => void socket?.write(`${line}\n`);

  return {
    fork(group) {
      const name = nameOf(group);
      if (!isFree || name === null || parentsOf(group).join() !== parents.join()) return null;
      isFree = false;
      const { promise: exited, resolve: exit } = Promise.withResolvers<Exited>();
      const fork: Fork = { report: openReport(), exit };
      current = fork;
      tell(`group ${name}`);
      const connection = {
        exited,
        tell,
        get pid() {
          return fork.pid;
        },
        get isOpen() {
          return isOpen;
        },
      };
      return firstProcess(connection, fork.report);
    },
    close() {
      socket?.destroy();
    },
  };
}

function parentsOf({ folders }: Cgroup): string[] {
  return folders.map((folder) => dirname(folder));
}

/** Its folders have one name, wherever they are. */
function nameOf({ folders }: Cgroup): string | null {
  const [name = null, ...others] = new Set(folders.map((folder) => basename(folder)));
  return others.length > 0 ? null : name;
}
