/** Jobs of runs in the order of their needs, with the statuses of the run and of its commit. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { until } from '../support/submit.ts';

const runner = fakeRunner();
let app: TestApp;
let ada: Client;

beforeAll(async () => {
  // A job runs the command of its combination.
  const prepare: typeof runner.prepare = (spec, signal) =>
    runner.prepare({ ...spec, command: spec.env.COMMAND ?? spec.command }, signal);
  app = await startApp({ overrides: { runner: { ...runner, prepare } } });
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

/** Creates a repository with a file of jobs, which starts its first run. */
async function create(name: string, content: string): Promise<string> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name });
  const { createCommit } = await ada.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    {
      input: {
        id: body.id,
        branch: 'main',
        message: 'Add jobs',
        changes: [{ path: '.loam/jobs.yml', content }],
      },
    },
  );
  return createCommit.commit.sha;
}

const RUN = `query ($name: String!, $number: Int!) { repository(namespace: "ada", name: $name) { run(number: $number) {
  id status sha startedAt completedAt jobs { id name runJob status progress startedAt completedAt inputs { jobName } } } } }`;

/** Waits until the run is over. */
const ended = (name: string, number = 1) =>
  eventually(async () => {
    const { run } = (await ada.gql(RUN, { name, number })).repository;
    expect(run?.completedAt).toEqual(expect.any(String));
    const statuses = run.jobs.map(({ name: job, status }: Record<string, string>) => [job, status]);
    return { ...run, statuses: Object.fromEntries(statuses) };
  });

const STATUSES = `query ($name: String!, $sha: String!) { repository(namespace: "ada", name: $name) {
  commit(revision: $sha) { status { state statuses { context state description targetUrl } } } } }`;
async function statusesOf(name: string, sha: string) {
  const { status } = (await ada.gql(STATUSES, { name, sha })).repository.commit;
  return Object.fromEntries(
    status.statuses.map(({ context, ...rest }: { context: string }) => [context, rest]),
  );
}

const RERUN = `mutation ($input: RerunRunInput!) { rerunRun(input: $input) { run { number jobs { runJob } } } }`;

test('jobs take files of repositories, and a rerun of the run keeps their commits', async () => {
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'data' });
  const change = async (path: string) =>
    (
      await ada.gql(
        'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
        {
          input: { id: body.id, branch: 'main', message: path, changes: [{ path, content: 'x' }] },
        },
      )
    ).createCommit.commit.sha;
  const commitSha = await change('train/a');
  await create(
    'learn',
    `jobs:
  learn:
    on: { push: true }
    matrix: { seed: [1, 2] }
    command: echo
    inputs: [{ repo: ada/data, ref: main, path: train, to: in/ }]
  summary: { needs: [learn], command: echo, inputs: [{ repo: ada/data, ref: main, path: train, to: in/ }] }
`,
  );
  const of = async (number: number) => {
    const { run } = (
      await ada.gql(
        `query ($number: Int!) { repository(namespace: "ada", name: "learn") { run(number: $number) {
          jobs { repositoryInputs { repo ref commitSha path to } } } } }`,
        { number },
      )
    ).repository;
    return run.jobs.flatMap((one: { repositoryInputs: unknown[] }) => one.repositoryInputs);
  };
  const run = await ended('learn');
  expect(run.status).toBe('SUCCEEDED');
  const input = { repo: 'ada/data', ref: 'main', commitSha, path: 'train', to: 'in/' };
  expect(await of(1)).toEqual([input, input, input]);
  await change('train/b');
  await ada.gql(RERUN, { input: { id: run.id } });
  expect((await ended('learn', 2)).status).toBe('SUCCEEDED');
  expect(await of(2)).toEqual([input, input, input]);
});

test('a run whose repository inputs cannot be found says so', async () => {
  await create(
    'lost',
    'jobs: { lost: { on: { push: true }, command: echo, inputs: [{ repo: ada/none }] } }',
  );
  const { status, problems } = await eventually(async () => {
    const { run } = (
      await ada.gql(
        '{ repository(namespace: "ada", name: "lost") { run(number: 1) { status problems { message } } } }',
      )
    ).repository;
    expect(run).not.toBeNull();
    return run;
  });
  expect(status).toBe('FAILED');
  expect(problems).toEqual([{ message: 'lost: inputs: there is no repository ada/none' }]);
});

test('jobs of a matrix have the values of their combination, also reruns', async () => {
  await create(
    'grid',
    'jobs: { grid: { on: { push: true }, matrix: { seed: [1, 2], lr: ["0.10"] }, command: echo } }',
  );
  await ended('grid');
  const { rerunJob } = await ada.gql(
    'mutation ($input: RerunJobInput!) { rerunJob(input: $input) { job { matrixValues { key value } } } }',
    { input: { namespace: 'ada', name: 'grid-1-2' } },
  );
  const { run } = (
    await ada.gql(
      '{ repository(namespace: "ada", name: "grid") { run(number: 1) { jobs { matrixValues { key value } } } } }',
    )
  ).repository;
  const second = {
    matrixValues: [
      { key: 'seed', value: '2' },
      { key: 'lr', value: '0.10' },
    ],
  };
  expect(run.jobs).toEqual([
    { matrixValues: [{ key: 'seed', value: '1' }, second.matrixValues[1]] },
    second,
  ]);
  expect(rerunJob.job).toEqual(second);
});

test('a matrix is an array, which jobs outside of the run can need', async () => {
  await create(
    'array',
    `jobs:
  tune: { on: { push: true }, matrix: { seed: [1, 2] }, max_parallel: 1, command: echo x > out/model, output_path: out }
  review: { needs: [tune], command: echo, inputs: [{ job: tune, to: in }] }
`,
  );
  await ended('array');
  const { jobArray, job, namespace } = await ada.gql(
    `{ jobArray(namespace: "ada", name: "tune-1") { size maxParallel counts { status count } }
       job(namespace: "ada", name: "review-1") { needs { name runJob array { name } } inputs { jobName to array { name } } }
       namespace(name: "ada") { jobs(first: 2, foldArrays: true) { nodes { name arrayIndex array { name } } } } }`,
  );
  expect(jobArray).toEqual({
    size: 2,
    maxParallel: 1,
    counts: [{ status: 'SUCCEEDED', count: 2 }],
  });
  expect(job.needs).toEqual([{ name: 'tune', runJob: 'tune', array: { name: 'tune-1' } }]);
  expect(job.inputs).toEqual([{ jobName: 'tune-1', to: 'in/', array: { name: 'tune-1' } }]);
  expect(namespace.jobs.nodes).toEqual([
    { name: 'review-1', arrayIndex: null, array: null },
    { name: 'tune-1-1', arrayIndex: null, array: { name: 'tune-1' } },
  ]);
  const { createJob } = await ada.gql(
    'mutation ($input: CreateJobInput!) { createJob(input: $input) { job { needs { name } } } }',
    {
      input: {
        namespace: 'ada',
        name: 'after',
        repo: 'ada/array',
        gpu: 'NONE',
        command: 'echo',
        needs: [{ job: 'tune-1' }],
      },
    },
  );
  expect(createJob.job.needs).toEqual([{ name: 'tune-1' }]);
  await until(ada, 'ada', 'after', 'SUCCEEDED');
});

test('jobs run in the order of their needs, and the commit has a status for each', async () => {
  const sha = await create(
    'good',
    `jobs:
  report: { needs: [train, build], command: echo, inputs: [{ job: build, path: model }] }
  build: { on: { push: true }, command: echo x > out/model, output_path: out }
  train: { needs: [build], matrix: { seed: [1, 2, 3] }, max_parallel: 1, command: echo }
  alarm: { needs: [{ job: build, when: failed }], command: echo }
`,
  );
  const run = await ended('good');
  expect(run.status).toBe('SUCCEEDED');
  expect(run.statuses).toEqual({
    'build-1': 'SUCCEEDED',
    'train-1-1': 'SUCCEEDED',
    'train-1-2': 'SUCCEEDED',
    'train-1-3': 'SUCCEEDED',
    'report-1': 'SUCCEEDED',
    'alarm-1': 'CANCELLED',
  });
  const times = new Map(
    run.jobs.map((job: { name: string; startedAt: string; completedAt: string }) => [
      job.name,
      job,
    ]),
  ) as Map<string, { startedAt: string; completedAt: string; progress: string }>;
  const at = (name: string) => times.get(name) as { startedAt: string; completedAt: string };
  expect(at('train-1-1').startedAt >= at('build-1').completedAt).toBe(true);
  expect(at('train-1-2').startedAt >= at('train-1-1').completedAt).toBe(true);
  expect(at('report-1').startedAt >= at('train-1-3').completedAt).toBe(true);
  expect(times.get('alarm-1')?.progress).toContain('build-1');
  expect(await statusesOf('good', sha)).toEqual({
    build: {
      state: 'SUCCESS',
      description: 'Succeeded',
      targetUrl: `${app.base}/ada/-/jobs/build-1`,
    },
    train: {
      state: 'SUCCESS',
      description: '3 of 3 succeeded',
      targetUrl: `${app.base}/ada/good/runs/1`,
    },
    report: expect.objectContaining({ state: 'SUCCESS' }),
  });
});

test('a failure fails the run, and only what did not succeed is run again', async () => {
  const sha = await create(
    'bad',
    `jobs:
  lint: { on: { push: true }, command: echo STYLE=good > $JOB_OUTPUTS }
  test: { on: { push: true }, needs: [lint], command: exit 3 }
  deploy: { needs: [test], command: echo }
  warn: { needs: [{ job: test, when: failed }], command: echo }
`,
  );
  const run = await ended('bad');
  expect(run.status).toBe('FAILED');
  expect(run.statuses).toMatchObject({
    'test-1': 'FAILED',
    'deploy-1': 'CANCELLED',
    'warn-1': 'SUCCEEDED',
  });
  expect(await statusesOf('bad', sha)).toMatchObject({
    lint: { state: 'SUCCESS' },
    test: { state: 'FAILURE', description: 'Failed' },
    warn: { state: 'SUCCESS' },
  });
  expect(await statusesOf('bad', sha)).not.toHaveProperty('deploy');
  const { rerunRun } = await ada.gql(RERUN, { input: { id: run.id, failedOnly: true } });
  expect(rerunRun.run).toMatchObject({
    number: 2,
    jobs: [{ runJob: 'test' }, { runJob: 'deploy' }],
  });
  const again = await ended('bad', 2);
  expect(again.status).toBe('FAILED');
  // Also the outputs of a job that is not in this run.
  const tests = [run, again].map(
    ({ jobs }) => jobs.find(({ runJob }: { runJob: string }) => runJob === 'test').name,
  );
  const started = runner.started.filter(({ job }) => tests.includes(job.name));
  expect(started.map(({ env }) => env.STYLE)).toEqual(['good', 'good']);
});

test('the job that is last in needs gives an output of several jobs, also after a rerun of failed jobs', async () => {
  const output = (name: string) => `echo V=${name} > $JOB_OUTPUTS`;
  const finished = (name: string) => `{ job: ${name}, when: finished }`;
  await create(
    'order',
    `jobs:
  early: { on: { push: true }, matrix: { command: ["${output('early-1')}", "${output('early-2')}"] }, command: matrix }
  again: { on: { push: true }, command: "${output('again')}; exit 3" }
  early_last: { needs: [${finished('again')}, early], command: exit 3 }
  again_last: { needs: [early, ${finished('again')}], command: exit 3 }
`,
  );
  for (let number = 1; number <= 3; number++) {
    const { id, jobs } = await ended('order', number);
    const outputOf = (key: string) => {
      const { name } = jobs.find(({ runJob }: { runJob: string }) => runJob === key);
      return runner.started.find(({ job }) => job.name === name)?.env.V;
    };
    const names = jobs.map(({ runJob }: { runJob: string }) => runJob);
    expect(names.includes('early')).toBe(number === 1);
    expect([outputOf('early_last'), outputOf('again_last')]).toEqual(['early-2', 'again']);
    await ada.gql(RERUN, { input: { id, failedOnly: true } });
  }
});

test('a need for the failure of a matrix is met once all its jobs have ended and one has failed', async () => {
  const sha = await create(
    'matrix',
    `jobs:
  good: { on: { push: true }, matrix: { command: [echo, echo 2] }, command: matrix }
  bad: { on: { push: true }, matrix: { command: [exit 3, echo, hold] }, command: matrix }
  calm: { needs: [{ job: good, when: failed }], command: echo }
  after_calm: { needs: [calm], command: echo }
  alarm: { needs: [{ job: bad, when: failed }], command: echo }
  deploy: { needs: [bad], command: echo }
  tidy: { needs: [{ job: bad, when: finished }], command: echo }
`,
  );
  const alarm = await eventually(async () => {
    const { run } = (await ada.gql(RUN, { name: 'matrix', number: 1 })).repository;
    const of = (name: string) =>
      run?.jobs.find(({ runJob }: { runJob: string }) => runJob === name);
    expect(of('deploy')?.status).toBe('CANCELLED');
    expect(runner.running().map(({ job }) => job.name)).toContain('bad-1-3');
    expect(of('alarm')).toMatchObject({ status: 'QUEUED', progress: 'waiting for bad-1-3' });
    return of('alarm').name as string;
  });
  // A job of the matrix has failed already, so a rerun only waits for the others.
  await ada.gql(
    'mutation ($name: String!) { rerunJob(input: { namespace: "ada", name: $name, newName: "alarm-again" }) { job { id } } }',
    { name: alarm },
  );
  runner.release();
  await until(ada, 'ada', 'alarm-again', 'SUCCEEDED');
  const run = await ended('matrix');
  const progress = Object.fromEntries(
    run.jobs.map((job: { runJob: string; progress: string }) => [job.runJob, job.progress]),
  );
  expect(progress).toMatchObject({
    calm: 'cancelled: it needed a job of good to fail, and none did',
    after_calm: 'cancelled: it needed calm-1 to succeed, which was cancelled',
    alarm: 'succeeded',
    deploy: 'cancelled: it needed bad-1-1 to succeed, which failed',
    tidy: 'succeeded',
  });
  // Jobs that were not needed have no status, and are not run again.
  expect(Object.keys(await statusesOf('matrix', sha)).sort()).toEqual([
    'alarm',
    'bad',
    'good',
    'tidy',
  ]);
  const { rerunRun } = await ada.gql(RERUN, { input: { id: run.id, failedOnly: true } });
  expect(rerunRun.run.jobs.map(({ runJob }: { runJob: string }) => runJob)).toEqual([
    ...['bad', 'bad', 'bad', 'deploy'],
  ]);
});

test('a cancelled run is cancelled, and can be followed', async () => {
  await create(
    'hold',
    'jobs: {a: {on: {push: true}, command: busy}, b: {needs: [a], command: echo}}',
  );
  const run = await eventually(async () => {
    const { run } = (await ada.gql(RUN, { name: 'hold', number: 1 })).repository;
    expect(run?.status).toBe('RUNNING');
    return run;
  });
  await ada.gql('mutation ($id: ID!) { cancelRun(input: { id: $id }) { run { id } } }', {
    id: run.id,
  });
  expect((await ended('hold')).status).toBe('CANCELLED');
});

test('a run keeps how its jobs ended when they are deleted', async () => {
  const sha = await create(
    'kept',
    `jobs:
  flaky: { on: { push: true }, matrix: { command: [echo, exit 3] }, command: matrix }
  solid: { on: { push: true }, matrix: { command: [echo, echo 2] }, command: matrix }
  deploy: { needs: [flaky], command: echo }
`,
  );
  const run = await ended('kept');
  const before = await statusesOf('kept', sha);
  expect(before).toMatchObject({ flaky: { state: 'FAILURE' }, solid: { state: 'SUCCESS' } });
  const DELETE = 'mutation ($input: DeleteJobInput!) { deleteJob(input: $input) { id } }';
  for (const name of ['flaky-1-2', 'solid-1-1'])
    await eventually(() => ada.gql(DELETE, { input: { namespace: 'ada', name } }));
  await eventually(async () => {
    const { rows } = await app.pool.query('select from job_changes');
    expect(rows).toEqual([]);
  });
  expect(await ended('kept')).toMatchObject({
    status: 'FAILED',
    startedAt: run.startedAt,
    completedAt: run.completedAt,
  });
  expect(await statusesOf('kept', sha)).toEqual(before);
  const { rerunRun } = await ada.gql(RERUN, { input: { id: run.id, failedOnly: true } });
  expect(rerunRun.run.jobs.map(({ runJob }: { runJob: string }) => runJob)).toEqual([
    'flaky',
    'flaky',
    'deploy',
  ]);
});

test('a job that asks for a secret it may not have fails the run with the reason', async () => {
  await create('secret', 'jobs: {a: {on: {push: true}, command: echo, secrets: [NOT_THERE]}}');
  const { repository } = await eventually(async () => {
    const found = await ada.gql(
      '{ repository(namespace: "ada", name: "secret") { run(number: 1) { status problems { message } jobs { id } } } }',
    );
    expect(found.repository.run).not.toBeNull();
    return found;
  });
  expect(repository.run).toMatchObject({
    status: 'FAILED',
    problems: [{ message: expect.stringContaining('NOT_THERE') }],
    jobs: [],
  });
  // A user who starts it is told at once.
  const id = (
    await ada.gql('{ repository(namespace: "ada", name: "secret") { run(number: 1) { id } } }')
  ).repository.run.id;
  const RERUN = 'mutation ($input: RerunRunInput!) { rerunRun(input: $input) { run { id } } }';
  const { errors } = await ada.graphql(RERUN, { input: { id } });
  expect(errors?.[0]?.message).toContain('NOT_THERE');
});

test('a run of 768 jobs is created in one transaction, and cancelled in batches', async () => {
  const numbers = JSON.stringify(Array.from({ length: 256 }, (_, i) => i));
  await create(
    'large',
    ['x', 'y', 'z']
      .map(
        (name) => `  ${name}: { on: { push: true }, matrix: { n: ${numbers} }, command: hold }\n`,
      )
      .reduce((all, line) => all + line, 'jobs:\n'),
  );
  const { rows } = await eventually(async () => {
    const found = await app.pool.query(
      `select count(*)::int as jobs from jobs where run_id = (
         select runs.id from runs join repositories r on r.id = repository_id where r.name = 'large')`,
    );
    expect(found.rows[0].jobs).toBeGreaterThan(0);
    return found;
  });
  expect(rows).toEqual([{ jobs: 768 }]);
  const { run } = (await ada.gql(RUN, { name: 'large', number: 1 })).repository;
  const CANCEL = 'mutation ($id: ID!) { cancelRun(input: { id: $id }) { run { status } } }';
  expect((await ada.gql(CANCEL, { id: run.id })).cancelRun.run.status).toBe('CANCELLED');
  const { rows: transactions } = await app.pool.query(
    `select count(*)::int as events from events where type = 'job.cancelled' and subject = any ($1) group by xid`,
    [run.jobs.map(({ id }: { id: string }) => id)],
  );
  const sizes = transactions.map(({ events }) => events);
  expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(768);
  expect(Math.max(...sizes)).toBeLessThanOrEqual(100);
});
