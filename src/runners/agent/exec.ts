/**
 * Runs commands beside that of the job on a node of a cluster, each by scripts in a folder of its own, which also has FIFOs for its
 * streams. In a pod the shell around the job's command runs the scripts (`../container/wrapper.ts`), because the agent is in
 * another container; elsewhere the agent runs them itself. A terminal is made by `script` of util-linux, as for processes.
 *
 *   begin     runs the command, and reports its exit code
 *   command   reports the process id and its start time, sets the environment, and becomes the command
 *   resize, signal   change the size of the terminal, and signal the processes of the session
 *   in, out, err     the streams of the command; `report`: one line of `command`, one of `begin`
 */
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { chmodSync, closeSync, constants, mkdirSync, openSync, renameSync } from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { TerminalSize } from '../../platform/frames.ts';
import { SIGNAL_SCRIPT } from '../container/session-signals.ts';
import { DEFAULT_PATH } from '../container/wrapper.ts';
import { drainOutput } from '../exec-stream.ts';
import { SHELL_FOR_PEOPLE } from '../process/exec.ts';
import { exportScript } from '../process/launch.ts';
import { quoteForShell } from '../process/namespace.ts';
import { type ExecSession, type ExecSpec, NotExecutable } from '../runner.ts';

/** Where commands run beside that of the job. */
export type ExecPlace = {
  /** The folder for the folders of sessions, as the agent sees it, and as the command does. */
  dir: string;
  seenDir: string;
  /** The script that sets the environment of the job. */
  environment: string;
  /** Starts `/bin/sh` with a script of a session, by its path below the folder, and does not wait for it. */
  run(path: string): void;
};

const BEGIN_TIMEOUT_MS = 10_000;
/** Time between SIGTERM and SIGKILL for processes of a session that is closed. */
const GRACE_MS = 2_000;
const MAX_REPORT_LENGTH = 200;

type Leader = { pid: string; startTime: string };

/** @throws NotExecutable */
export async function openExec(place: ExecPlace, spec: ExecSpec): Promise<ExecSession> {
  const name = `exec.${randomUUID()}`;
  const folder = join(place.dir, name);
  const run = async (script: string, text: string) => {
    const file = join(folder, script);
    await writeFile(`${file}.new`, text, { mode: 0o644 });
    // An earlier script may be running.
    renameSync(`${file}.new`, file);
    place.run(`${name}/${script}`);
  };
  mkdirSync(folder);
  // In a pod, the job may have another user.
  chmodSync(folder, 0o755);
  using cleanup = new DisposableStack();
  cleanup.defer(() => void rm(folder, { recursive: true, force: true }).catch(() => {}));
  const paths = ['in', 'out', 'err', 'report'].map((each) => join(folder, each));
  await promisify(execFile)('mkfifo', ['-m', '666', ...paths]);
  const [inPath = '', ...readPaths] = paths;
  const { stdin, close: closeInput } = openInput(inPath);
  cleanup.defer(closeInput);
  const [out, err, report] = readPaths.map((path) => {
    const fifo = openOutput(path);
    cleanup.defer(() => fifo.socket.destroy());
    return fifo;
  }) as [Fifo, Fifo, Fifo];
  const reported = readReports(report.socket);
  await writeFile(join(folder, 'command'), commandScript(place.environment, spec));
  await run('begin', beginScript(join(place.seenDir, name), spec.terminal !== null));
  const leader = await readLeader(reported);
  // The command has opened them.
  for (const { closeWriter } of [out, err, report]) closeWriter();
  const owned = cleanup.move();
  const streams = spec.terminal ? [out.socket] : [out.socket, err.socket];
  const signal = (how: 'TERM' | 'KILL') =>
    run('signal', signalScript(leader, how, spec.terminal !== null)).catch(() => {});
  const exited = (async () => {
    const [, code] = /^exit (\d{1,3})$/.exec((await reported.next()).value ?? '') ?? [];
    // The job has meddled with the reports, or killed the process that sends them.
    if (code === undefined) await signal('KILL');
    stdin.destroy();
    await Promise.all(streams.map(drainOutput));
    owned.dispose();
    return code === undefined ? null : Number(code);
  })();
  exited.catch(() => {});
  return {
    stdin,
    stdout: out.socket,
    stderr: spec.terminal ? null : err.socket,
    exited,
    resize: (size) => run('resize', resizeScript(leader, size)).catch(() => {}),
    close() {
      // The kernel hangs the terminal up when `script` ends.
      void signal(spec.terminal ? 'KILL' : 'TERM');
      if (!spec.terminal) setTimeout(() => void signal('KILL'), GRACE_MS).unref();
    },
  };
}

type Fifo = { socket: Socket; closeWriter(): void };

/** Without a writer, a FIFO that nobody has opened yet would be at its end. */
function openOutput(path: string): Fifo {
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(path, constants.O_WRONLY);
  const socket = new Socket({ fd: reader, readable: true, writable: false });
  socket.on('error', () => {});
  let isOpen = true;
  const closeWriter = () => {
    if (isOpen) closeSync(writer);
    isOpen = false;
  };
  socket.once('close', closeWriter);
  return { socket, closeWriter };
}

/** Open for reading too, so that it can be opened before the command does. */
function openInput(path: string): { stdin: Writable; close(): void } {
  const fd = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
  const socket = new Socket({ fd, readable: false, writable: true });
  // The command has ended before it read its input.
  socket.on('error', () => {});
  const stdin = new Writable({
    write: (chunk, _, done) => void socket.write(chunk, () => done()),
    // A FIFO is at its end when it is closed. All of the input was written to it before.
    destroy(error, done) {
      socket.destroy();
      done(error);
    },
  });
  stdin.on('error', () => {});
  return { stdin, close: () => stdin.destroy() };
}

/** The job can write into the FIFO too. */
async function* readReports(report: Socket): AsyncGenerator<string, undefined> {
  let text = '';
  for await (const chunk of report.setEncoding('latin1')) {
    const lines = (text + chunk).split('\n');
    text = lines.pop() ?? '';
    if (text.length > MAX_REPORT_LENGTH) return undefined;
    yield* lines;
  }
  return undefined;
}

/** @throws NotExecutable */
async function readLeader(reported: AsyncGenerator<string, undefined>): Promise<Leader> {
  const timeout = new AbortController();
  const late = delay(BEGIN_TIMEOUT_MS, undefined, { signal: timeout.signal }).catch(() => {});
  const first = await Promise.race([reported.next(), late]);
  timeout.abort();
  const [, pid, startTime] = /^begun (\d{1,10}) (\d{1,20})$/.exec(first?.value ?? '') ?? [];
  if (pid === undefined || startTime === undefined)
    throw new NotExecutable(
      first ? 'The command could not begin.' : 'The job did not start the command in time.',
    );
  return { pid, startTime };
}

/** The prefix of variables avoids clashes with those of an image. `setsid` may be missing in the job's own PATH, and at all. */
function beginScript(folder: string, hasTerminal: boolean): string {
  const dir = quoteForShell(folder);
  return `loam_path=$PATH loam_setsid=
PATH=${DEFAULT_PATH}:$PATH
exec </dev/null >/dev/null 2>&1 3>${dir}/report
loam_setsid=$(command -v setsid) || :
PATH=$loam_path
unset loam_path
$loam_setsid /bin/sh ${dir}/command <${dir}/in >${dir}/out 2>${hasTerminal ? '&1' : `${dir}/err`}
echo "exit $?" >&3
`;
}

function commandScript(environment: string, { command, env, terminal }: ExecSpec): string {
  const text = command ?? SHELL_FOR_PEOPLE;
  return `read -r loam_stat </proc/$$/stat
set -- \${loam_stat##*) }
echo "begun $$ \${20}" >&3
exec 3>&-
unset loam_stat loam_setsid
${environment}${exportScript(env)}${terminal ? terminalScript(text, terminal) : `exec /bin/sh -c ${quoteForShell(text)}`}
`;
}

/** The `script` of busybox gives no exit code. */
function terminalScript(command: string, { rows, columns }: TerminalSize): string {
  return `case $(script --version 2>/dev/null) in
  *util-linux*) ;;
  *) echo "A terminal needs the program script of util-linux, which this job lacks."; exit 127 ;;
esac
export SHELL=/bin/sh
exec script -qec ${quoteForShell(`stty rows ${rows} cols ${columns} 2>/dev/null; ${command}`)} /dev/null`;
}

function resizeScript({ pid }: Leader, { rows, columns }: TerminalSize): string {
  return `PATH=${DEFAULT_PATH}:$PATH
read -r loam_child loam_rest </proc/${pid}/task/${pid}/children
exec stty -F /proc/$loam_child/fd/0 rows ${rows} cols ${columns} >/dev/null 2>&1
`;
}

function signalScript(
  { pid, startTime }: Leader,
  how: 'TERM' | 'KILL',
  hasTerminal: boolean,
): string {
  return `set -- ${pid} ${startTime} ${how} ${hasTerminal ? 'leader' : 'attached'}\n${SIGNAL_SCRIPT}\n`;
}
