/**
 * The only place that starts `git`.
 *
 * A repository is a stranger's data, so nothing outside the command line may steer the program: no system
 * or user configuration, no prompts, no hooks but those named by the caller, no replaced objects.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { Readable, Writable } from 'node:stream';

export type GitOptions = {
  /** The repository (`GIT_DIR`); unset for commands that need none. */
  dir?: string;
  cwd?: string;
  /** Configuration for this command and the programs it starts. */
  config?: Record<string, string>;
  env?: Record<string, string>;
  signal?: AbortSignal;
  /** Pipes beside stdin, stdout and stderr, as file descriptors 3 and up; hooks inherit them. */
  extraPipes?: number;
};

export type GitProcess = ChildProcess & { stdin: Writable; stdout: Readable; stderr: Readable };

export class GitError extends Error {
  override name = 'GitError';
  /** Null when git was ended by a signal: a timeout, an abort, an answer beyond its bound. */
  readonly code: number | null;
  readonly stderr: string;

  constructor(command: string, code: number | null, stderr: string) {
    super(`git ${command} ended with ${code ?? 'a signal'}: ${stderr.slice(0, 2_000)}`);
    this.code = code;
    this.stderr = stderr;
  }
}

/** Between SIGTERM, on which git removes its temporary files, and SIGKILL. */
const GRACE_MS = 5_000;
const DEFAULT_TIMEOUT_MS = 30_000;
const MAX_STDERR = 16_384;
const MiB = 2 ** 20;

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
  // What a client was told is stored survives a loss of power.
  'core.fsync': 'committed,reference,loose-object',
  'advice.detachedHead': 'false',
};

/**
 * Starts git with all its streams piped. When `signal` aborts, it gets SIGTERM, and SIGKILL after a grace.
 * The caller reads both outputs to their end and listens to `exit` or `close`.
 */
export function spawnGit(args: readonly string[], options: GitOptions = {}): GitProcess {
  const { signal, extraPipes = 0 } = options;
  const child = spawn('git', args, {
    cwd: options.cwd ?? options.dir ?? '/',
    env: environment(options),
    stdio: ['pipe', 'pipe', 'pipe', ...Array(extraPipes).fill('pipe')],
  }) as GitProcess;
  // Writing to a process that is gone is no news, nor that it could not be started: its end tells the story.
  for (const emitter of [child, ...child.stdio]) emitter?.on('error', () => {});
  if (signal) {
    const end = () => terminate(child);
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
    child.once('close', () => signal.removeEventListener('abort', end));
  }
  return child;
}

/** SIGTERM, and SIGKILL when that was not enough. Safe to call more than once. */
export function terminate(child: ChildProcess): void {
  if (child.exitCode !== null || child.signalCode !== null || child.killed) return;
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), GRACE_MS);
  child.once('exit', () => clearTimeout(timer));
}

export type RunOptions = GitOptions & {
  input?: string | Uint8Array;
  timeoutMs?: number;
  /** Of standard output; more ends the command with an error. */
  maxBytes?: number;
};

/**
 * Runs a command to its end and gives its standard output.
 * @throws GitError when it fails, takes longer than `timeoutMs` or says more than `maxBytes`.
 */
export async function git(args: readonly string[], options: RunOptions = {}): Promise<Buffer> {
  const { timeoutMs = DEFAULT_TIMEOUT_MS, maxBytes = 16 * MiB } = options;
  const child = spawnGit(args, options);
  const timer = setTimeout(() => terminate(child), timeoutMs);
  const chunks: Buffer[] = [];
  let size = 0;
  child.stdout.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size <= maxBytes) chunks.push(chunk);
    else terminate(child);
  });
  const stderr = collectStderr(child);
  child.stdin.end(options.input);
  try {
    const { code } = await ended(child);
    if (code !== 0) throw new GitError(args[0] ?? '', code, stderr());
    return Buffer.concat(chunks);
  } finally {
    clearTimeout(timer);
  }
}

/** Settles when the process and its streams have ended; rejects when it could not be started. */
export function ended(child: ChildProcess): Promise<{ code: number | null }> {
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve({ code }));
  });
}

/** Reads standard error to its end and keeps its beginning. */
export function collectStderr(child: GitProcess): () => string {
  let text = '';
  child.stderr.setEncoding('utf8');
  child.stderr.on('data', (chunk: string) => {
    if (text.length < MAX_STDERR) text += chunk.slice(0, MAX_STDERR - text.length);
  });
  return () => text.trim();
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

function environment({ dir, config, env }: GitOptions): Record<string, string> {
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
    ...(dir && { GIT_DIR: dir }),
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
