/** The pool of `git cat-file` processes: lending, reuse, limits and ending of processes. */
import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CatFilePool, type PoolOptions } from '../../src/git/objects/cat-file.ts';
import { FolderMissing, git } from '../../src/git/processes/run.ts';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';

let workspace: Workspace;
let dir: string;
let other: string;

beforeAll(async () => {
  workspace = await Workspace.open();
  for (const name of ['one', 'two']) await workspace.git('.', 'init', '-q', '-b', 'main', name);
  await workspace.commit('one', {
    'a.txt': 'hello\n',
    empty: '',
    'new\nline': 'odd name',
    'big.bin': Buffer.alloc(3_000_000, 'x'),
  });
  await workspace.commit('two', { 'b.txt': 'other\n' });
  dir = join(workspace.path, 'one/.git');
  other = join(workspace.path, 'two/.git');
});
afterAll(() => workspace[Symbol.asyncDispose]());

const open = (options?: PoolOptions) => new CatFilePool(options);

test('answers have the order of the requests, also for missing objects and unusual names', async () => {
  await using pool = open();
  await pool.use(dir, async (objects) => {
    const names = [
      'main:a.txt',
      'main:none',
      'main:new\nline',
      'main:no\nsuch\nfile',
      'main:empty',
    ];
    expect((await objects.info(names)).map((info) => info?.size ?? null)).toEqual([
      6,
      null,
      8,
      null,
      0,
    ]);
    const read = await objects.read(names);
    expect(read.map((object) => object?.data.toString() ?? null)).toEqual([
      'hello\n',
      null,
      'odd name',
      null,
      '',
    ]);
    const [a, b, c] = await Promise.all([
      objects.info(['main:a.txt']),
      objects.read(['main:big.bin']),
      objects.info(['main^{tree}']),
    ]);
    expect([a[0]?.type, b[0]?.data.length, c[0]?.type]).toEqual(['blob', 3_000_000, 'tree']);
  });
});

test('a name cannot inject a command', async () => {
  await using pool = open();
  const read = pool.use(dir, (objects) => objects.info(['x\0contents main:a.txt']));
  await expect(read).rejects.toThrow('NUL');
});

test('a process without unread answers is reused and sees newly pushed objects', async () => {
  await using pool = open();
  const tip = () => pool.use(dir, async (objects) => (await objects.info(['refs/heads/new']))[0]);
  expect(await tip()).toBeNull();
  const sha = await workspace.commit('one', { 'c.txt': 'later' });
  await workspace.git('one', 'branch', 'new');
  await workspace.git('one', 'repack', '-adq');
  expect(await tip()).toMatchObject({ oid: sha });
  expect(pool.counts).toEqual({ idle: 1, busy: 0, waiting: 0 });
});

test('a process is not reused after unread answers or an exceeded limit', async () => {
  await using pool = open();
  await pool.use(dir, async (objects) => {
    objects.read(['main:big.bin']).catch(() => {});
  });
  expect(pool.counts.idle).toBe(0);
  const tooBig = pool.use(dir, (objects) => objects.read(['main:big.bin'], 1_000));
  await expect(tooBig).rejects.toThrow('more than 1000 bytes');
  expect(pool.counts.idle).toBe(0);
  expect(await pool.use(dir, (objects) => objects.info(['main:a.txt']))).toHaveLength(1);
});

test('readers wait while all processes are in use, and get a process of their own repository', async () => {
  await using pool = open({ size: 1 });
  const order: string[] = [];
  const gate = Promise.withResolvers<void>();
  const first = pool.use(dir, () => gate.promise);
  const second = pool.use(other, async (objects) => {
    order.push('second');
    return objects.info(['main:b.txt']);
  });
  const third = pool.use(other, async (objects) => {
    order.push('third');
    return objects.info(['main:b.txt']);
  });
  await eventually(() => expect(pool.counts).toEqual({ idle: 0, busy: 1, waiting: 2 }));
  gate.resolve();
  await first;
  expect((await second)[0]?.size).toBe(6);
  expect((await third)[0]?.size).toBe(6);
  expect(order).toEqual(['second', 'third']);
});

test('waiting for a process and using a process both time out', async () => {
  await using pool = open({ size: 1, timeoutMs: 2_000 });
  const gate = Promise.withResolvers<void>();
  const stuck = pool.use(dir, async (objects) => {
    await gate.promise;
    return objects.info(['main']);
  });
  await expect(pool.use(other, async () => {})).rejects.toThrow('process became free');
  await eventually(() => expect(pool.counts.busy).toBe(0));
  gate.resolve();
  await expect(stuck).rejects.toThrow('took too long');
});

test('idle processes end after a timeout, for another repository, and with their repository', async () => {
  await using pool = open({ size: 1, idleMs: 50 });
  await pool.use(dir, async () => {});
  await pool.use(other, async () => {});
  expect(pool.counts.idle).toBe(1);
  await eventually(() => expect(pool.counts.idle).toBe(0));
  await using patient = open();
  await patient.use(dir, async () => {});
  patient.endIdle(dir);
  expect(patient.counts.idle).toBe(0);
});

test('when a process dies, its reader fails and the next reader gets a new process', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'loam-catfile-'));
  await using pool = open();
  const gone = pool.use(join(folder, 'none.git'), (objects) => objects.info(['HEAD']));
  await expect(gone).rejects.toThrow(FolderMissing);
  await mkdir(join(folder, 'none.git'));
  const empty = pool.use(join(folder, 'none.git'), (objects) => objects.info(['HEAD']));
  await expect(empty).rejects.toThrow('not a git repository');
  execFileSync('git', ['init', '-q', '--bare', join(folder, 'none.git')]);
  expect(await pool.use(join(folder, 'none.git'), (objects) => objects.info(['HEAD']))).toEqual([
    null,
  ]);
  await rm(folder, { recursive: true });
});

test('input that git does not read causes no error', async () => {
  // More than a pipe holds, for a command that reads nothing. An `error` event without a listener would fail this file.
  const said = await git(['version'], { input: Buffer.alloc(8 * 2 ** 20) });
  expect(said.toString()).toMatch(/^git version/);
});
