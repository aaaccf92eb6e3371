/** Jobs that wait for others: needs, arrays and concurrency groups. */
import pg from 'pg';
import { expect, test } from 'vitest';
import { JOB_CHANGES_LOCK } from '../../src/base/advisory-locks.ts';
import { OUTPUT_RULES, parseOutputs } from '../../src/jobs/outputs/outputs.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp } from '../support/harness.ts';
import {
  cancel,
  job,
  lines,
  remove,
  submit,
  submitRaw,
  until,
  variables,
} from '../support/submit.ts';

const IMAGE = 'debian:12';

async function start() {
  const runner = fakeRunner({ images: true, graceMs: 300 });
  const app = await startApp({ overrides: { runner } });
  const ada = await app.user('ada');
  const create = (name: string, command: string, fields: object = {}) =>
    submit(ada, { namespace: 'ada', name, command, image: IMAGE, ...fields });
  const names = () => runner.started.map(({ job }) => job.name);
  return {
    app,
    ada,
    runner,
    create,
    names,
    until: (name: string, status: string) => until(ada, 'ada', name, status),
    job: (name: string) => job(ada, 'ada', name),
    cancel: (name: string) => cancel(ada, 'ada', name),
    [Symbol.asyncDispose]: () => app[Symbol.asyncDispose](),
  };
}

test('a job starts when the jobs that it needs have succeeded', async () => {
  await using it = await start();
  const isHeld = (name: string) =>
    eventually(() =>
      expect(it.runner.running().map(({ job: { name: running } }) => running)).toContain(name),
    );
  await it.create('build', 'hold');
  await isHeld('build');
  await it.create('lint', 'hold');
  const test = await it.create('test', 'echo tested', {
    needs: [{ job: 'build' }, { job: 'lint' }],
  });
  expect(test).toMatchObject({ status: 'QUEUED', progress: 'waiting for build, lint' });
  await isHeld('lint');
  it.runner.release();
  await it.until('test', 'SUCCEEDED');
  expect(it.names()).toEqual(['build', 'lint', 'test']);
});

test('a job is cancelled with the reason when a needed job has not ended as needed', async () => {
  await using it = await start();
  await it.create('build', 'exit 3');
  await it.create('deploy', 'echo', { needs: [{ job: 'build' }] });
  await it.create('notify', 'echo', { needs: [{ job: 'deploy' }] });
  await it.create('report', 'echo', { needs: [{ job: 'build', when: 'FAILED' }] });
  await it.create('clean', 'echo', { needs: [{ job: 'notify', when: 'FINISHED' }] });
  expect((await it.until('deploy', 'CANCELLED')).progress).toBe(
    'cancelled: it needed build to succeed, which failed',
  );
  expect((await it.until('notify', 'CANCELLED')).progress).toBe(
    'cancelled: it needed deploy to succeed, which was cancelled',
  );
  await it.until('report', 'SUCCEEDED');
  await it.until('clean', 'SUCCEEDED');
});

test('a needed job that was deleted counts as what it ended as', async () => {
  await using it = await start();
  await it.create('one', 'echo');
  await it.create('two', 'hold');
  await it.create('three', 'echo', { needs: [{ job: 'one' }, { job: 'two' }] });
  await it.until('one', 'SUCCEEDED');
  await remove(it.ada, 'ada', 'one');
  await it.until('two', 'RUNNING');
  it.runner.release();
  await it.until('three', 'SUCCEEDED');
});

test('an array has its index in the environment, and a limit of what runs at once', async () => {
  await using it = await start();
  const first = await it.create('train', 'hold', { array: { size: 5, maxParallel: 2 } });
  expect(first.name).toBe('train-0');
  await eventually(() => expect(it.runner.running()).toHaveLength(2));
  expect((await it.job('train-4')).progress).toBe(
    'waiting for its turn: at most 2 of these jobs run at once',
  );
  await eventually(async () => {
    it.runner.release();
    expect(it.runner.running().length).toBeLessThanOrEqual(2);
    expect((await it.job('train-4')).status).toBe('SUCCEEDED');
  });
  expect(it.names().sort()).toEqual([0, 1, 2, 3, 4].map((index) => `train-${index}`));
  expect(it.runner.started.map(({ env }) => env.JOB_ARRAY_INDEX).sort()).toEqual([
    '0',
    '1',
    '2',
    '3',
    '4',
  ]);
  expect(it.runner.started[0]?.env.JOB_ARRAY_SIZE).toBe('5');
});

test('a job needs an array as a whole, by its name', async () => {
  await using it = await start();
  await it.create('train', 'hold', { array: { size: 3 } });
  await it.create('eval', 'echo', { needs: [{ job: 'train' }] });
  await it.create('alarm', 'echo', { needs: [{ job: 'train', when: 'FAILED' }] });
  await eventually(() => expect(it.runner.running()).toHaveLength(3));
  const { job, jobArray } = await it.ada.gql(
    `{ job(namespace: "ada", name: "eval") { progress needs { name when job { id } array { name size } } }
       jobArray(namespace: "ada", name: "train") { size counts { status count } } }`,
  );
  expect(job).toEqual({
    progress: 'waiting for train-0, train-1, train-2',
    needs: [{ name: 'train', when: 'SUCCEEDED', job: null, array: { name: 'train', size: 3 } }],
  });
  expect(jobArray).toEqual({ size: 3, counts: [{ status: 'RUNNING', count: 3 }] });
  await it.cancel('train-1');
  await it.until('eval', 'CANCELLED');
  expect((await it.job('alarm')).status).toBe('QUEUED');
  it.runner.release();
  await it.until('alarm', 'CANCELLED');
  expect((await it.job('alarm')).progress).toBe(
    'cancelled: it needed a job of train to fail, and none did',
  );
  // A job that failed must not count as succeeded because it was deleted.
  await remove(it.ada, 'ada', 'train-1');
  const deploy = { namespace: 'ada', name: 'deploy', command: 'echo', image: IMAGE };
  const { errors } = await submitRaw(it.ada, { ...deploy, needs: [{ job: 'train' }] });
  expect(errors?.[0]?.message).toMatch(/^needs: 1 of the jobs of the array train were deleted/);
  await it.create('report', 'echo', { needs: [{ job: 'train', when: 'FINISHED' }] });
  await it.until('report', 'SUCCEEDED');
  // A job comes before an array of the same name.
  await it.create('train', 'echo');
  await it.create('next', 'echo', { needs: [{ job: 'train' }] });
  await it.until('next', 'SUCCEEDED');
});

test('jobs of a concurrency group run one at a time, in order', async () => {
  await using it = await start();
  const concurrency = { group: 'deploy' };
  await it.create('a', 'hold', { concurrency });
  await it.until('a', 'RUNNING');
  await it.create('b', 'echo', { concurrency });
  await it.create('c', 'echo', { concurrency });
  await it.create('other', 'echo', { concurrency: { group: 'x' } });
  await it.until('other', 'SUCCEEDED');
  expect((await it.job('b')).progress).toBe('waiting for the concurrency group deploy');
  it.runner.release();
  await it.until('c', 'SUCCEEDED');
  expect(it.names()).toEqual(['a', 'other', 'b', 'c']);
});

test('cancel_running waits until the process of the cancelled job has ended', async () => {
  await using it = await start();
  const concurrency = { group: 'deploy', onConflict: 'CANCEL_RUNNING' };
  await it.create('old', 'stubborn; busy', { concurrency });
  await it.until('old', 'RUNNING');
  await it.create('middle', 'echo', { concurrency });
  await it.create('new', 'hold', { concurrency });
  expect((await it.until('old', 'CANCELLED')).progress).toMatch(
    /^cancelled: (middle|new) took its concurrency group$/,
  );
  await it.until('new', 'RUNNING');
  expect(it.runner.running().map(({ job }) => job.name)).toEqual(['new']);
  await it.until('middle', 'CANCELLED');
});

test('a job that skips is cancelled if its group is taken', async () => {
  await using it = await start();
  const concurrency = { group: 'deploy', onConflict: 'SKIP' };
  await it.create('a', 'hold', { concurrency });
  await it.until('a', 'RUNNING');
  await it.create('b', 'echo', { concurrency });
  expect((await it.until('b', 'CANCELLED')).progress).toBe(
    'cancelled: its concurrency group was taken',
  );
  it.runner.release();
  await it.until('a', 'SUCCEEDED');
  await it.create('c', 'echo', { concurrency });
  await it.until('c', 'SUCCEEDED');
});

test('an array takes a concurrency group as a whole', async () => {
  await using it = await start();
  const concurrency = { group: 'gpu', onConflict: 'CANCEL_RUNNING' };
  await it.create('old', 'hold', { concurrency });
  await it.until('old', 'RUNNING');
  await it.create('sweep', 'hold', { concurrency, array: { size: 3 } });
  await it.until('old', 'CANCELLED');
  await eventually(() => expect(it.runner.running()).toHaveLength(3));
});

test('a blocked job can be cancelled, and has no place in the queue', async () => {
  await using it = await start();
  await it.create('build', 'hold');
  await it.create('test', 'echo', { needs: [{ job: 'build' }] });
  await it.create('deploy', 'echo', { needs: [{ job: 'test', when: 'FAILED' }] });
  const { job } = await it.ada.gql(
    `{ job(namespace: "ada", name: "test") { blocked queue { position }
       needs { name when job { status } } } }`,
  );
  expect(job).toMatchObject({ blocked: true, queue: null });
  expect(job.needs).toMatchObject([{ name: 'build', when: 'SUCCEEDED' }]);
  await it.cancel('test');
  await it.until('deploy', 'CANCELLED');
  const cancelled = await it.ada.gql(`{ job(namespace: "ada", name: "test") { blocked } }`);
  expect(cancelled.job.blocked).toBe(false);
  it.runner.release();
  await it.until('build', 'SUCCEEDED');
  expect(it.names()).toEqual(['build']);
});

test('dependencies that cannot be are refused, and nothing is created', async () => {
  await using it = await start();
  await it.create('x-1', 'echo');
  const refused = async (fields: object, message: RegExp, name = 'x') => {
    const input = { namespace: 'ada', name, command: 'echo', image: IMAGE, ...fields };
    const { errors } = await submitRaw(it.ada, input);
    expect(errors?.[0]?.message).toMatch(message);
  };
  await refused({ needs: [{ job: 'x' }] }, /needs: there is no job or array x/);
  await refused({ needs: [{ job: 'x-1' }, { job: 'x-1' }] }, /more than once/);
  await refused({ array: { size: 0 } }, /size must be from 1 to 10000/);
  await refused({ array: { size: 10_001 } }, /size must be from 1 to 10000/);
  const many = Array.from({ length: 6 }, (_, index) => ({ job: `x-${index}` }));
  await refused({ array: { size: 10_000 }, needs: many }, /more than 50000 jobs/);
  await refused({ array: { size: 2, maxParallel: 3 } }, /maxParallel must be from 1 to size/);
  await refused({ array: { size: 2 } }, /one of x-0 to x-1 exists/);
  await refused({ array: { size: 10_000 } }, /too long for this array/, 'y'.repeat(98));
  await refused({ concurrency: { group: '' } }, /group must have 1 to 500 bytes/);
  await refused({ concurrency: { group: 'a\0' } }, /without control characters/);
  const { rows } = await it.app.pool.query('select name from jobs');
  expect(rows).toEqual([{ name: 'x-1' }]);
});

test('nothing is lost when the servers stop before they have drawn the consequences of an end', async () => {
  await using it = await start();
  await it.create('build', 'hold');
  await it.create('test', 'echo', { needs: [{ job: 'build' }] });
  await it.until('build', 'RUNNING');
  // As if the server had been killed right after the commit of the end.
  const other = new pg.Client(it.app.pool.options);
  await other.connect();
  await other.query('select pg_advisory_lock($1)', [JOB_CHANGES_LOCK]);
  it.runner.release();
  await it.until('build', 'SUCCEEDED');
  expect(await it.job('test')).toMatchObject({ status: 'QUEUED', progress: 'waiting for build' });
  await it.app.restart();
  await other.end();
  await it.until('test', 'SUCCEEDED');
  expect(it.names()).toEqual(['build', 'test']);
});

test('lists fold arrays, and show one when they are filtered by it', async () => {
  await using it = await start();
  await it.create('plain', 'echo');
  await it.create('sweep', 'exit 1', { array: { size: 3 } });
  await it.until('sweep-2', 'FAILED');
  const list = async (args: string) => {
    const { namespace } = await it.ada.gql(
      `{ namespace(name: "ada") { jobs(first: 10, ${args}) {
        totalCount nodes { name arrayIndex array { id name size counts { status count } totals { startedAt completedAt totalCost } } } } } }`,
    );
    return namespace.jobs;
  };
  await it.until('sweep-0', 'FAILED');
  await it.until('sweep-1', 'FAILED');
  const { nodes, totalCount } = await list('foldArrays: true');
  expect(totalCount).toBe(2);
  expect(nodes).toMatchObject([
    {
      name: 'sweep-0',
      array: {
        name: 'sweep',
        size: 3,
        counts: [{ status: 'FAILED', count: 3 }],
        totals: {
          startedAt: expect.any(String),
          completedAt: expect.any(String),
          totalCost: expect.stringMatching(/^\d+(\.\d+)?$/),
        },
      },
    },
    { name: 'plain', arrayIndex: null, array: null },
  ]);
  const { id } = nodes[0].array;
  expect((await list(`filter: { array: "${id}" }`)).nodes).toHaveLength(3);
  // When the job that stands for the array is deleted, the next one does.
  await remove(it.ada, 'ada', 'sweep-0');
  const names = async () =>
    (await list('foldArrays: true')).nodes.map(({ name }: { name: string }) => name);
  expect(await names()).toEqual(['sweep-1', 'plain']);
  await remove(it.ada, 'ada', 'sweep-1');
  await remove(it.ada, 'ada', 'sweep-2');
  expect(await names()).toEqual(['plain']);
  expect((await it.app.pool.query('select from job_arrays')).rowCount).toBe(0);
});

test('lists with a status fold arrays to the first job with that status', async () => {
  await using it = await start();
  await it.create('plain', 'exit 1');
  await it.create('sweep', 'exit 1', { array: { size: 3 } });
  await it.create('other', 'hold', { array: { size: 12 } });
  await it.until('plain', 'FAILED');
  for (const index of [0, 1, 2]) await it.until(`sweep-${index}`, 'FAILED');
  await it.app.pool.query(`update jobs set status = 'succeeded' where name = 'sweep-0'`);
  const list = async (args: string) => {
    const { namespace } = await it.ada.gql(
      `{ namespace(name: "ada") { jobs(foldArrays: true, ${args}) {
        totalCount nodes { name } pageInfo { endCursor hasNextPage } } } }`,
    );
    const { nodes, ...rest } = namespace.jobs;
    return { names: nodes.map(({ name }: { name: string }) => name), ...rest };
  };
  const filter = 'filter: { statuses: [FAILED, TIMED_OUT] }';
  const first = await list(`first: 1, ${filter}`);
  expect(first).toMatchObject({ names: ['sweep-1'], totalCount: 2 });
  const after = `first: 1, after: "${first.pageInfo.endCursor}", ${filter}`;
  expect(await list(after)).toMatchObject({
    names: ['plain'],
    totalCount: 2,
    pageInfo: { hasNextPage: false },
  });
  expect((await list('first: 9, status: SUCCEEDED')).names).toEqual(['sweep-0']);
  expect((await list('first: 9, filter: { statuses: [QUEUED, RUNNING] }')).names).toEqual([
    'other-0',
  ]);
  const named = (prefix: string) =>
    list(`first: 9, sort: NAME, order: ASC, filter: { namePrefix: "${prefix}" }`);
  expect((await named('other')).names).toEqual(['other-0']);
  expect((await named('other-1')).names).toEqual(['other-1', 'other-10', 'other-11']);
});

test('a rerun keeps the group and the place in the array, and waits only for what has not ended', async () => {
  await using it = await start();
  await it.create('build', 'exit 1');
  await it.create('slow', 'hold');
  const needs = [{ job: 'build' }, { job: 'slow' }];
  await it.create('sweep', 'echo', { needs, array: { size: 2 }, concurrency: { group: 'g' } });
  await it.until('sweep-1', 'CANCELLED');
  const { rerunJob } = await it.ada.gql(
    `mutation { rerunJob(input: { namespace: "ada", name: "sweep-1" }) {
      job { name arrayIndex array { id } concurrency { group } needs { name } } } }`,
  );
  expect(rerunJob.job).toEqual({
    name: 'sweep-1-2',
    arrayIndex: 1,
    array: null,
    concurrency: { group: 'g' },
    needs: [{ name: 'slow' }],
  });
  await it.until('slow', 'RUNNING');
  it.runner.release();
  await it.until('sweep-1-2', 'SUCCEEDED');
  expect(it.runner.started.at(-1)?.env).toMatchObject({
    JOB_ARRAY_INDEX: '1',
    JOB_ARRAY_SIZE: '2',
  });
});

test('outputs of a job are variables of the jobs that need it', async () => {
  await using it = await start();
  const envOf = async (name: string) => {
    await it.until(name, 'SUCCEEDED');
    return it.runner.started.find(({ job }) => job.name === name)?.env ?? {};
  };
  await it.create('build', "echo VERSION=1.4 beta='x' $(id) hush-hush > $JOB_OUTPUTS", {
    secrets: variables({ KEY: 'hush-hush' }),
  });
  await it.create('tag', 'echo VERSION=2 > $JOB_OUTPUTS');
  await it.create('empty', 'echo');
  const needs = (...names: string[]) => ({ needs: names.map((job) => ({ job })) });
  await it.create('one', 'echo', needs('build', 'empty'));
  const masked = "1.4 beta='x' $(id) ***";
  expect((await envOf('one')).VERSION).toBe(masked);
  // Those of the job that comes later in `needs` count, whatever was created first.
  await it.create('later', 'echo', needs('tag', 'build'));
  await it.create('other', 'echo', needs('build', 'tag'));
  expect((await envOf('later')).VERSION).toBe(masked);
  expect((await envOf('other')).VERSION).toBe('2');
  await it.create('own', 'echo', { ...needs('tag'), env: variables({ VERSION: 'own' }) });
  expect((await envOf('own')).VERSION).toBe('own');
  // An input gives files only.
  await it.create('files', 'echo', { outputPath: 'out' });
  expect(await envOf('files')).not.toHaveProperty('VERSION');

  const { job: shown } = await it.ada.gql(
    '{ job(namespace: "ada", name: "build") { outputs { name value } } }',
  );
  expect(shown.outputs).toEqual([{ name: 'VERSION', value: masked }]);
  const { rerunJob } = await it.ada.gql(
    'mutation { rerunJob(input: { namespace: "ada", name: "other" }) { job { name } } }',
  );
  expect((await envOf(rerunJob.job.name)).VERSION).toBe('2');

  await it.create('bad', 'echo PATH=/evil > $JOB_OUTPUTS');
  await it.create('after', 'echo', needs('bad'));
  expect((await envOf('after')).PATH).toBeUndefined();
  expect(await lines(it.ada, 'ada', 'bad')).toEqual([
    'An output was not kept: line 1 sets PATH, which is reserved ($JOB_OUTPUTS).',
  ]);
  await it.create('large', `echo A=${'x'.repeat(OUTPUT_RULES.maxBytes)} > $JOB_OUTPUTS`);
  await it.until('large', 'SUCCEEDED');
  expect(await lines(it.ada, 'ada', 'large')).toEqual([
    'An output was not kept: it is larger than 64 KiB, or no ordinary file ($JOB_OUTPUTS).',
  ]);
  const half = `=${'x'.repeat(40_000)} > $JOB_OUTPUTS`;
  await it.create('half-1', `echo A${half}`);
  await it.create('half-2', `echo B${half}`);
  await it.create('both', 'echo', needs('half-1', 'half-2'));
  expect((await it.until('both', 'FAILED')).progress).toBe(
    'failed: The outputs of the jobs that it needs have more than 64 KiB together',
  );
});

test('a file of outputs with mistakes keeps its other lines', () => {
  const parse = (text: string | Uint8Array) =>
    parseOutputs(typeof text === 'string' ? Buffer.from(text) : text, (value) =>
      value.replaceAll('secret', '***'),
    );
  const lineOf = (text: string) => parse(text).problems[0];
  expect(parse('A=1\r\nB="x=y"\n\n__proto__= \na=\nA=a secret')).toEqual({
    outputs: [
      { name: 'B', value: '"x=y"' },
      { name: '__proto__', value: ' ' },
      { name: 'a', value: '' },
      { name: 'A', value: 'a ***' },
    ],
    problems: [],
  });
  for (const name of [
    ...['PATH', 'path', 'HOME', 'LD_PRELOAD', 'LOAM_TOKEN', 'JOB_ID', 'CI', 'IFS', 'BASH_ENV'],
    ...['CUDA_VISIBLE_DEVICES', 'NVIDIA_VISIBLE_DEVICES', 'JOB_OUTPUTS'],
  ])
    expect(lineOf(`OK=1\n${name}=x`)).toContain(`line 2 sets ${name}, which is reserved`);
  for (const line of ['A', '=1', '1A=1', 'A B=1', 'Ä=1', `${'a'.repeat(101)}=1`, 'export A=1'])
    expect(lineOf(line)).toContain('line 1 is not NAME=value');
  expect(lineOf('A=x\0y')).toContain('line 1 has a NUL character');
  expect(lineOf('secret=1')).toContain('sets ***');
  expect(parse(Buffer.from([0x41, 0x3d, 0xff])).problems[0]).toContain('it is not valid UTF-8');
  const many = Array.from({ length: 20_000 }, (_, index) => `A${index}=`).join('\n');
  const { outputs, problems } = parse(many);
  expect([outputs.length, problems.length]).toEqual([100, 6]);
  expect(problems.at(-1)).toContain('19895 more lines have mistakes');
});
