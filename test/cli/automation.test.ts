/** `loam check`, `loam start` and `loam runs` */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

/** Commits `.loam/jobs.yml` to the branch `main` of a repository of ada. */
async function commitJobs(client: Client, name: string, content: string): Promise<void> {
  const { repository } = await client.gql(
    'query ($name: String!) { repository(namespace: "ada", name: $name) { id } }',
    { name },
  );
  await client.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    {
      input: {
        id: repository.id,
        branch: 'main',
        message: 'Add jobs',
        changes: [{ path: '.loam/jobs.yml', content }],
      },
    },
  );
}

test('a file is checked, its jobs are started, and runs are listed', async () => {
  await using user = await LoamUser.open(ada);
  await user.loam(['repo', 'create', 'model', '--init']);
  const file = join(user.home, 'jobs.yml');
  await user.write('jobs.yml', 'jobs:\n  test:\n    on: { manual: true }\n    comand: x\n');
  const bad = await user.run(['check', file]);
  expect(bad.code).toBe(1);
  expect(bad.stdout).toContain(`${file}:4:5: Unknown key "comand" in jobs.test\n`);

  // What the server would refuse for any job.
  const hardware = 'retries: 10\n    disk_gb: 0';
  await user.write(
    'jobs.yml',
    `jobs:\n  test:\n    on: { manual: true }\n    command: x\n    ${hardware}\n`,
  );
  const outOfRange = await user.run(['check', file]);
  expect(outOfRange.code).toBe(1);
  expect(outOfRange.stdout).toContain(`${file}:6:14: test: disk_gb must be from 1 to 10240\n`);
  await user.write(
    'jobs.yml',
    'defaults: { retries: 10 }\njobs: { a: { on: { tag: [v] }, command: x } }\n',
  );
  expect((await user.run(['check', file])).stdout).toContain('a: retries must be from 0 to 5');

  const valid =
    'jobs:\n  test:\n    on: { manual: true }\n    matrix: { n: [1, 2] }\n    command: x\n';
  await user.write('jobs.yml', valid);
  const good = await user.run(['check', file]);
  expect([good.code, good.stdout]).toEqual([0, 'test-1\ntest-2\n']);
  const missing = await user.run(['check', 'missing.yml']);
  expect([missing.code, missing.stderr]).toEqual([1, 'loam: There is no file missing.yml here.\n']);

  await commitJobs(ada, 'model', valid);
  expect(await user.loam(['start', 'test', '--repo', 'model'])).toBe(
    `${app.base}/ada/model/runs/1\n`,
  );
  const refused = await user.run(['start', 'other', '--repo', 'ada/model']);
  expect([refused.code, refused.stderr]).toEqual([
    1,
    'loam: job: must be a job with `manual: true`: test\n',
  ]);
  const values =
    'jobs: { a: { on: { manual: { inputs: { n: { type: integer } } } }, command: x } }';
  await user.loam(['repo', 'create', 'tuned', '--init']);
  await commitJobs(ada, 'tuned', values);
  const unset = await user.run(['start', 'a', '--repo', 'tuned']);
  expect([unset.code, unset.stderr]).toEqual([1, 'loam: inputs: n must be given\n']);
  await user.loam(['start', 'a', '-f', 'n=3', '--repo', 'tuned']);
  expect(await user.loam(['runs', 'show', '1', '--repo', 'tuned'])).toContain('inputs\tn=3\n');

  expect(await user.loam(['runs', 'model'])).toMatch(/^1\t\w+\tmanual\tmain\t[0-9a-f]{10}\tada\t/);
  expect(JSON.parse(await user.loam(['runs', 'model', '--json']))).toMatchObject([
    { number: 1, title: 'Add jobs' },
  ]);
  expect(await user.loam(['runs', 'list', 'model', '--ref', 'refs/heads/other'])).toBe('');
});

test('a run is shown, waited for, repeated and cancelled', async () => {
  await using user = await LoamUser.open(ada);
  await user.loam(['repo', 'create', 'tested', '--init']);
  const runs = (...args: string[]) => user.run(['runs', ...args, '--repo', 'tested']);
  const none = await runs('show');
  expect([none.code, none.stderr]).toEqual([1, 'loam: Run of ada/tested not found\n']);

  await commitJobs(
    ada,
    'tested',
    'jobs:\n  good:\n    on: { manual: true }\n    command: x\n' +
      '  bad:\n    on: { manual: true }\n    command: exit 3\n',
  );
  await user.loam(['start', '--repo', 'tested']);
  const failed = await runs('wait', '1');
  expect([failed.code, failed.stderr]).toEqual([
    1,
    'ada/good-1 succeeded\nada/bad-1 failed\nRun 1 failed\n',
  ]);
  const shown = await runs('show');
  expect(shown.stdout).toMatch(
    /^run\t1\nstatus\tfailed\ntitle\tAdd jobs\ntrigger\tmanual\nref\tmain\n/,
  );
  expect(shown.stdout).toContain(`page\t${app.base}/ada/tested/runs/1\n`);
  expect(shown.stdout).toMatch(/^ada\/bad-1\tfailed\t\d+\t3\t/m);

  const repeated = await runs('rerun', '1', '--failed');
  expect([repeated.code, repeated.stdout]).toEqual([0, `${app.base}/ada/tested/runs/2\n`]);
  const json = JSON.parse((await runs('wait', '2', '--json')).stdout);
  expect(json).toMatchObject({
    number: 2,
    status: 'FAILED',
    jobs: [{ runJob: 'bad', exitCode: 3 }],
  });
  const missing = await runs('show', '7');
  expect([missing.code, missing.stderr]).toEqual([1, 'loam: Run 7 of ada/tested not found\n']);

  await commitJobs(ada, 'tested', 'jobs:\n  long:\n    on: { push: true }\n    command: hold\n');
  await eventually(async () => expect((await runs('show')).stdout).toContain('run\t3\n'));
  expect((await runs('cancel')).stderr).toBe('Cancelled run 3\n');
  expect((await runs('wait')).stderr).toBe('ada/long-3 cancelled\nRun 3 cancelled\n');

  await commitJobs(ada, 'tested', 'jobs:\n  long:\n    onn: { push: true }\n    command: x\n');
  const { repository } = await ada.gql(
    '{ repository(namespace: "ada", name: "tested") { commit(revision: "main") { sha } } }',
  );
  const invalid = await runs('wait', '--commit', repository.commit.sha);
  expect([invalid.code, invalid.stderr]).toEqual([
    1,
    expect.stringMatching(
      /^\.loam\/jobs\.yml:3:5: Unknown key "onn" in jobs\.long\n[\s\S]*Run 4 invalid\n$/,
    ),
  ]);
  const ended = JSON.parse((await runs('show', '4', '--json')).stdout);
  expect(ended.completedAt).toBe(ended.createdAt);
  const odd = await runs('wait', '--commit', 'HEAD');
  expect([odd.code, odd.stderr]).toEqual([2, expect.stringContaining('hexadecimal digits')]);
});

test('jobs of a matrix are shown with their values', async () => {
  await using user = await LoamUser.open(ada);
  await user.loam(['repo', 'create', 'grid', '--init']);
  await commitJobs(
    ada,
    'grid',
    'jobs: { train: { on: { manual: true }, matrix: { seed: [1, 2], lr: ["0.10"] }, command: x } }',
  );
  await user.loam(['start', '--repo', 'grid']);
  expect(await user.loam(['job', 'train-1-2'])).toContain('matrix\tseed=2 lr=0.10\n');
  for (const command of [['runs', 'show', '--repo', 'grid'], ['jobs']]) {
    const { stdout } = await user.inTerminal(command).result();
    expect(stdout).toContain('ada/train-1-2 (seed=2 lr=0.10)');
  }
});

test('a run of a push that may not create jobs is approved', async () => {
  await using user = await LoamUser.open(ada);
  await user.loam(['repo', 'create', 'careful', '--init']);
  const pusher = await ada.withToken({ scopes: ['REPO_WRITE'] });
  await commitJobs(pusher, 'careful', 'jobs:\n  test:\n    on: { push: true }\n    command: x\n');
  const runs = (...args: string[]) => user.run(['runs', ...args, '--repo', 'careful']);
  await eventually(async () =>
    expect((await runs('show')).stdout).toContain('status\twaiting-for-approval\n'),
  );
  const waiting = await runs('wait');
  expect([waiting.code, waiting.stderr]).toEqual([
    1,
    `loam: The run waits for approval: ${app.base}/ada/careful/runs/1\n`,
  ]);
  expect((await runs('approve', '1')).stderr).toBe('Approved run 1\n');
  expect((await runs('wait')).code).toBe(0);
  expect((await runs('show')).stdout).toContain('approved by\tada\n');
  const again = await runs('approve', '1');
  expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('approval')]);
});
