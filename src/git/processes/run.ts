/**
 * The only place that starts `git`, and the owner of each process it starts: of the start that fails, of
 * every stream's errors, of the end.
 *
 *   using process = await startGit(['log'], { dir });   // rejects when it cannot be started
 *   for await (const chunk of process.stdout) …          // to its end, or leave: `using` then ends it
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
import { runProgram, type Streamed, startProgram } from '../../platform/processes/starter.ts';

export type GitOptions = EnvironmentOptions & {
  /** Ends the process when it aborts. */
  signal?: AbortSignal;
  /** Pipes beside stdin, stdout and stderr, as file descriptors 3 and up; hooks inherit them. */
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

/** More than `maxBytes`, which ended it. */
export class OutputTooLarge extends GitError {
  override name = 'SaidTooMuch';
}

/** Git could not be started: no descriptor, memory or process is free, or the program is gone. */
export class GitUnavailable extends Error {
  override name = 'GitUnavailable';
}

/** The folder that git was to work in does not exist. */
export class FolderMissing extends Error {
  override name = 'FolderMissing';
  readonly folder: string;

  constructor(folder: string) {
    super(`the folder ${folder} does not exist`);
    this.folder = folder;
  }
}

/** Between SIGTERM, on which git removes its locks and other temporary files (not a quarantine), and SIGKILL. */
const GRACE_MS = 5_000;
/** After its end, for what it has written; a program that it started may hold its outputs open for longer. */
const DRAIN_MS = 1_000;
const DEFAULT_TIMEOUT_MS = 30_000;
/** Of `gitLines`: twice a line of the largest file that is compared (`walk.ts`). */
const MAX_RECORD = 16 * 2 ** 20;
const MiB = 2 ** 20;

/** A process that was started. Its standard output must be read to the end, or the process be ended. */
export class GitProcess implements Disposable {
  readonly stdin: Writable;
  readonly stdout: Readable;
  /** The extra pipes, from descriptor 3 on. */
  readonly pipes: readonly Duplex[];
  /** Settles when the process has ended and its output is read, or given up. Never rejects. */
  readonly ended: Promise<GitExit>;
  readonly pid: number | undefined;
  readonly #program: Streamed;
  #over = false;
  #killing: NodeJS.Timeout | undefined;

  constructor(program: Streamed, aborting?: AbortSignal) {
    this.#program = program;
    this.pid = program.pid;
    this.stdin = program.stdin;
    this.stdout = program.stdout;
    this.pipes = program.pipes;
    const abort = () => this.end();
    aborting?.addEventListener('abort', abort);
    this.ended = this.#end().finally(() => {
      this.#over = true;
      clearTimeout(this.#killing);
      aborting?.removeEventListener('abort', abort);
    });
    if (aborting?.aborted) this.end();
  }

  async #end(): Promise<GitExit> {
    const { stdin, stdout, pipes, ended } = this.#program;
    const { code, signal, stderr } = await ended.catch(async (error: Error) => {
      // What has started it has died. It goes on, and the end of its output is its end.
      await closed(stdout);
      return { code: null, signal: null, stderr: error.message };
    });
    if (this.#over) this.#drain();
    stdin.destroy();
    // What nobody reads: whoever has just started it has had time to begin.
    await new Promise((resolve) => setImmediate(resolve));
    for (const stream of [stdout, ...pipes]) stream.resume();
    await closed(stdout);
    return { code, signal, stderr: stderr.trim() };
  }

  /** SIGTERM, and SIGKILL when that was not enough. Safe to call more than once, and after the end. */
  end(): void {
    if (this.#over) return;
    this.#over = true;
    const { stdin, pipes, kill } = this.#program;
    // A hook that waits for an answer reads the end of its pipe instead.
    for (const stream of [stdin, ...pipes]) stream.destroy();
    kill('SIGTERM');
    this.#killing = setTimeout(() => {
      kill('SIGKILL');
      // Where nobody tells its end any more.
      this.#drain();
    }, GRACE_MS);
  }

  #drain(): void {
    clearTimeout(this.#killing);
    this.#killing = setTimeout(() => this.#program.stdout.destroy(), DRAIN_MS);
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
  // Node says ENOENT for a missing program and for a missing folder alike.
  if ((code === 'ENOENT' || code === 'ENOTDIR') && !(await isFolder(cwd)))
    return new FolderMissing(cwd);
  return new GitUnavailable(`git could not be started: ${message}`, { cause: error });
}

export type RunOptions = GitOptions & {
  input?: string | Uint8Array;
  timeoutMs?: number;
  /** Of standard output; more ends the command with an error. */
  maxBytes?: number;
};

/**
 * Runs a command to its end and gives its standard output.
 * @throws GitError when it fails, takes longer than `timeoutMs` or says more than `maxBytes`; as `startGit`.
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
 * As `git`, by the process that starts programs for this one (`starter.ts`): what several of them in a row would hold the
 * main thread up for is more than their work.
 * @throws as `git`
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
 * The pieces of a command's output between separators, as they come; leaving the loop ends the command.
 * A piece is held whole.
 * @throws GitError when the command fails; SaidTooMuch for a piece of more than 16 MiB; as `startGit`.
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
    // A name in a tree may be as long as an object.
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

/** @throws Error when git is missing or older than what the pool of `cat-file` needs. */
export async function checkVersion(): Promise<string> {
  const version = await git(['version']).then(
    (output) => /\d+\.\d+(\.\d+)*/.exec(output.toString())?.[0] ?? '',
    () => '',
  );
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major > 2 || (major === 2 && minor >= 38)) return version;
  throw new Error(
    `Loam needs git 2.38 or newer; ${version ? `this machine has ${version}` : 'there is none on the PATH'}`,
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
 * The environment of git processes.
 *
 * A repository is a stranger's data, so nothing else may steer the program: no system or user
 * configuration, no prompts, no hooks but those named by the caller, no replaced objects.
 */
const CONFIG: Record<string, string> = {
  'safe.directory': '*',
  'core.hooksPath': '/dev/null',
  'core.quotePath': 'false',
  // Attributes of the pushed files must not steer the server; git from 2.43 reads them in bare repositories.
  'attr.tree': '4b825dc642cb6eb9a060e54bf8d69288fbee4904',
  'core.attributesFile': '/dev/null',
  // Maintenance has an owner here (maintenance.ts); git must not detach its own.
  'gc.auto': '0',
  'maintenance.auto': 'false',
  'receive.autogc': 'false',
  // Larger files are streamed instead of held in memory, and never become deltas.
  'core.bigFileThreshold': '32m',
  // What was acknowledged to a client as stored survives a loss of power.
  'core.fsync': 'committed,reference,loose-object',
  // One process at a time writes it, which takes a second where refs are many; the others wait.
  'core.packedRefsTimeout': '15000',
  'advice.detachedHead': 'false',
};

type EnvironmentOptions = {
  /** The repository (`GIT_DIR`); unset for commands that need none. */
  dir?: string;
  /** Where it works. Default: `dir`, else `/`. */
  cwd?: string;
  /** Configuration for this command and the programs it starts. */
  config?: Record<string, string>;
  env?: Record<string, string>;
};

/** The whole environment of a git process: of our own, only PATH is passed on. */
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
    // Relative where it can be: git makes the folders that a file of its needs, and would make those of a repository
    // anew that is deleted meanwhile. Its working folder goes with the repository.
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
