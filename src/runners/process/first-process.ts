/**
 * The first process of a job: a shell that joins the job's control groups, and waits to be told what it becomes.
 *
 * To join a control group is to wait for the kernel (16 ms: until no processor runs what it ran before). So this process is
 * started before the network of the job is open. As long as it waits it has nothing of a job, and it ends with whoever started
 * it, because its input does.
 *
 * Imports nothing but Node and the files beside it: a job's start waits for it.
 */
import { spawn } from 'node:child_process';
import { chownSync, rmSync, writeFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { type Cgroup, joinFiles } from './cgroup.ts';
import { quote } from './namespace.ts';

/** What it becomes. */
export type ExecSpec = {
  /** For the shell, before it becomes what `argv` says. */
  orders: readonly string[];
  argv: readonly string[];
  env: Record<string, string>;
  cwd: string;
  /** A folder of ours, for files that are there for a moment. */
  dir: string;
  /** Paths, which it appends to. */
  out: string;
  err: string;
  /** For descriptor 4. */
  setup: string;
  /** For descriptor 5; `reader`: the user who must be able to open it again, null: ours. */
  input: { text: string; reader: number | null };
};

/** `error`: it could not be started. */
export type Exited = { code: number | null; signal: NodeJS.Signals | null; error?: Error };

export type FirstProcess = {
  /** Undefined when it could not be started. */
  readonly pid: number | undefined;
  /** Settles with how it ended, also what it has become. */
  exited: Promise<Exited>;
  /** What it writes to descriptor 3: each listener hears all of it from the beginning, whenever that changes. */
  onReport(listener: (text: string) => void): void;
  /** Settles with all of it, when nobody has the descriptor any more. */
  reported: Promise<string>;
  /** @returns whether it has opened all its files; false: it has ended before. @throws Error when they cannot be written */
  become(what: ExecSpec): Promise<boolean>;
  /** Without having become anything. */
  end(): Promise<void>;
};

/**
 * What each first process runs, with the files to write to in `$1` to `--`. It reads a line from descriptor 3, `next` and the
 * path of what it runs next.
 */
const JOIN_AND_WAIT = `failed=
while [ "$1" != -- ]; do { echo 0 > "$1"; } 2>/dev/null || failed=$1; shift; done
IFS=' ' read -r word next <&3 && [ "$word" = next ] || exit 0
. "$next"`;

/**
 * @param options.ownSession without a sandbox its process group is the way to all that it starts
 */
export function startFirstProcess(
  group: Cgroup | null,
  env: Record<string, string>,
  { ownSession = false } = {},
): FirstProcess {
  const groups = group ? joinFiles(group) : [];
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

  // It is listened to at once: what ends before somebody listens is never heard. There is none where no descriptor was free.
  const socket = child.stdio?.[3] as Socket | undefined;
  const { promise: reported, resolve: close } = Promise.withResolvers<string>();
  /** Settles with whether it has said something: that its files are open comes first. */
  const { promise: opened, resolve: open } = Promise.withResolvers<boolean>();
  const listeners: ((text: string) => void)[] = [];
  let text = '';
  const closed = () => {
    open(false);
    close(text);
  };
  // It may have been killed.
  socket?.on('error', () => {});
  socket?.once('close', closed);
  socket?.on('data', (chunk: Buffer) => {
    text += chunk;
    open(true);
    for (const listener of listeners) listener(text);
  });
  if (!socket) void exited.then(closed);
  const tell = (line: string) => void socket?.write(`${line}\n`);

  return {
    pid,
    exited,
    reported,
    onReport(listener) {
      listeners.push(listener);
      if (text) listener(text);
    },
    async become({ orders, argv, env: own, cwd, dir, out, err, setup, input }) {
      const files = ['setup', 'input', 'next'].map((name) => join(dir, name));
      const [setupFile = '', inputFile = '', nextFile = ''] = files;
      const exports = Object.entries(own).map(([name, value]) => `export ${name}=${quote(value)}`);
      const next = [
        `exec >>${quote(out)} 2>>${quote(err)} 4<${quote(setupFile)} 5<${quote(inputFile)}`,
        '[ "$failed" = "" ] || { echo "The control group cannot be joined: $failed" >&2; exit 125; }',
        'echo >&3',
        ...exports,
        `cd ${quote(cwd)} || exit 125`,
        ...orders,
        `exec ${argv.map(quote).join(' ')}`,
      ];
      try {
        writeFileSync(setupFile, setup, { mode: 0o400 });
        writeFileSync(inputFile, input.text, { mode: 0o400 });
        if (input.reader !== null) chownSync(inputFile, input.reader, input.reader);
        writeFileSync(nextFile, next.join('\n'), { mode: 0o400 });
        tell(`next ${nextFile}`);
        return await opened;
      } finally {
        for (const file of files) rmSync(file, { force: true });
      }
    },
    async end() {
      tell('end');
      await exited;
    },
  };
}
