/** `loam check`, `loam start` and `loam runs` */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

test('a file is checked, its jobs are started, and runs are listed', async () => {
  await using user = await LoamUser.open(ada);
  await user.loam(['repo', 'create', 'model', '--init']);
  const file = join(user.home, 'jobs.yml');
  await user.write('jobs.yml', 'jobs:\n  test:\n    on: { manual: true }\n    comand: x\n');
  const bad = await user.run(['check', file]);
  expect(bad.code).toBe(1);
  expect(bad.stdout).toContain(`${file}:4:5: Unknown key "comand" in jobs.test\n`);

  const valid =
    'jobs:\n  test:\n    on: { manual: true }\n    matrix: { n: [1, 2] }\n    command: x\n';
  await user.write('jobs.yml', valid);
  const good = await user.run(['check', file]);
  expect([good.code, good.stdout]).toEqual([0, 'test-1\ntest-2\n']);
  const missing = await user.run(['check', 'missing.yml']);
  expect([missing.code, missing.stderr]).toEqual([1, 'loam: There is no file missing.yml here.\n']);

  const { repository } = await ada.gql('{ repository(namespace: "ada", name: "model") { id } }');
  await ada.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    {
      input: {
        ...{ id: repository.id, branch: 'main', message: 'Add jobs' },
        changes: [{ path: '.loam/jobs.yml', content: valid }],
      },
    },
  );
  expect(await user.loam(['start', 'test', '--repo', 'model'])).toBe(
    `${app.base}/ada/model/runs/1\n`,
  );
  const refused = await user.run(['start', 'other', '--repo', 'ada/model']);
  expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining('job')]);
  expect(await user.loam(['runs', 'model'])).toMatch(/^1\t\w+\tmanual\tmain\t[0-9a-f]{10}\tada\t/);
  expect(JSON.parse(await user.loam(['runs', 'model', '--json']))).toMatchObject([
    { number: 1, title: 'Add jobs' },
  ]);
});
