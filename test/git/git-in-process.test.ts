/** What is read of a repository without git is what git reads. */
import { execFileSync } from 'node:child_process';
import {
  appendFile,
  chmod,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readRefFiles } from '../../src/git/disk/ref-files.ts';
import { knownTree, noteObjects } from '../../src/git/objects/known-objects.ts';
import { readSmallPack } from '../../src/git/objects/small-pack.ts';
import { walkTree } from '../../src/git/objects/walk.ts';

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

test('refs are those that git lists, loose, packed, and both, in its order', async () => {
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

/** As a push leaves it: one pack of what `to` has and `from` has not. */
async function quarantined(
  dir: string,
  name: string,
  revisions: string,
  thin = true,
): Promise<string> {
  const quarantine = join(dir, '.git', name);
  await mkdir(join(quarantine, 'pack'), { recursive: true });
  const args = ['pack-objects', '--stdout', '--revs', '--delta-base-offset', '-q'];
  const pack = git(dir, thin ? [...args, '--thin'] : args, revisions);
  execFileSync('git', ['index-pack', '--stdin', '--fix-thin'], {
    cwd: dir,
    input: pack,
    env: {
      PATH: process.env.PATH,
      GIT_OBJECT_DIRECTORY: quarantine,
      GIT_ALTERNATE_OBJECT_DIRECTORIES: join(dir, '.git/objects'),
    },
  });
  return quarantine;
}

test('objects of a small pack are what git reads, deltas and their bases too', async () => {
  const dir = await made('pack');
  const long = Array.from({ length: 2_000 }, (_, i) => `line ${i * 7919}\n`).join('');
  const first = await commit(dir, { 'long.txt': long, 'src/a.c': 'int a;\n', '.gitignore': '' });
  const all = await quarantined(dir, 'all', 'HEAD\n');
  const changed = long.replace('line 7919\n', 'another\n').replace('line 791900\n', '');
  await commit(dir, {
    'long.txt': changed,
    'src/b c.c': 'int b;\n',
    'src/z': Buffer.from([0, 1, 255]),
  });
  git(dir, ['tag', '-a', '-m', 'note', 'v1']);
  const thin = await quarantined(dir, 'thin', `v1\n^${first}\n`);
  for (const [quarantine, least] of [
    [all, 6],
    [thin, 7],
  ] as const) {
    const objects = await readSmallPack(quarantine);
    expect(objects?.size).toBeGreaterThanOrEqual(least);
    const [file = ''] = (await readdir(join(quarantine, 'pack'))).filter((name) =>
      name.endsWith('.idx'),
    );
    const ids = git(dir, ['show-index'], await readFile(join(quarantine, 'pack', file)));
    const listed = ids
      .toString()
      .trim()
      .split('\n')
      .map((line) => line.split(' ')[1] ?? '');
    expect([...(objects ?? new Map()).keys()].sort()).toEqual(listed.sort());
    for (const [oid, { type, data }] of objects ?? []) {
      expect(git(dir, ['cat-file', '-t', oid]).toString().trim()).toBe(type);
      expect(data.equals(git(dir, ['cat-file', type, oid]))).toBe(true);
    }
  }
  // Some of it came as a delta.
  const [pack = ''] = (await readdir(join(thin, 'pack'))).filter((name) => name.endsWith('.idx'));
  expect(git(dir, ['verify-pack', '-v', join(thin, 'pack', pack)]).toString()).toMatch(
    /chain length = 1/,
  );

  const big = await made('big');
  await commit(big, { a: Buffer.alloc(8 * 2 ** 20) });
  expect(await readSmallPack(await quarantined(big, 'unpacked', 'HEAD\n'))).toBeNull();
  const nothing = await quarantined(dir, 'nothing', 'HEAD\n^HEAD\n').catch(() =>
    join(dir, '.git/nothing'),
  );
  expect(await readSmallPack(nothing)).toEqual(new Map());
  const torn = await quarantined(dir, 'torn', 'HEAD\n');
  for (const name of await readdir(join(torn, 'pack'))) {
    const file = join(torn, 'pack', name);
    await chmod(file, 0o600);
    if (name.endsWith('.pack')) await writeFile(file, (await readFile(file)).fill(0x5a, 40, 90));
  }
  expect(await readSmallPack(torn)).toBeNull();
  const many = await made('many');
  await commit(many, Object.fromEntries(Array.from({ length: 300 }, (_, i) => [`f${i}`, `${i}`])));
  expect(await readSmallPack(await quarantined(many, 'many', 'HEAD\n'))).toBeNull();
});

test('a tree is walked without git when what it is made of is known, and has the same files', async () => {
  const dir = await made('trees');
  const bare = join(dir, '.git');
  const walk = async (commit: string) => {
    const files: unknown[] = [];
    for await (const file of walkTree(bare, commit, new AbortController().signal)) files.push(file);
    return files;
  };
  const listed = (commit: string) =>
    git(bare, ['ls-tree', '-r', '-l', '-z', commit])
      .toString()
      .split('\0')
      .filter((line) => line.includes(' blob '))
      .map((line) => ({
        path: line.split('\t')[1],
        size: Number(line.split('\t')[0]?.split(/ +/)[3]),
      }));
  const first = await commit(dir, { 'a/b/c.txt': 'c', 'a/d.txt': 'dd', 'e.txt': 'e' });
  expect(knownTree(first)).toBeNull();
  expect(await walk(first)).toEqual(listed(first));
  const second = await commit(dir, { 'a/b/new.txt': 'new', 'g.txt': 'g' });
  noteObjects(
    (await readSmallPack(await quarantined(dir, 'q', `${second}\n^${first}\n`))) ?? new Map(),
  );
  // The file at the root was in no tree that git has listed with its folder, but its size was told.
  expect(knownTree(second)).toEqual(listed(second));
  expect(await walk(second)).toEqual(listed(second));

  // A folder that holds another ten times, and so on: 10,000,000,000 folders of 11 trees.
  let tree = git(bare, ['mktree']).toString().trim();
  for (let level = 0; level < 10; level++)
    tree = git(
      bare,
      ['mktree'],
      Array.from({ length: 10 }, (_, i) => `040000 tree ${tree}\t${i}\n`).join(''),
    )
      .toString()
      .trim();
  const bomb = git(bare, ['commit-tree', '-m', 'bomb', tree]).toString().trim();
  noteObjects((await readSmallPack(await quarantined(dir, 'bomb', `${bomb}\n`))) ?? new Map());
  expect(knownTree(bomb)).toBeNull();
});
