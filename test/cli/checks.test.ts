/** Checks of metrics: `loam run --check`, `check` in `.loam/jobs.yml`, and checks of the libraries. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Client as LoamClient } from '../../src/cli/sdk/loam.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';

const PYTHON = join(import.meta.dirname, '../../src/cli/python');
const JOBS = `jobs:
  train:
    on: { push: { branches: [main, "try/**"] } }
    matrix: { seed: [1, 2] }
    command: grep "^$SEED " points | cut -d ' ' -f 2-
    check:
      - { metric: accuracy, min: 0.1, regress: 10% }
      - { metric: loss, regress: 0%, better: lower }
  plain:
    on: { push: { branches: [main] } }
    command: echo ::metric::accuracy=0.8
`;

let app: TestApp;
let ada: Client;
let user: LoamUser;
let clone: string;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  await ada.post('/auth/v1/repository/ada', { name: 'model', auto_init: false });
  await user.exec('git', ['clone', '-q', `${app.base}/ada/model.git`]);
  clone = join(user.home, 'model');
});
afterAll(async () => {
  await user?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

const inClone = (...args: string[]) => user.exec('git', args, { cwd: clone });
const loam = (...args: string[]) => user.run(args, { cwd: clone });

/** Pushes a commit whose jobs print these metrics, and waits for its run. */
async function push(branch: string, ...points: string[]) {
  await user.write('model/.loam/jobs.yml', JOBS);
  const lines = points.map((one, at) => `${at + 1} ::metric::${one}\n`);
  await user.write('model/points', lines.join(''));
  await inClone('add', '-A');
  await inClone('commit', '-qm', points.join('; '));
  await inClone('push', '-q', 'origin', `HEAD:${branch}`);
  const sha = (await inClone('rev-parse', 'HEAD')).trim();
  const { code } = await loam('runs', 'wait', '--commit', sha);
  const { repository } = await ada.gql(
    '{ repository(namespace: "ada", name: "model") { runs(first: 1) { nodes { sha jobs { name status checks { passed message } } } } } }',
  );
  const [run] = repository.runs.nodes;
  expect(run.sha).toBe(sha);
  const jobs = run.jobs.filter(({ name }: { name: string }) => name.startsWith('train'));
  return { sha: sha.slice(0, 10), code, jobs };
}

const messages = ({ checks }: { checks: { message: string }[] }) =>
  checks.map(({ message }) => message);

test('a job in the file is compared with its last success on the default branch', async () => {
  const first = await push('main', 'accuracy=0.8 loss=1', 'accuracy=0.5 loss=2');
  expect([first.code, first.jobs.map(messages)]).toEqual([
    0,
    [0.8, 0.5].map((accuracy, at) => [
      `accuracy is ${accuracy}: at least 0.1, nothing to compare with: train has not succeeded on the default branch with this metric yet`,
      `loss is ${at + 1}: nothing to compare with: train has not succeeded on the default branch with this metric yet`,
    ]),
  ]);
  // A success of another branch is no baseline.
  await push('try/better', 'accuracy=0.95 loss=0.1', 'accuracy=0.95 loss=0.1');
  const second = await push('main', 'accuracy=0.75 loss=1', 'accuracy=0.1 loss=2');
  const [passed, failed] = second.jobs;
  expect([second.code, passed.status, failed.status]).toEqual([1, 'SUCCEEDED', 'FAILED']);
  expect(messages(passed)).toEqual([
    `accuracy is 0.75: at least 0.1, at least 0.72 (10% below the 0.8 of ${first.jobs[0].name}, ${first.sha})`,
    `loss is 1: at most 1 (the 1 of ${first.jobs[0].name}, ${first.sha})`,
  ]);
  // With the same values of the matrix.
  const message = `accuracy is 0.1, and at least 0.45 (10% below the 0.5 of ${first.jobs[1].name}, ${first.sha}) is required`;
  expect(messages(failed)[0]).toBe(message);
  expect(failed.checks[1].passed).toBe(true);
  expect((await loam('runs', 'show')).stdout).toContain(`failed: ${message}`);
  expect((await loam('job', failed.name)).stdout).toContain(message);
  // The newest success is the baseline, and a failure is none.
  const third = await push('try/worse', 'accuracy=0.7 loss=1.5', 'accuracy=0.46 loss=2');
  expect(third.jobs.map(messages)).toEqual([
    [
      `accuracy is 0.7: at least 0.1, at least 0.675 (10% below the 0.75 of ${passed.name}, ${second.sha})`,
      `loss is 1.5, and at most 1 (the 1 of ${passed.name}, ${second.sha}) is required`,
    ],
    [
      `accuracy is 0.46: at least 0.1, at least 0.45 (10% below the 0.5 of ${first.jobs[1].name}, ${first.sha})`,
      `loss is 2: at most 2 (the 2 of ${first.jobs[1].name}, ${first.sha})`,
    ],
  ]);
});

test('loam run fails if a check does not pass', async () => {
  const print = (values: string) => `echo ::metric::${values}`;
  const run = (checks: string[], command: string) =>
    loam('run', ...checks.flatMap((check) => ['--check', check]), '--', command);
  const passed = await run(['accuracy>=0.9', 'loss <= 0.5'], print('accuracy=0.9 loss=0.5'));
  expect([passed.code, passed.stdout]).toEqual([0, '']);
  const failed = await run(['accuracy>=0.9', 'loss<=0.5'], print('accuracy=0.87 loss=0.6'));
  expect([failed.code, failed.stdout]).toEqual([
    125,
    'A check has failed: accuracy is 0.87, and at least 0.9 is required; loss is 0.6, and at most 0.5 is required\n',
  ]);
  const regress = 'accuracy regress=2.5% job=plain';
  const worse = await run([regress], print('accuracy=0.7'));
  expect([worse.code, worse.stdout]).toEqual([
    125,
    expect.stringMatching(
      /is 0\.7, and at least 0\.78 \(2\.5% below the 0\.8 of plain-\d+, \w{10}\) is required\n$/,
    ),
  ]);
  expect((await run([`${regress} better=lower`], print('accuracy=0.7'))).code).toBe(0);
  // Jobs of a matrix are compared only with those that have the same values.
  expect((await run(['accuracy regress=0% job=train'], print('accuracy=0'))).code).toBe(0);
});

test('a check with a mistake is refused before anything is pushed', async () => {
  for (const check of [
    ...['accuracy', 'accuracy>0.9', 'accuracy>=x', '>=1', 'accuracy regress=2%', 'a job=train'],
    ...['a regress=2 job=train', 'a regress=2% job=train better=best', 'a regress=2% regress=3%'],
  ]) {
    const refused = await loam('run', '--check', check, '--', 'true');
    expect([check, refused.code, refused.stderr]).toEqual([
      ...[check, 2],
      expect.stringContaining('It must be METRIC>=NUMBER'),
    ]);
  }
  const step = await loam('run', '--check', 'step>=1', '--', 'true');
  expect([step.code, step.stderr]).toEqual([2, expect.stringContaining('--check: [0].metric')]);
});

test('checks of the TypeScript library', async () => {
  const client = new LoamClient({ url: app.base, token: ada.token });
  const checks = [
    { metric: 'accuracy', min: 0.9, max: 1 },
    { metric: 'loss', regressPercent: 5, better: 'lower' as const, baselineJob: 'train' },
  ];
  const job = await client.run('echo ::metric::accuracy=0.5 loss=1', { repo: 'ada/model', checks });
  await expect(job.result()).rejects.toMatchObject({ name: 'JobFailed', job: { exitCode: 125 } });
  expect((await job.info()).checks).toEqual([
    {
      ...{ metric: 'accuracy', min: 0.9, max: 1, passed: false },
      ...{ regressPercent: null, better: null, baselineJob: null },
      message: 'accuracy is 0.5, and at least 0.9 is required',
    },
    {
      ...{ metric: 'loss', min: null, max: null, passed: true },
      ...{ regressPercent: 5, better: 'LOWER', baselineJob: 'train' },
      message: expect.stringMatching(/^loss is 1: /),
    },
  ]);
  const wrong = [{ metric: 'm', minimum: 1 }];
  await expect(client.run('true', { repo: 'ada/model', checks: wrong })).rejects.toThrow(
    'minimum: there is no such option',
  );
});

test('checks of the Python library', async (ctx) => {
  needs(ctx, 'python3');
  const script = `
import json, loam
client = loam.Client("${app.base}", "${ada.token}")
checks = [
    {"metric": "accuracy", "min": 0.4},
    {"metric": "loss", "max": 0.5},
    {"metric": "f1", "regress_percent": 5, "better": "lower", "baseline_job": "none"},
]
job = client.run("echo ::metric::accuracy=0.5 loss=nan f1=1", repo="ada/model", checks=checks)
try:
    job.result()
except loam.JobFailed as failed:
    print(json.dumps([failed.exit_code, job.checks(), client.run("true", repo="ada/model").checks()]))`;
  const python = ['/usr/bin/python3', '-B', '-c', script];
  const stdout = await user.exec('env', [`PYTHONPATH=${PYTHON}`, ...python]);
  const none = { min: null, max: null, regress_percent: null, better: null, baseline_job: null };
  expect(JSON.parse(stdout)).toEqual([
    125,
    [
      {
        ...none,
        metric: 'accuracy',
        min: 0.4,
        passed: true,
        message: 'accuracy is 0.5: at least 0.4',
      },
      {
        ...{ ...none, metric: 'loss', max: 0.5, passed: false },
        message: 'loss is not a number, and at most 0.5 is required',
      },
      {
        ...{ ...none, metric: 'f1', regress_percent: 5, better: 'LOWER', baseline_job: 'none' },
        ...{ passed: true },
        message:
          'f1 is 1: nothing to compare with: none has not succeeded on the default branch with this metric yet',
      },
    ],
    [],
  ]);
});
