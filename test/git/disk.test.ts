import { mkdir, mkdtempDisposable, readdir, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Disk } from '../../src/git/disk/disk.ts';

const HOUR_MS = 3_600_000;

test('unfinished folders of a killed server are removed at its next start, or when they are old', async () => {
  await using root = await mkdtempDisposable(join(tmpdir(), 'loam-disk-'));
  const at = (...parts: string[]) => join(root.path, ...parts);
  for (const server of ['srv_a', 'srv_b']) {
    await mkdir(at('new', server, 'repo_1.git/objects'), { recursive: true });
    await mkdir(at('trash', server, 'repo_2.grave/pack'), { recursive: true });
  }

  const disk = new Disk(root.path, 'srv_a');
  await disk.prepare();
  for (const kind of ['new', 'trash']) {
    expect((await readdir(at(kind))).sort()).toEqual(['srv_a', 'srv_b']);
    expect(await readdir(at(kind, 'srv_a'))).toEqual([]);
  }
  await disk.removeAbandoned();
  expect(await readdir(at('new/srv_b'))).toEqual(['repo_1.git']);
  expect(await readdir(at('trash/srv_b'))).toEqual(['repo_2.grave']);

  const old = new Date(Date.now() - HOUR_MS);
  for (const path of ['new/srv_b/repo_1.git', 'trash/srv_b/repo_2.grave'])
    await utimes(at(path), old, old);
  await disk.removeAbandoned();
  for (const kind of ['new', 'trash']) {
    expect(await readdir(at(kind, 'srv_b'))).toEqual([]);
    await utimes(at(kind, 'srv_b'), old, old);
  }
  await disk.removeAbandoned();
  for (const kind of ['new', 'trash']) expect(await readdir(at(kind))).toEqual(['srv_a']);
});

test('removing a repository creates the trash folder when it is missing, and can be repeated', async () => {
  await using root = await mkdtempDisposable(join(tmpdir(), 'loam-disk-'));
  const disk = new Disk(root.path, 'srv_a');
  await disk.create('repo_01arz3ndektsv4rrffq69g5fav', 'main');
  await disk.remove('repo_01arz3ndektsv4rrffq69g5fav');
  await disk.remove('repo_01arz3ndektsv4rrffq69g5fav');
  expect(await readdir(join(root.path, 'trash/srv_a'))).toEqual([]);
});
