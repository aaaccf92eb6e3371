/** `loam metrics`, and metrics of the libraries. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { drawSparkline } from '../../src/cli/commands/metrics.ts';
import { Client as LoamClient } from '../../src/cli/sdk/loam.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { submit, until } from '../support/submit.ts';

const PYTHON = join(import.meta.dirname, '../../src/cli/python');
const PRINTED = [
  '::metric::loss=0.5 accuracy=nan step=1',
  '::metric::loss=0.25 step=2',
  '::metric::loss=-inf step=3',
];

let app: TestApp;
let ada: Client;
let user: LoamUser;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner() } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  await ada.repository('ada/code');
  const command = PRINTED.map((line) => `echo ${line}`).join('; ');
  for (const [name, printing] of Object.entries({ train: command, quiet: 'exit 0' })) {
    await submit(ada, { namespace: 'ada', repo: 'ada/code', name, command: printing });
    await until(ada, 'ada', name, 'SUCCEEDED');
  }
});
afterAll(async () => {
  await user?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

test('loam metrics lists the metrics of a job', async () => {
  expect(await user.loam(['metrics', 'train'])).toBe(
    'accuracy\t1\tNaN\t\t\nloss\t3\t-Infinity\t-Infinity\t0.5\n',
  );
  const [accuracy, loss] = JSON.parse(await user.loam(['metrics', 'ada/train', '--json']));
  expect(accuracy).toMatchObject({ name: 'accuracy', points: 1, last: 'NaN', min: null });
  expect(loss).toMatchObject({ name: 'loss', lastStep: 3, max: 0.5, min: '-Infinity' });
  expect(loss.series).toBeUndefined();
  const quiet = await user.run(['metrics', 'quiet']);
  expect(quiet.stderr).toContain('echo "::metric::loss=0.5"');
});

test('loam metrics writes all points of a metric', async () => {
  const csv = await user.loam(['metrics', 'train', 'loss', '--csv']);
  expect(csv.replaceAll(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, 'TIME')).toBe(
    'name,attempt,step,time,value\nloss,1,1,TIME,0.5\nloss,1,2,TIME,0.25\nloss,1,3,TIME,-Infinity\n',
  );
  expect((await user.loam(['metrics', 'train', '--csv'])).split('\n')).toHaveLength(6);
  const points = (await user.loam(['metrics', 'train', 'loss', '--json'])).trimEnd().split('\n');
  expect(points.map((line) => JSON.parse(line))).toEqual(
    [0.5, 0.25, '-Infinity'].map((value, at) => ({
      ...{ attempt: 1, step: at + 1, time: expect.any(String), value },
    })),
  );
  const none = await user.run(['metrics', 'train', 'none']);
  expect([none.code, none.stdout, none.stderr]).toEqual([
    ...[1, ''],
    expect.stringContaining('no metric none'),
  ]);
  expect((await user.run(['metrics', 'train', '--csv', '--json'])).code).toBe(2);
});

test('loam compare prints a table of jobs, the best one above', async () => {
  const sweep = { namespace: 'ada', repo: 'ada/code', name: 'sweep', array: { size: 3 } };
  const command = 'echo ::metric::loss=0.1; exit 0';
  await submit(ada, { ...sweep, command });
  for (const at of [0, 1, 2]) await until(ada, 'ada', `sweep-${at}`, 'SUCCEEDED');
  await app.pool.query(`
    update jobs set matrix_values = json_build_array(json_build_object('key', 'lr', 'value', '0.' || array_index),
      json_build_object('key', 'note', 'value', 'a,"b"')) where name like 'sweep-%'`);
  await app.pool.query(`
    update job_metrics set last = 0.5 from jobs
    where jobs.id = job_id and jobs.name = 'sweep-0'`);
  const sorted = await user.run(['compare', 'sweep/*', '--sort', 'loss']);
  expect(sorted.stderr).toBe('lr=0.1 note=a,"b": loss 0.1\n');
  const rows = sorted.stdout
    .trimEnd()
    .split('\n')
    .map((line) => line.split('\t'));
  expect(rows.map(([name, lr, , status, loss]) => [name, lr, status, loss])).toEqual([
    ['sweep-1', '0.1', 'succeeded', '0.1'],
    ['sweep-2', '0.2', 'succeeded', '0.1'],
    ['sweep-0', '0.0', 'succeeded', '0.5'],
  ]);
  const names = async (args: string[]) =>
    (await user.loam(['compare', ...args]))
      .trimEnd()
      .split('\n')
      .map((line) => line.split('\t')[0]);
  expect(await names(['sweep', '--sort', 'lr', '--desc'])).toEqual([
    'sweep-2',
    'sweep-1',
    'sweep-0',
  ]);
  expect(await names(['--prefix', 'sweep-', '--sort', 'loss', '--desc'])).toEqual([
    'sweep-0',
    'sweep-1',
    'sweep-2',
  ]);
  expect(await names(['ada/sweep-1', 'tra*', 'quiet'])).toEqual(['train', 'quiet', 'sweep-1']);
  // NaN and jobs without the metric come last, whatever the direction.
  for (const direction of ['--asc', '--desc'])
    expect((await names(['train', 'quiet', 'sweep-0', '--sort', 'accuracy', direction]))[0]).toBe(
      'train',
    );
  const { jobs, differences } = JSON.parse(
    await user.loam(['compare', 'train', 'quiet', 'none', '--json']),
  );
  expect(differences).toBeNull();
  const [train, quiet] = jobs;
  expect(train.metrics).toEqual({
    accuracy: { last: 'NaN', min: null, max: null },
    loss: { last: '-Infinity', min: '-Infinity', max: 0.5 },
  });
  expect([quiet.metrics, quiet.name, quiet.gpu]).toEqual([{}, 'quiet', 'NONE']);
  const csv = (await user.loam(['compare', 'sweep/*', '--csv', '--value', 'min'])).split('\n');
  expect(csv[0]).toMatch(/^namespace,name,status,.*,lr,note,loss$/);
  expect(csv[1]).toMatch(/^ada,sweep-0,succeeded,.*,0.0,"a,""b""",0.1$/);
  for (const [args, code, message] of [
    [[], 2, 'Name jobs'],
    [['a*b'], 2, 'must be NAME'],
    [['train', '--sort', 'nothing'], 2, '--sort nothing'],
    [['gone'], 1, 'No jobs'],
    [['gone/*'], 1, 'gone'],
    [['train', '--mine'], 2, 'Either'],
  ] as const) {
    const refused = await user.run(['compare', ...args]);
    expect([refused.code, refused.stderr], args.join()).toEqual([
      code,
      expect.stringContaining(message),
    ]);
  }
  expect((await user.run(['compare', 'train', 'gone'])).stderr).toContain('Not found: ada/gone');
});

test('a sparkline is 30 columns of means', () => {
  expect(drawSparkline([0, 1, 'NaN', 7])).toBe('▁▂ █');
  expect(drawSparkline([5])).toBe('▁');
  expect(drawSparkline([])).toBe('');
  const ramp = Array.from({ length: 100 }, (_, at) => at);
  expect(drawSparkline(ramp)).toMatch(/^▁.{28}█$/);
});

test('the TypeScript library reads metrics', async () => {
  const client = new LoamClient({ url: app.base, token: ada.token });
  const [loss] = await (await client.job('train')).metrics({ names: ['loss'] });
  expect(loss).toEqual({
    ...{ name: 'loss', points: 3, min: -Infinity, max: 0.5, last: -Infinity, lastStep: 3 },
    lastAt: expect.any(String),
  });
});

test('loam compare shows what differs between two jobs', async () => {
  const id = await ada.repository('ada/pair');
  const commit = async (message: string) => {
    const changes = [{ path: 'train.py', content: `# ${message}\n` }];
    const { createCommit } = await ada.gql(
      'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
      { input: { id, branch: 'main', message: `${message}\n\nText`, changes } },
    );
    return createCommit.commit.sha;
  };
  const run = async (name: string, more: object) => {
    const command = `echo ::metric::loss=0.${name.length}; exit 0`;
    await submit(ada, { namespace: 'ada', repo: 'ada/pair', name, command, ...more });
    await until(ada, 'ada', name, 'SUCCEEDED');
  };
  const shas = [await commit('First')];
  await run('b-one', {
    env: [{ name: 'LR', value: 'secret value' }],
    secrets: [{ name: 'KEY', value: 'secret value' }],
    labels: [{ key: 'team', value: 'vision' }],
  });
  shas.push(await commit('Second'), await commit('Third'));
  const environment = ['LR', 'SEED'].map((name) => ({ name, value: '1' }));
  await run('a-second', { memoryGb: 64, env: environment, timeoutMinutes: 5 });
  const rows = (text: string) =>
    text
      .trimEnd()
      .split('\n')
      .map((line) => line.split('\t'));
  const text = await user.run(['compare', 'b-one', 'a-second']);
  expect(text.stdout).not.toContain('secret value');
  const [first, second, third] = shas.map((sha) => sha.slice(0, 10));
  const shown = rows(text.stdout);
  expect(shown.slice(0, 3).map(([name]) => name)).toEqual(['loss', 'Duration', 'Cost']);
  expect(shown[0]).toEqual(['loss', '0.5', '0.8']);
  expect(shown.slice(3)).toEqual([
    ['Command', 'echo ::metric::loss=0.5; exit 0', 'echo ::metric::loss=0.8; exit 0'],
    ['Commit', first, third],
    ['Memory', '32 GB', '64 GB'],
    ['Timeout', '1440 min', '5 min'],
    ['Environment', 'LR', 'LR, SEED'],
    ['Secrets', 'KEY', ''],
    ['Label team', 'vision', ''],
    ['+', third, 'Third'],
    ['+', second, 'Second'],
    ['train.py', 'modified', '+1 -1'],
  ]);
  expect(text.stderr).toBe('The commit of the second job is 2 ahead and 0 behind.\n');
  // In the order in which they are named, not that of their creation.
  const { jobs, differences, commits } = JSON.parse(
    await user.loam(['compare', 'ada/a-second', 'b-one', '--json']),
  );
  expect(jobs.map(({ name }: { name: string }) => name)).toEqual(['a-second', 'b-one']);
  expect(differences).toContainEqual({ name: 'Memory', values: ['64 GB', '32 GB'] });
  expect(differences).toContainEqual({ name: 'Label team', values: [null, 'vision'] });
  expect(commits).toMatchObject({
    ...{ aheadBy: 0, behindBy: 2, added: [], files: [], fileCount: 0 },
    removed: [{ sha: shas[2], title: 'Third' }, { title: 'Second' }],
  });
  const same = await user.run(['compare', 'b-one', 'b-one', '--json']);
  expect(JSON.parse(same.stdout)).toMatchObject({ jobs: [{}], differences: null, commits: null });
  await ada.delete(`/auth/v1/repository/ada/${id}`);
  const gone = JSON.parse(await user.loam(['compare', 'b-one', 'a-second', '--json']));
  expect([gone.commits, gone.differences.length]).toEqual([null, 7]);
});

test('the TypeScript library compares jobs', async () => {
  const { jobs } = new LoamClient({ url: app.base, token: ada.token });
  const sweep = await jobs.compare({ namespace: 'ada', array: 'sweep' });
  expect(sweep).toMatchObject({
    metricNames: [{ name: 'loss', jobs: 3, isLowerBetter: true }],
    isTruncated: false,
    missing: [],
  });
  expect(sweep.jobs.map(({ name }) => name)).toEqual(['sweep-0', 'sweep-1', 'sweep-2']);
  expect(sweep.jobs[0]).toMatchObject({
    ...{ namespace: 'ada', status: 'SUCCEEDED', repo: 'ada/code', gpu: 'NONE', labels: {} },
    values: { lr: '0.0', note: 'a,"b"' },
    metrics: { loss: { last: 0.5, min: 0.1, max: 0.1 } },
  });
  const { jobArray } = await ada.gql('{ jobArray(namespace: "ada", name: "sweep") { id } }');
  const same = await jobs.compare({ namespace: 'ada', array: jobArray.id, statuses: ['FAILED'] });
  expect(same.jobs).toEqual([]);
  const named = await jobs.compare({ namespace: 'ada', names: ['train', 'gone'] });
  expect(named.missing).toEqual(['ada/gone']);
  expect(named.jobs[0]?.metrics).toEqual({
    accuracy: { last: Number.NaN, min: null, max: null },
    loss: { last: -Infinity, min: -Infinity, max: 0.5 },
  });
  const narrow = await jobs.compare(
    { namespace: 'ada', namePrefix: 'tr' },
    { metrics: ['accuracy', 'none'] },
  );
  expect(narrow.jobs.map(({ metrics }) => Object.keys(metrics))).toEqual([['accuracy']]);
  for (const [selection, code] of [
    [{}, 'invalid_request'],
    [{ array: 'none' }, 'not_found'],
  ] as const)
    await expect(jobs.compare({ namespace: 'ada', ...selection })).rejects.toMatchObject({ code });
});

test('a comparison has more metrics than one answer', async () => {
  const names = Array.from({ length: 120 }, (_, at) => `m${at}`);
  const line = `::metric::${names.map((name, at) => `${name}=${at}`).join(' ')} constructor=7`;
  await submit(ada, {
    ...{ namespace: 'ada', repo: 'ada/code', name: 'wide', command: `echo ${line}; exit 0` },
  });
  await until(ada, 'ada', 'wide', 'SUCCEEDED');
  const { jobs } = new LoamClient({ url: app.base, token: ada.token });
  const [wide] = (await jobs.compare({ namespace: 'ada', names: ['wide'] })).jobs;
  expect(Object.keys(wide?.metrics ?? {})).toHaveLength(121);
  expect([wide?.metrics.m119?.last, wide?.metrics.constructor]).toEqual([
    119,
    { last: 7, min: 7, max: 7 },
  ]);
  const both = JSON.parse(await user.loam(['compare', 'wide', 'quiet', '--json']));
  expect(both.jobs.map(({ metrics }: { metrics: object }) => Object.keys(metrics).length)).toEqual([
    ...[121, 0],
  ]);
});

test('the Python library compares jobs', async (ctx) => {
  needs(ctx, 'python3');
  const script = `
import asyncio, json, loam
client = loam.Client("${app.base}", "${ada.token}")
sweep = client.compare(array="sweep")
best = min(sweep["jobs"], key=lambda job: job["metrics"]["loss"]["last"])
named = client.compare(names=["train", "gone"], metrics=["loss"])
train = named["jobs"][0]
both = asyncio.run(loam.AsyncClient("${app.base}", "${ada.token}").compare("ada", filter={"namePrefix": "sweep-"}))
wide = client.compare(names=["wide"])["jobs"][0]
codes = []
for wrong in ({}, {"array": "none"}):
    try:
        client.compare(**wrong)
    except loam.LoamError as error:
        codes.append(error.code)
print(json.dumps({
    "names": [job["name"] for job in sweep["jobs"]],
    "metric_names": sweep["metric_names"],
    "best": [best["name"], best["values"], best["labels"], best["gpu"], best["memory_gb"] > 0, "matrix_values" in best],
    "missing": named["missing"],
    "train": {name: {key: str(value) for key, value in one.items()} for name, one in train["metrics"].items()},
    "same": both == sweep,
    "wide": len(wide["metrics"]),
    "codes": codes,
}))`;
  const python = ['/usr/bin/python3', '-B', '-c', script];
  expect(JSON.parse(await user.exec('env', [`PYTHONPATH=${PYTHON}`, ...python]))).toEqual({
    names: ['sweep-0', 'sweep-1', 'sweep-2'],
    metric_names: [{ name: 'loss', jobs: 3, is_lower_better: true }],
    best: ['sweep-1', { lr: '0.1', note: 'a,"b"' }, {}, 'NONE', true, false],
    missing: ['ada/gone'],
    train: { loss: { last: '-inf', min: '-inf', max: '0.5' } },
    same: true,
    wide: 121,
    codes: ['invalid_request', 'not_found'],
  });
});

test('the Python library prints and reads metrics', async (ctx) => {
  needs(ctx, 'python3');
  const script = `
import json, loam
loam.metric(loss=0.5, step=3)
loam.metric({"train/loss": float("nan"), "n": 1}, x=float("-inf"))
for wrong, step in (({}, 0), ({"step": 1}, 0), ({"a b": 1}, 0), ({"a": 1}, -1)):
    try:
        loam.metric(wrong, step=step)
        print("accepted")
    except ValueError:
        pass
found = loam.Client("${app.base}", "${ada.token}").job("train").metrics()
print(json.dumps([[one["name"], one["points"], str(one["last"]), str(one["min"]), one["last_step"]] for one in found]))`;
  const python = ['/usr/bin/python3', '-B', '-c', script];
  const stdout = await user.exec('env', [`PYTHONPATH=${PYTHON}`, ...python]);
  const [first, second, found = ''] = stdout.split('\n');
  expect([first, second]).toEqual([
    '::metric::loss=0.5 step=3',
    '::metric::train/loss=nan n=1.0 x=-inf',
  ]);
  expect(JSON.parse(found)).toEqual([
    ['accuracy', 1, 'nan', 'None', 1],
    ['loss', 3, '-inf', '-inf', 3],
  ]);
});
