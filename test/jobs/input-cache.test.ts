/** Folders of repositories that jobs of a machine share. */
import { mkdir, mkdtemp, readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLog } from '../../src/base/log.ts';
import { InputCache } from '../../src/jobs/attempts/input-cache.ts';

let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'loam-input-cache-'));
});
afterAll(() => rm(root, { recursive: true }));

/** Attempts that have not ended. */
const open = new Set<string>();
const query = async (_sql: string, [ids]: [string[]]) => ({
  rows: ids.filter((id) => open.has(id)),
});
const pool = { query } as unknown as pg.Pool;
const log = createLog('silent');
const { signal } = new AbortController();

const openCache = (dir: string, maxBytes: number) => new InputCache(dir, { maxBytes, pool, log });

/** Fills a folder with one file. */
const fillWith =
  (text: string, isComplete = true) =>
  async (dir: string) => {
    await writeFile(join(dir, 'file'), text, { mode: 0o600 });
    return { bytes: 100, isComplete };
  };
const fail = (): Promise<never> => Promise.reject(new Error('not needed'));

test('a folder is filled once, also for attempts that need it at the same time', async () => {
  const dir = join(root, 'once');
  const cache = openCache(dir, 1_000);
  let fills = 0;
  const acquire = (attemptId: string) =>
    cache.acquire({ key: 'repo_a-1', attemptId, signal }, async (to) => {
      fills++;
      return fillWith('a')(to);
    });
  const paths = await Promise.all(['att_1', 'att_2', 'att_3'].map(acquire));
  expect(fills).toBe(1);
  expect(new Set(paths)).toEqual(new Set([join(dir, 'repo_a-1/files')]));
  expect(await readFile(join(dir, 'repo_a-1/files/file'), 'utf8')).toBe('a');
  // Users of jobs can read it, and not write.
  expect((await stat(join(dir, 'repo_a-1/files/file'))).mode & 0o777).toBe(0o644);
  expect(await readdir(join(dir, 'repo_a-1/users'))).toEqual(['att_1', 'att_2', 'att_3']);
});

test('after a failure, the next attempt fills the folder', async () => {
  const dir = join(root, 'failure');
  const cache = openCache(dir, 1_000);
  const one = { key: 'repo_a-1', signal };
  const first = cache.acquire({ ...one, attemptId: 'att_1' }, fail);
  const second = cache.acquire({ ...one, attemptId: 'att_2' }, fillWith('a'));
  await expect(first).rejects.toThrow('not needed');
  await second;
  expect(await readdir(dir)).toEqual(['repo_a-1']);
  const ended = { ...one, attemptId: 'att_3', signal: AbortSignal.abort(new Error('over')) };
  await expect(cache.acquire(ended, fail)).rejects.toThrow('over');
});

test('an incomplete folder is for one attempt only', async () => {
  const dir = join(root, 'incomplete');
  const cache = openCache(dir, 1_000);
  const one = { key: 'repo_a-1', signal };
  const path = await cache.acquire({ ...one, attemptId: 'att_1' }, fillWith('a', false));
  expect(await readFile(join(path, 'file'), 'utf8')).toBe('a');
  const next = await cache.acquire({ ...one, attemptId: 'att_2' }, fillWith('b'));
  expect(await readFile(join(next, 'file'), 'utf8')).toBe('b');
});

test('the folders unused for the longest time are removed, but none of an open attempt', async () => {
  const dir = join(root, 'limit');
  // Left by a process that was killed.
  await mkdir(join(dir, 'tmp-left/files'), { recursive: true });
  const before = openCache(dir, 250);
  const acquire = (cache: InputCache, tree: number, attemptId: string) =>
    cache.acquire({ key: `repo_a-${tree}`, attemptId, signal }, fillWith('a'));
  const age = (tree: number, seconds: number) => {
    const time = new Date(Date.now() - seconds * 1_000);
    return utimes(join(dir, `repo_a-${tree}`), time, time);
  };
  open.add('att_1');
  await acquire(before, 1, 'att_1');
  await acquire(before, 2, 'att_2');
  await age(1, 300);
  await age(2, 200);
  // After a restart.
  const cache = openCache(dir, 250);
  await acquire(cache, 3, 'att_3');
  expect((await readdir(dir)).toSorted()).toEqual(['repo_a-1', 'repo_a-3']);
  open.delete('att_1');
  await age(3, 100);
  await cache.acquire({ key: 'repo_a-3', attemptId: 'att_4', signal }, fail);
  await acquire(cache, 4, 'att_5');
  expect((await readdir(dir)).toSorted()).toEqual(['repo_a-3', 'repo_a-4']);
});
