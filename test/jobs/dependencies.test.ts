/** Jobs that wait for others: needs, arrays and concurrency groups. */
import { expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp } from '../support/harness.ts';
import { cancel, job, remove, submit, submitRaw, until } from '../support/submit.ts';

const IMAGE = 'debian:12';

async function start() {
  const runner = fakeRunner({ images: true, graceMs: 300 });
  const app = await startApp({ overrides: { runner } });
  const ada = await app.user('ada');
  const create = (name: string, command: string, fields: object = {}) =>
    submit(ada, { namespace: 'ada', name, command, image: IMAGE, ...fields });
  const names = () => runner.started.map(({ job }) => job.name);
  return {
    ...{ app, ada, runner, create, names },
    until: (name: string, status: string) => until(ada, 'ada', name, status),
    job: (name: string) => job(ada, 'ada', name),
    cancel: (name: string) => cancel(ada, 'ada', name),
    [Symbol.asyncDispose]: () => app[Symbol.asyncDispose](),
  };
}

test('a job starts when the jobs that it needs have succeeded', async () => {
  await using it = await start();
  await it.create('build', 'hold');
  await it.create('lint', 'hold');
  const test = await it.create('test', 'echo tested', {
    needs: [{ job: 'build' }, { job: 'lint' }],
  });
  expect(test).toMatchObject({ status: 'QUEUED', progress: 'waiting for build, lint' });
  await it.until('build', 'RUNNING');
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
  expect(it.names()).toEqual(['train-0', 'train-1', 'train-2', 'train-3', 'train-4']);
  expect(it.runner.started.map(({ env }) => env.JOB_ARRAY_INDEX)).toEqual([
    '0',
    '1',
    '2',
    '3',
    '4',
  ]);
  expect(it.runner.started[0]?.env.JOB_ARRAY_SIZE).toBe('5');
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
  await it.create('old', 'stubborn', { concurrency });
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
  await refused({ needs: [{ job: 'x' }] }, /needs: there is no job x/);
  await refused({ needs: [{ job: 'x-1' }, { job: 'x-1' }] }, /more than once/);
  await refused({ array: { size: 0 } }, /size must be from 1 to 10000/);
  await refused({ array: { size: 10_001 } }, /size must be from 1 to 10000/);
  await refused({ array: { size: 2, maxParallel: 3 } }, /maxParallel must be from 1 to size/);
  await refused({ array: { size: 2 } }, /one of x-0 to x-1 exists/);
  await refused({ array: { size: 10_000 } }, /too long for this array/, 'y'.repeat(98));
  await refused({ concurrency: { group: '' } }, /group must have 1 to 500 bytes/);
  await refused({ concurrency: { group: 'a\0' } }, /without control characters/);
  const { rows } = await it.app.pool.query('select name from jobs');
  expect(rows).toEqual([{ name: 'x-1' }]);
});
