/** Worker tokens and the machines that join with them: who may do what, and that nothing is left of what was revoked. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readAccountByCredentialId } from '../../src/identity/authenticate.ts';
import type { Viewer } from '../../src/identity/permissions.ts';
import * as machines from '../../src/jobs/machines/machines.ts';
import { recordSilence, storeReport } from '../../src/jobs/machines/reports.ts';
import * as tokens from '../../src/jobs/machines/tokens.ts';
import { machineFacts } from '../../src/runners/machines/protocol.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { submit, until } from '../support/submit.ts';
import { take, viaYoga } from '../support/subscribe.ts';

let app: TestApp;
let operator: Viewer;
let lead: Viewer;
let member: Viewer;
let stranger: Viewer;
let leadClient: Client;
let memberClient: Client;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ images: true }) } });
  leadClient = await app.user('lead');
  memberClient = await app.user('member');
  const strangerClient = await app.user('stranger');
  await app.organization('lab', { lead: 'ADMIN', member: 'READ' });
  operator = await viewerOf(app.admin);
  lead = await viewerOf(leadClient);
  member = await viewerOf(memberClient);
  stranger = await viewerOf(strangerClient);
});
afterAll(() => app[Symbol.asyncDispose]());

const services = () => app.app.services as never as Parameters<typeof tokens.createWorkerToken>[0];

/** The account of the client's access token, as a request has it. */
async function viewerOf(client: Client): Promise<Viewer> {
  const { rows } = await app.pool.query<{ id: string }>(
    `select id from access_tokens where hash = sha256($1::bytea)`,
    [Buffer.from(client.token)],
  );
  return readAccountByCredentialId(app.app.services as never, rows[0]?.id ?? '');
}

const FACTS = machineFacts.parse({
  hostname: 'gpu-box.lab.example',
  os: 'linux',
  arch: 'x64',
  node: '24.1.0',
  program: '1.0.0',
  cpus: 16,
  memoryBytes: 64 * 2 ** 30,
  gpus: [0, 1].map((index) => ({
    index,
    name: 'NVIDIA GeForce RTX 4090',
    uuid: `GPU-${index}`,
    memoryBytes: 24 * 2 ** 30,
  })),
  withImage: true,
  withoutImage: true,
  slots: 8,
  notes: [],
});

let count = 0;
const unique = (prefix: string) => `${prefix}-${++count}`;

/** A machine that joined with a new token of the viewer. */
async function join(viewer: Viewer, namespace: string | null, name = unique('box')) {
  const { token, workerToken } = await tokens.createWorkerToken(services(), viewer, {
    name,
    namespace,
  });
  return {
    name,
    token,
    tokenId: workerToken.id,
    ...(await machines.joinMachine(services(), token, { name, facts: FACTS })),
  };
}

const audit = async (subject: string) => {
  const { rows } = await app.pool.query(
    `select a.action, a.actor, n.name as namespace, a.details from audit_entries a join namespaces n on n.id = a.namespace_id
     where a.subject = $1 order by a.id`,
    [subject],
  );
  return rows;
};

const names = async (viewer: Viewer, namespace?: string) =>
  (await machines.listMachines(services(), viewer, namespace)).map(({ name }) => name);

/** An open attempt on the machine, as its worker would have stored it. */
async function placeJob(machine: string, gpuIndices: string): Promise<string> {
  const name = unique('job');
  await submit(leadClient, { namespace: 'lead', name, image: 'busybox', command: 'hold' });
  await until(leadClient, 'lead', name, 'RUNNING');
  await app.pool.query(
    `update job_attempts a set machine = $2, handle = handle || jsonb_build_object('gpuIndices', $3::text)
     from jobs j where j.id = a.job_id and j.name = $1`,
    [name, machine, gpuIndices],
  );
  await app.pool.query(`update jobs set gpu = 't4' where name = $1`, [name]);
  return name;
}

test('a machine joins with a token, and is authenticated by its own secret until it is removed', async () => {
  const { id, secret, name, token, tokenId } = await join(operator, null);
  expect(token).toMatch(/^loam_worker_[0-9A-Za-z]{46}$/);
  expect(secret).toMatch(/^loam_machine_[0-9A-Za-z]{46}$/);
  expect(await machines.authenticateMachine(services(), id, secret)).toMatchObject({ name });
  expect(await machines.authenticateMachine(services(), id, token)).toBeUndefined();
  expect(await machines.authenticateMachine(services(), 'mch_x', secret)).toBeUndefined();
  // Neither is a credential of the API.
  for (const credential of [token, secret]) {
    const client = app.client(`Bearer ${credential}`);
    expect((await client.get('/auth/v1/whoami')).status).toBe(401);
    expect((await client.graphql('{ machines { name } }')).errors).toHaveLength(1);
  }
  expect(await machines.getMachine(services(), operator, name)).toMatchObject({
    status: 'online',
    namespace: null,
    facts: FACTS,
    jobs: [],
  });

  await machines.removeMachine(services(), operator, { name });
  expect(await machines.authenticateMachine(services(), id, secret)).toBeUndefined();
  expect(await audit(id)).toEqual([
    {
      action: 'machine.join',
      actor: 'server',
      namespace: 'admin',
      details: { hostname: FACTS.hostname, token: tokenId, tokenName: name },
    },
    { action: 'machine.remove', actor: 'admin', namespace: 'admin', details: { jobs: 0 } },
  ]);
  // The token is not used up.
  await machines.joinMachine(services(), token, { name, facts: FACTS });
});

test('a revoked token takes its machines with it, an expired one admits no more', async () => {
  const { id, secret, name, token, tokenId } = await join(operator, null);
  const other = unique('box');
  await machines.joinMachine(services(), token, { name: other, facts: FACTS });
  await tokens.revokeWorkerToken(services(), operator, tokenId);
  expect(await machines.authenticateMachine(services(), id, secret)).toBeUndefined();
  const again = machines.joinMachine(services(), token, { name, facts: FACTS });
  await expect(again).rejects.toMatchObject({ code: 'authentication_failed' });
  expect((await audit(tokenId)).map(({ action, details }) => [action, details])).toEqual([
    ['worker_token.create', { regions: [], expiresAt: null }],
    ['worker_token.delete', { machines: [name, other] }],
  ]);

  const expiring = await tokens.createWorkerToken(services(), operator, {
    name: 'short',
    expiresInDays: 1,
  });
  const joined = await machines.joinMachine(services(), expiring.token, {
    name: unique('box'),
    facts: FACTS,
  });
  await app.pool.query(`update worker_tokens set expires_at = now() where id = $1`, [
    expiring.workerToken.id,
  ]);
  const late = machines.joinMachine(services(), expiring.token, {
    name: unique('box'),
    facts: FACTS,
  });
  await expect(late).rejects.toMatchObject({ code: 'authentication_failed' });
  expect(await machines.authenticateMachine(services(), joined.id, joined.secret)).toBeDefined();
});

test('a name belongs to one machine, cluster or engine', async () => {
  const { token, name } = await join(operator, null);
  const tryName = (given: string) =>
    machines.joinMachine(services(), token, { name: given, facts: FACTS });
  await expect(tryName(name)).rejects.toMatchObject({ code: 'already_exists', field: 'name' });
  for (const wrong of ['', 'local', 'Box', '-box', 'box-', 'a'.repeat(64), 'a/b', 'a\0'])
    await expect(tryName(wrong), wrong).rejects.toMatchObject({ field: 'name' });
  await app.pool.query(
    `insert into workers (id, runner, machines) values ('w', 'cluster', '[{"id": "hpc"}, {"id": "mine", "slots": 4}]')`,
  );
  await expect(tryName('hpc')).rejects.toMatchObject({ code: 'already_exists' });
  // Its worker has not yet noticed that the machine was removed.
  await tryName('mine');
});

test("members see the machines of their namespace, and admins manage them; the server's belong to operators", async () => {
  const servers = await join(operator, null);
  const own = await join(lead, 'lab');
  expect(await names(operator)).toEqual(expect.arrayContaining([servers.name, own.name]));
  expect(await names(operator, 'lab')).toEqual([own.name]);
  expect(await names(lead)).toEqual([own.name]);
  expect(await names(member, 'lab')).toEqual([own.name]);
  expect(await names(stranger)).toEqual([]);
  await expect(names(stranger, 'lab')).rejects.toMatchObject({ code: 'permission_denied' });
  await expect(names({ kind: 'anonymous' })).rejects.toMatchObject({ status: 401 });

  const drain = (viewer: Viewer, name: string) =>
    machines.drainMachine(services(), viewer, { name });
  await expect(drain(stranger, own.name)).rejects.toMatchObject({ code: 'not_found' });
  await expect(drain(lead, servers.name)).rejects.toMatchObject({ code: 'not_found' });
  await expect(drain(member, own.name)).rejects.toMatchObject({ code: 'permission_denied' });
  expect(await drain(lead, own.name)).toMatchObject({ status: 'drained' });

  const create = (viewer: Viewer, namespace: string | null) =>
    tokens.createWorkerToken(services(), viewer, { name: 'any', namespace });
  await expect(create(lead, null)).rejects.toMatchObject({ code: 'permission_denied' });
  await expect(create(member, 'lab')).rejects.toMatchObject({ code: 'permission_denied' });
  const revoke = (viewer: Viewer, id: string) => tokens.revokeWorkerToken(services(), viewer, id);
  await expect(revoke(member, own.tokenId)).rejects.toMatchObject({ code: 'permission_denied' });
  await expect(revoke(lead, servers.tokenId)).rejects.toMatchObject({ code: 'permission_denied' });
  const listed = await tokens.listWorkerTokens(services(), lead);
  expect(listed).toMatchObject([{ id: own.tokenId, namespace: 'lab', machines: [own.name] }]);
  await expect(tokens.listWorkerTokens(services(), member, 'lab')).rejects.toMatchObject({
    code: 'permission_denied',
  });
});

test('a credential with scopes sees no machines', async () => {
  const { name } = await join(lead, 'lab');
  const limited = { ...lead, scopes: new Set(['job:read', 'job:write', 'repo:admin']) } as Viewer;
  expect(await names(limited)).toEqual([]);
  await expect(machines.getMachine(services(), limited, name)).rejects.toMatchObject({
    code: 'not_found',
  });
  await expect(
    tokens.createWorkerToken(services(), limited, { name: 'any', namespace: 'lab' }),
  ).rejects.toMatchObject({ code: 'permission_denied' });
});

test('a machine is drained, resumed and removed; running jobs need force', async () => {
  const { name, id } = await join(operator, null);
  const job = await placeJob(name, '0,1');
  const [listed] = (await machines.listMachines(services(), operator)).filter(
    (machine) => machine.name === name,
  );
  expect(listed?.jobs).toMatchObject([{ name: job, namespace: 'lead', gpus: [0, 1] }]);

  const drained = await machines.drainMachine(services(), operator, { name, deadlineMinutes: 90 });
  expect(drained.status).toBe('draining');
  const minutes = ((drained.drainDeadline?.getTime() ?? 0) - Date.now()) / 60_000;
  expect(minutes).toBeGreaterThan(89);
  expect(minutes).toBeLessThanOrEqual(90);
  for (const wrong of [-1, 1.5, 20_000])
    await expect(
      machines.drainMachine(services(), operator, { name, deadlineMinutes: wrong }),
    ).rejects.toMatchObject({ field: 'deadlineMinutes' });
  // Without a deadline, the jobs may run to their end.
  const later = await machines.drainMachine(services(), operator, { name });
  expect(later).toMatchObject({ drainSince: drained.drainSince, drainDeadline: null });

  const resumed = await machines.resumeMachine(services(), operator, name);
  expect(resumed).toMatchObject({ status: 'online', drainSince: null });
  await machines.resumeMachine(services(), operator, name);

  const remove = (force?: boolean) =>
    machines.removeMachine(services(), operator, { name, ...(force && { force }) });
  await expect(remove()).rejects.toMatchObject({ code: 'conflict' });
  expect(await remove(true)).toBe(id);
  expect((await audit(id)).map(({ action }) => action)).toEqual([
    'machine.join',
    'machine.drain',
    'machine.drain',
    'machine.resume',
    'machine.remove',
  ]);
});

test('a machine that does not report is silent, unless it was drained', async () => {
  const { name } = await join(operator, null);
  await app.pool.query(
    `update machines set last_seen_at = now() - interval '61 seconds' where name = $1`,
    [name],
  );
  const status = async () => (await machines.getMachine(services(), operator, name)).status;
  expect(await status()).toBe('silent');
  await machines.drainMachine(services(), operator, { name });
  expect(await status()).toBe('drained');
});

test('changes of a machine are events of its namespace, for those who may read the machine', async () => {
  await app.organization('room', { lead: 'ADMIN', member: 'READ' });
  const { db } = app.app.services;
  const { createWebhook } = await leadClient.gql(
    `mutation { createWebhook(input: { name: "machines", url: "https://hook.invalid/",
       eventTypes: [MACHINE_SILENT], namespaces: ["room"] }) { webhook { id } } }`,
  );
  const { name, id, token, tokenId } = await join(await viewerOf(leadClient), 'room');
  const author = await viewerOf(leadClient);
  const drained = await machines.drainMachine(services(), author, { name, deadlineMinutes: 90 });
  await machines.resumeMachine(services(), author, name);
  await app.pool.query(
    `update machines set last_seen_at = now() - interval '61 seconds' where name = $1`,
    [name],
  );
  await recordSilence({ db });
  await recordSilence({ db });
  const silent = await db.joinedMachine.findUniqueOrThrow({ where: { id } });
  const load = { cpuPercent: 0, memoryBytes: 0, gpuPercent: null };
  await storeReport({ db }, silent, { sequence: 1, seen: '', facts: FACTS, load, attempts: [] });
  await machines.removeMachine(services(), author, { name });
  const again = await machines.joinMachine(services(), token, { name, facts: FACTS });
  await tokens.revokeWorkerToken(services(), author, tokenId);
  // A machine of all namespaces is in the audit log only.
  await join(operator, null);

  const follow = (client: Client, options: string) =>
    viaYoga(
      client,
      `subscription { events(namespaces: ["room"] ${options}) { type subject namespace payload } }`,
    );
  const found = await take(follow(memberClient, 'after: 0'), 'events', 8);
  const data = { name, namespace: 'room', hostname: FACTS.hostname };
  const event = (type: string, subject: string, deadline: Date | null = null) => ({
    type,
    subject,
    namespace: 'room',
    payload: { id: subject, ...data, drain_deadline: deadline?.toISOString() ?? null },
  });
  expect(found).toEqual([
    event('MACHINE_JOINED', id),
    event('MACHINE_DRAINING', id, drained.drainDeadline),
    event('MACHINE_RESUMED', id),
    event('MACHINE_SILENT', id),
    event('MACHINE_ONLINE', id),
    event('MACHINE_REMOVED', id),
    event('MACHINE_JOINED', again.id),
    event('MACHINE_REMOVED', again.id),
  ]);
  const { rows } = await app.pool.query(`select from events where type like 'machine.%' and
    namespace_id not in (select id from namespaces where name in ('lab', 'room'))`);
  expect(rows).toEqual([]);

  await eventually(async () => {
    const { webhook } = await leadClient.gql(
      'query ($id: ID!) { webhook(id: $id) { deliveries(first: 9) { nodes { eventType payload } } } }',
      createWebhook.webhook,
    );
    const [{ payload, eventType }, ...others] = webhook.deliveries.nodes;
    expect([eventType, others]).toEqual(['MACHINE_SILENT', []]);
    expect(payload).toMatchObject({
      type: 'machine.silent',
      namespace: 'room',
      data: { id, ...data },
    });
  });

  const read = (client: Client, types: string) =>
    client.graphql(`{ namespace(name: "room") { events(first: 1 ${types}) { nodes { type } } } }`);
  const page = await read(memberClient, '');
  expect(page.data.namespace.events.nodes).toEqual([{ type: 'MACHINE_REMOVED' }]);
  const { body: limited } = await leadClient.post('/auth/v1/pat', {
    name: 'limited',
    scopes: ['job:read', 'repo:admin', 'webhook:admin'],
  });
  const repository = await leadClient.repository('lead/code');
  const { body: narrowed } = await leadClient.post('/auth/v1/pat', {
    name: 'narrowed',
    repositories: [repository],
  });
  for (const { token } of [limited, narrowed]) {
    const client = app.client(`Bearer ${token}`);
    const { data, errors } = await read(client, 'types: [MACHINE_REMOVED]');
    expect([data.namespace?.events ?? null, errors?.[0]?.extensions.code]).toEqual([
      null,
      'PERMISSION_DENIED',
    ]);
  }
  const seen = await read(app.client(`Bearer ${limited.token}`), '');
  expect(seen.data.namespace.events.nodes).toEqual([]);
});

test('an attempt has a machine that joined, unless another one has its name since', async () => {
  const { name, token } = await join(operator, null);
  const job = await placeJob(name, '0');
  const query = `query ($name: String!) { job(namespace: "lead", name: $name) {
    attempts(first: 1) { nodes { machine joinedMachine { name } } } } }`;
  const read = async () =>
    (await app.admin.gql(query, { name: job })).job.attempts.nodes[0] as object;
  // A cluster or the machine of the server can have this name in the attempts of its jobs.
  expect(await read()).toEqual({ machine: name, joinedMachine: null });
  const set = `update job_attempts a set runner = 'joined' from jobs j where j.id = a.job_id and j.name = $1`;
  await app.pool.query(set, [job]);
  expect(await read()).toEqual({ machine: name, joinedMachine: { name } });
  await machines.removeMachine(services(), operator, { name, force: true });
  await app.pool.query(
    `update job_attempts a set ended_at = now(), outcome = 'lost' from jobs j where j.id = a.job_id and j.name = $1`,
    [job],
  );
  await machines.joinMachine(services(), token, { name, facts: FACTS });
  expect(await read()).toEqual({ machine: name, joinedMachine: null });
});

test('a deleted organization has no machines', async () => {
  await app.organization('gone', { lead: 'ADMIN' });
  const { id, secret, token } = await join(await viewerOf(leadClient), 'gone');
  await app.admin.gql(
    'mutation ($input: DeleteOrganizationInput!) { deleteOrganization(input: $input) { id } }',
    { input: { name: 'gone' } },
  );
  expect(await machines.authenticateMachine(services(), id, secret)).toBeUndefined();
  const again = machines.joinMachine(services(), token, { name: unique('box'), facts: FACTS });
  await expect(again).rejects.toMatchObject({ code: 'authentication_failed' });
});

test('metrics have the load of each machine', async () => {
  const { name } = await join(operator, null);
  await placeJob(name, '1');
  await machines.drainMachine(services(), operator, { name });
  const loads = await machines.measureMachines(app.app.services);
  const load = { isUp: true, isDraining: true, jobs: 1, gpus: 2, gpusUsed: 1 };
  expect(loads.find(({ machine }) => machine === name)).toEqual({ machine: name, ...load });
});

test('GraphQL shows which job uses each GPU, and the command with which a machine joins', async () => {
  const { name } = await join(operator, null);
  const job = await placeJob(name, '1');
  await app.pool.query(`update machines set history = $2 where name = $1`, [
    name,
    JSON.stringify([{ at: 0, cpuPercent: 50, memoryBytes: 1, gpuPercent: null, jobs: 1 }]),
  ]);
  const { machine } = await app.admin.gql(
    `query ($name: String!) { machine(name: $name) {
       name status namespace hostname os version cpus slots refusesImages notes
       gpus { index name model missingEntry job { namespace name } } jobs { name } history { at cpuPercent gpuPercent jobs } } }`,
    { name },
  );
  const gpu = {
    name: 'NVIDIA GeForce RTX 4090',
    model: 'RTX-4090',
    missingEntry:
      '- { name: RTX-4090, memory_gb: 24, price_per_hour: "0.00", match: ["NVIDIA GeForce RTX 4090"] }',
  };
  expect(machine).toEqual({
    name,
    status: 'ONLINE',
    namespace: null,
    hostname: FACTS.hostname,
    os: 'linux x64',
    version: '1.0.0',
    cpus: 16,
    slots: 8,
    refusesImages: false,
    notes: [],
    gpus: [
      { index: 0, ...gpu, job: null },
      { index: 1, ...gpu, job: { namespace: 'lead', name: job } },
    ],
    jobs: [{ name: job }],
    history: [{ at: '1970-01-01T00:00:00.000Z', cpuPercent: 50, gpuPercent: null, jobs: 1 }],
  });

  const { createWorkerToken } = await app.admin.gql(
    'mutation ($input: CreateWorkerTokenInput!) { createWorkerToken(input: $input) { token command workerToken { regions labels { key } } } }',
    { input: { name: 'racks', regions: ['EU_WEST_1'], labels: [{ key: 'rack', value: '7' }] } },
  );
  expect(createWorkerToken).toEqual({
    token: expect.stringMatching(/^loam_worker_/),
    command: `curl -fsSL ${app.base}/worker/install.sh | sh -s -- --token ${createWorkerToken.token}`,
    workerToken: { regions: ['EU_WEST_1'], labels: [{ key: 'rack' }] },
  });
});
