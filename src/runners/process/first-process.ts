/**
 * The first process of a job: a shell that joins the job's control groups and then waits for the command to execute.
 *
 * Joining a control group takes the kernel 16 ms (until every processor has left its current work), so this process is
 * started before the job's network is open. While the shell waits, it has no secrets of the job. It ends with its parent,
 * because its input ends.
 *
 * The shim imports this file, so it imports only Node and a few small files: the start of a job waits for the shim.
 */
import { spawn } from 'node:child_process';
import { chownSync, rmSync, writeFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { type Cgroup, listJoinFiles } from './cgroup.ts';
import { quoteForShell } from './namespace.ts';

/** The command that the shell executes. */
type ExecSpec = {
  /** Shell commands that run before `argv` and set the limits of the process. */
  limitCommands: readonly string[];
  argv: readonly string[];
  env: Record<string, string>;
  cwd: string;
  /** A folder of the server, for temporary files. */
  dir: string;
  /** Paths of the files to which stdout and stderr are appended. */
  out: string;
  err: string;
  /** The text of descriptor 4. */
  setup: string;
  /** The text of descriptor 5; `reader`: the user who must be able to open it again, null: the current user. */
  input: { text: string; reader: number | null };
};

/** `error`: the process could not be started. */
export type Exited = { code: number | null; signal: NodeJS.Signals | null; error?: Error };

type FirstProcess = {
  /** Undefined when the process could not be started. */
  readonly pid: number | undefined;
  /** Settles when the process has ended, which may have executed a command by then. */
  exited: Promise<Exited>;
  /** Calls the listener with the whole output of descriptor 3 whenever it grows. */
  onReport(listener: (text: string) => void): void;
  /** Settles with the whole output of descriptor 3 when no process has it open any more. */
  reported: Promise<string>;
  /**
   * @returns whether the shell has opened all its files; false when it ended before
   * @throws Error when the files cannot be written
   */
  exec(spec: ExecSpec): Promise<boolean>;
  /** Ends the shell without a command. */
  cancel(): Promise<void>;
};

/**
 * The script of a first process. The arguments before `--` are the files through which it joins the control groups. It reads
 * one line from descriptor 3: `next` and the path of the script to continue with.
 */
const JOIN_AND_WAIT = `failed=
while [ "$1" != -- ]; do { echo 0 > "$1"; } 2>/dev/null || failed=$1; shift; done
IFS=' ' read -r word next <&3 && [ "$word" = next ] || exit 0
. "$next"`;

/** @param options.ownSession used without a sandbox, so that signals to its process group reach its child processes */
export function startFirstProcess(
  group: Cgroup | null,
  env: Record<string, string>,
  { ownSession = false } = {},
): FirstProcess {
  const groups = group ? listJoinFiles(group) : [];
  const child = spawn('/bin/sh', ['-c', JOIN_AND_WAIT, 'sh', ...groups, '--'], {
    cwd: '/',
    env,
    stdio: ['ignore', 'ignore', 'ignore', 'pipe'],
    detached: ownSession,
  });
  const { pid } = child;
  const { promise: exited, resolve: exit } = Promise.withResolvers<Exited>();
  child.once('exit', (code, signal) => exit({ code, signal }));
  child.once('error', (error) => exit({ code: null, signal: null, error }));

  // Listeners are added at once, so that no event is missed. The socket is missing when no file descriptor was free.
  const socket = child.stdio?.[3] as Socket | undefined;
  const { promise: reported, resolve: close } = Promise.withResolvers<string>();
  /** Settles with true on the first output, which means that the files are open. */
  const { promise: opened, resolve: open } = Promise.withResolvers<boolean>();
  const listeners: ((text: string) => void)[] = [];
  let text = '';
  const closed = () => {
    open(false);
    close(text);
  };
  // The process may have been killed.
  socket?.on('error', () => {});
  socket?.once('close', closed);
  socket?.on('data', (chunk: Buffer) => {
    text += chunk;
    open(true);
    for (const listener of listeners) listener(text);
  });
  if (!socket) void exited.then(closed);
  const send = (line: string) => void socket?.write(`${line}\n`);

  return {
    pid,
    exited,
    reported,
    onReport(listener) {
      listeners.push(listener);
      if (text) listener(text);
    },
    async exec({ limitCommands, argv, env: own, cwd, dir, out, err, setup, input }) {
      const files = ['setup', 'input', 'next'].map((name) => join(dir, name));
      const [setupFile = '', inputFile = '', nextFile = ''] = files;
      const exports = Object.entries(own).map(
        ([name, value]) => `export ${name}=${quoteForShell(value)}`,
      );
      const next = [
        `exec >>${quoteForShell(out)} 2>>${quoteForShell(err)} 4<${quoteForShell(setupFile)} 5<${quoteForShell(inputFile)}`,
        '[ "$failed" = "" ] || { echo "The control group cannot be joined: $failed" >&2; exit 125; }',
        'echo >&3',
        ...exports,
        `cd ${quoteForShell(cwd)} || exit 125`,
        ...limitCommands,
        `exec ${argv.map(quoteForShell).join(' ')}`,
      ];
      try {
        writeFileSync(setupFile, setup, { mode: 0o400 });
        writeFileSync(inputFile, input.text, { mode: 0o400 });
        if (input.reader !== null) chownSync(inputFile, input.reader, input.reader);
        writeFileSync(nextFile, next.join('\n'), { mode: 0o400 });
        send(`next ${nextFile}`);
        return await opened;
      } finally {
        for (const file of files) rmSync(file, { force: true });
      }
    },
    async cancel() {
      send('end');
      await exited;
    },
  };
}
