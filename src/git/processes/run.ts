/**
 * The only place that starts `git`, and the owner of each process it starts: of the start that fails, of
 * every stream's errors, of the end.
 *
 *   using process = await startGit(['log'], { dir });   // rejects when it cannot be started
 *   for await (const chunk of process.stdout) …          // to its end, or leave: `using` then ends it
 *   const { code, stderr } = await process.ended;        // never rejects
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { channel } from 'node:diagnostics_channel';
import { stat } from 'node:fs/promises';
import type { Socket } from 'node:net';
import type { Duplex, Readable, Writable } from 'node:stream';
import { runProgram } from '../../processes/starter.ts';
import { environment, type Surroundings } from './environment.ts';

export type GitOptions = Surroundings & {
  /** Ends the process when it aborts. */
  signal?: AbortSignal;
  /** Pipes beside stdin, stdout and stderr, as file descriptors 3 and up; hooks inherit them. */
  extraPipes?: number;
};

/**
 * `code` is null when a signal ended it: ours after a timeout, an abort or an answer beyond its bound, or
 * SIGABRT, with which git ends itself when a client says what it takes for impossible.
 */
export type Ending = { code: number | null; signal: NodeJS.Signals | null; stderr: string };

/** The channel of `node:diagnostics_channel` on which each process that was started is told, in its caller's context. */
export const GIT_STARTED = 'loam:git:started';
/** `args`: the command, such as `rev-list`, and what it was given. */
export type StartedGit = { args: readonly string[]; ended: Promise<Ending> };
const startedGit = channel(GIT_STARTED);

/** Git ran and failed. */
export class GitError extends Error {
  override name = 'GitError';
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stderr: string;

  constructor(command: string, { code, signal, stderr }: Ending) {
    super(`git ${command} ended with ${code ?? signal}: ${stderr.slice(0, 2_000)}`);
    this.code = code;
    this.signal = signal;
    this.stderr = stderr;
  }
}

/** More than `maxBytes`, which ended it. */
export class SaidTooMuch extends GitError {
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
const MAX_PIECE = 16 * 2 ** 20;
const MAX_STDERR = 16_384;
const MiB = 2 ** 20;

/** A process that was started. Its standard output must be read to the end, or the process be ended. */
export class GitProcess implements Disposable {
  readonly stdin: Writable;
  /** Not of one that writes to a socket of its own (`startGitOn`). */
  readonly stdout: Readable;
  /** The extra pipes, from descriptor 3 on. */
  readonly pipes: readonly Duplex[];
  /** Settles when the process and its streams have ended. Never rejects. */
  readonly ended: Promise<Ending>;
  readonly pid: number | undefined;
  readonly #child: ChildProcess;
  #over = false;

  /** Only for `startGit`: in the same tick as the child's `spawn`, so that no event is missed. */
  constructor(child: ChildProcess, aborting?: AbortSignal) {
    this.#child = child;
    this.pid = child.pid;
    const [stdin, stdout, stderr, ...pipes] = child.stdio;
    this.stdin = stdin as Writable;
    this.stdout = stdout as Readable;
    this.pipes = pipes as unknown[] as Duplex[];
    const said = collect(stderr as Readable);
    const abort = () => this.end();
    aborting?.addEventListener('abort', abort);
    this.ended = new Promise((resolve) => {
      child.once('close', (code, signal) => {
        this.#over = true;
        aborting?.removeEventListener('abort', abort);
        resolve({ code, signal, stderr: said() });
      });
    });
    if (aborting?.aborted) this.end();
  }

  /** SIGTERM, and SIGKILL when that was not enough. Safe to call more than once, and after the end. */
  end(): void {
    if (this.#over) return;
    this.#over = true;
    const child = this.#child;
    // A hook that waits for an answer reads the end of its pipe instead.
    for (const stream of [this.stdin, ...this.pipes]) stream.destroy();
    child.kill('SIGTERM');
    let timer = setTimeout(() => child.kill('SIGKILL'), GRACE_MS);
    const drain = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        for (const stream of child.stdio) stream?.destroy();
      }, DRAIN_MS);
    };
    if (child.exitCode !== null || child.signalCode !== null) drain();
    else child.once('exit', drain);
    child.once('close', () => clearTimeout(timer));
  }

  [Symbol.dispose](): void {
    this.end();
  }
}

/**
 * Starts git with all its streams piped.
 * @throws FolderMissing, GitUnavailable
 */
export function startGit(args: readonly string[], options: GitOptions = {}): Promise<GitProcess> {
  return startWriting('pipe', args, options);
}

/**
 * Starts git with `socket` as its standard output. Nothing of what it writes passes this process, which closes its own end.
 * @throws as `startGit`
 */
export async function startGitOn(
  socket: Socket,
  args: readonly string[],
  options: GitOptions = {},
): Promise<Omit<GitProcess, 'stdout'>> {
  try {
    return await startWriting(socket, args, options);
  } finally {
    socket.destroy();
  }
}

async function startWriting(
  stdout: 'pipe' | Socket,
  args: readonly string[],
  options: GitOptions,
): Promise<GitProcess> {
  const cwd = options.cwd ?? options.dir ?? '/';
  try {
    return await new Promise<GitProcess>((resolve, reject) => {
      const child = spawn('git', args, {
        cwd,
        env: environment(options),
        stdio: ['pipe', stdout, 'pipe', ...Array(options.extraPipes ?? 0).fill('pipe')],
      });
      // For as long as it runs: an `error` without a listener would end the server, and there is one when a signal
      // cannot be sent.
      child.on('error', reject);
      child.once('spawn', () => {
        // What cannot be written any more shows in the process's end.
        for (const stream of child.stdio) stream?.on('error', () => {});
        const process = new GitProcess(child, options.signal);
        const { ended } = process;
        startedGit.publish({ args, ended } satisfies StartedGit);
        resolve(process);
      });
    });
  } catch (error) {
    throw await whyNotStarted(error as Error, cwd);
  }
}

async function whyNotStarted(error: Error, cwd: string): Promise<FolderMissing | GitUnavailable> {
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
export async function gitApart(
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
    throw await whyNotStarted(error, cwd);
  });
  if (ending.tooMuch) throw new SaidTooMuch(args[0] ?? '', ending);
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
    if (rest.length > MAX_PIECE)
      throw new SaidTooMuch(args[0] ?? '', { code: null, signal: null, stderr: '' });
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

/** Reads a stream to its end and keeps its beginning. */
function collect(stream: Readable): () => string {
  let text = '';
  stream.setEncoding('utf8');
  stream.on('data', (chunk: string) => {
    if (text.length < MAX_STDERR) text += chunk.slice(0, MAX_STDERR - text.length);
  });
  return () => text.trim();
}

async function isFolder(path: string): Promise<boolean> {
  return stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );
}
