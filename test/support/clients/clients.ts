/** Git clients other than the stock one, used as their users run them. They only transfer: stock git makes the commits. */
import { execFile } from 'node:child_process';
import fs from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import isomorphic from 'isomorphic-git';
import http from 'isomorphic-git/http/node';
import type { GitResult } from '../git.ts';
import type { Need } from '../needs.ts';

/**
 * `home`: a folder whose `.netrc` or `.ssh` holds the credentials and the server's host keys. Keys are ECDSA in PEM, which
 * all clients can read; `ssh` is the command line of the SSH program.
 */
export type Credentials = { home: string } & (
  | { user: string; password: string }
  | { key: string; ssh: string }
);

export type Remote = { url: string; as: Credentials };

/** Folders are absolute paths. Messages to the user are in `stderr`; no client throws for an answer of the server. */
export type GitClient = {
  name: string;
  needs: readonly Need[];
  speaks: readonly ('http' | 'ssh')[];
  /** Null: the client has no shallow clones. */
  shallow: ((remote: Remote, folder: string) => Promise<GitResult>) | null;
  clone(remote: Remote, folder: string): Promise<GitResult>;
  /** Fetches from `origin`. */
  fetch(remote: Remote, folder: string): Promise<GitResult>;
  /** `source:target`, both full ref names; a leading `+` forces the update. */
  push(remote: Remote, folder: string, spec: string): Promise<GitResult>;
};

/** A client that runs for longer is killed, and fails. */
const TIMEOUT_MS = 240_000;

function run(
  command: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<GitResult> {
  return new Promise((resolve) => {
    const options = { timeout: TIMEOUT_MS, env: { PATH: process.env.PATH, LC_ALL: 'C', ...env } };
    execFile(command, args, options, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code ?? -1) : 0, stdout, stderr });
    });
  });
}

function python(script: string, more: NodeJS.ProcessEnv = {}) {
  const path = fileURLToPath(new URL(script, import.meta.url));
  return (verb: string, { as }: Remote, ...words: string[]) => {
    const env =
      'key' in as
        ? { CLIENT_KEY: as.key, GIT_SSH_COMMAND: as.ssh }
        : { CLIENT_USER: as.user, CLIENT_PASSWORD: as.password };
    // Debian's libraries work with Debian's Python.
    return run('/usr/bin/python3', ['-B', path, verb, ...words], {
      HOME: as.home,
      ...env,
      ...more,
    });
  };
}

function ofScript(
  call: ReturnType<typeof python>,
): Pick<GitClient, 'clone' | 'fetch' | 'push' | 'shallow'> {
  return {
    clone: (remote, folder) => call('clone', remote, folder, remote.url),
    shallow: (remote, folder) => call('clone', remote, '--depth=1', folder, remote.url),
    fetch: (remote, folder) => call('fetch', remote, folder, remote.url),
    push: (remote, folder, spec) => call('push', remote, folder, remote.url, spec),
  };
}

const libgit2: GitClient = {
  name: 'libgit2',
  needs: ['libgit2'],
  speaks: ['http', 'ssh'],
  ...ofScript(python('libgit2.py')),
  shallow: null,
};

const dulwich: GitClient = {
  name: 'dulwich',
  needs: ['dulwich'],
  speaks: ['http', 'ssh'],
  ...ofScript(python('with-dulwich.py')),
};

const paramiko: GitClient = {
  name: 'dulwich with paramiko',
  needs: ['dulwich', 'paramiko'],
  speaks: ['ssh'],
  ...ofScript(python('with-dulwich.py', { CLIENT_SSH: 'paramiko', GIT_SSH_COMMAND: undefined })),
};

/** Debian's own command omits some of them. */
const JGIT_CLASSES = [
  ...['pgm', 'lfs', 'http.apache', 'archive'].map((part) => `org.eclipse.jgit.${part}`),
  ...['httpclient', 'httpcore', 'commons-logging'],
]
  .map((name) => `/usr/share/java/${name}.jar`)
  .join(':');

/** JGit takes passwords from `.netrc`, or opens a window. Its SSH is JSch, which has no Ed25519 keys. */
function java({ as }: Remote, ...args: string[]): Promise<GitResult> {
  const quick = ['-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC'];
  const home = `-Duser.home=${as.home}`;
  return run('java', [...quick, home, '-cp', JGIT_CLASSES, 'org.eclipse.jgit.pgm.Main', ...args]);
}

const jgit: GitClient = {
  name: 'JGit',
  needs: ['jgit'],
  speaks: ['http', 'ssh'],
  shallow: null,
  clone: (remote, folder) => java(remote, 'clone', remote.url, folder),
  fetch: (remote, folder) => java(remote, '--git-dir', join(folder, '.git'), 'fetch', 'origin'),
  push: (remote, folder, spec) =>
    java(remote, '--git-dir', join(folder, '.git'), 'push', 'origin', spec),
};

/** The output that a user's program would print. */
async function told(work: (say: (text: string) => void) => Promise<unknown>): Promise<GitResult> {
  const said: string[] = [];
  try {
    await work((text) => said.push(text));
    return { code: 0, stdout: '', stderr: said.join('') };
  } catch (error) {
    return { code: 1, stdout: '', stderr: `${said.join('')}${error}` };
  }
}

const overHttp = ({ url, as }: Remote, folder: string, say: (text: string) => void) => ({
  fs,
  http,
  dir: folder,
  url,
  onAuth: () => ('user' in as ? { username: as.user, password: as.password } : { cancel: true }),
  onMessage: say,
});

const isomorphicGit: GitClient = {
  name: 'isomorphic-git',
  needs: [],
  speaks: ['http'],
  shallow: (remote, folder) =>
    told((say) => isomorphic.clone({ ...overHttp(remote, folder, say), depth: 1 })),
  clone: (remote, folder) => told((say) => isomorphic.clone(overHttp(remote, folder, say))),
  fetch: (remote, folder) => told((say) => isomorphic.fetch(overHttp(remote, folder, say))),
  push: (remote, folder, spec) => {
    const [source = '', target = ''] = spec.replace(/^\+/, '').split(':');
    const force = spec.startsWith('+');
    return told((say) =>
      isomorphic.push({ ...overHttp(remote, folder, say), ref: source, remoteRef: target, force }),
    );
  },
};

export const CLIENTS = [libgit2, dulwich, paramiko, jgit, isomorphicGit];
