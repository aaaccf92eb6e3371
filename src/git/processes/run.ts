/**
 * The only place that starts `git`. Owns each process that it starts: failed starts, stream errors and the exit.
 *
 *   using process = await startGit(['log'], { dir });   // rejects when git cannot be started
 *   for await (const chunk of process.stdout) …          // `using` ends git when the caller leaves early
 *   const { code, stderr } = await process.ended;        // never rejects
 */
import { channel } from 'node:diagnostics_channel';
import { stat } from 'node:fs/promises';
import type { Duplex, Readable, Writable } from 'node:stream';
import {
  GIT_STARTED,
  type GitExit,
  type StartedGit,
} from '../../platform/processes/git-started.ts';
import {
  runProgram,
  type StreamedProgram,
  startProgram,
} from '../../platform/processes/starter.ts';

type GitOptions = EnvironmentOptions & {
  /** Aborting ends the process. */
  signal?: AbortSignal;
  /** Number of pipes in addition to stdin, stdout and stderr, from file descriptor 3 on; hooks inherit them. */
  extraPipes?: number;
};

const startedGit = channel(GIT_STARTED);

/** Git ran and failed. */
export class GitError extends Error {
  override name = 'GitError';
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stderr: string;

  constructor(command: string, { code, signal, stderr }: GitExit) {
    super(`git ${command} ended with ${code ?? signal}: ${stderr.slice(0, 2_000)}`);
    this.code = code;
    this.signal = signal;
    this.stderr = stderr;
  }
}

/** The output exceeded `maxBytes`, so git was ended. */
export class OutputTooLarge extends GitError {
  override name = 'OutputTooLarge';
}

/** Git could not be started: file descriptors, memory or processes are exhausted, or the program is missing. */
export class GitUnavailable extends Error {
  override name = 'GitUnavailable';
}

/** The working directory for git does not exist. */
export class FolderMissing extends Error {
  override name = 'FolderMissing';
  readonly folder: string;

  constructor(folder: string) {
    super(`The folder ${folder} does not exist`);
    this.folder = folder;
  }
}

/** Time from SIGTERM to SIGKILL. On SIGTERM git removes its locks and temporary files, but not a quarantine. */
const GRACE_MS = 5_000;
/** Time to read remaining output after git has exited; a child process of git may keep the outputs open for longer. */
const DRAIN_MS = 1_000;
const DEFAULT_TIMEOUT_MS = 30_000;
const MiB = 2 ** 20;
/** Longest record of `gitLines`: twice the largest file that is compared line by line (`walk.ts`). */
const MAX_RECORD = 16 * MiB;

/** A running git process. The caller must read its standard output to the end, or end the process. */
export class GitProcess implements Disposable {
  readonly stdin: Writable;
  readonly stdout: Readable;
  /** The extra pipes, from file descriptor 3 on. */
  readonly pipes: readonly Duplex[];
  /** Resolves when the process has exited and its output was read or dropped. Never rejects. */
  readonly ended: Promise<GitExit>;
  readonly pid: number | undefined;
  readonly #program: StreamedProgram;
  #isEnding = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(program: StreamedProgram, signal?: AbortSignal) {
    this.#program = program;
    this.pid = program.pid;
    this.stdin = program.stdin;
    this.stdout = program.stdout;
    this.pipes = program.pipes;
    const abort = () => this.end();
    signal?.addEventListener('abort', abort);
    this.ended = this.#waitForEnd().finally(() => {
      this.#isEnding = true;
      clearTimeout(this.#timer);
      signal?.removeEventListener('abort', abort);
    });
    if (signal?.aborted) this.end();
  }

  async #waitForEnd(): Promise<GitExit> {
    const { stdin, stdout, pipes, ended } = this.#program;
    const { code, signal, stderr } = await ended.catch(async (error: Error) => {
      // The process starter died. Git continues, and the end of its output marks its exit.
      await closed(stdout);
      return { code: null, signal: null, stderr: error.message };
    });
    if (this.#isEnding) this.#drain();
    stdin.destroy();
    // Drops output that the caller does not read. The delay gives the caller time to begin reading.
    await new Promise((resolve) => setImmediate(resolve));
    for (const stream of [stdout, ...pipes]) stream.resume();
    await closed(stdout);
    return { code, signal, stderr: stderr.trim() };
  }

  /** Sends SIGTERM, and SIGKILL after a grace period. Safe to call repeatedly, and after the exit. */
  end(): void {
    if (this.#isEnding) return;
    this.#isEnding = true;
    const { stdin, pipes, kill } = this.#program;
    // A hook that waits for a verdict reads the end of its pipe.
    for (const stream of [stdin, ...pipes]) stream.destroy();
    kill('SIGTERM');
    this.#timer = setTimeout(() => {
      kill('SIGKILL');
      // The exit may not be reported, for example when the process starter has died.
      this.#drain();
    }, GRACE_MS);
  }

  /** Reads the rest of the output for at most `DRAIN_MS`. */
  #drain(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#program.stdout.destroy(), DRAIN_MS);
  }

  [Symbol.dispose](): void {
    this.end();
  }
}

/**
 * Starts git with all its streams piped.
 * @throws FolderMissing, GitUnavailable
 */
export async function startGit(
  args: readonly string[],
  options: GitOptions = {},
): Promise<GitProcess> {
  const cwd = options.cwd ?? options.dir ?? '/';
  const program = { file: 'git', args, cwd, env: environment(options) };
  const streamed = await startProgram(program, { pipes: options.extraPipes }).catch(
    async (error: Error) => {
      throw await startError(error, cwd);
    },
  );
  const process = new GitProcess(streamed, options.signal);
  const { ended } = process;
  startedGit.publish({ args, ended } satisfies StartedGit);
  return process;
}

async function startError(error: Error, cwd: string): Promise<FolderMissing | GitUnavailable> {
  const { code, message } = error as NodeJS.ErrnoException;
  // Node reports ENOENT both for a missing program and for a missing folder.
  if ((code === 'ENOENT' || code === 'ENOTDIR') && !(await isFolder(cwd)))
    return new FolderMissing(cwd);
  return new GitUnavailable(`Git could not be started: ${message}`, { cause: error });
}

type RunOptions = GitOptions & {
  input?: string | Uint8Array;
  timeoutMs?: number;
  /** Limit for standard output; exceeding it ends the command with an error. */
  maxBytes?: number;
};

/**
 * Runs a command to its end and returns its standard output.
 * @throws GitError when it fails, takes longer than `timeoutMs` or writes more than `maxBytes`; as `startGit`
 */
export async function git(args: readonly string[], options: RunOptions = {}): Promise<Buffer> {
  const { timeoutMs = DEFAULT_TIMEOUT_MS, maxBytes = 16 * MiB } = options;
  using process = await startGit(args, options);
  const timer = setTimeout(() => process.end(), timeoutMs);
  const chunks: Buffer[] = [];
  let size = 0;
  process.stdout.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size <= maxBytes) chunks.push(chunk);
    else process.end();
  });
  process.stdin.end(options.input);
  const ending = await process.ended;
  clearTimeout(timer);
  if (ending.code !== 0) throw new GitError(args[0] ?? '', ending);
  return Buffer.concat(chunks);
}

/**
 * Like `git`, but the process starter (`starter.ts`) also collects the output. Otherwise several commands in a row
 * block the main thread for longer than they take themselves.
 * @throws as `git`; OutputTooLarge
 */
export async function gitViaStarter(
  args: readonly string[],
  options: RunOptions & { input?: string } = {},
): Promise<Buffer> {
  const { timeoutMs = DEFAULT_TIMEOUT_MS, maxBytes = 16 * MiB, input, signal } = options;
  const cwd = options.cwd ?? options.dir ?? '/';
  const program = { file: 'git', args, cwd, env: environment(options) };
  const running = runProgram(program, { input, signal, timeoutMs, maxBytes });
  const ended = running.catch((error: Error) => ({ code: 1, signal: null, stderr: error.message }));
  startedGit.publish({ args, ended } satisfies StartedGit);
  const ending = await running.catch(async (error: Error) => {
    throw await startError(error, cwd);
  });
  if (ending.exceededLimit) throw new OutputTooLarge(args[0] ?? '', ending);
  if (ending.code !== 0) throw new GitError(args[0] ?? '', ending);
  return Buffer.from(ending.stdout);
}

/**
 * Yields the records of a command's output between separators, as they arrive. Each record is held in memory. Leaving
 * the loop ends the command.
 * @throws GitError when the command fails; OutputTooLarge for a record of more than 16 MiB; as `startGit`
 */
export async function* gitLines(
  args: readonly string[],
  { input, ...options }: RunOptions,
  { separator = '\n', encoding = 'utf8' as 'utf8' | 'latin1' } = {},
): AsyncGenerator<string> {
  using process = await startGit(args, options);
  process.stdin.end(input);
  let rest = '';
  for await (const chunk of process.stdout.setEncoding(encoding) as AsyncIterable<string>) {
    const [first = '', ...parts] = chunk.split(separator);
    rest += first;
    // A file name in a tree may be as long as the tree object.
    if (rest.length > MAX_RECORD)
      throw new OutputTooLarge(args[0] ?? '', { code: null, signal: null, stderr: '' });
    if (parts.length === 0) continue;
    yield rest;
    rest = parts.pop() ?? '';
    yield* parts;
  }
  if (rest) yield rest;
  const ending = await process.ended;
  if (ending.code !== 0) throw new GitError(args[0] ?? '', ending);
}

/** @throws Error when git is missing or older than 2.38, which `cat-file.ts` needs */
export async function checkVersion(): Promise<string> {
  const version = await git(['version']).then(
    (output) => /\d+\.\d+(\.\d+)*/.exec(output.toString())?.[0] ?? '',
    () => '',
  );
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major > 2 || (major === 2 && minor >= 38)) return version;
  throw new Error(
    `Loam needs git 2.38 or newer on the PATH; ${version ? `found git ${version}` : 'git was not found'}`,
  );
}

function closed(stream: Duplex): Promise<void> {
  if (stream.closed) return Promise.resolve();
  return new Promise((resolve) => stream.once('close', resolve));
}

async function isFolder(path: string): Promise<boolean> {
  return stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );
}

/**
 * Configuration of all git processes. Repositories contain untrusted data, so only the caller configures git: no system
 * or user configuration, no prompts, only the hooks that the caller names, no replacement objects.
 */
const CONFIG: Record<string, string> = {
  'safe.directory': '*',
  'core.hooksPath': '/dev/null',
  'core.quotePath': 'false',
  // Pushed attribute files must not affect the server. Git from 2.43 on reads them in bare repositories.
  'attr.tree': '4b825dc642cb6eb9a060e54bf8d69288fbee4904',
  'core.attributesFile': '/dev/null',
  // `maintenance.ts` runs maintenance; git must not start its own in the background.
  'gc.auto': '0',
  'maintenance.auto': 'false',
  'receive.autogc': 'false',
  // Larger files are streamed instead of held in memory, and never become deltas.
  'core.bigFileThreshold': '32m',
  // Data that was acknowledged to a client must survive a power loss.
  'core.fsync': 'committed,reference,loose-object',
  // One process at a time writes `packed-refs`, which takes a second with many refs; other processes wait.
  'core.packedRefsTimeout': '15000',
  'advice.detachedHead': 'false',
};

type EnvironmentOptions = {
  /** The repository (`GIT_DIR`). Unset for commands that need no repository. */
  dir?: string;
  /** Working directory. Default: `dir`, or `/` without it. */
  cwd?: string;
  /** Configuration for this command and its child processes. */
  config?: Record<string, string>;
  env?: Record<string, string>;
};

/** The complete environment of a git process. Only PATH is inherited. */
function environment({ dir, cwd, config, env }: EnvironmentOptions): Record<string, string> {
  const entries = Object.entries({ ...CONFIG, ...config });
  return {
    PATH: process.env.PATH ?? '/usr/bin:/bin',
    HOME: '/nonexistent',
    LC_ALL: 'C',
    TZ: 'UTC',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_CONFIG_GLOBAL: '/dev/null',
    GIT_ATTR_NOSYSTEM: '1',
    GIT_TERMINAL_PROMPT: '0',
    GIT_NO_REPLACE_OBJECTS: '1',
    GIT_ADVICE: '0',
    // Relative where possible. Git creates missing parent folders of its files, and with an absolute path it would
    // recreate a repository that is deleted while it runs. A relative path fails when the working directory is deleted.
    ...(dir && { GIT_DIR: cwd && cwd !== dir ? dir : '.' }),
    GIT_CONFIG_COUNT: `${entries.length}`,
    ...Object.fromEntries(
      entries.flatMap(([key, value], i) => [
        [`GIT_CONFIG_KEY_${i}`, key],
        [`GIT_CONFIG_VALUE_${i}`, value],
      ]),
    ),
    ...env,
  };
}
