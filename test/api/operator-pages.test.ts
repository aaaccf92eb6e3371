/** Lists of all users, organizations and servers, which only the operator may see. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, submit } from '../support/submit.ts';

let app: TestApp;
let ada: Client;

const MACHINE = { id: 'big', cpus: 16, memoryBytes: 64 * 2 ** 30, gpus: { T4: 2 } };

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ machines: [MACHINE] }) } });
  ada = await app.user('ada', 'team');
  await app.user('bob', 'free');
  for (const name of ['acme', 'beta-lab'])
    await app.admin.gql(
      'mutation ($name: String!) { createOrganization(input: {name: $name}) { namespace { id } } }',
      { name },
    );
});
afterAll(() => app[Symbol.asyncDispose]());

const USERS = `query ($first: Int!, $after: String, $text: String) {
  users(first: $first, after: $after, text: $text) {
    totalCount pageInfo { hasNextPage endCursor }
    nodes { username email plan operator createdAt namespace { name plan } } } }`;
const ORGANIZATIONS = `query ($text: String) { organizations(text: $text) { totalCount nodes { name plan kind } } }`;
const SERVERS = `{ servers { id role url heartbeatAt isAlive isCurrent
  worker { runner heartbeatAt isAlive jobs
    machines { name cpus usedCpus memoryBytes usedMemoryBytes gpus { name count } jobs } } } }`;
const QUEUE = '{ queue { gpu region waiting oldestWait running gpusOffered } }';
const SET_PLAN = `mutation ($namespace: String!, $plan: Plan!) {
  setPlan(input: { namespace: $namespace, plan: $plan }) { namespace { name plan } } }`;

test('users in order of name, page by page, and search by parts of name and email address', async () => {
  const { users } = await app.admin.gql(USERS, { first: 2 });
  expect(users).toMatchObject({
    totalCount: 3,
    pageInfo: { hasNextPage: true },
    nodes: [
      { username: 'ada', email: 'ada@example.com', plan: 'TEAM', operator: false },
      { username: 'admin', operator: true, namespace: { name: 'admin', plan: 'UNLIMITED' } },
    ].toSorted((a, b) => (a.username < b.username ? -1 : 1)),
  });
  const rest = await app.admin.gql(USERS, { first: 2, after: users.pageInfo.endCursor });
  expect(rest.users.nodes.map((it: { username: string }) => it.username)).toEqual(['bob']);
  const named = async (text: string) =>
    (await app.admin.gql(USERS, { first: 9, text })).users.nodes.map(
      (it: { username: string }) => it.username,
    );
  expect(await named('OB')).toEqual(['bob']);
  expect(await named('a@ex')).toEqual(['ada']);
  expect(await named('%')).toEqual([]);
  expect(await named('_')).toEqual([]);
  expect(await named('')).toHaveLength(3);
});

test('the health of the server says what its database and its disks do', async () => {
  const query =
    '{ serverHealth { isDatabaseReachable databaseMs disks { folder freeBytes totalBytes isLow } } }';
  const { serverHealth } = await app.admin.gql(query);
  expect(serverHealth).toMatchObject({ isDatabaseReachable: true });
  for (const { freeBytes, totalBytes } of serverHealth.disks)
    expect(totalBytes).toBeGreaterThanOrEqual(freeBytes);
  expect(serverHealth.disks.length).toBeGreaterThan(0);
  await expectRefusal(ada.graphql(query), 'PERMISSION_DENIED');
});

test('organizations in order of name', async () => {
  expect((await app.admin.gql(ORGANIZATIONS)).organizations).toEqual({
    totalCount: 2,
    nodes: [
      { name: 'acme', plan: 'FREE', kind: 'ORGANIZATION' },
      { name: 'beta-lab', plan: 'FREE', kind: 'ORGANIZATION' },
    ],
  });
  expect((await app.admin.gql(ORGANIZATIONS, { text: 'Lab' })).organizations.totalCount).toBe(1);
});

test('the operator sets the plan of an organization, and of a user with their namespace', async () => {
  const { setPlan } = await app.admin.gql(SET_PLAN, { namespace: 'ACME', plan: 'ENTERPRISE' });
  expect(setPlan.namespace).toEqual({ name: 'acme', plan: 'ENTERPRISE' });
  await app.admin.gql(SET_PLAN, { namespace: 'ada', plan: 'ENTERPRISE' });
  const { viewer } = await ada.gql('{ viewer { plan namespace { plan } } }');
  expect(viewer).toEqual({ plan: 'ENTERPRISE', namespace: { plan: 'ENTERPRISE' } });
  await app.admin.gql(SET_PLAN, { namespace: 'ada', plan: 'ENTERPRISE' });
  const { rows } = await app.pool.query(
    `select name, details from audit_entries where action = 'plan.set' order by id`,
  );
  expect(rows).toEqual([
    { name: 'acme', details: { from: 'free', to: 'enterprise' } },
    { name: 'ada', details: { from: 'team', to: 'enterprise' } },
  ]);
  await expectRefusal(
    app.admin.graphql(SET_PLAN, { namespace: 'nobody', plan: 'FREE' }),
    'NOT_FOUND',
  );
});

test('the server with its machines, their running jobs, and the queue', async () => {
  await ada.repository('ada/code');
  const job = { namespace: 'ada', command: 'sleep 600', repo: 'ada/code', cpu: 4, memoryGb: 8 };
  await submit(ada, { ...job, name: 'on-gpus', gpu: 'T4', gpuCount: 2 });
  await submit(ada, { ...job, name: 'waits', gpu: 'T4', gpuCount: 2 });
  await submit(ada, { ...job, name: 'never', gpu: 'H100_80GB', region: 'EU_WEST_1' });
  const servers = await eventually(async () => {
    const answer = await app.admin.gql(SERVERS);
    expect(answer.servers[0]?.worker?.jobs).toBe(1);
    return answer.servers;
  });
  expect(servers).toEqual([
    {
      id: expect.any(String),
      role: 'ALL',
      url: app.base,
      heartbeatAt: expect.any(String),
      isAlive: true,
      isCurrent: true,
      worker: {
        runner: 'fake',
        heartbeatAt: expect.any(String),
        isAlive: true,
        jobs: 1,
        machines: [
          {
            name: 'big',
            cpus: 16,
            usedCpus: 4,
            memoryBytes: MACHINE.memoryBytes,
            usedMemoryBytes: 8 * 2 ** 30,
            gpus: [{ name: 'T4', count: 2 }],
            jobs: 1,
          },
        ],
      },
    },
  ]);
  const oldest = expect.any(Number);
  // While a worker examines a job, the job does not count as waiting.
  await eventually(async () =>
    expect((await app.admin.gql(QUEUE)).queue).toEqual([
      {
        gpu: 'H100_80GB',
        region: 'EU_WEST_1',
        waiting: 1,
        oldestWait: oldest,
        running: 0,
        gpusOffered: 0,
      },
      {
        gpu: 'T4',
        region: 'US_EAST_1',
        waiting: 1,
        oldestWait: oldest,
        running: 1,
        gpusOffered: 2,
      },
    ]),
  );
  for (const name of ['on-gpus', 'waits', 'never']) await cancel(ada, 'ada', name);
});

test('servers that have stopped are listed as gone', async () => {
  await app.pool.query(`
    insert into servers (id, role, url, storage, heartbeat_at)
      values ('srv_gone', 'serve', 'http://gone', 's', now() - interval '1 hour');
    insert into workers (id, runner, machines, heartbeat_at)
      values ('srv_lost', 'docker', '[]', now() - interval '1 hour')`);
  const { servers } = await app.admin.gql(SERVERS);
  expect(servers.slice(1)).toMatchObject([
    { id: 'srv_gone', role: 'SERVE', url: 'http://gone', isAlive: false, worker: null },
    { id: 'srv_lost', isAlive: false, isCurrent: false, worker: { isAlive: false, machines: [] } },
  ]);
});

test('all of it is refused to other users, and to a limited credential of the operator', async () => {
  const limited = await app.admin.withToken({ namespaces: ['acme'] });
  for (const [query, variables] of [
    [USERS, { first: 5 }],
    [ORGANIZATIONS, {}],
    [SERVERS, {}],
    [QUEUE, {}],
    [SET_PLAN, { namespace: 'ada', plan: 'UNLIMITED' }],
  ] as const)
    for (const [client, code] of [
      [ada, 'PERMISSION_DENIED'],
      [limited, 'PERMISSION_DENIED'],
      [app.anonymous, 'AUTHENTICATION_FAILED'],
    ] as const) {
      const { data, errors } = await client.graphql(query, variables);
      expect(Object.values(data)).toEqual([null]);
      expect(errors?.map(({ extensions }) => extensions.code)).toEqual([code]);
    }
});
