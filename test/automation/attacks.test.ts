/** Attacks on runs and schedules: by jobs, by members with fewer rights, by outsiders, and with odd input. */
import { decodeJwt } from 'jose';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { tick } from '../../src/automation/schedules/clock.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { until } from '../support/submit.ts';
import { viaYoga } from '../support/subscribe.ts';

let app: TestApp;
let runner: FakeRunner;
let ada: Client;
/** A writer of Ada's namespace. */
let bob: Client;
/** A member of nothing. */
let carol: Client;
let workspace: Workspace;

beforeAll(async () => {
  runner = fakeRunner({ images: true });
  app = await startApp({ config: { jobSlots: 100 }, overrides: { runner } });
  ada = await app.user('ada');
  bob = await app.user('bob');
  carol = await app.user('carol');
  await ada.setMembers('ada', { bob: 'WRITE' });
  await ada.gql(
    'mutation { setSecret(input: { namespace: "ada", name: "KEY", value: "value" }) { secret { name } } }',
  );
  workspace = await Workspace.open();
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

/** Creates a private repository whose clone has a commit with the file. */
async function create(name: string, file: string): Promise<string> {
  const id = await ada.repository(`ada/${name}`, { visibility: 'PRIVATE', autoInit: false });
  await workspace.clone(bob, `ada/${name}`);
  await workspace.commit(name, { '.loam/jobs.yml': file });
  return id;
}

const push = (name: string, ...args: string[]) =>
  workspace.git(name, 'push', '-q', 'origin', ...args);

const used = () =>
  eventually(async () => {
    const { rows } = await app.pool.query('select from run_triggers');
    expect(rows).toEqual([]);
  });

const RUNS = `query ($name: String!) { repository(namespace: "ada", name: $name) {
  runs(first: 50) { nodes { id number status ref sha title problems { message } jobs { id name status } } } } }`;

/** The runs of a repository, oldest first, once its triggers were used. */
async function runsOf(name: string) {
  await used();
  return (await ada.gql(RUNS, { name })).repository.runs.nodes.toReversed();
}

/** Sends a mutation whose payload has a run, or another field. @returns its error, or undefined */
async function refusal(by: Client, mutation: string, input: object, payload = 'run { id }') {
  const type = `${mutation[0]?.toUpperCase()}${mutation.slice(1)}Input`
    .replace('ApproveRunInput', 'RunIdInput')
    .replace('CancelRunInput', 'RunIdInput');
  const { errors } = await by.graphql(
    `mutation ($input: ${type}!) { ${mutation}(input: $input) { ${payload} } }`,
    { input },
  );
  return errors?.[0] && { ...errors[0].extensions, message: errors[0].message };
}

const protect = (id: string, pattern: string) =>
  ada.gql(
    'mutation ($input: SetBranchRuleInput!) { setBranchRule(input: $input) { repository { id } } }',
    { input: { id, pattern, pushRole: 'ADMIN' } },
  );

const FILE = 'jobs: {a: {on: {push: true, manual: true}, command: echo}}';
const WITH_KEY = 'jobs: {a: {on: {push: true, manual: true}, command: echo, secrets: [KEY]}}';

test('the token of a job starts, approves and repeats no runs, and changes no schedules', async () => {
  const id = await create(
    'tokens',
    'jobs: {a: {on: {push: true}, command: hold, permissions: {repo: write, jobs: write}}}',
  );
  await push('tokens', 'HEAD');
  const [run] = await runsOf('tokens');
  const spec = await eventually(() => {
    const found = runner.running().find((one) => one.job.id === run.jobs[0].id);
    expect(found).toBeDefined();
    return found;
  });
  const job = app.client(`Bearer ${spec?.env.LOAM_TOKEN}`);
  expect((await job.gql(RUNS, { name: 'tokens' })).repository.runs.nodes).toHaveLength(1);
  const denied = { code: 'PERMISSION_DENIED', message: expect.stringMatching(/^A job cannot/) };
  expect(await refusal(job, 'startRun', { id })).toMatchObject(denied);
  expect(await refusal(job, 'approveRun', { id: run.id })).toMatchObject(denied);
  expect(await refusal(job, 'rerunRun', { id: run.id, failedOnly: false })).toMatchObject(denied);
  const schedule = { id, name: 'mine', cron: '0 3 * * *', file: FILE };
  expect(await refusal(job, 'createSchedule', schedule, 'schedule { id }')).toMatchObject(denied);
  expect(await refusal(job, 'deleteSchedule', { id: 'sch_x' }, 'id')).toMatchObject(denied);
  expect(await refusal(job, 'cancelRun', { id: run.id })).toBeUndefined();
});

test('a commit from before the protection of its branch gets no secrets by a rerun or an approval', async () => {
  const id = await create('before', WITH_KEY);
  await push('before', 'HEAD:refs/heads/release');
  const limited = await bob.withToken({ scopes: ['REPO_WRITE'] });
  await workspace.commit('before', { a: 'a' });
  await workspace.git(
    ...(['before', 'push', '-q'] as const),
    remote(limited, 'ada/before'),
    'HEAD:refs/heads/release',
  );
  await workspace.commit('before', { '.loam/jobs.yml': FILE });
  await push('before', 'HEAD:refs/heads/release');
  const [failed, waiting] = await runsOf('before');
  expect(failed).toMatchObject({ status: 'FAILED', jobs: [] });
  expect(failed.problems[0].message).toContain('release is not protected');
  expect(waiting.status).toBe('WAITING_FOR_APPROVAL');
  const denied = { code: 'PERMISSION_DENIED', field: 'secretNames' };
  expect(await refusal(bob, 'rerunRun', { id: failed.id })).toMatchObject(denied);
  await protect(id, 'release');
  expect(await refusal(bob, 'rerunRun', { id: failed.id })).toMatchObject(denied);
  expect(await refusal(bob, 'approveRun', { id: waiting.id })).toMatchObject(denied);
  expect((await runsOf('before')).slice(0, 2)).toMatchObject([{ jobs: [] }, { jobs: [] }]);
  // Ada may push it there.
  expect(await refusal(ada, 'rerunRun', { id: failed.id })).toBeUndefined();
  expect((await runsOf('before')).at(-1).jobs).toHaveLength(1);
});

test('nobody lends secrets or rights to the file of a schedule of another user', async () => {
  const id = await create('lent', FILE);
  await push('lent', 'HEAD');
  await protect(id, 'main');
  const CREATE =
    'mutation ($input: CreateScheduleInput!) { createSchedule(input: $input) { schedule { id } } }';
  for (const [name, extra] of [
    ['secret', 'secrets: [KEY]'],
    ['plain', 'image: debian'],
    ['rights', 'permissions: {repo: write}'],
  ])
    await bob.gql(CREATE, {
      input: {
        id,
        name,
        cron: '0 3 * * *',
        file: `jobs: {${name}: {on: {manual: true}, command: echo, ${extra}}}`,
      },
    });
  await app.pool.query(
    `update schedules set next_at = now(), created_by_id = case when name = 'rights' then null else created_by_id end
     where repository_id = $1`,
    [id],
  );
  await tick(app.app.services, new Date());
  // The loop of the server may be using them too.
  await eventually(async () => {
    const due = 'select from schedules where repository_id = $1 and next_at <= now()';
    expect((await app.pool.query(due, [id])).rowCount).toBe(0);
  });
  const runs = (await runsOf('lent')).slice(1);
  const failed = runs.find(({ status }: { status: string }) => status === 'FAILED');
  expect(failed.problems[0].message).toContain('may push to the branch main');
  const denied = { code: 'PERMISSION_DENIED' };
  expect(await refusal(ada, 'rerunRun', { id: failed.id })).toMatchObject(denied);
  const waiting = runs.find(({ status }: { status: string }) => status === 'WAITING_FOR_APPROVAL');
  expect(await refusal(ada, 'approveRun', { id: waiting.id })).toMatchObject(denied);
  const plain = runs.find(({ jobs }: { jobs: object[] }) => jobs.length > 0);
  await until(ada, 'ada', plain.jobs[0].name, 'SUCCEEDED');
  await eventually(async () =>
    expect(await refusal(ada, 'rerunRun', { id: plain.id })).toBeUndefined(),
  );
});

test('the status of a matrix does not become success when the job that did not succeed is deleted', async () => {
  await create('matrix', 'jobs: {m: {on: {push: true}, command: hold, matrix: {n: [1, 2]}}}');
  await push('matrix', 'HEAD');
  const [run] = await runsOf('matrix');
  const [first, second] = run.jobs;
  const name = { namespace: 'ada', name: first.name };
  expect(await refusal(bob, 'cancelJob', name, 'job { id }')).toBeUndefined();
  await eventually(async () => expect(await refusal(bob, 'deleteJob', name, 'id')).toBeUndefined());
  await eventually(async () => {
    runner.release();
    const { job } = await ada.gql(`{ job(namespace: "ada", name: "${second.name}") { status } }`);
    expect(job.status).toBe('SUCCEEDED');
  });
  const state = async () => {
    const { rows } = await app.pool.query(
      'select state, description from commit_statuses where sha = $1',
      [run.sha],
    );
    return rows;
  };
  await eventually(async () =>
    expect(await state()).toEqual([{ state: 'error', description: '1 of 2 cancelled' }]),
  );
});

test('an earlier push to the default branch does not replace the schedules of a later one', async () => {
  const schedule = (hour: number) =>
    `jobs: {a: {on: {schedule: [{cron: "0 ${hour} * * *"}]}, command: echo}}`;
  const id = await create('order', schedule(1));
  const sha = await workspace.git('order', 'rev-parse', 'HEAD');
  await push('order', 'HEAD');
  await used();
  // The first push is still in the work of a slow server.
  await app.pool.query(
    `insert into run_triggers (id, repository_id, ref, before, after, starts_run, may_create_jobs, actor, due_at)
     values ('evt_0', $1, 'refs/heads/main', $2, $2, false, false, '{"userId": null, "username": "ada", "credential": null}',
       now() + interval '1 hour')`,
    [id, sha.trim()],
  );
  await workspace.commit('order', { '.loam/jobs.yml': schedule(2) });
  await push('order', 'HEAD');
  const crons = async () =>
    (await app.pool.query('select cron from schedules where repository_id = $1', [id])).rows;
  await eventually(async () => {
    const { rows } = await app.pool.query(
      `select attempts from run_triggers where id <> 'evt_0' and attempts > 0`,
    );
    expect(rows).toHaveLength(1);
  });
  expect(await crons()).toEqual([{ cron: '0 1 * * *' }]);
  await app.pool.query(`update run_triggers set due_at = now() where id = 'evt_0'`);
  await used();
  expect(await crons()).toEqual([{ cron: '0 2 * * *' }]);
});

test('a trigger whose claims were lost three times becomes an invalid run, and one with two a run', async () => {
  const id = await create('lethal', FILE);
  await push('lethal', 'HEAD');
  const [{ sha }] = await runsOf('lethal');
  const insert = (event: string, lostClaims: number) =>
    app.pool.query(
      `insert into run_triggers (id, repository_id, ref, before, after, starts_run, may_create_jobs, actor, attempts, lost_claims)
       values ($1, $2, 'refs/heads/main', $4, $3, true, false,
         '{"userId": null, "username": "ada", "credential": null}', $5, $5)`,
      [event, id, sha, '0'.repeat(40), lostClaims],
    );
  await insert('evt_2', 2);
  await used();
  await insert('evt_3', 3);
  const [, usual, invalid] = await runsOf('lethal');
  expect(usual).toMatchObject({ status: 'WAITING_FOR_APPROVAL', problems: [] });
  // Without the title, because the commit is not read again.
  expect(invalid).toMatchObject({ status: 'INVALID', sha, title: '', jobs: [] });
  expect(invalid.problems[0].message).toMatch(/^The server stopped 3 times/);
});

test('identity tokens name the run', async () => {
  await create(
    'claims',
    'jobs: {a: {on: {push: true}, command: hold, id_tokens: [{variable: CLOUD, audience: sts}]}}',
  );
  await push('claims', 'HEAD');
  const [run] = await runsOf('claims');
  await eventually(() => {
    const spec = runner.started.find((one) => one.job.id === run.jobs[0]?.id);
    const claims = decodeJwt(spec?.files.CLOUD ?? '');
    expect(claims).toMatchObject({ run: 'ada/claims#1', run_id: run.id, job: run.jobs[0].name });
  });
  const { body } = await ada.get('/.well-known/openid-configuration');
  expect(body.claims_supported).toEqual(expect.arrayContaining(['run', 'run_id']));
});

test('outsiders see and change nothing of a private repository', async () => {
  const id = await create('hidden', FILE);
  await push('hidden', 'HEAD');
  const [run] = await runsOf('hidden');
  const limited = await ada.withToken({ scopes: ['JOB_READ'] });
  const READ = `query ($id: ID!) { node(id: $id) { ... on Run { ref problems { message } } }
    repository(namespace: "ada", name: "hidden") { runs { nodes { id } } run(number: 1) { id } schedules { id } } }`;
  for (const client of [carol, app.client(null), limited]) {
    const { data } = await client.graphql(READ, { id: run.id });
    expect(data?.node ?? null).toBeNull();
    expect(data?.repository ?? null).toBeNull();
  }
  const { data } = await limited.graphql(
    `{ job(namespace: "ada", name: "${run.jobs[0].name}") { runJob run { id } } }`,
  );
  expect(data.job).toEqual({ runJob: 'a', run: null });
  for (const client of [carol, app.client(null)])
    for (const [mutation, input, payload] of [
      ['startRun', { id }],
      ['approveRun', { id: run.id }],
      ['cancelRun', { id: run.id }],
      ['rerunRun', { id: run.id }],
      ['createSchedule', { id, name: 'x', cron: '0 3 * * *', file: FILE }, 'schedule { id }'],
    ] as const)
      expect((await refusal(client, mutation, input, payload))?.code, mutation).toMatch(
        /^(NOT_FOUND|PERMISSION_DENIED|AUTHENTICATION_FAILED)$/,
      );

  // A subscription ends when the access is lost.
  const events = viaYoga(
    bob,
    'subscription { runChanges(namespace: "ada", name: "hidden") { run { id } } }',
  );
  expect((await events.next()).value.data).toEqual({ runChanges: { run: null } });
  const member = (mutation: string) => ada.gql(`mutation { ${mutation} }`);
  await member('removeMember(input: { namespace: "ada", username: "bob" }) { id }');
  const last = await eventually(async () => {
    const { value, done } = await events.next();
    expect(done || value.errors).toBeTruthy();
    return value;
  });
  expect(last?.errors?.[0].extensions.code).toMatch(/^(NOT_FOUND|PERMISSION_DENIED)$/);
  await member(
    'setMember(input: { namespace: "ada", username: "bob", role: WRITE }) { member { role } }',
  );
});

test('odd input is an error of the client', async () => {
  const id = await create('odd', FILE);
  await push('odd', 'HEAD');
  const [run] = await runsOf('odd');
  const odd = [
    '\0',
    'a\0b',
    '\ud800',
    'x'.repeat(1_000_000),
    '',
    '\n',
    '../..',
    '-x',
    '@{-1}',
    '%00',
    '🙂',
  ];
  const check = async (query: string, variables: object) => {
    const { errors } = await ada.graphql(query, variables);
    for (const { message, extensions } of errors ?? [])
      expect(extensions.code, `${query}: ${message}`).not.toMatch(/INTERNAL|UNAVAILABLE/);
  };
  for (const text of odd) {
    await check(
      'query ($text: String!) { repository(namespace: "ada", name: "odd") { runs(ref: $text) { nodes { id } } } }',
      { text },
    );
    await check(
      'query ($text: String!) { repository(namespace: "ada", name: "odd") { runs(after: $text) { nodes { id } } } }',
      { text },
    );
    await check('query ($text: String!) { checkJobFile(text: $text) { problems { message } } }', {
      text,
    });
    await check('query ($text: ID!) { node(id: $text) { id } }', { text: `run_${text}` });
    for (const [mutation, input, payload] of [
      ['startRun', { id, ref: text }],
      ['startRun', { id, job: text }],
      ['startRun', { id: text }],
      ['startRun', { id, namespace: text }],
      ['approveRun', { id: text }],
      ['cancelRun', { id: text }],
      ['rerunRun', { id: text }],
      ['deleteSchedule', { id: text }, 'id'],
      ['createSchedule', { id, name: text, cron: '0 3 * * *', file: FILE }, 'schedule { id }'],
      ['createSchedule', { id, name: 'n', cron: text, file: FILE }, 'schedule { id }'],
      [
        'createSchedule',
        { id, name: 'n', cron: '0 3 * * *', timezone: text, file: FILE },
        'schedule { id }',
      ],
      ['createSchedule', { id, name: 'n', cron: '0 3 * * *', file: text }, 'schedule { id }'],
      [
        'createSchedule',
        { id, name: 'n', cron: '0 3 * * *', file: `${FILE} # ${text}` },
        'schedule { id }',
      ],
    ] as const) {
      const error = await refusal(ada, mutation, input, payload);
      expect(error?.code ?? '', `${mutation} ${JSON.stringify(input).slice(0, 200)}`).not.toMatch(
        /INTERNAL|UNAVAILABLE/,
      );
      await app.pool.query('delete from schedules where repository_id = $1', [id]);
    }
  }
  for (const number of [-1, 0, 2_147_483_647])
    await check(
      `{ repository(namespace: "ada", name: "odd") { run(number: ${number}) { id } } }`,
      {},
    );
  await check(
    '{ repository(namespace: "ada", name: "odd") { run(number: 99999999999) { id } } }',
    {},
  );
  expect((await runsOf('odd'))[0]).toMatchObject({ id: run.id });
});

test('a transferred repository takes along its runs, not the rights over the jobs of its former namespace', async () => {
  const id = await create('moved', 'jobs: {a: {on: {push: true}, command: busy}}');
  await push('moved', 'HEAD');
  const [run] = await runsOf('moved');
  await app.pool.query(
    `insert into members (namespace_id, user_id, role) select n.id, u.id, 'admin'
     from namespaces n, users u where n.name = 'carol' and u.username = 'ada'`,
  );
  await ada.gql(
    'mutation ($id: ID!) { transferRepository(input: {id: $id, newNamespace: "carol"}) { repository { id } } }',
    { id },
  );
  expect(await refusal(carol, 'cancelRun', { id: run.id })).toMatchObject({ code: 'CONFLICT' });
  const { node } = await carol.gql(
    'query ($id: ID!) { node(id: $id) { ... on Run { jobs { id } } } }',
    {
      id: run.id,
    },
  );
  expect(node).toMatchObject({ jobs: [] });
  expect(await refusal(carol, 'startRun', { id })).toMatchObject({ code: 'CONFLICT' });
  const schedule = { id, name: 'x', cron: '0 3 * * *', file: FILE };
  expect(await refusal(carol, 'createSchedule', schedule, 'schedule { id }')).toBeUndefined();
  // A deletion takes along schedules, triggers and runs, and a schedule that is due then does nothing.
  await app.pool.query('update schedules set next_at = now() where repository_id = $1', [id]);
  await tick(app.app.services, new Date());
  expect(await refusal(carol, 'deleteRepository', { id }, 'id')).toBeUndefined();
  await used();
  const { rows } = await app.pool.query('select from runs where repository_id = $1', [id]);
  expect(rows).toEqual([]);
});
