/**
 * Runs commands beside that of a job in its container, each as an `exec` of the engine: as the job's user, with its limits, and
 * with the environment that the start script reads too.
 *
 * The engine neither ends an exec whose client has gone, nor signals it. So a shell in the container first prints its process id,
 * and then becomes the command. It leads a session of its own, whose processes a second exec signals. A file in the attempt's
 * folder lists each running session, so that a restarted server ends the sessions of the previous process:
 *   session.<process id in the container>.<start time of the process>
 */
import { once } from 'node:events';
import { readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Duplex, PassThrough, type Readable, Writable } from 'node:stream';
import { Backoff } from '../../base/backoff.ts';
import type { TerminalSize } from '../../platform/frames.ts';
import { SIGNAL_SCRIPT } from '../container/session-signals.ts';
import { SHARED, SHARED_DIR } from '../container/shared-folder.ts';
import { DEFAULT_PATH, READ_ENVIRONMENT } from '../container/wrapper.ts';
import { SHELL_FOR_PEOPLE } from '../process/exec.ts';
import { exportScript } from '../process/launch.ts';
import { quoteForShell } from '../process/namespace.ts';
import { type ExecSession, type ExecSpec, NotExecutable, RunnerUnavailable } from '../runner.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';
import { readContainerState } from './outcome.ts';

type Target = { engine: Engine; container: string; attemptDir: string };
type Session = { pid: number; startTime: string; hasTerminal: boolean };

/** How long the shell in the container may take to begin. */
const BEGIN_TIMEOUT_MS = 30_000;
/** Time between SIGHUP or SIGTERM and SIGKILL for a session that is closed. */
const GRACE_MS = 2_000;
/**
 * How often a command is checked whose output is not read. Once it has ended, the rest of its output is read ahead, because the
 * engine discards what is not read within two seconds: Docker 20.10 lost 135 kB. The rest is at most about 2 MB; what
 * processes print that the command has left behind is not sent.
 */
const POLL_MS = 500;
const MAX_REST = 4 * 2 ** 20;
/** Maximum length of the first line, and of an error message in place of it. */
const MAX_FIRST_LINE = 500;
/** Maximum bytes of errors of the command that arrive before the first line: the pipe to the engine holds 64 KiB. */
const MAX_ERRORS = 2 ** 20;
const END_OF_TRANSMISSION = '\x04';
const FILE_PREFIX = 'session.';

/** The running commands of this process. */
export class ExecSessions {
  /** Paths of the files of running sessions. */
  readonly #files = new Set<string>();

  /** @throws NotExecutable, RunnerUnavailable */
  async open(target: Target, spec: ExecSpec): Promise<ExecSession> {
    const { engine } = target;
    const hasTerminal = spec.terminal !== null;
    const exec = await startExec(target, spec);
    const output = readOutput(exec.socket, hasTerminal);
    let session: Session;
    let early: { rest: Buffer; errors: Buffer };
    try {
      // In case the image has no `stty`. An engine that does not know the size begins with none.
      const sized = spec.terminal && resize(engine, exec.id, spec.terminal);
      const begun = await readFirstLine(target, exec.socket, output);
      session = { pid: begun.pid, startTime: begun.startTime, hasTerminal };
      early = begun;
      await sized;
    } catch (error) {
      exec.socket.destroy();
      throw error;
    }
    const file = join(target.attemptDir, `${FILE_PREFIX}${session.pid}.${session.startTime}`);
    this.#files.add(file);
    const end = () => endSession(target, session);
    try {
      await writeFile(file, '');
    } catch (error) {
      this.#files.delete(file);
      end();
      exec.socket.destroy();
      throw error;
    }
    const [stdout, stderr] = [new PassThrough(), hasTerminal ? null : new PassThrough()];
    stdout.write(early.rest);
    stderr?.write(early.errors);
    const stdin = openInput(exec.socket, hasTerminal);
    const exited = (async () => {
      const isRunning = async () => (await readExit(engine, exec.id)) === 'running';
      await forward(output, { stdout, stderr }, isRunning).catch(end);
      stdout.end();
      stderr?.end();
      const exitCode = await waitForExit(engine, exec.id);
      stdin.destroy();
      this.#files.delete(file);
      if (exitCode !== null) await rm(file, { force: true });
      return exitCode;
    })();
    exited.catch(() => {});
    return {
      stdin,
      stdout,
      stderr,
      exited,
      resize: (size) => resize(engine, exec.id, size),
      close: end,
    };
  }

  /** Ends the sessions of an attempt that a previous process of this server has left. */
  async endOrphans(target: Target): Promise<void> {
    const names = await readdir(target.attemptDir).catch(() => []);
    for (const name of names.filter((each) => each.startsWith(FILE_PREFIX))) {
      const file = join(target.attemptDir, name);
      if (this.#files.has(file)) continue;
      const [, pid, startTime = ''] = name.split('.');
      await signalSession(target, { pid: Number(pid), startTime, hasTerminal: false }, 'KILL');
      await rm(file, { force: true });
    }
  }
}

/**
 * The engine shows the arguments of an exec, but not its environment. So the command and its variables, which may be secret, are
 * in a variable.
 */
async function startExec(
  target: Target,
  { command, env, terminal }: ExecSpec,
): Promise<{ id: string; socket: Duplex }> {
  const { engine, container } = target;
  const script = `${exportScript(env)}exec /bin/sh -c ${quoteForShell(command ?? SHELL_FOR_PEOPLE)}`;
  const options = {
    Cmd: ['/bin/sh', '-c', entryScript(terminal)],
    Env: [`LOAM_EXEC=${script}`],
    AttachStdin: true,
    AttachStdout: true,
    AttachStderr: true,
    Tty: terminal !== null,
  };
  try {
    const { id } = await engine.call((docker) => docker.getContainer(container).exec(options));
    const start = { hijack: true, stdin: true, Detach: false, Tty: options.Tty };
    const socket = await engine.stream((docker) => docker.getExec(id).start(start));
    return { id, socket };
  } catch (error) {
    if (!(error instanceof EngineError)) throw error;
    await requireRunning(target);
    throw error;
  }
}

/** Prints the process id and start time, then becomes the command. PATH is kept as the first argument. */
function entryScript(terminal: TerminalSize | null): string {
  const size = terminal && `stty rows ${terminal.rows} cols ${terminal.columns} 2>/dev/null`;
  return `set -- "$PATH" "$LOAM_EXEC"
PATH=${DEFAULT_PATH}:$PATH
unset LOAM_EXEC TINI_KILL_PROCESS_GROUP
[ -r ${SHARED_DIR}/${SHARED.environment} ] || { echo "the job was prepared by an earlier version of Loam"; exit 126; }
${size ?? ':'}
read -r loam_stat </proc/$$/stat
set -- "$1" "$2" \${loam_stat##*) }
unset loam_stat
echo "$$ \${22}"
PATH=$1
set -- "$2"
${READ_ENVIRONMENT}eval "$1"`;
}

/** @throws NotExecutable when the container does not run */
async function requireRunning({ engine, container }: Target): Promise<void> {
  const state = await readContainerState(engine, container);
  if (state?.status !== 'running') throw new NotExecutable('The job does not run.');
}

type Output = AsyncGenerator<{ name: 'stdout' | 'stderr'; data: Buffer }>;

const HEADER_BYTES = 8;
const STDERR = 2;

/** Without a terminal, the engine sends frames: `[stream, 0, 0, 0, length as 4 bytes]`, then that many bytes. */
async function* readOutput(source: Readable, hasTerminal: boolean): Output {
  let header = Buffer.alloc(0);
  let remaining = 0;
  for await (const chunk of source as AsyncIterable<Buffer>) {
    if (hasTerminal) yield { name: 'stdout', data: chunk };
    for (let at = 0; !hasTerminal && at < chunk.length; ) {
      if (remaining === 0) {
        const part = chunk.subarray(at, at + HEADER_BYTES - header.length);
        header = Buffer.concat([header, part]);
        at += part.length;
        if (header.length < HEADER_BYTES) break;
        remaining = header.readUInt32BE(4);
        if (remaining === 0) header = Buffer.alloc(0);
        continue;
      }
      const data = chunk.subarray(at, at + remaining);
      at += data.length;
      remaining -= data.length;
      yield { name: header[0] === STDERR ? 'stderr' : 'stdout', data };
      if (remaining === 0) header = Buffer.alloc(0);
    }
  }
}

/**
 * Reads the line that the shell in the container prints before it becomes the command, after warnings of the shell itself. Errors of a fast command may arrive before
 * it, because the engine copies the two streams independently.
 * @returns `rest` and `errors`: what the command has printed already
 */
async function readFirstLine(
  target: Target,
  socket: Duplex,
  output: Output,
): Promise<{ pid: number; startTime: string; rest: Buffer; errors: Buffer }> {
  const timer = setTimeout(
    () => socket.destroy(new RunnerUnavailable('the engine does not begin the command')),
    BEGIN_TIMEOUT_MS,
  );
  let said = '';
  // Joined once, because a job can print them in single bytes.
  const pieces: Buffer[] = [];
  let errorBytes = 0;
  try {
    while (said.length < MAX_FIRST_LINE && errorBytes < MAX_ERRORS) {
      const { value, done } = await output.next();
      if (done) break;
      if (value.name === 'stderr') {
        pieces.push(value.data);
        errorBytes += value.data.length;
        continue;
      }
      said += value.data.toString('latin1');
      const [line, pid, startTime = ''] = /^(\d{1,10}) (\d{1,20})\r?\n/m.exec(said) ?? [];
      if (line === undefined) continue;
      const rest = Buffer.from(said.slice(said.indexOf(line) + line.length), 'latin1');
      return { pid: Number(pid), startTime, rest, errors: Buffer.concat(pieces) };
    }
  } finally {
    clearTimeout(timer);
  }
  await requireRunning(target);
  const why = (said + Buffer.concat(pieces).toString('utf8', 0, MAX_FIRST_LINE)).trim();
  throw new NotExecutable(`The command could not begin: ${why || 'no shell started'}.`);
}

/**
 * Passes the output on. While a reader is slow the engine is not read, until the command has ended.
 * @throws Error when the connection is interrupted
 */
async function forward(
  output: Output,
  targets: { stdout: PassThrough; stderr: PassThrough | null },
  isRunning: () => Promise<boolean>,
): Promise<void> {
  let hasEnded = false;
  let rest = 0;
  for await (const { name, data } of output) {
    if (hasEnded) rest += data.length;
    if (rest > MAX_REST) return;
    const target = targets[name] ?? targets.stdout;
    if (!target.destroyed) target.write(data);
    while (!hasEnded && !target.destroyed && target.writableNeedDrain) {
      await once(target, 'drain', { signal: AbortSignal.timeout(POLL_MS) }).catch(() => {});
      if (target.writableNeedDrain) hasEnded = !(await isRunning());
    }
  }
}

/** A connection for a terminal ends as a whole, so the terminal gets the key that ends its input. */
function openInput(socket: Duplex, hasTerminal: boolean): Writable {
  const stdin = new Writable({
    write: (chunk, _, done) => void socket.write(chunk, done),
    final(done) {
      if (hasTerminal) socket.write(END_OF_TRANSMISSION, done);
      else socket.end(done);
    },
  });
  // The command has ended before it read its input.
  stdin.on('error', () => {});
  return stdin;
}

/** @returns null when the engine does not know the exec, or does not answer */
async function readExit(engine: Engine, id: string): Promise<number | 'running' | null> {
  try {
    const { Running, ExitCode } = await engine.call((docker) => docker.getExec(id).inspect());
    return Running ? 'running' : ExitCode;
  } catch (error) {
    if (error instanceof RunnerUnavailable || error instanceof EngineError) return null;
    throw error;
  }
}

/** The output may end before the command, and the engine may learn of the end after that of the output. */
async function waitForExit(engine: Engine, id: string): Promise<number | null> {
  const backoff = new Backoff({ firstMs: 5, longestMs: POLL_MS });
  for (;;) {
    const exit = await readExit(engine, id);
    if (exit !== 'running') return exit;
    await backoff.pause();
  }
}

async function resize(engine: Engine, id: string, { rows, columns }: TerminalSize): Promise<void> {
  // Fails when the command has just ended.
  await engine.call((docker) => docker.getExec(id).resize({ h: rows, w: columns })).catch(() => {});
}

/** Hangs the terminal up, or ends the processes that use the streams of the session. */
function endSession(target: Target, session: Session): void {
  const first = session.hasTerminal ? 'HUP' : 'TERM';
  void signalSession(target, session, first).catch(() => {});
  setTimeout(() => void signalSession(target, session, 'KILL').catch(() => {}), GRACE_MS).unref();
}

/**
 * Signals the processes of a session, by a second exec, because the ids of processes are those of the container. SIGKILL only
 * ends the leader of a terminal; the kernel then hangs the terminal up. Nothing happens when the container has ended.
 */
async function signalSession(
  { engine, container }: Target,
  { pid, startTime, hasTerminal }: Session,
  signal: 'HUP' | 'TERM' | 'KILL',
): Promise<void> {
  const who = hasTerminal ? (signal === 'KILL' ? 'leader' : 'all') : 'attached';
  const args = [`${pid}`, startTime, signal, who];
  try {
    const exec = await engine.call((docker) =>
      docker.getContainer(container).exec({ Cmd: ['/bin/sh', '-c', SIGNAL_SCRIPT, 'sh', ...args] }),
    );
    const answer = await engine.call((docker) => docker.getExec(exec.id).start({ Detach: true }));
    answer.resume();
  } catch (error) {
    if (!isStatus(error, 404, 409)) throw error;
  }
}
