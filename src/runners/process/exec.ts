/**
 * Runs a command in the sandbox of a running job, beside the job's own command: in its namespaces and control group, with its
 * account, limits and environment. The command ends with the job, and with this server.
 *
 * A terminal is made by `script` of util-linux, within the sandbox, so that `tty` and terminal multiplexers work. Without a
 * terminal, `cat` connects the command by pipes: the streams of Node are sockets, which a command cannot open as /dev/stdout.
 */
import { closeSync, openSync, readlinkSync, readSync, statSync } from 'node:fs';
import { constants as os } from 'node:os';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import type { TerminalSize } from '../../platform/frames.ts';
import {
  runProgram,
  type StreamedProgram,
  startProgram,
} from '../../platform/processes/starter.ts';
import { drainOutput } from '../exec-stream.ts';
import type { ExecSession, ExecSpec } from '../runner.ts';
import {
  ATTEMPT_ID_VARIABLE,
  listDescendants,
  readProcessStat,
  signalOne,
} from '../supervisor/proc.ts';
import { type Cgroup, listJoinFiles } from './cgroup.ts';
import { environmentScript, PATH } from './launch.ts';

/** JSON, because it is stored with the attempt. */
export type ExecPlan = {
  /** The beginning of the whole command line, which denies what no namespace separates. */
  prefix: string[];
  /** Shell commands that set the limits of a process. */
  limitCommands: string[];
  /** The beginning of a command line that gives up the rights that the job does not have. */
  rights: string[];
  /** The user of the job, which must be able to open its streams; null: the server's own user. */
  uid: number | null;
  /** The working directory, as the job sees it. */
  cwd: string;
};

type Target = ExecPlan & {
  attempt: string;
  /** The process that the shim started. */
  pid: number;
  /** Whether the job has namespaces of its own. */
  isSandboxed: boolean;
  cgroup: Cgroup | null;
};

/** Time between SIGTERM and SIGKILL for processes of a session that is closed. */
const GRACE_MS = 2_000;
/** Time for `stty`, whose process is one of the job's terminal. */
const RESIZE_MS = 2_000;
/** Of the environment of a job's process, which the process can change. What Loam sets is shorter. */
const MAX_ENVIRONMENT = 2 ** 19;
const MAX_VARIABLES = 5_000;

/** Ends together with the process that entered the namespaces, which ends with this server. */
const END_WITH_PARENT = ['setpriv', '--pdeathsig', 'KILL', '--'];

/**
 * @param isNew whether the command of the job may just begin, and not have its environment yet
 * @returns null when the command of the job has not begun, or has ended
 */
export async function execInSandbox(
  target: Target,
  spec: ExecSpec,
  isNew: boolean,
): Promise<ExecSession | null> {
  const { limitCommands, rights, uid, cwd, cgroup } = target;
  // Otherwise the process has ended, and another one has its pid.
  const isOwn = readEnvironment(target.pid)?.[ATTEMPT_ID_VARIABLE] === target.attempt;
  const found = target.isSandboxed ? findSandboxedCommand(target.pid) : { pid: target.pid };
  const command = isOwn ? found : undefined;
  const env = command && readEnvironment(command.pid);
  if (!env || (isNew && !('HOME' in env))) return null;
  const { terminal } = spec;
  const [file = '', ...args] = ['setsid', ...target.prefix, '/bin/sh'];
  const program = await startProgram(
    {
      file,
      args: [
        ...args,
        ...['-c', joinScript(limitCommands, terminal !== null, uid), 'sh'],
        ...(cgroup ? listJoinFiles(cgroup) : []),
        ...['--', ...enterNamespaces(command), ...rights, ...END_WITH_PARENT],
        ...['/bin/sh', '-c', entryScript(terminal), 'sh', spec.command ?? SHELL_FOR_PEOPLE],
      ],
      env: { PATH },
      cwd: '/',
    },
    { pipes: terminal ? 2 : 4 },
  );
  const [input, life, errors, code] = program.pipes;
  input?.end(environmentScript({ ...env, ...spec.env }, cwd));
  const session = errors && code ? openPipes(program, { errors, code }) : openTerminal(program);
  void session.exited.then(() => life?.end('ended\n'));
  return session;
}

/**
 * The shell for people: one that the sandbox has, with the environment of the job, which a login shell would change. The prompt of
 * bash names the job and the folder, unless the job or a file of bash sets another one than that of sh.
 */
export const SHELL_FOR_PEOPLE = `if command -v bash >/dev/null; then
  case $PS1 in '' | '# ' | '$ ') export PS1="$JOB_NAME:"'\\w\\$ ' ;; esac
  exec bash -i
else exec sh -i; fi`;

/**
 * Joins the control groups, sets the limits, and runs the rest of the arguments. Descriptor 3 has the environment, 5 gets the errors
 * and 6 the exit code. When 4 ends without a line, the server was killed, and the processes of this session are killed too.
 */
function joinScript(
  limitCommands: readonly string[],
  hasTerminal: boolean,
  uid: number | null,
): string {
  const give = uid === null ? '' : `chown ${uid} /dev/fd/0 /dev/fd/1 /dev/fd/2; `;
  const run = hasTerminal
    ? 'exec "$@"'
    : `exec 7>&1
{ cat 3<&- 6>&- 8>&- | { ${give}"$@" 5>&- 6>&- 7>&- 8>&-; echo $? >&6; } 2>&8 | cat >&7 3<&- 5>&- 6>&- 8>&-
} 8>&1 | cat >&5 3<&- 6>&- 7>&-`;
  return `{ read -r ended <&4 || kill -KILL 0; } 3<&- 5>&- 6>&- </dev/null >/dev/null 2>&1 &
exec 4<&-
while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done
shift
${limitCommands.join('\n')}
${run}`;
}

/** Runs within the sandbox: sets the environment from descriptor 3, and runs the command. */
function entryScript(terminal: TerminalSize | null): string {
  const setUp = 'eval "$(cat <&3)"; exec 3<&-';
  if (!terminal) return `${setUp}; exec /bin/sh -c "$1"`;
  const size = `stty rows ${terminal.rows} cols ${terminal.columns} 2>/dev/null`;
  return `${setUp}
command -v script >/dev/null || { echo "A terminal needs the program script of util-linux, which this machine lacks."; exit 127; }
export SHELL=/bin/sh
exec script -qec "${size}; $1" /dev/null`;
}

type Found = { pid: number; init?: number };

/** The job's own command: the oldest child of the first process of the sandbox. */
function findSandboxedCommand(root: number): Found | undefined {
  const init = [root, ...listDescendants(root)].find((pid) => readPids(pid).at(-1) === 1);
  if (init === undefined) return undefined;
  const [command] = readText(`/proc/${init}/task/${init}/children`).split(' ').map(Number);
  return command ? { pid: command, init } : undefined;
}

/** The ids of a process in its pid namespaces, outermost first. */
function readPids(pid: number): number[] {
  const [, ids = ''] = /^NSpid:\s*(.*)$/m.exec(readText(`/proc/${pid}/status`)) ?? [];
  return ids.split(/\s+/).map(Number);
}

/** Undefined when the process has ended. */
function readEnvironment(pid: number): Record<string, string> | undefined {
  const text = readText(`/proc/${pid}/environ`, MAX_ENVIRONMENT);
  if (!readProcessStat(pid)) return undefined;
  const entries = text.split('\0', MAX_VARIABLES).filter((entry) => /^[A-Za-z_]\w*=/.test(entry));
  return Object.fromEntries(
    entries.map((entry) => {
      const at = entry.indexOf('=');
      return [entry.slice(0, at), entry.slice(at + 1)];
    }),
  );
}

/** Name in /proc/<pid>/ns → option of nsenter. */
const NAMESPACES = {
  user: '--user',
  mnt: '--mount',
  pid: '--pid',
  net: '--net',
  ipc: '--ipc',
  uts: '--uts',
  cgroup: '--cgroup',
};

/** The beginning of a command line that enters the namespaces of the command, in two steps if its users are nested. */
function enterNamespaces({ pid, init }: Found): string[] {
  if (init === undefined) return [];
  const isOther = (name: string, a: number | 'self', b: number) =>
    readNamespace(a, name) !== readNamespace(b, name);
  const isRoot = process.getuid?.() === 0;
  const outer = isRoot ? undefined : findNetworkOwner(init);
  const options = Object.entries(NAMESPACES).flatMap(([name, option]) =>
    isOther(name, 'self', init) && !(name === 'net' && outer) ? [option] : [],
  );
  const enter = ['nsenter', '--target', String(init), ...options, '--preserve-credentials', '--'];
  // Root must not enter user namespaces that a job has made.
  if (isRoot) return enter;
  const network = ['--target', String(outer), '--user', '--net', '--preserve-credentials', '--'];
  const first = outer ? ['nsenter', ...network] : [];
  const inner = ['--target', String(readPids(pid).at(-1)), '--user', '--preserve-credentials'];
  const enterBoth = [...enter, 'nsenter', ...inner, '--'];
  if (isOther('user', init, pid)) return [...first, ...enterBoth];
  return isOther('user', 'self', init)
    ? [...first, 'perl', '-e', ENTER_OWNER, String(init), ...enterBoth]
    : [...first, ...enter];
}

/**
 * The process around the sandbox, if it made the network. Its user namespace owns the network then, and must be entered before those
 * of the sandbox.
 */
function findNetworkOwner(init: number): number | undefined {
  const outer = readProcessStat(init)?.parent;
  const network = outer && readNamespace(outer, 'net');
  return network &&
    network === readNamespace(init, 'net') &&
    network !== readNamespace('self', 'net')
    ? outer
    : undefined;
}

/**
 * Bubblewrap makes its namespaces in a user namespace that none of its processes is in, so that only a namespace it owns leads
 * to it. `nsenter` of util-linux 2.41 has an option for that. Arguments: a process in the namespaces, and the command line.
 */
const ENTER_OWNER = `
my $process = shift;
open my $mounts, '<', "/proc/$process/ns/mnt" or die $!;
my $NS_GET_USERNS = 0xb701;
my $number = ioctl($mounts, $NS_GET_USERNS, 0) or die $!;
open my $owner, '<&=', $number or die $!;
my ($F_SETFD, $INHERITED) = (2, 0);
fcntl $owner, $F_SETFD, $INHERITED or die $!;
exec map { $_ eq '--user' && !$done++ ? "--user=/proc/self/fd/$number" : $_ } @ARGV;
`;

function readNamespace(pid: number | 'self', name: string): string {
  try {
    return readlinkSync(`/proc/${pid}/ns/${name}`);
  } catch {
    return '';
  }
}

function openTerminal(program: StreamedProgram): ExecSession {
  const { stdin, stdout, pid = 0 } = program;
  let found: { pid: number; startTime: string } | undefined;
  /** `script`: it ends, and the kernel hangs up the terminal for all its processes, unless they ignore that. */
  const findScript = () => {
    // It may be a program of the job, which has ended. Then another process may have its pid.
    if (found && readProcessStat(found.pid)?.startTime !== found.startTime) found = undefined;
    found ??= findByName(pid, 'script');
    return found?.pid;
  };
  return {
    stdin,
    stdout,
    stderr: null,
    exited: program.ended.then(
      ({ code, signal }) => code ?? 128 + (signal ? os.signals[signal] : 0),
      () => null,
    ),
    resize({ rows, columns }) {
      const parent = findScript();
      const child =
        parent && Number.parseInt(readText(`/proc/${parent}/task/${parent}/children`), 10);
      const size = ['rows', `${rows}`, 'cols', `${columns}`];
      return child ? resizeTerminal(child, size) : Promise.resolve();
    },
    close() {
      const script = findScript();
      if (script === undefined) program.kill('SIGKILL');
      else signalOne(script, 'SIGKILL');
      // When its child is stopped, `nsenter` stops too, and would not notice the end of the child.
      for (const each of [pid, ...listDescendants(pid)]) signalOne(each, 'SIGCONT');
    },
  };
}

function findByName(root: number, name: string): { pid: number; startTime: string } | undefined {
  for (const pid of [root, ...listDescendants(root)]) {
    if (readText(`/proc/${pid}/comm`) !== `${name}\n`) continue;
    const stat = readProcessStat(pid);
    if (stat) return { pid, startTime: stat.startTime };
  }
  return undefined;
}

/** @param pid a process on the terminal, which the kernel signals when the size changes */
async function resizeTerminal(pid: number, size: string[]): Promise<void> {
  const file = `/proc/${pid}/fd/0`;
  try {
    // `stty` opens the file itself; the kernel resolves it to the terminal of the sandbox.
    const program = { file: 'stty', args: ['-F', file, ...size], env: { PATH }, cwd: '/' };
    await runProgram(program, { timeoutMs: RESIZE_MS });
  } catch {
    // The command has just ended.
  }
}

type Pipe = StreamedProgram['stdout'];

function openPipes(
  program: StreamedProgram,
  { errors, code }: { errors: Pipe; code: Pipe },
): ExecSession {
  const { stdin, stdout, pid = 0 } = program;
  let hasEnded = false;
  const markEnded = () => {
    hasEnded = true;
  };
  program.ended.then(markEnded, markEnded);
  // Afterwards, another process may have the pid.
  const listAttached = () => (hasEnded ? [] : listDescendants(pid).filter(isAttached));
  const exited = readLine(code).then(async (said) => {
    // Ends the `cat` before the command, which waits for input.
    stdin.destroy();
    await Promise.all([stdout, errors].map(drainOutput));
    return said === undefined ? null : Number(said);
  });
  return {
    stdin,
    stdout,
    stderr: errors,
    exited,
    async resize() {},
    close() {
      for (const each of listAttached()) {
        signalOne(each, 'SIGTERM');
        // A stopped process handles the signal only when it is continued. `nsenter` stops together with its child.
        signalOne(each, 'SIGCONT');
      }
      setTimeout(() => {
        for (const each of listAttached()) signalOne(each, 'SIGKILL');
      }, GRACE_MS).unref();
    },
  };
}

/**
 * Whether a process has a pipe or socket among its standard streams. What an editor leaves in the background, with files instead,
 * outlives a lost connection, as with OpenSSH's server.
 */
function isAttached(pid: number): boolean {
  return [0, 1, 2].some((descriptor) => {
    try {
      const file = statSync(`/proc/${pid}/fd/${descriptor}`);
      return file.isFIFO() || file.isSocket();
    } catch (error) {
      // It may have closed the stream, or ended; the descriptors of another user's process are not shown.
      return (error as NodeJS.ErrnoException).code === 'EACCES';
    }
  });
}

/** The first line; undefined if there is none. The process that waits for the `cat` before the command keeps the stream open. */
async function readLine(input: Readable): Promise<string | undefined> {
  for await (const line of createInterface({ input })) return line;
  return undefined;
}

function readText(file: string, maxBytes = 65_536): string {
  try {
    const descriptor = openSync(file, 'r');
    try {
      const bytes = Buffer.allocUnsafe(maxBytes);
      let size = 0;
      for (let more = -1; more !== 0 && size < maxBytes; size += more)
        more = readSync(descriptor, bytes, size, maxBytes - size, null);
      return bytes.toString('utf8', 0, size);
    } finally {
      closeSync(descriptor);
    }
  } catch {
    return '';
  }
}
