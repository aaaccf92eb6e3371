/**
 * Pushes the working directory as it is, with uncommitted changes and untracked files, to a hidden ref of its repository.
 * The clone itself is not changed: a copy of the index collects the files, and new objects go to a temporary folder.
 */
import { randomBytes } from 'node:crypto';
import { copyFile, mkdir, mkdtemp, rm, stat, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { gitCredential } from './connection.ts';
import { Interrupted } from './exit.ts';
import { git } from './git.ts';

export type SnapshotTarget = {
  server: string;
  namespace: string;
  name: string;
  username: string;
  token: string;
};

/** Pushes the clone that contains the working directory. @returns the id of the snapshot @throws GitError, Interrupted */
export async function pushSnapshot(target: SnapshotTarget): Promise<string> {
  const { signal, dispose } = untilInterrupt();
  const folder = await mkdtemp(join(tmpdir(), 'loam-snapshot-'));
  try {
    const [root = '', index = '', objects = ''] = (
      await git(['rev-parse', '--show-toplevel', '--git-path', 'index', '--git-path', 'objects'])
    ).split('\n');
    const env = await prepare(folder, resolve(index), resolve(objects));
    const run = (args: string[], input?: string) =>
      git([...settings(target), ...args], {
        cwd: root,
        env: { ...env, ...secrets(target) },
        input,
        signal,
      });
    await run(['add', '--all', ...((await isSparse()) ? ['--sparse'] : [])]);
    const tree = await run(['write-tree']);
    const head = await git(['rev-parse', '--verify', '--quiet', 'HEAD'], { mayFail: true });
    const parent = head === null ? [] : ['-p', head];
    const commit = await run(['commit-tree', tree, ...parent, '-m', 'Working directory']);
    const id = randomBytes(16).toString('hex');
    const ref = `refs/loam/snapshots/${id}`;
    const url = urlOf(target);
    await pushLargeFiles(run, { url, commit, ref });
    await run(['push', '--quiet', '--no-verify', url, `${commit}:${ref}`]);
    return id;
  } catch (error) {
    throw signal.aborted ? new Interrupted('Interrupted. No job was created.') : error;
  } finally {
    // Git may still write its last file.
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
    dispose();
  }
}

/** Aborts at Ctrl-C or SIGTERM, which would otherwise end the process before it removes the folder with the user's files. */
function untilInterrupt() {
  const interrupt = new AbortController();
  const abort = () => interrupt.abort();
  const signals = ['SIGINT', 'SIGTERM'] as const;
  for (const signal of signals) process.on(signal, abort);
  const dispose = () => {
    for (const signal of signals) process.off(signal, abort);
  };
  return { signal: interrupt.signal, dispose };
}

/** The environment in which git reads the clone and writes only to the folder. */
async function prepare(folder: string, index: string, objects: string) {
  const env = {
    GIT_INDEX_FILE: join(folder, 'index'),
    GIT_OBJECT_DIRECTORY: join(folder, 'objects'),
    // The variable is a list separated by colons. In quotes, the path itself may contain colons.
    GIT_ALTERNATE_OBJECT_DIRECTORIES: JSON.stringify(objects),
  };
  await mkdir(env.GIT_OBJECT_DIRECTORY);
  const found = await stat(index).catch(() => null);
  if (found) {
    await copyFile(index, env.GIT_INDEX_FILE);
    // Git compares files with the time of the index. A later one would hide changes made in the same moment.
    const seconds = Math.floor(found.mtimeMs) / 1_000;
    await utimes(env.GIT_INDEX_FILE, seconds, seconds);
  }
  return env;
}

/** Whether git would refuse to add files outside of a sparse checkout. Older versions, which do not, lack the option. */
async function isSparse(): Promise<boolean> {
  const args = ['config', '--type=bool', '--get', 'core.sparseCheckout'];
  return (await git(args, { mayFail: true })) === 'true';
}

/** The credential reaches git in the environment of this one process, and only for this server. */
function secrets({ username, token }: SnapshotTarget): Record<string, string> {
  const [user, password] = gitCredential({ username, token });
  return { LOAM_GIT_USER: user, LOAM_GIT_PASSWORD: password };
}

function urlOf({ server, namespace, name }: SnapshotTarget): string {
  return `${server}/${namespace}/${name}.git`;
}

function settings(target: SnapshotTarget): string[] {
  const { server, username } = target;
  const helper =
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$LOAM_GIT_USER" "$LOAM_GIT_PASSWORD"; }; f';
  const values = {
    'credential.helper': '',
    [`credential.${server}.helper`]: helper,
    'http.followRedirects': 'false',
    // Hooks of the user are for their own commits and pushes.
    'core.hooksPath': '/dev/null',
    // Finds what both sides have, even if the server is ahead of the clone.
    'push.negotiate': 'true',
    // With these settings, git may also push tags and submodules. A snapshot must publish neither.
    'push.followTags': 'false',
    'push.recurseSubmodules': 'no',
    // With these settings, git may refuse unsigned pushes and changed line endings. They protect commits, not snapshots.
    'push.gpgSign': 'false',
    'core.safecrlf': 'false',
    // `.lfsconfig` comes with the repository, and could name another server for the user's files.
    'lfs.url': `${urlOf(target)}/info/lfs`,
    'lfs.pushurl': `${urlOf(target)}/info/lfs`,
    // git-lfs would write a cache of locks into the clone for each snapshot. The server checks locks anyway.
    'lfs.locksverify': 'false',
    'advice.addEmbeddedRepo': 'false',
    'user.name': username,
    'user.email': `${username}@${new URL(server).hostname}`,
    ...(process.env.LOAM_CA && { 'http.sslCAInfo': process.env.LOAM_CA }),
  };
  return Object.entries(values).flatMap(([key, value]) => ['-c', `${key}=${value}`]);
}

/** Uploads files of git-lfs, as its own hook does, where the tree has some. */
async function pushLargeFiles(
  run: (args: string[], input?: string) => Promise<string>,
  { url, commit, ref }: { url: string; commit: string; ref: string },
): Promise<void> {
  const search = [
    'grep',
    '-l',
    '-e',
    'filter=lfs',
    commit,
    '--',
    '.gitattributes',
    '**/.gitattributes',
  ];
  // An exit code of 1 means that no file has it.
  const hasLargeFiles = await run(search).then(
    () => true,
    () => false,
  );
  if (!hasLargeFiles) return;
  await run(
    ['lfs', 'pre-push', url, url],
    `${ref} ${commit} ${ref} ${'0'.repeat(commit.length)}\n`,
  );
}
