/** Refs read from git's files are the same that git lists. */
import { execFileSync } from 'node:child_process';
import { appendFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readRefFiles } from '../../src/git/disk/ref-files.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'loam-in-process-'));
});
afterAll(() => rm(folder, { recursive: true }));

const git = (dir: string, args: string[], input: string | Buffer = '') =>
  execFileSync('git', args, {
    cwd: dir,
    input,
    env: {
      PATH: process.env.PATH,
      GIT_AUTHOR_NAME: 'A',
      GIT_AUTHOR_EMAIL: 'a@b.c',
      GIT_COMMITTER_NAME: 'A',
      GIT_COMMITTER_EMAIL: 'a@b.c',
    },
    maxBuffer: 2 ** 26,
  });

async function made(name: string): Promise<string> {
  const dir = join(folder, name);
  git(folder, ['init', '-q', '-b', 'main', dir]);
  return dir;
}

async function commit(dir: string, files: Record<string, string | Buffer>): Promise<string> {
  for (const [path, text] of Object.entries(files)) {
    await mkdir(join(dir, path, '..'), { recursive: true });
    await writeFile(join(dir, path), text);
  }
  git(dir, ['add', '-A']);
  git(dir, ['commit', '-q', '--allow-empty', '-m', 'more']);
  return git(dir, ['rev-parse', 'HEAD']).toString().trim();
}

test('loose and packed refs are listed like git does, in the same order', async () => {
  const dir = await made('refs');
  const bare = join(dir, '.git');
  const listed = () =>
    git(bare, ['for-each-ref', '--format=%(objectname) %(refname)']).toString().trim().split('\n');
  const read = async () =>
    [...((await readRefFiles(bare)) ?? [])].map(([name, { id }]) => `${id} ${name}`);
  const first = await commit(dir, { a: 'a' });
  for (const name of [
    'heads/ä',
    'heads/a/b',
    'heads/a-b',
    'heads/\u{1f600}',
    'heads/\uffee',
    'notes/x',
  ])
    git(bare, ['update-ref', `refs/${name}`, first]);
  git(bare, ['tag', '-a', '-m', 'note', 'noted']);
  expect(await read()).toEqual(listed());
  git(bare, ['pack-refs', '--all']);
  expect(await read()).toEqual(listed());
  await commit(dir, { a: 'b' });
  git(bare, ['branch', '-D', 'a-b']);
  await writeFile(join(bare, 'refs/heads/main.lock'), '');
  expect(await read()).toEqual(listed());
  expect(await read()).toHaveLength(7);
  await rm(join(bare, 'refs/heads/main.lock'));

  await writeFile(join(bare, 'refs/heads/short'), '123\n');
  expect(await readRefFiles(bare)).toBeNull();
  await rm(join(bare, 'refs/heads/short'));
  git(bare, ['symbolic-ref', 'refs/heads/other', 'refs/heads/main']);
  expect(await readRefFiles(bare)).toBeNull();
  git(bare, ['symbolic-ref', '--delete', 'refs/heads/other']);
  for (const name of [Buffer.from('caf\xe9', 'latin1'), Buffer.from('a..b')]) {
    const file = Buffer.concat([Buffer.from(join(bare, 'refs/heads/')), name]);
    await writeFile(file, `${first}\n`);
    expect(await readRefFiles(bare)).toBeNull();
    await rm(file);
  }
  await appendFile(join(bare, 'packed-refs'), 'no line of it\n');
  expect(await readRefFiles(bare)).toBeNull();
  expect(await readRefFiles(join(folder, 'none'))).toBeNull();
});
