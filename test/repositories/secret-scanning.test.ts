/** Secret scanning of pushes with stock git: everything that people read is scanned, however it is pushed. */
import { randomBytes } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let id: string;
let clone: string;
let count = 0;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});
beforeEach(async () => {
  clone = `scanned${count++}`;
  ({ id } = (await ada.post('/auth/v1/repository/ada', { name: clone })).body);
  await scan(true);
  await workspace.clone(ada, `ada/${clone}`);
});

const scan = (secretScanning: boolean) =>
  ada.gql(
    'mutation ($input: UpdateRepositoryInput!) { updateRepository(input: $input) { repository { id } } }',
    { input: { id, secretScanning } },
  );

/** A new random token. */
const token = () => `${['ghp', ''].join('_')}${randomBytes(18).toString('hex')}`;

async function push(...args: string[]): Promise<string> {
  const { code, stderr } = await workspace.try(clone, 'push', 'origin', ...args);
  return code === 0 ? 'accepted' : stderr;
}

/** Stores a blob in the clone that is in no commit. @returns its id */
async function blobOf(content: string): Promise<string> {
  await writeFile(join(workspace.path, clone, '.git/blob'), content);
  return workspace.git(clone, 'hash-object', '-w', '.git/blob');
}

const FILE = /the file [0-9a-f]{10}, which no commit of the push has, adds a GitHub token/;

test('a file or directory that only a tag points to is scanned, so that a later commit cannot add it unscanned', async () => {
  const secret = token();
  const blob = await blobOf(`key: ${secret}\n`);
  await workspace.git(clone, 'tag', 'blob', blob);
  await workspace.git(clone, 'tag', '-a', '-m', 'annotated', 'tagged', blob);
  const sha = await workspace.commit(clone, { 'keys/a.txt': `key: ${secret}\n` });
  await workspace.git(clone, 'tag', 'tree', `${sha}^{tree}`);
  for (const tag of ['blob', 'tagged', 'tree'])
    expect(await push(`refs/tags/${tag}`)).toMatch(FILE);
  expect(await push('HEAD:main')).toMatch(
    /keys\/a\.txt:1 adds a GitHub token \(commit [0-9a-f]{10},/,
  );
  // An allowed finding is accepted, then also as a file of a commit.
  const finding = /finding (\w+)\)/.exec(await push('refs/tags/blob'))?.[1];
  expect(await push('-o', `secret.allow=${finding}`, 'refs/tags/blob')).toBe('accepted');
  expect(await push('HEAD:main')).toBe('accepted');
});

test.each<[string, (secret: string) => Buffer]>([
  ['UTF-16 with a mark', (secret) => Buffer.from(`\ufeffkey: ${secret}\r\n`, 'utf16le')],
  ['UTF-16, big-endian', (secret) => Buffer.from(`ä key: ${secret}\n`, 'utf16le').swap16()],
  ['a NUL before it', (secret) => Buffer.from(`\0\nkey: ${secret}\n`)],
  ['a NUL behind it', (secret) => Buffer.from(`key: ${secret}\0more\n`)],
])('files that git treats as binary are scanned: %s', async (_, encode) => {
  await workspace.commit(clone, { 'a.bin': encode(token()) });
  expect(await push('HEAD:main')).toContain('a.bin adds a GitHub token (finding ');
  await workspace.git(clone, 'rm', '-q', 'a.bin');
  await workspace.git(clone, 'commit', '-q', '--amend', '--allow-empty', '-m', 'without');
  await workspace.commit(clone, { 'a.bin': encode('nothing') });
  expect(await push('HEAD:main')).toBe('accepted');
});

test('file names, messages, authors and ref names are scanned', async () => {
  await workspace.commit(clone, { [`keys/${token()}.txt`]: 'a' });
  expect(await push('HEAD:main')).toMatch(
    /a file name in the directory [0-9a-f]{10} adds a GitHub token/,
  );
  await workspace.git(clone, 'reset', '-q', '--hard', 'origin/main');

  const sha = await workspace.commit(clone, { 'a.txt': 'a' }, `with ${token()}`);
  const ofCommit = `the message or an author of commit ${sha.slice(0, 10)} adds a GitHub token`;
  expect(await push('HEAD:main')).toContain(ofCommit);
  await workspace.git(clone, 'commit', '-q', '--amend', '-m', 'a', `--author=${token()} <a@b.c>`);
  expect(await push('HEAD:main')).toMatch(/the message or an author of commit [0-9a-f]{10} adds/);
  await workspace.git(clone, 'commit', '-q', '--amend', '-m', 'a', '--author=Ada <a@b.c>');
  expect(await push('HEAD:main')).toBe('accepted');

  await workspace.git(clone, 'tag', '-a', '-m', `with ${token()}`, 'v1');
  expect(await push('refs/tags/v1')).toMatch(/the message or the author of tag [0-9a-f]{10} adds/);
  const secret = token();
  const refused = await push(`HEAD:refs/heads/x/${secret}`);
  expect(refused).toContain('the name of a ref adds a GitHub token');
});

test('many objects are scanned in batches, and objects that the repository had before are no findings', async () => {
  await scan(false);
  const secret = token();
  const old = Buffer.concat([Buffer.from(`${secret}\0`), randomBytes(20_000)]);
  await mkdir(join(workspace.path, clone, 'many'), { recursive: true });
  await workspace.commit(clone, { 'old.bin': old });
  expect(await push('HEAD:main')).toBe('accepted');
  await scan(true);
  const files = Array.from({ length: 300 }, (_, i) => [`many/${i}.txt`, `${i}\n`.repeat(i)]);
  await workspace.commit(clone, Object.fromEntries(files));
  await workspace.git(clone, 'mv', 'old.bin', 'moved.bin');
  await workspace.git(clone, 'commit', '-q', '-m', 'moved');
  expect(await push('HEAD:main')).toBe('accepted');
  await workspace.commit(clone, { 'many/0.txt': 'changed' }, `with ${token()}`);
  await workspace.commit(clone, Object.fromEntries(files.map(([path]) => [path, 'again'])));
  expect(await push('HEAD:main')).toContain('the message or an author of commit');
});
