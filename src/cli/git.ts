/** Runs the user's git. */
import { execFile } from 'node:child_process';
import { resolve } from 'node:path';
import { quote } from './options.ts';

export class GitError extends Error {
  override name = 'GitError';
}

type GitOptions = {
  cwd?: string;
  env?: Record<string, string>;
  /** Whether another exit code than 0 gives null instead of an error. */
  mayFail?: boolean;
  /** For stdin. */
  input?: string | undefined;
  timeoutMs?: number;
  /** Ends git. */
  signal?: AbortSignal;
};

const MAX_OUTPUT_BYTES = 64 * 2 ** 20;

/** @returns stdout without the final newline @throws GitError with the command of git and what it wrote to stderr */
export async function git(args: readonly string[], options?: GitOptions): Promise<string>;
export async function git(
  args: readonly string[],
  options: GitOptions & { mayFail: true },
): Promise<string | null>;
export function git(
  args: readonly string[],
  { cwd, env, input = '', mayFail, timeoutMs = 0, signal }: GitOptions = {},
): Promise<string | null> {
  return new Promise((done, failed) => {
    const child = execFile(
      'git',
      args,
      {
        ...(cwd !== undefined && { cwd }),
        env: { ...process.env, LC_ALL: 'C', GIT_TERMINAL_PROMPT: '0', ...env },
        maxBuffer: MAX_OUTPUT_BYTES,
        timeout: timeoutMs,
        ...(signal && { signal }),
      },
      (error, stdout, stderr) => {
        if (!error) return done(stdout.replace(/\n$/, ''));
        if (mayFail && typeof error.code === 'number') return done(null);
        if (error.code === 'ENOENT') return failed(new GitError('git is not installed.'));
        const said = stderr.trim() || error.message;
        failed(new GitError(`git ${commandOf(args)} failed: ${said}`));
      },
    );
    // A git that ends early reads no further; its exit code tells why.
    child.stdin?.on('error', () => {}).end(input);
  });
}

/** The command among arguments such as `-c name=value push origin`. */
function commandOf(args: readonly string[]): string | undefined {
  return args.find((arg, index) => !arg.startsWith('-') && args[index - 1] !== '-c');
}

const ownPath = () => resolve(process.argv[1] ?? 'loam');

const locksKey = (server: string) => `lfs.${server}.locksverify`;

const helperKey = (server: string) => `credential.${server}.helper`;

/** `loam git-credential` as the value of `credential.helper`. */
export function gitHelper(): string {
  return `!${quote(ownPath())} git-credential`;
}

/** Makes `loam git-credential` the only credential helper of git for a server. */
export async function installGitHelper(server: string): Promise<void> {
  // The empty value removes helpers for all addresses, which would store the token elsewhere.
  await git(['config', '--global', '--replace-all', helperKey(server), '']);
  await git(['config', '--global', '--add', helperKey(server), gitHelper()]);
  // Loam has locks. Without the setting, git-lfs advises it at each push.
  await git(['config', '--global', locksKey(server), 'true']);
}

export async function forgetGitHelper(server: string): Promise<void> {
  await git(['config', '--global', '--remove-section', `credential.${server}`], { mayFail: true });
  await git(['config', '--global', '--unset', locksKey(server)], { mayFail: true });
}

const LFS_AGENT = 'lfs.customtransfer.loam-delta';

/** Makes `loam lfs-agent` the agent of git-lfs for uploads to servers that accept deltas. */
export async function installLfsAgent(): Promise<void> {
  const settings = { path: ownPath(), args: 'lfs-agent', direction: 'upload', concurrent: 'true' };
  for (const [name, value] of Object.entries(settings))
    await git(['config', '--global', '--replace-all', `${LFS_AGENT}.${name}`, value]);
}

/** @returns whether it was installed */
export async function uninstallLfsAgent(): Promise<boolean> {
  const args = ['config', '--global', '--remove-section', LFS_AGENT];
  return (await git(args, { mayFail: true })) !== null;
}

/** Whether somebody has git-lfs and could install the agent for it. */
export async function lacksLfsAgent(): Promise<boolean> {
  const installed = ['config', '--global', '--get', `${LFS_AGENT}.path`];
  if ((await git(installed, { mayFail: true })) !== null) return false;
  return (await git(['lfs', 'version'], { mayFail: true })) !== null;
}
