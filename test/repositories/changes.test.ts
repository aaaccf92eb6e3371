/** Changes and comparisons, compared with the output of stock git for the same commits. */
import { chmod, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { MAX_FILES, MAX_PAGE_BYTES, MAX_PATCH_BYTES } from '../../src/git/objects/diff.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
const at = (path: string) => join(workspace.path, 'r', path);
const lines = (count: number, word = 'line') =>
  Array.from({ length: count }, (_, i) => `${word} ${i}\n`).join('');

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  await ada.repository('ada/r', { autoInit: false });
  await workspace.clone(ada, 'ada/r');
  await workspace.commit('r', {
    'a.txt': lines(20),
    'gone.txt': 'x\n',
    'moved/from.txt': lines(30, 'moved'),
    'script.sh': '#!/bin/sh\n',
    'type.txt': 'a file\n',
    'bin.dat': Buffer.from([0, 1, 2]),
    'ü und "quotes".txt': 'é\n',
    'Zlast.txt': 'last\n',
  });
  await workspace.git('r', 'tag', 'first');
  await writeFile(at('a.txt'), lines(20).replace('line 10', 'diff --git a/x b/x\nline ten'));
  await rm(at('gone.txt'));
  await rename(at('moved/from.txt'), at('moved/to.txt'));
  await chmod(at('script.sh'), 0o755);
  await rm(at('type.txt'));
  await symlink('a.txt', at('type.txt'));
  await workspace.commit(
    'r',
    {
      'bin.dat': Buffer.from([0, 3, 4, 5]),
      'ü und "quotes".txt': 'é\nß\n',
      'Zlast.txt': 'the last\n',
      'long.txt': lines(20_000),
      'new.txt': 'no newline at the end',
    },
    'all kinds',
  );
  await workspace.git('r', 'tag', 'second');
  // A branch that forked from `first`, and its merge.
  await workspace.git('r', 'checkout', '-q', '-b', 'side', 'first');
  await workspace.commit('r', { 'side.txt': 's\n' }, 'side 1');
  await workspace.commit('r', { 'side.txt': 's\nt\n' }, 'side 2');
  await workspace.git('r', 'checkout', '-q', 'main');
  await workspace.git('r', 'merge', '-q', '--no-ff', '-m', 'merge', 'side');
  await workspace.git('r', 'tag', 'merged');
  await workspace.git('r', 'checkout', '-q', '--orphan', 'alone');
  await workspace.commit('r', { 'alone.txt': 'a\n' }, 'alone');
  await workspace.git('r', 'checkout', '-q', '-b', 'many', 'first');
  await workspace.commit(
    'r',
    Object.fromEntries(Array.from({ length: MAX_FILES + 1 }, (_, i) => [`many/${i}`, `${i}\n`])),
    'many',
  );
  await workspace.git('r', 'tag', 'many-files');
  await workspace.commit(
    'r',
    Object.fromEntries(
      Array.from({ length: 30 }, (_, i) => [`large/${i}`, lines(6_000, `file ${i}`)]),
    ),
    'large',
  );
  await workspace.git('r', 'checkout', '-q', '-b', 'wide', 'first');
  await workspace.commit('r', { 'wide.txt': 'w'.repeat(2 ** 20) }, 'wide');
  await workspace.git('r', 'push', '-q', '--all');
  await workspace.git('r', 'push', '-q', '--tags');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const FILES = `additions deletions isTruncated files(first: 100) { totalCount pageInfo { hasNextPage endCursor }
  nodes { path oldPath status oldMode mode additions deletions isBinary patch { text isTruncated } } }`;
const ask = async (selection: string) =>
  (await ada.gql(`{ repository(namespace: "ada", name: "r") { ${selection} } }`)).repository;
// biome-ignore lint/suspicious/noExplicitAny: the assertions check each field.
type File = any;
const changesOf = async (revision: string) =>
  (await ask(`commit(revision: "${revision}") { changes { ${FILES} } }`)).commit.changes;

/** The hunks of a file as stock git prints them. */
async function hunks(from: string, to: string, path: string): Promise<string> {
  const printed = await workspace.git('r', 'diff', '-M', from, to, '--', path);
  const start = printed.search(/^@@ /m);
  return start < 0 ? '' : `${printed.slice(start)}\n`;
}

test('a commit lists its files with line counts, modes and patches', async () => {
  const { files, ...totals } = await changesOf('second');
  const byPath = Object.fromEntries(files.nodes.map((file: File) => [file.path, file]));
  expect(files.nodes.map(({ path, status }: File) => `${status} ${path}`)).toEqual([
    'MODIFIED Zlast.txt',
    'MODIFIED a.txt',
    'MODIFIED bin.dat',
    'DELETED gone.txt',
    'ADDED long.txt',
    'RENAMED moved/to.txt',
    'ADDED new.txt',
    'MODIFIED script.sh',
    'TYPE_CHANGED type.txt',
    'MODIFIED ü und "quotes".txt',
  ]);
  for (const path of ['a.txt', 'gone.txt', 'Zlast.txt', 'ü und "quotes".txt', 'new.txt'])
    expect(byPath[path].patch, path).toEqual({
      text: await hunks('first', 'second', path),
      isTruncated: false,
    });
  expect(byPath['a.txt']).toMatchObject({
    additions: 2,
    deletions: 1,
    oldMode: '100644',
    mode: '100644',
    isBinary: false,
  });
  expect(byPath['gone.txt']).toMatchObject({
    additions: 0,
    deletions: 1,
    oldMode: '100644',
    mode: null,
  });
  expect(byPath['bin.dat']).toMatchObject({
    additions: null,
    deletions: null,
    isBinary: true,
    patch: null,
  });
  expect(byPath['moved/to.txt']).toMatchObject({
    oldPath: 'moved/from.txt',
    additions: 0,
    deletions: 0,
    patch: { text: '', isTruncated: false },
  });
  expect(byPath['script.sh']).toMatchObject({
    oldMode: '100644',
    mode: '100755',
    patch: { text: '' },
  });
  const { patch, ...type } = byPath['type.txt'];
  expect(type).toMatchObject({ oldMode: '100644', mode: '120000' });
  expect(patch.text).toContain('-a file');
  expect(patch.text).toContain('+a.txt');
  const long = byPath['long.txt'];
  expect(long).toMatchObject({ additions: 20_000, patch: { isTruncated: true } });
  expect(Buffer.byteLength(long.patch.text)).toBeLessThanOrEqual(MAX_PATCH_BYTES);
  expect(long.patch.text.endsWith('\n')).toBe(true);

  const numstat = await workspace.git('r', 'diff', '-M', '--shortstat', 'first', 'second');
  expect(numstat).toContain(`${totals.additions} insertions(+), ${totals.deletions} deletions(-)`);
  expect(totals.isTruncated).toBe(false);
});

test('each page of files has the patches of its files', async () => {
  const whole = (await changesOf('second')).files.nodes;
  const seen: File[] = [];
  for (let after = ''; ; ) {
    const { commit } = await ask(
      `commit(revision: "second") { changes { files(first: 3 ${after}) { nodes { path patch { text isTruncated } } pageInfo { hasNextPage endCursor } } } }`,
    );
    seen.push(...commit.changes.files.nodes);
    if (!commit.changes.files.pageInfo.hasNextPage) break;
    after = `after: "${commit.changes.files.pageInfo.endCursor}"`;
  }
  expect(seen).toEqual(whole.map(({ path, patch }: File) => ({ path, patch })));
});

test('a root commit shows all its files, a merge shows its changes relative to the first parent', async () => {
  const first = await changesOf('first');
  expect(first.files.totalCount).toBe(8);
  expect(new Set(first.files.nodes.map(({ status }: File) => status))).toEqual(new Set(['ADDED']));
  const merge = await changesOf('merged');
  expect(merge.files.nodes).toMatchObject([{ path: 'side.txt', status: 'ADDED', additions: 2 }]);
});

test('truncated file lists and patches are marked as truncated', async () => {
  const many = await changesOf('many-files');
  expect(many).toMatchObject({
    isTruncated: true,
    additions: null,
    deletions: null,
    files: { totalCount: MAX_FILES },
  });
  expect(many.files.nodes[0]).toMatchObject({
    additions: null,
    patch: { text: '@@ -0,0 +1 @@\n+0\n' },
  });
  const large = await changesOf('many');
  const texts: { text: string; isTruncated: boolean }[] = large.files.nodes.map(
    ({ patch }: File) => patch,
  );
  expect(texts.every(({ isTruncated }) => isTruncated)).toBe(true);
  const bytes = texts.reduce((sum, { text }) => sum + text.length, 0);
  expect(bytes).toBeGreaterThan(MAX_PAGE_BYTES / 2);
  expect(bytes).toBeLessThanOrEqual(MAX_PAGE_BYTES + MAX_PATCH_BYTES);
  expect(texts.at(-1)?.text).toBe('');
});

test('a comparison has the merge base of two revisions and the commits since then', async () => {
  const { comparison } = await ask(
    `comparison(base: "second", head: "side") { aheadBy behindBy base { sha } head { message } mergeBase { sha }
       commits(first: 1) { totalCount nodes { message changes { additions } } pageInfo { hasNextPage endCursor } } changes { ${FILES} } }`,
  );
  expect(comparison).toMatchObject({
    aheadBy: 2,
    behindBy: 1,
    base: { sha: await workspace.git('r', 'rev-parse', 'second') },
    head: { message: 'side 2' },
    mergeBase: { sha: await workspace.git('r', 'rev-parse', 'first') },
    commits: {
      totalCount: 2,
      nodes: [{ message: 'side 2', changes: { additions: 1 } }],
      pageInfo: { hasNextPage: true },
    },
    changes: {
      additions: 2,
      files: { nodes: [{ path: 'side.txt', patch: { text: '@@ -0,0 +1,2 @@\n+s\n+t\n' } }] },
    },
  });
  const { endCursor } = comparison.commits.pageInfo;
  const next = await ask(
    `comparison(base: "second", head: "side") { commits(first: 1, after: "${endCursor}") { nodes { message } pageInfo { hasNextPage } } }`,
  );
  expect(next.comparison.commits).toEqual({
    nodes: [{ message: 'side 1' }],
    pageInfo: { hasNextPage: false },
  });

  const same = await ask(
    'comparison(base: "main", head: "merged") { aheadBy behindBy commits { nodes { sha } } changes { files { totalCount } } }',
  );
  expect(same.comparison).toEqual({
    aheadBy: 0,
    behindBy: 0,
    commits: { nodes: [] },
    changes: { files: { totalCount: 0 } },
  });
  const alone = await ask(
    'comparison(base: "first", head: "alone") { mergeBase { sha } aheadBy changes { files { nodes { path status } } } }',
  );
  expect(alone.comparison).toMatchObject({ mergeBase: null, aheadBy: 1 });
  expect(alone.comparison.changes.files.nodes).toContainEqual({
    path: 'alone.txt',
    status: 'ADDED',
  });
});

test('an impossible comparison is null with an error, and strangers see nothing', async () => {
  const query = (base: string) =>
    `{ repository(namespace: "ada", name: "r") { comparison(base: "${base}", head: "main") { aheadBy } commit(revision: "${base}") { changes { additions } } } }`;
  for (const revision of ['none', '', 'first~1', '-x', 'a'.repeat(40)]) {
    const { data, errors } = await ada.graphql(query(revision));
    expect(data.repository, revision).toEqual({ comparison: null, commit: null });
    expect(errors?.map(({ extensions }) => extensions.code)).toEqual(['NOT_FOUND', 'NOT_FOUND']);
  }
  const eve = await app.user('eve');
  expect((await eve.graphql(query('first'))).data).toEqual({ repository: null });
});

test('one response has at most 16 MiB of files and patches and marks the rest as truncated', async () => {
  const files = Array.from(
    { length: 20 },
    (_, i) => `f${i}: file(path: "wide.txt", ref: "wide") { content }`,
  );
  const { data, errors } = await ada.graphql(
    `{ repository(namespace: "ada", name: "r") { ${files.join(' ')} } }`,
  );
  const shown = Object.values(data.repository).filter((file) => file !== null);
  expect(shown).toHaveLength(16);
  expect(errors).toHaveLength(4);
  expect(errors?.[0]).toMatchObject({
    message: expect.stringContaining('The response is too large'),
    extensions: { code: 'INVALID_REQUEST' },
  });
  const pages = Array.from(
    { length: 20 },
    (_, i) =>
      `c${i}: commit(revision: "many") { changes { files(first: 30) { nodes { patch { text isTruncated } } } } }`,
  );
  const { repository } = await ada.gql(
    `{ repository(namespace: "ada", name: "r") { ${pages.join(' ')} } }`,
  );
  const texts = Object.values(repository).flatMap((commit: File) =>
    commit.changes.files.nodes.map(({ patch }: File) => patch),
  );
  expect(texts.every(({ isTruncated }) => isTruncated)).toBe(true);
  expect(texts.reduce((sum, { text }) => sum + text.length, 0)).toBeLessThanOrEqual(16 * 2 ** 20);
});
