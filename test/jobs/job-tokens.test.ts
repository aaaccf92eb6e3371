/** The token of a job: what it may do, how long, and what it never may. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, submit, submitRaw, until, variables } from '../support/submit.ts';

let app: TestApp;
let runner: FakeRunner;
let ada: Client;
/** A writer of Ada's namespace. */
let bob: Client;
let workspace: Workspace;

beforeAll(async () => {
  runner = fakeRunner({ images: true });
  app = await startApp({ config: { jobSlots: 100 }, overrides: { runner } });
  [ada, bob] = [await app.user('ada'), await app.user('bob')];
  await ada.setMembers('ada', { bob: 'WRITE' });
  await ada.repository('ada/model');
  await ada.repository('ada/other');
  workspace = await Workspace.open();
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

/** A running job, and a client with its token. */
async function startJob(by: Client, input: { name: string; [field: string]: unknown }) {
  const job = await submit(by, { namespace: 'ada', command: 'hold', ...input });
  const spec = await eventually(() => {
    const found = runner.running().find((one) => one.job.id === job.id);
    expect(found).toBeDefined();
    return found;
  });
  const { LOAM_TOKEN = '', LOAM_URL } = spec?.env ?? {};
  return {
    job,
    spec,
    env: spec?.env ?? {},
    url: LOAM_URL,
    client: app.client(`Bearer ${LOAM_TOKEN}`),
  };
}

const REPO = { repo: 'ada/model' };
const ALL = { permissions: { repo: 'WRITE', jobs: 'WRITE' } };
const codeOf = async (answer: ReturnType<Client['graphql']>) =>
  (await answer).errors?.[0]?.extensions.code;

test('a job without permissions has no token', async () => {
  const { env } = await startJob(ada, { name: 'plain', ...REPO });
  expect(Object.keys(env).filter((name) => /^(LOAM|GIT)_/.test(name))).toEqual([]);
});

test('the token works for the namespace and the repository of the job, in the name of its creator', async () => {
  const { client, url, env, job } = await startJob(ada, { name: 'both', ...REPO, ...ALL });
  expect(url).toBe(app.base);
  expect(env.LOAM_TOKEN).toMatch(/^loam_job_[0-9a-z]{26}[0-9a-f]{64}$/);
  expect((await client.get('/auth/v1/whoami')).body).toMatchObject({ username: 'ada' });
  const child = await submit(client, { namespace: 'ada', name: 'child', command: 'true', ...REPO });
  await until(client, 'ada', child.name, 'SUCCEEDED');
  const query = `{ job(namespace: "ada", name: "child") { createdBy { username } permissions { repo jobs } }
    namespace(name: "ada") { auditLog(first: 1, action: JOB_CREATE) { nodes { actor name credential { kind id name } } } } }`;
  const { job: created, namespace } = await ada.gql(query);
  expect(created).toEqual({ createdBy: { username: 'ada' }, permissions: null });
  expect(namespace.auditLog.nodes[0]).toEqual({
    actor: 'ada',
    name: 'child',
    credential: { kind: 'job', id: expect.stringMatching(/^att_/), name: 'both' },
  });
  expect((await client.get('/ada/jobs')).status).toBe(200);
  const shown = await ada.gql(
    `{ node(id: "${job.id}") { ... on Job { permissions { repo jobs } } } }`,
  );
  expect(shown.node.permissions).toEqual({ repo: 'WRITE', jobs: 'WRITE' });
});

test('the token ends with the attempt: at its end, at a cancellation, and at a retry', async () => {
  const ended = await startJob(ada, {
    name: 'ending',
    command: 'hold; exit 1',
    retries: 1,
    ...REPO,
    ...ALL,
  });
  const first = ended.env.LOAM_TOKEN;
  runner.release();
  const second = await eventually(() => {
    const found = runner.running().find((one) => one.job.id === ended.job.id);
    expect([undefined, first]).not.toContain(found?.env.LOAM_TOKEN);
    return found;
  });
  expect(await codeOf(ended.client.graphql('{ viewer { id } }'))).toBe('AUTHENTICATION_FAILED');
  const next = app.client(`Bearer ${second?.env.LOAM_TOKEN}`);
  expect((await next.get('/ada/jobs')).status).toBe(200);
  await cancel(ada, 'ada', 'ending');
  expect((await next.get('/ada/jobs')).status).toBe(401);
  const last = await startJob(ada, { name: 'last', ...REPO, ...ALL });
  runner.release();
  await until(ada, 'ada', 'last', 'SUCCEEDED');
  expect((await last.client.get('/ada/jobs')).status).toBe(401);
});

test('a forged token is refused', async () => {
  const { env } = await startJob(ada, { name: 'forged', ...REPO, ...ALL });
  const token = env.LOAM_TOKEN ?? '';
  const other = (await startJob(ada, { name: 'forger', ...REPO, ...ALL })).env.LOAM_TOKEN ?? '';
  // The id of one attempt with the code of another, a changed code, and no code.
  const forged = [
    `${token.slice(0, 35)}${other.slice(35)}`,
    `${token.slice(0, -1)}${token.endsWith('0') ? '1' : '0'}`,
    token.slice(0, 35),
    `loam_job_${'z'.repeat(26)}${'0'.repeat(64)}`,
  ];
  for (const one of forged)
    expect((await app.client(`Bearer ${one}`).get('/ada/jobs')).status).toBe(401);
});

test('the token has the rights that its creator has now', async () => {
  const { client } = await startJob(bob, { name: 'of-bob', ...REPO, ...ALL });
  const create = (name: string) =>
    codeOf(submitRaw(client, { namespace: 'ada', name, command: 'true', ...REPO }));
  expect(await create('as-writer')).toBeUndefined();
  await ada.setMembers('ada', { bob: 'READ' });
  expect(await create('as-reader')).toBe('PERMISSION_DENIED');
  expect((await client.get('/ada/jobs')).status).toBe(200);
  await ada.gql('mutation { removeMember(input: { namespace: "ada", username: "bob" }) { id } }');
  expect((await client.get('/ada/jobs')).status).toBe(403);
  await ada.setMembers('ada', { bob: 'WRITE' });
  expect((await client.get('/ada/jobs')).status).toBe(200);
  const disable = (how: string) =>
    app.admin.gql(`mutation { ${how}(input: { username: "bob" }) { user { id } } }`);
  await disable('disableUser');
  expect((await client.get('/ada/jobs')).status).toBe(401);
  await disable('enableUser');
});

test('an open stream of a job ends with the attempt', async () => {
  const { client } = await startJob(ada, { name: 'watcher', ...REPO, ...ALL });
  await startJob(ada, { name: 'watched', ...REPO });
  const response = await fetch(`${app.base}/ada/job/watched/logs?stream=true`, {
    headers: { authorization: client.authorization ?? '', accept: 'text/event-stream' },
  });
  expect(response.status).toBe(200);
  await cancel(ada, 'ada', 'watcher');
  // Ends within a round of rechecks, while the watched job still runs.
  const text = await response.text();
  expect(text).toContain('event: error');
});

test('each permission gives no more than it says', async () => {
  const reader = await startJob(ada, { name: 'r', ...REPO, permissions: { repo: 'READ' } });
  expect((await reader.client.get('/ada/jobs')).status).toBe(403);
  const watcher = await startJob(ada, { name: 'j', ...REPO, permissions: { jobs: 'READ' } });
  expect((await watcher.client.get('/ada/jobs')).status).toBe(200);
  await expectRefusal(cancel(watcher.client, 'ada', 'r'), 'PERMISSION_DENIED');
  expect(
    (await watcher.client.graphql('{ repository(namespace: "ada", name: "model") { id } }')).data
      .repository,
  ).toBeNull();
});

test('a token reaches no other repository, namespace or internal repository', async () => {
  await ada.repository('ada/open', { visibility: 'PUBLIC' });
  await ada.repository('ada/inside', { visibility: 'INTERNAL' });
  const { client } = await startJob(ada, { name: 'narrow', ...REPO, ...ALL });
  const find = async (name: string) =>
    (await client.graphql(`{ repository(namespace: "ada", name: "${name}") { name } }`)).data
      .repository?.name;
  expect(await Promise.all(['model', 'other', 'inside', 'open'].map(find))).toEqual([
    'model',
    undefined,
    undefined,
    'open',
  ]);
  const elsewhere = { namespace: 'ada', name: 'elsewhere', command: 'true' };
  expect(await codeOf(submitRaw(client, { ...elsewhere, repo: 'ada/other' }))).toBe('NOT_FOUND');
  expect(await codeOf(submitRaw(client, { ...elsewhere, repo: 'ada/open' }))).toBe(
    'PERMISSION_DENIED',
  );
  expect(await codeOf(submitRaw(client, { ...elsewhere, image: 'debian:12' }))).toBe(
    'PERMISSION_DENIED',
  );
  const wide = await startJob(ada, {
    name: 'wide',
    image: 'debian:12',
    permissions: { jobs: 'WRITE' },
  });
  expect(
    await codeOf(submitRaw(wide.client, { ...elsewhere, image: 'debian:12' })),
  ).toBeUndefined();
  expect(
    await codeOf(submitRaw(wide.client, { ...elsewhere, namespace: 'bob', image: 'debian:12' })),
  ).toBe('PERMISSION_DENIED');
});

test('the rules of a namespace need full rights: neither the token of a job nor the scope for jobs suffices', async () => {
  const { client } = await startJob(ada, {
    name: 'ruler',
    image: 'debian:12',
    permissions: { jobs: 'WRITE' },
  });
  const limits = { name: 'for-jobs', scopes: ['job:write'] };
  const { body } = await ada.post('/auth/v1/pat', limits);
  const repositoryId = await ada.repository('ada/ruled');
  const attempts: [string, object][] = [
    ['setRetention', { namespace: 'ada', jobDays: 1 }],
    ['setShellAccess', { namespace: 'ada', access: 'NONE' }],
    ['setBudget', { namespace: 'ada', month: '1' }],
    ['deleteBudget', { namespace: 'ada' }],
    ['setSecret', { namespace: 'ada', name: 'X', value: 'stolen' }],
    ['deleteLfsObjects', { repositoryId, oids: ['0'.repeat(64)] }],
    ['removeMember', { namespace: 'ada', username: 'bob' }],
  ];
  for (const limited of [client, app.client(`Bearer ${body.token}`)])
    for (const [name, input] of attempts) {
      const type = `${name[0]?.toUpperCase()}${name.slice(1)}Input`;
      const answer = limited.graphql(
        `mutation ($input: ${type}!) { ${name}(input: $input) { __typename } }`,
        { input },
      );
      expect([name, await codeOf(answer)]).toEqual([name, 'PERMISSION_DENIED']);
    }
  const preview = '{ namespace(name: "ada") { retentionPreview(jobDays: 1) { count } } }';
  expect(await codeOf(client.graphql(preview))).toBe('PERMISSION_DENIED');
});

test('a token creates no credentials and no webhooks, changes no repository, and gives no job more than it has', async () => {
  const repositoryId = await ada.repository('ada/guarded');
  const { client } = await startJob(ada, { name: 'attacker', repo: 'ada/guarded', ...ALL });
  const attempts: [string, object][] = [
    ['createAccessToken', { name: 'stolen' }],
    ['createApiKey', { name: 'stolen' }],
    ['addSshKey', { title: 'x', key: 'ssh-ed25519 AAAA' }],
    ['addDeployKey', { repositoryId, title: 'x', key: 'ssh-ed25519 AAAA' }],
    ['createSignInLink', {}],
    ['setMember', { namespace: 'ada', username: 'bob', role: 'ADMIN' }],
    [
      'createWebhook',
      { name: 'x', url: 'https://example.com', eventTypes: ['JOB_COMPLETED'], namespaces: ['ada'] },
    ],
    ['deleteRepository', { id: repositoryId }],
    ['createRepository', { namespace: 'ada', name: 'x' }],
    ['setBranchRule', { id: repositoryId, pattern: 'main', pushRole: 'WRITE', pushers: [] }],
  ];
  for (const [name, input] of attempts) {
    const type = `${name[0]?.toUpperCase()}${name.slice(1)}Input`;
    const answer = client.graphql(
      `mutation ($input: ${type}!) { ${name}(input: $input) { __typename } }`,
      { input },
    );
    expect([name, await codeOf(answer)]).toEqual([name, 'PERMISSION_DENIED']);
  }
  expect(await codeOf(client.graphql('{ viewer { accessTokens { nodes { id } } } }'))).toBe(
    'PERMISSION_DENIED',
  );
  const signIn = await app.anonymous.request('POST', '/login', {
    headers: { origin: app.base, accept: 'text/html' },
    body: new URLSearchParams({ token: client.token }),
  });
  expect(signIn.status).toBe(403);

  const reader = await startJob(ada, {
    name: 'lesser',
    ...REPO,
    permissions: { jobs: 'WRITE', repo: 'READ' },
  });
  const more = { namespace: 'ada', name: 'more', command: 'true', ...REPO };
  expect(await codeOf(submitRaw(reader.client, { ...more, permissions: { repo: 'WRITE' } }))).toBe(
    'PERMISSION_DENIED',
  );
  expect(
    await codeOf(submitRaw(reader.client, { ...more, permissions: { repo: 'READ' } })),
  ).toBeUndefined();
  const RERUN =
    'mutation ($name: String!) { rerunJob(input: { namespace: "ada", name: $name }) { job { name } } }';
  await submit(ada, { ...more, name: 'stronger', permissions: { repo: 'WRITE' } });
  await submit(ada, { ...more, name: 'secretive', secrets: variables({ KEY: 'value' }) });
  for (const name of ['stronger', 'secretive'])
    expect([name, await codeOf(reader.client.graphql(RERUN, { name }))]).toEqual([
      name,
      'PERMISSION_DENIED',
    ]);
  await ada.gql(
    'mutation { setSecret(input: { namespace: "ada", name: "SHARED", value: "value", refs: ["**"] }) { secret { name } } }',
  );
  const named = { ...more, secretNames: ['SHARED'] };
  expect(await codeOf(submitRaw(client, { ...named, repo: 'ada/guarded' }))).toBe(
    'PERMISSION_DENIED',
  );
  await submit(ada, { ...named, name: 'naming' });
  expect(await codeOf(reader.client.graphql(RERUN, { name: 'naming' }))).toBe('PERMISSION_DENIED');
  const rerun = await ada.gql(RERUN.replace('job { name }', 'job { permissions { repo } }'), {
    name: 'stronger',
  });
  expect(rerun.rerunJob.job.permissions).toEqual({ repo: 'WRITE' });
});

test('a limited credential gives a job no more than it has itself', async () => {
  const ask = (by: Client, name: string, permissions: object) =>
    codeOf(submitRaw(by, { namespace: 'ada', name, command: 'true', ...REPO, permissions }));
  const reader = await ada.withToken({ scopes: ['JOB_WRITE', 'REPO_READ'] });
  expect(await ask(reader, 'too-much', { repo: 'WRITE' })).toBe('PERMISSION_DENIED');
  expect(await ask(reader, 'enough', { repo: 'READ', jobs: 'WRITE' })).toBeUndefined();
  // A public repository of another namespace can be run, and gives no right to it.
  await bob.repository('bob/public', { visibility: 'PUBLIC' });
  const foreign = { namespace: 'ada', name: 'foreign', command: 'true', repo: 'bob/public' };
  const refused = await submitRaw(ada, { ...foreign, permissions: { repo: 'READ' } });
  expect(refused.errors?.[0]).toMatchObject({
    extensions: { code: 'INVALID_REQUEST', field: 'permissions' },
  });
});

test('permissions that make no sense are refused, naming the field', async () => {
  const ask = async (input: object) =>
    (await submitRaw(ada, { namespace: 'ada', name: 'bad', command: 'true', ...input }))
      .errors?.[0];
  const field = { extensions: { code: 'INVALID_REQUEST', field: 'permissions' } };
  expect(await ask({ image: 'debian:12', permissions: { repo: 'READ' } })).toMatchObject(field);
  const env = variables({ LOAM_TOKEN: 'x' });
  expect(await ask({ ...REPO, env, ...ALL })).toMatchObject(field);
  // Without permissions, the variable is the user's own.
  expect(await ask({ ...REPO, env })).toBeUndefined();
});

test('git over HTTP accepts the token, for the repository of the job only, by the rules of its branches', async () => {
  const { client } = await startJob(bob, { name: 'pusher', ...REPO, ...ALL });
  await workspace.clone(client, 'ada/model');
  await workspace.commit('model', { 'a.txt': 'a' });
  await workspace.git('model', 'push', '-q', 'origin', 'HEAD:refs/heads/result');
  const { repository } = await ada.gql('{ repository(namespace: "ada", name: "model") { id } }');
  await ada.gql(
    'mutation ($input: SetBranchRuleInput!) { setBranchRule(input: $input) { repository { id } } }',
    { input: { id: repository.id, pattern: 'release', pushRole: 'ADMIN', pushers: [] } },
  );
  const refused = await workspace.try('model', 'push', 'origin', 'HEAD:refs/heads/release');
  expect(refused.stderr).toContain('The branch release is protected');
  const other = await workspace.try('.', 'clone', remote(client, 'ada/other'), 'other');
  expect(other.code).not.toBe(0);
  await cancel(bob, 'ada', 'pusher');
  const late = await workspace.try('model', 'push', 'origin', 'HEAD:refs/heads/late');
  expect(late.code).not.toBe(0);
});

test('a link for large files that a job has got ends with the job, too', async () => {
  const { client } = await startJob(ada, { name: 'uploader', ...REPO, ...ALL });
  const batch = () =>
    client.post('/ada/model.git/info/lfs/objects/batch', {
      operation: 'upload',
      objects: [{ oid: 'a'.repeat(64), size: 1 }],
    });
  const { status, body } = await batch();
  expect(status).toBe(200);
  const { href, header } = body.objects[0].actions.upload;
  const upload = async () =>
    (await fetch(href, { method: 'PUT', headers: header, body: 'x' })).status;
  // The content does not match its id.
  expect(await upload()).toBe(422);
  await cancel(ada, 'ada', 'uploader');
  expect([(await batch()).status, await upload()]).toEqual([401, 401]);
});

test('the requests of a job count by the plan of its namespace', async () => {
  const runnerHere = fakeRunner();
  const rateLimits = PLAN_LIMITS;
  await using limited = await startApp({
    config: { rateLimits },
    overrides: { runner: runnerHere },
  });
  const eve = await limited.user('eve', 'enterprise');
  await eve.repository('eve/model');
  const input = { namespace: 'eve', name: 'counted', command: 'hold', repo: 'eve/model', ...ALL };
  await submit(eve, input);
  await until(eve, 'eve', 'counted', 'RUNNING');
  const token = runnerHere.running()[0]?.env.LOAM_TOKEN;
  const { headers } = await limited.client(`Bearer ${token}`).get('/eve/jobs');
  const limit = String(PLAN_LIMITS.enterprise.perMinute);
  expect(headers.get('x-ratelimit-limit')).toBe(limit);
  expect(headers.get('x-ratelimit-remaining')).toBe(String(Number(limit) - 1));
});
