/** What a push of `.loam/jobs.yml` says to the pusher. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let ada: Client;
let workspace: Workspace;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  workspace = await Workspace.open();
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

async function create(name: string): Promise<void> {
  await ada.post('/auth/v1/repository/ada', { name });
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, { 'a.txt': 'a' });
}

test('problems of the file are printed, and the push is accepted', async () => {
  await create('bad');
  await workspace.commit('bad', {
    '.loam/jobs.yml': 'jobs:\n  test:\n    on: { push: true }\n    comand: npm test\n',
  });
  const { code, stderr } = await workspace.try('bad', 'push', 'origin', 'HEAD');
  expect(code).toBe(0);
  expect(stderr).toContain('remote: .loam/jobs.yml:4: Unknown key "comand" in jobs.test');
  expect(stderr).toContain('remote: .loam/jobs.yml:2: jobs.test.command: is required');

  await workspace.commit('bad', {
    '.loam/jobs.yml': 'jobs:\n  test:\n    on: { push: true }\n    command: npm test\n',
  });
  const good = await workspace.try('bad', 'push', 'origin', 'HEAD');
  expect([good.code, good.stderr]).toEqual([0, expect.not.stringContaining('remote:')]);
  await workspace.commit('bad', { '.loam/jobs.yml': `#${'x'.repeat(200_000)}` });
  const large = await workspace.try('bad', 'push', 'origin', 'HEAD');
  expect([large.code, large.stderr]).toEqual([0, expect.stringContaining('128 KiB')]);
});

test('a push of many refs says how many of them start jobs', async () => {
  await create('many');
  await workspace.commit('many', {
    '.loam/jobs.yml': 'jobs: { test: { on: { push: true }, command: npm test } }',
  });
  const branches = Array.from({ length: 30 }, (_, i) => `HEAD:refs/heads/b${i}`);
  const { code, stderr } = await workspace.try('many', 'push', 'origin', ...branches);
  expect(code).toBe(0);
  expect(stderr).toContain('Jobs start for 20 of the 30 refs only');
  await eventually(async () => {
    const { rows } = await app.pool.query('select from run_triggers');
    expect(rows).toEqual([]);
  });
  const { rows: runs } = await app.pool.query(
    `select ref from runs where repository_id = (select id from repositories where name = 'many')`,
  );
  expect(runs).toHaveLength(20);
  // Of more refs, not all are searched for the file.
  const tip = await workspace.git('many', 'rev-parse', 'HEAD');
  const refs = Array.from({ length: 1_001 }, (_, i) => `${tip} refs/heads/c${i}\n`);
  await writeFile(join(workspace.path, 'many/.git/packed-refs'), refs.join(''));
  const large = await workspace.try('many', 'push', 'origin', 'refs/heads/c*:refs/heads/c*');
  expect(large.stderr).toContain('Jobs start for 20 of the 1001 refs only');
});
