/** Stale locks of killed git processes do not block pushes. Held locks are kept. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, readdir, utimes, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { StaleLocks } from '../../src/git/disk/stale-locks.ts';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

/** A repository with one commit, and a clone of it. @returns its folder on the server */
async function seeded(name: string): Promise<string> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name });
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, { 'a.txt': name });
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD:main');
  return app.app.services.git.disk.pathOf(body.id);
}

/** Creates lock files like those of a git process that was killed two hours ago. */
async function leave(dir: string, ...files: string[]): Promise<void> {
  for (const file of files) {
    const path = join(dir, file);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, '');
    const then = Date.now() / 1000 - 7_200;
    await utimes(path, then, then);
  }
}

/** May contain locks of background maintenance, so callers poll. */
async function locksIn(dir: string): Promise<string[]> {
  const names = await readdir(dir, { recursive: true });
  return names.filter((name) => /\.lock$|packed-refs\.new$/.test(name)).sort();
}

const there = (path: string) =>
  access(path).then(
    () => true,
    () => false,
  );

test('a push removes the locks of a killed git process', async () => {
  const dir = await seeded('left');
  await leave(
    dir,
    ...['HEAD.lock', 'refs/heads/main.lock', 'refs/heads/topic/new.lock'],
    ...['packed-refs.lock', 'packed-refs.new', 'config.lock'],
  );
  await workspace.commit('left', { 'b.txt': 'b' });
  await workspace.git('left', 'push', '-q', 'origin', 'HEAD:main', 'HEAD:refs/heads/topic/new');
  // Deleting a ref rewrites `packed-refs`.
  await workspace.git('left', 'push', '-q', 'origin', ':refs/heads/topic/new');
  await eventually(async () => expect(await locksIn(dir)).toEqual([]));
});

test('a push of many refs removes stale locks', async () => {
  const dir = await seeded('many');
  const refs = Array.from({ length: 120 }, (_, i) => `refs/heads/topic/${i}`);
  await leave(dir, 'packed-refs.lock', 'packed-refs.new', ...refs.map((ref) => `${ref}.lock`));
  const pushed = refs.map((ref) => `HEAD:${ref}`);
  await workspace.git('many', 'push', '-q', 'origin', ...pushed);
  expect((await workspace.git('many', 'ls-remote', '--heads', 'origin')).split('\n')).toHaveLength(
    refs.length + 1,
  );
});

test('maintenance removes stale locks of its own files, and of refs without pushes', async () => {
  const dir = await seeded('kept');
  const graph = 'objects/info/commit-graphs/commit-graph-chain.lock';
  await leave(
    dir,
    graph,
    'shallow.lock',
    'refs/heads/nobody.lock',
    'objects/pack/multi-pack-index.lock',
  );
  // Maintenance checks for locks at every eighth push.
  for (let i = 0; i < 8; i++) {
    await workspace.commit('kept', { 'b.txt': `b ${i}` });
    await workspace.git('kept', 'push', '-q', 'origin', 'HEAD:main');
  }
  await eventually(async () => expect(await locksIn(dir)).toEqual([]));
});

test('a young lock, or a lock that a git process on this machine may hold, is kept', async () => {
  const dir = await seeded('held');
  const push = () => workspace.try('held', 'push', 'origin', 'HEAD:main');
  await workspace.commit('held', { 'b.txt': 'b' });
  const lock = join(dir, 'refs/heads/main.lock');
  await writeFile(lock, '');
  expect((await push()).stderr).toContain('main');
  expect(await there(lock)).toBe(true);
  await leave(dir, 'refs/heads/main.lock');

  const writer = spawn('git', ['update-ref', '--stdin'], {
    cwd: dir,
    env: { PATH: process.env.PATH, GIT_DIR: '.' },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  try {
    writer.stdin.write(
      `start\ncreate refs/heads/other ${await workspace.git('held', 'rev-parse', 'HEAD~1')}\nprepare\n`,
    );
    await eventually(async () =>
      expect(await there(join(dir, 'refs/heads/other.lock'))).toBe(true),
    );
    expect((await push()).code).not.toBe(0);
    expect(await there(lock)).toBe(true);
  } finally {
    writer.kill('SIGKILL');
    await once(writer, 'close');
  }
  expect(await push()).toMatchObject({ code: 0 });
  await eventually(async () => expect(await there(lock)).toBe(false));
  // The writer is dead, but its lock is young.
  expect(await there(join(dir, 'refs/heads/other.lock'))).toBe(true);
});

test('ref names of a client cannot reach files outside the refs', async () => {
  const dir = await seeded('names');
  await leave(dir, '../victim.lock', 'refs/victim.lock');
  const locks = new StaleLocks({ isAlone: true });
  await locks.removeBlocking(dir, ['refs/../../victim', '../victim', 'refs/victim\0']);
  expect(await there(join(dir, '../victim.lock'))).toBe(true);
  await locks.removeBlocking(dir, ['refs/victim']);
  expect(await there(join(dir, 'refs/victim.lock'))).toBe(false);
});
