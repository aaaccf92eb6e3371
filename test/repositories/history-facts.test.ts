/** Facts about a history: distance to the default branch, last commit of a path, commits per week. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { WEEKS } from '../../src/git/objects/commit-counts.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
const DAY_MS = 86_400_000;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  for (const name of ['code', 'empty', 'dated'])
    await ada.repository(`ada/${name}`, { autoInit: false });
  await workspace.clone(ada, 'ada/code');
  await workspace.commit('code', { 'a.txt': '1\n', 'src/:(odd) ä.txt': '1\n' }, 'first');
  await workspace.git('code', 'tag', 'v1');
  await workspace.git('code', 'checkout', '-q', '-b', 'side');
  await workspace.commit('code', { 'side.txt': '1\n' }, 'side 1');
  await workspace.commit('code', { 'side.txt': '2\n' }, 'side 2');
  await workspace.git('code', 'checkout', '-q', '--orphan', 'alone');
  await workspace.commit('code', { 'alone.txt': '1\n' }, 'alone');
  await workspace.git('code', 'checkout', '-q', 'main');
  await workspace.commit('code', { 'a.txt': '2\n' }, 'second');
  await workspace.commit('code', { 'src/deep/b.txt': '1\n' }, 'third');
  await workspace.git('code', 'push', '-q', '--all');
  await workspace.git('code', 'push', '-q', '--tags');
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
  const query = `{ repository(namespace: "ada", name: "code") { ${fields} } }`;
  const [error] = (await ada.graphql(query)).errors ?? [];
  return `${error?.extensions.code} ${error?.message}`;
}

test('branches have their distance to the default branch, as git counts it; tags have none', async () => {
  const { branches, tags } = await ask(
    'branches { nodes { name aheadBy behindBy } } tags { nodes { name aheadBy behindBy } }',
  );
  const expected = await Promise.all(
    ['alone', 'main', 'side'].map(async (name) => {
      const range = ['rev-list', '--left-right', '--count', `main...${name}`];
      const counts = await workspace.git('code', ...range);
      const [behindBy, aheadBy] = counts.split('\t').map(Number);
      return { name, aheadBy, behindBy };
    }),
  );
  expect(branches.nodes).toEqual(expected);
  expect(expected[2]).toEqual({ name: 'side', aheadBy: 2, behindBy: 2 });
  expect(tags.nodes).toEqual([{ name: 'v1', aheadBy: null, behindBy: null }]);
});

test('branches are compared with the default branch, whatever its name', async () => {
  await ada.repository('ada/other', { autoInit: false, defaultBranch: 'trunk' });
  const branches = ['main:trunk', 'v1:refs/heads/main'];
  await workspace.git('code', 'push', '-q', remote(ada, 'ada/other'), ...branches);
  expect((await ask('branches { nodes { name behindBy } }', 'other')).branches.nodes).toEqual([
    { name: 'main', behindBy: 2 },
    { name: 'trunk', behindBy: 0 },
  ]);
});

test('lastCommit of a path is the commit that git reports', async () => {
  for (const path of ['a.txt', 'src', 'src/deep/b.txt', 'src/:(odd) ä.txt']) {
    const { lastCommit } = await ask(`lastCommit(path: ${JSON.stringify(path)}) { sha }`);
    const literal = ['--literal-pathspecs', 'log', '-1', '--format=%H', '--', path];
    expect([path, lastCommit.sha]).toEqual([path, await workspace.git('code', ...literal)]);
  }
  const root = await ask(
    'now: lastCommit { message } old: lastCommit(path: "/", ref: "v1") { message } side: lastCommit(path: "a.txt", ref: "side") { message }',
  );
  expect(root).toEqual({
    now: { message: 'third' },
    old: { message: 'first' },
    side: { message: 'first' },
  });
  expect((await ask('lastCommit { sha } commitActivity { commits }', 'empty')) as object).toEqual({
    lastCommit: null,
    commitActivity: null,
  });
  for (const [fields, expected] of [
    ['lastCommit(path: "absent") { sha }', 'NOT_FOUND Path'],
    ['lastCommit(path: "a.txt", ref: "none") { sha }', 'NOT_FOUND Ref'],
    ['lastCommit(path: "../a.txt") { sha }', 'INVALID_REQUEST path'],
    ['commitActivity(ref: "none") { commits }', 'NOT_FOUND Revision'],
    ['commitActivity(ref: "--all") { commits }', 'NOT_FOUND Revision'],
  ] as const)
    expect([fields, await problem(fields)]).toEqual([fields, expect.stringContaining(expected)]);
  const eve = await app.user('eve');
  const { data } = await eve.graphql(
    '{ repository(namespace: "ada", name: "code") { lastCommit { sha } commitActivity { commits } } }',
  );
  expect(data.repository).toBeNull();
});

test('commits of the last year are counted per week, older commits are not', async () => {
  const now = Date.now();
  const dates = [760, 22, 21, 0].map((days) => new Date(now - days * DAY_MS));
  await workspace.clone(ada, 'ada/dated');
  const script = '!f() { GIT_COMMITTER_DATE="$1" git commit -q --allow-empty -m dated; }; f';
  for (const date of dates)
    await workspace.git('dated', '-c', `alias.at=${script}`, 'at', date.toISOString());
  await workspace.git('dated', 'push', '-q', 'origin', 'main');
  const { commitActivity } = await ask('commitActivity { start commits }', 'dated');
  expect(commitActivity).toHaveLength(WEEKS);
  const weeks: { start: string; commits: number }[] = commitActivity;
  for (const { start, commits } of weeks) {
    const from = Date.parse(start);
    expect(new Date(from).getUTCDay()).toBe(1);
    const within = dates.filter((date) => Number(date) >= from && Number(date) < from + 7 * DAY_MS);
    expect([start, commits]).toEqual([start, within.length]);
  }
  expect(weeks.reduce((sum, { commits }) => sum + commits, 0)).toBe(3);
});
