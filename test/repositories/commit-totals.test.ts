/**
 * The exact number of commits of a branch is counted at each push, whatever the push does, and reads use the stored
 * number.
 */
import { execFileSync } from 'node:child_process';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CommitTotals } from '../../src/git/objects/commit-counts.ts';
import { FairSemaphore } from '../../src/platform/limits/fair-semaphore.ts';
import { GIT_STARTED, type StartedGit } from '../../src/platform/processes/git-started.ts';
import { eventually } from '../support/eventually.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

const LONG = 6_000;
const FILE = 'loam-totals';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let dir: string;
/** The ranges that `rev-list --count` was started with. */
const counted: string[] = [];
const started: string[] = [];
const note = (message: unknown) => {
  const { args } = message as StartedGit;
  if (args[0] === 'rev-list' && args[1] === '--count') counted.push(args.at(-1) as string);
  started.push(args.join(' '));
};

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'long', auto_init: false });
  dir = app.app.services.git.disk.pathOf(body.id);
  await workspace.git('.', 'init', '-q', '-b', 'main', 'long');
  const input = Array.from(
    { length: LONG },
    (_, i) => `commit refs/heads/main\ncommitter Ada <ada@example.com> ${i} +0000\ndata 1\nx\n`,
  ).join('');
  execFileSync('git', ['fast-import', '--quiet'], { cwd: join(workspace.path, 'long'), input });
  await workspace.git('long', 'reset', '-q', '--hard');
  await workspace.git('long', 'remote', 'add', 'origin', remote(ada, 'ada/long'));
  subscribe(GIT_STARTED, note);
});
afterAll(async () => {
  unsubscribe(GIT_STARTED, note);
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

/** Pushes and waits until the commits are counted. @returns the counted ranges */
async function push(...args: string[]): Promise<string[]> {
  counted.length = 0;
  await workspace.git('long', 'push', '-q', 'origin', ...args);
  const head = await workspace.git('long', 'rev-parse', 'HEAD');
  await eventually(async () => expect(await readFile(join(dir, FILE), 'utf8')).toContain(head));
  return [...counted];
}

async function totalOf(ref: string): Promise<number> {
  const { data, errors } = await ada.graphql(
    `{ repository(namespace: "ada", name: "long") { commits(revision: "${ref}", first: 3) { totalCount nodes { sha } } } }`,
  );
  expect(errors).toBeUndefined();
  return data.repository.commits.totalCount;
}

const exact = async (ref: string) =>
  Number(await workspace.git('long', 'rev-list', '--count', ref, '--'));

test('the first push counts all commits, later pushes only the difference', async () => {
  const first = await workspace.git('long', 'rev-parse', 'HEAD');
  expect(await push('main')).toEqual([first]);
  const second = await workspace.commit('long', { a: '1' });
  expect(await push('main')).toEqual([`${first}...${second}`]);
  // The first page of the history is prepared, and an idle process has the repository open.
  const { objects } = app.app.services.git;
  await eventually(() => {
    expect(started).toContain(`rev-list --skip=0 --max-count=100 ${second}`);
    expect(objects.counts.idle).toBeGreaterThan(0);
  });
  started.length = 0;
  expect(await totalOf('main')).toBe(LONG + 1);
  // One new `cat-file` is allowed: on a busy machine the idle process may have timed out.
  expect(started.filter((line) => !line.startsWith('cat-file '))).toEqual([]);
  expect(started.length).toBeLessThanOrEqual(1);
});

test('totals are exact after force pushes, merges and concurrent pushes', async () => {
  await workspace.git('long', 'reset', '-q', '--hard', 'HEAD~30');
  await workspace.commit('long', { b: '1' });
  await push('-f', 'main');
  expect(await totalOf('main')).toBe(await exact('main'));
  const branches = ['one', 'two', 'three'];
  for (const [i, name] of branches.entries()) {
    await workspace.git('long', 'checkout', '-q', '-b', name, `main~${i * 7}`);
    for (let n = 0; n <= i; n++) await workspace.commit('long', { [name]: `${n}` });
  }
  await workspace.git('long', 'merge', '-q', '-m', 'both', 'one');
  await Promise.all(branches.map((name) => push(name)));
  for (const name of branches) expect(await totalOf(name)).toBe(await exact(name));
});

test('totals survive a restart; a truncated entry is counted again', async () => {
  const commit = await workspace.git('long', 'rev-parse', 'main');
  const total = await exact('main');
  const again = () => new CommitTotals(new FairSemaphore(4)).countCommits(dir, commit);
  counted.length = 0;
  expect(await again()).toBe(total);
  expect(counted).toEqual([]);
  const base = await workspace.git('long', 'rev-parse', 'main~1');
  await writeFile(join(dir, FILE), `${base} ${total - 1}\n${commit} ${`${total}`.slice(0, 2)}`);
  expect(await again()).toBe(total);
  expect(counted).toEqual([`${base}...${commit}`]);
  // An entry for a commit that no longer exists is ignored.
  await writeFile(join(dir, FILE), `${'a'.repeat(40)} 77\n`);
  expect(await again()).toBe(total);
});

test('a short history is not counted before it is read', async () => {
  await ada.post('/auth/v1/repository/ada', { name: 'short' });
  await workspace.clone(ada, 'ada/short');
  await workspace.commit('short', { a: '1' });
  counted.length = 0;
  await workspace.git('short', 'push', '-q', 'origin', 'HEAD:main');
  const { history, objects } = app.app.services.git;
  await history.prepare(objects, dir.replace(/[^/]+$/, 'none'), []);
  expect(counted).toEqual([]);
});
