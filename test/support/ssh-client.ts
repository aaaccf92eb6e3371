/** The stock `ssh`, and `git` over it, as a user with keys runs them. */
import { execFile, execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { GitResult, Workspace } from './git.ts';
import type { Client } from './harness.ts';

export type Key = { path: string; publicKey: string };

export class SshUser {
  readonly workspace: Workspace;
  readonly key: Key;
  readonly port: number;
  readonly #known: string | undefined;

  /** `known`: a file with host keys, which must contain the server's; unset: any host key is accepted. */
  constructor(workspace: Workspace, key: Key, port: number, known?: string) {
    this.#known = known;
    this.workspace = workspace;
    this.key = key;
    this.port = port;
  }

  get options(): string[] {
    return [
      ...['-F', '/dev/null', '-i', this.key.path, '-p', `${this.port}`],
      ...[
        'IdentitiesOnly=yes',
        `StrictHostKeyChecking=${this.#known ? 'yes' : 'no'}`,
        `UserKnownHostsFile=${this.#known ?? '/dev/null'}`,
        'BatchMode=yes',
        'LogLevel=ERROR',
      ].flatMap((option) => ['-o', option]),
    ];
  }

  /** Runs `ssh`; never throws for its exit code. */
  ssh(args: string[], input = '', { user = 'git', before = [] as string[] } = {}) {
    return new Promise<GitResult>((resolve) => {
      const words = [...before, ...this.options, `${user}@127.0.0.1`, ...args];
      const child = execFile('ssh', words, (error, stdout, stderr) => {
        resolve({ code: error ? Number(error.code ?? -1) : 0, stdout, stderr });
      });
      child.stdin?.on('error', () => {});
      child.stdin?.end(input);
    });
  }

  url(repository: string): string {
    return `ssh://git@127.0.0.1:${this.port}/${repository}.git`;
  }

  /** As `Workspace.try`, with this key. */
  try(folder: string, ...args: string[]): Promise<GitResult> {
    const command = ['ssh', ...this.options].join(' ');
    return this.workspace.try(folder, '-c', `core.sshCommand=${command}`, ...args);
  }

  async git(folder: string, ...args: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.try(folder, ...args);
    if (code !== 0) throw new Error(`git ${args.join(' ')} ended with ${code}\n${stderr}`);
    return stdout.trim();
  }
}

let count = 0;

export function makeKey(workspace: Workspace, type = 'ed25519', ...more: string[]): Key {
  const path = join(workspace.path, `key-${++count}`);
  execFileSync('ssh-keygen', ['-q', '-t', type, ...more, '-N', '', '-C', 'test', '-f', path]);
  return { path, publicKey: readFileSync(`${path}.pub`, 'utf8') };
}

/** Creates a key for the client, and adds it to the client's account. */
export async function sshUser(
  client: Client,
  workspace: Workspace,
  port: number,
  ...type: [string?, ...string[]]
): Promise<SshUser & { id: string }> {
  const key = makeKey(workspace, ...type);
  const { addSshKey } = await client.gql(
    'mutation ($input: AddSshKeyInput!) { addSshKey(input: $input) { sshKey { id } } }',
    { input: { title: 'test', key: key.publicKey } },
  );
  return Object.assign(new SshUser(workspace, key, port), { id: addSshKey.sshKey.id });
}
