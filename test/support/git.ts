/** The stock git as a user runs it, in its own folder. */
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Client } from './harness.ts';

export type GitResult = { code: number; stdout: string; stderr: string };

export class Workspace implements AsyncDisposable {
  readonly path: string;

  constructor(path: string) {
    this.path = path;
  }

  static async open(): Promise<Workspace> {
    return new Workspace(await mkdtemp(join(tmpdir(), 'loam-workspace-')));
  }

  /** Runs git in `folder`, a path within the workspace; never throws for an exit code. */
  try(folder: string, ...args: string[]): Promise<GitResult> {
    const options = {
      cwd: join(this.path, folder),
      maxBuffer: 64 * 2 ** 20,
      env: {
        PATH: process.env.PATH,
        HOME: this.path,
        GIT_CONFIG_NOSYSTEM: '1',
        GIT_TERMINAL_PROMPT: '0',
        GIT_AUTHOR_NAME: 'Ada',
        GIT_AUTHOR_EMAIL: 'ada@example.com',
        GIT_COMMITTER_NAME: 'Ada',
        GIT_COMMITTER_EMAIL: 'ada@example.com',
        LC_ALL: 'C',
      },
    };
    return new Promise((resolve) => {
      execFile('git', args, options, (error, stdout, stderr) => {
        resolve({ code: error ? Number(error.code ?? 1) : 0, stdout, stderr });
      });
    });
  }

  /** Runs git, which must succeed. @returns its output */
  async git(folder: string, ...args: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.try(folder, ...args);
    if (code !== 0) throw new Error(`git ${args.join(' ')} ended with ${code}\n${stderr}`);
    return stdout.trim();
  }

  /** Clones a repository, as in `ada/code`, into the folder `code` or another. An empty one is on the branch main. */
  async clone(client: Client, repository: string, ...folder: [] | [string]): Promise<void> {
    const url = remote(client, repository);
    await this.git('.', '-c', 'init.defaultBranch=main', 'clone', '-q', url, ...folder);
  }

  /** Writes files into a work tree and commits them. */
  async commit(folder: string, files: Record<string, string | Buffer>, message = 'change') {
    for (const [path, content] of Object.entries(files)) {
      const file = join(this.path, folder, path);
      await mkdir(dirname(file), { recursive: true });
      await writeFile(file, content);
    }
    await this.git(folder, 'add', '-A');
    await this.git(folder, 'commit', '-q', '-m', message);
    return this.git(folder, 'rev-parse', 'HEAD');
  }

  /** A commit without a parent, with a later header line that looks like the parent `parent`. */
  async forgeParent(folder: string, parent: string): Promise<string> {
    const tree = await this.git(folder, 'rev-parse', `${parent}^{tree}`);
    const who = 'Ada <ada@example.com> 1700000000 +0000';
    const header = `tree ${tree}\nauthor ${who}\ncommitter ${who}\nx-other line\nparent ${parent}\n`;
    await writeFile(join(this.path, folder, '.git/forged'), `${header}\nforged\n`);
    return this.git(folder, 'hash-object', '-t', 'commit', '-w', '--literally', '.git/forged');
  }

  async [Symbol.asyncDispose]() {
    await rm(this.path, { recursive: true, force: true });
  }
}

/** The URL of a repository with the client's token in it. */
export function remote(client: Client, repository: string): string {
  const url = new URL(`${client.base}/${repository}.git`);
  if (client.token) Object.assign(url, { username: 'x', password: client.token });
  return url.href;
}
