/** Search for files and lines, blame, and the last commits of directory entries. */
import { execFileSync } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { listProcessesNaming } from '../support/processes.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
/** Commit ids by message. */
const shas = new Map<string, string>();

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  for (const name of ['code', 'empty']) await ada.repository(`ada/${name}`, { autoInit: false });
  await workspace.clone(ada, 'ada/code');
  const commit = async (message: string, files: Record<string, string | Buffer>) =>
    shas.set(message, await workspace.commit('code', files, message));
  await commit('first', {
    'README.md': '# Code\n\nHello world\n',
    'src/lib/parse.ts': 'one\ntwo\nthree\n',
    'src/ä :(odd).txt': 'Hello\n',
    'empty.txt': '',
  });
  await commit('second', {
    'src/lib/parse.ts': 'one\n2\nthree\nhello again\n',
    'binary.dat': Buffer.from('hello\0hello'),
    'long.js': `${'x'.repeat(2_000_000)}hello\nhello\n`,
  });
  await workspace.git('code', 'checkout', '-q', '-b', 'side');
  await commit('side', { 'src/side.txt': 'side\n' });
  await workspace.git('code', 'checkout', '-q', 'main');
  await commit('third', {
    'README.md': '# Code\n\nHello there\n',
    'many.txt': 'match\n'.repeat(50),
  });
  await workspace.git('code', 'merge', '-q', '-m', 'merge', 'side');
  await workspace.git('code', 'mv', 'src/lib/parse.ts', 'src/lib/parser.ts');
  await workspace.git('code', 'commit', '-q', '-m', 'moved');
  shas.set('moved', await workspace.git('code', 'rev-parse', 'HEAD'));
  await workspace.git('code', 'push', '-q', 'origin', 'main');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

async function ask(fields: string, name = 'code') {
  return (await ada.gql(`{ repository(namespace: "ada", name: "${name}") { ${fields} } }`))
    .repository;
}

async function problem(fields: string): Promise<string> {
  const { errors } = await ada.graphql(
    `{ repository(namespace: "ada", name: "code") { ${fields} } }`,
  );
  return `${errors?.[0]?.extensions?.code} ${errors?.[0]?.message}`;
}

test('files are found by words in their paths, matches in the name first', async () => {
  const find = async (text: string, more = '') =>
    (await ask(`fileSearch(text: ${JSON.stringify(text)}${more}) { ref paths isTruncated }`))
      .fileSearch;
  expect(await find('PARSE')).toEqual({
    ref: 'main',
    paths: ['src/lib/parser.ts'],
    isTruncated: false,
  });
  expect((await find('src txt')).paths).toEqual(['src/side.txt', 'src/ä :(odd).txt']);
  expect((await find('s', ', first: 1')).isTruncated).toBe(true);
  expect((await find('parse', `, ref: "${shas.get('first')}"`)).paths).toEqual([
    'src/lib/parse.ts',
  ]);
  expect((await find('nothing of it')).paths).toEqual([]);
});

test('lines of text files are found by text or pattern, and are truncated', async () => {
  const find = async (args: string) =>
    (await ask(`textSearch(${args}) { lines { path line column text } isTruncated }`)).textSearch;
  const { lines, isTruncated } = await find('text: "hello"');
  expect(isTruncated).toBe(false);
  expect(lines).toEqual([
    { path: 'long.js', line: 1, column: 2_000_001, text: 'x'.repeat(400) },
    { path: 'long.js', line: 2, column: 1, text: 'hello' },
    { path: 'src/lib/parser.ts', line: 4, column: 1, text: 'hello again' },
  ]);
  const places = async (args: string) =>
    (await find(args)).lines.map(
      (one: { path: string; line: number }) => `${one.path}:${one.line}`,
    );
  expect(await places('text: "HELLO", ignoresCase: true, path: "src"')).toEqual([
    'src/lib/parser.ts:4',
    'src/ä :(odd).txt:1',
  ]);
  expect(await places('text: "hello", path: "src/ä :(odd).txt", ignoresCase: true')).toHaveLength(
    1,
  );
  expect(await places('text: "^(one|two)$", isPattern: true')).toEqual(['src/lib/parser.ts:1']);
  expect(await places('text: "^(one|two)$"')).toEqual([]);
  expect(await places('text: "--all"')).toEqual([]);
  expect(await places('text: "match", first: 100')).toHaveLength(20);
  expect((await find('text: "match", first: 3')).isTruncated).toBe(true);
});

test('searches with credentials come before anonymous ones, and a search ends when its client disconnects', async () => {
  const { id } = (await ada.gql('{ repository(namespace: "ada", name: "code") { id } }'))
    .repository;
  await ada.post(`/auth/v1/repository/ada/${id}/visibility`, { visibility: 'public' });
  await workspace.commit('code', { 'slow.txt': `${'x'.repeat(20_000)}\n`.repeat(10) }, 'slow');
  await workspace.git('code', 'push', '-q', 'origin', 'HEAD:refs/heads/slow');
  // This pattern with a back reference makes git compare all parts of a line.
  const pattern = String.raw`(x*)(x*)\1\2unusual`;
  const leaving = new AbortController();
  // Only a disconnected client may end a search here.
  const never = vi.spyOn(AbortSignal, 'timeout').mockReturnValue(new AbortController().signal);
  onTestFinished(() => never.mockRestore());
  const query = `{ repository(namespace: "ada", name: "code") { textSearch(ref: "slow", isPattern: true, text: ${JSON.stringify(pattern)}) { ref } } }`;
  const pending = Array.from({ length: 3 }, () =>
    fetch(`${app.base}/graphql`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ query }),
      signal: leaving.signal,
    }).then((answer) => answer.text()),
  );
  let settled = 0;
  for (const one of pending) one.catch(() => {}).finally(() => settled++);
  await eventually(() => expect(listProcessesNaming(pattern)).not.toEqual([]));
  const { textSearch } = await ask('textSearch(text: "hello") { lines { path } }');
  expect(textSearch.lines).toHaveLength(3);
  expect(settled).toBeLessThan(3);
  leaving.abort();
  await Promise.allSettled(pending);
  await eventually(() => expect(listProcessesNaming(pattern)).toEqual([]));
  await ada.post(`/auth/v1/repository/ada/${id}/visibility`, { visibility: 'private' });
});

test('blame returns the commits of lines across renames', async () => {
  const { blame } = await ask(
    'blame(path: "src/lib/parser.ts") { line count oldPath oldLine commit { sha message } }',
  );
  const [first, second] = ['first', 'second'].map((message) => ({
    sha: shas.get(message),
    message,
  }));
  const oldPath = 'src/lib/parse.ts';
  expect(blame).toEqual([
    { line: 1, count: 1, oldPath, oldLine: 1, commit: first },
    { line: 2, count: 1, oldPath, oldLine: 2, commit: second },
    { line: 3, count: 1, oldPath, oldLine: 3, commit: first },
    { line: 4, count: 1, oldPath, oldLine: 4, commit: second },
  ]);
  const part = await ask('blame(path: "src/lib/parser.ts", from: 2, to: 3) { line }');
  expect(part.blame).toEqual([{ line: 2 }, { line: 3 }]);
  expect((await ask('blame(path: "empty.txt") { line }')).blame).toEqual([]);
});

test('directory entries have the commit that last changed them', async () => {
  const entries = async (path: string) => {
    const { tree } = await ask(
      `tree(path: ${JSON.stringify(path)}) { entries { name lastCommit { message } } }`,
    );
    return Object.fromEntries(
      tree.entries.map((one: { name: string; lastCommit: { message: string } | null }) => [
        one.name,
        one.lastCommit?.message,
      ]),
    );
  };
  expect(await entries('')).toEqual({
    src: 'moved',
    'README.md': 'third',
    'binary.dat': 'second',
    'empty.txt': 'first',
    'long.js': 'second',
    'many.txt': 'third',
  });
  expect(await entries('src')).toEqual({
    lib: 'moved',
    'side.txt': 'side',
    'ä :(odd).txt': 'first',
  });
});

test('an archive link serves a complete archive without credentials', async () => {
  for (const format of ['TAR_GZ', 'ZIP']) {
    const { archiveUrl } = await ask(`archiveUrl(ref: "refs/heads/main", format: ${format})`);
    const response = await fetch(archiveUrl);
    expect([response.status, response.headers.get('x-content-type-options')]).toEqual([
      200,
      'nosniff',
    ]);
    expect(response.headers.get('content-disposition')).toContain('code-');
    const bytes = Buffer.from(await response.arrayBuffer());
    const file = 'code-refs-heads-main/src/lib/parser.ts';
    if (format === 'TAR_GZ') {
      await writeFile(join(workspace.path, 'archive'), bytes);
      const names = execFileSync('tar', ['tzf', 'archive'], { cwd: workspace.path }).toString();
      expect(names.split('\n')).toContain(file);
    } else {
      // Names are stored unchanged; the end-of-central-directory record closes the file.
      expect([bytes.includes(file), bytes.lastIndexOf('PK\x05\x06') > 0]).toEqual([true, true]);
    }
    expect((await fetch(archiveUrl, { method: 'HEAD' })).status).toBe(200);
    const [path = '', query] = archiveUrl.split('?');
    for (const other of [path, `${path.replace('code-', 'x-')}?${query}`, `${path}x?${query}`])
      expect([other, (await fetch(other)).status]).toEqual([
        other,
        other.endsWith(`x?${query}`) ? 404 : 403,
      ]);
  }
  const { file } = await ask('file(path: "README.md") { content rawUrl downloadUrl }');
  expect(file).toMatchObject({ content: '# Code\n\nHello there\n', downloadUrl: null });
  expect(await (await fetch(file.rawUrl)).text()).toBe(file.content);
});

test('an invalid search is rejected with the reason; an empty repository has no results', async () => {
  for (const [fields, expected] of [
    ['fileSearch(text: " ") { paths }', 'INVALID_REQUEST text'],
    ['fileSearch(text: "a", first: 101) { paths }', 'INVALID_REQUEST first'],
    ['fileSearch(text: "a", ref: "none") { paths }', 'NOT_FOUND Ref'],
    ['textSearch(text: "a\\nb") { ref }', 'INVALID_REQUEST text'],
    [
      'textSearch(text: "(", isPattern: true) { ref }',
      'INVALID_REQUEST text: must be a valid regular',
    ],
    [
      'textSearch(text: "((((a{1,200}){1,200}){1,200}){1,200})", isPattern: true) { ref }',
      'INVALID_REQUEST text: must be a valid regular',
    ],
    [
      'textSearch(text: "((((a{2,5}b?){2,5}c?){2,5}d?){2,8}e)*f", isPattern: true, path: "src") { ref }',
      'undefined undefined',
    ],
    // Git would compile these patterns to gigabytes.
    [
      'textSearch(text: "((((a{1,200}){1,200}){1,200}){1,200})", isPattern: true) { ref }',
      'INVALID_REQUEST text: must be a valid regular',
    ],
    [
      'textSearch(text: "(((((((((a{9,9}))){9,9}))){9,9})))|((((((a{0,9}){0,9}){0,9})))))b", isPattern: true) { ref }',
      'INVALID_REQUEST text: must be a valid regular',
    ],
    ['textSearch(text: "a", path: "../x") { ref }', 'INVALID_REQUEST path'],
    [`textSearch(text: "${'a'.repeat(257)}") { ref }`, 'INVALID_REQUEST text'],
    ['blame(path: "src") { line }', 'NOT_FOUND File'],
    ['blame(path: "README.md", from: 99) { line }', 'INVALID_REQUEST from'],
    ['blame(path: "README.md", from: 0) { line }', 'INVALID_REQUEST from'],
    ['blame(path: "README.md", from: 2, to: 1) { line }', 'INVALID_REQUEST to'],
    ['blame(path: "README.md", to: 3000) { line }', 'INVALID_REQUEST to'],
  ] as const)
    expect([fields, await problem(fields)]).toEqual([fields, expect.stringContaining(expected)]);
  const empty = await ask(
    'fileSearch(text: "a") { ref paths } textSearch(text: "a") { ref lines { path } } tree { entries { lastCommit { sha } } }',
    'empty',
  );
  expect(empty).toEqual({
    fileSearch: { ref: 'main', paths: [] },
    textSearch: { ref: 'main', lines: [] },
    tree: { entries: [] },
  });
  const bob = await app.user('bob');
  const { data } = await bob.graphql(
    '{ repository(namespace: "ada", name: "code") { textSearch(text: "a") { ref } } }',
  );
  expect(data?.repository).toBeNull();
});
