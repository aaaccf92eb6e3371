/** Git processes that clones and small pushes start. Answers without a process are identical to git's. */
import { execFileSync } from 'node:child_process';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { measureDiskUsage } from '../../src/git/objects/walk.ts';
import { GIT_STARTED, type StartedGit } from '../../src/platform/processes/git-started.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let dir: string;
const started: string[] = [];
const note = (message: unknown) => void started.push((message as StartedGit).args[0] ?? '');

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'one' });
  dir = app.app.services.git.disk.pathOf(body.id);
  await workspace.clone(ada, 'ada/one');
  await workspace.commit('one', { 'a.txt': 'a' });
  await workspace.git('one', 'push', '-q', 'origin', 'HEAD:main');
  subscribe(GIT_STARTED, note);
});
afterAll(async () => {
  unsubscribe(GIT_STARTED, note);
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const capabilities = async (name = 'one') => {
  const answer = await fetch(`${app.base}/ada/${name}.git/info/refs?service=git-upload-pack`, {
    headers: {
      authorization: `Basic ${Buffer.from(`x:${ada.token}`).toString('base64')}`,
      'git-protocol': 'version=2',
    },
  });
  return { status: answer.status, text: await answer.text() };
};

test('capabilities are read from git once, and answered unchanged', async () => {
  const env = {
    PATH: process.env.PATH,
    GIT_PROTOCOL: 'version=2',
    GIT_CONFIG_COUNT: '1',
    GIT_CONFIG_KEY_0: 'uploadpack.allowFilter',
    GIT_CONFIG_VALUE_0: 'true',
  };
  const args = ['upload-pack', '--stateless-rpc', '--http-backend-info-refs', dir];
  const text = execFileSync('git', args, { env, encoding: 'utf8' });
  expect(await capabilities()).toEqual({ status: 200, text });
  started.length = 0;
  expect(await capabilities()).toEqual({ status: 200, text });
  expect(started).toEqual([]);
  expect((await capabilities('none')).status).toBe(404);
});

test('a clone starts one git process, and a small push four', async () => {
  started.length = 0;
  await workspace.clone(ada, 'ada/one', 'clone');
  expect(started).toEqual(['upload-pack']);
  started.length = 0;
  await workspace.commit('one', { 'b.txt': 'b' });
  await workspace.git('one', 'push', '-q', 'origin', 'HEAD:main');
  // `cat-file` searches the new objects for LFS pointers, and looks for `.loam/jobs.yml`; `ls-tree` lists the files to detect
  // the language.
  expect(started).toEqual(['receive-pack', 'cat-file', 'cat-file', 'ls-tree']);
});

test('the ref advertisement of a push is identical to that of git', async () => {
  const advertised = async (name: string) => {
    const answer = await fetch(`${app.base}/ada/${name}.git/info/refs?service=git-receive-pack`, {
      headers: { authorization: `Basic ${Buffer.from(`x:${ada.token}`).toString('base64')}` },
    });
    return answer.text();
  };
  const told = (at: string) => {
    const env = {
      PATH: process.env.PATH,
      GIT_CONFIG_COUNT: '1',
      GIT_CONFIG_KEY_0: 'receive.advertisePushOptions',
      GIT_CONFIG_VALUE_0: 'true',
    };
    const args = ['receive-pack', '--stateless-rpc', '--http-backend-info-refs', at];
    return `001f# service=git-receive-pack\n0000${execFileSync('git', args, { env, encoding: 'utf8' })}`;
  };
  await workspace.git(
    'one',
    'push',
    '-q',
    'origin',
    'HEAD:refs/heads/feature/ä',
    'HEAD:refs/tags/v1',
  );
  started.length = 0;
  expect(await advertised('one')).toBe(told(dir));
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'empty', auto_init: false });
  expect(await advertised('empty')).toContain('capabilities^{}');
  expect(await advertised('empty')).toBe(told(app.app.services.git.disk.pathOf(body.id)));
  expect(started).toEqual([]);
});

test('the size on disk equals that of git count-objects, for packs and loose objects', async () => {
  const counted = () => {
    const text = execFileSync('git', ['count-objects', '-v'], {
      env: { PATH: process.env.PATH, GIT_DIR: dir },
      encoding: 'utf8',
    });
    const kib = (name: string) => Number(new RegExp(`^${name}: (\\d+)$`, 'm').exec(text)?.[1]);
    return (kib('size') + kib('size-pack')) * 1024;
  };
  for (let i = 0; i < 20; i++)
    execFileSync('git', ['hash-object', '-w', '--stdin'], {
      env: { PATH: process.env.PATH, GIT_DIR: dir },
      input: 'x'.repeat(i * 3_000) + i,
    });
  expect(await measureDiskUsage(dir)).toBe(counted());
  expect(await measureDiskUsage(join(workspace.path, 'one/.git'))).toBeGreaterThan(0);
});
