/** The audit log: every mutation leaves one entry, refused requests leave none; and who may read the entries. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { schema } from '../../src/api/graphql/schema.ts';
import {
  AUDIT_ACTIONS,
  type AuditAction,
  recordAudit,
  removeOldEntries,
} from '../../src/identity/audit.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { MUTATIONS } from '../support/matrix/expectations.ts';
import { queryOf } from '../support/matrix/walk.ts';
import { createWorld, type World } from '../support/matrix/world.ts';
import { expectRefusal } from '../support/refusal.ts';
import { submit, variables } from '../support/submit.ts';

let app: TestApp;
let world: World;

beforeAll(async () => {
  const config = {
    webhooks: { allow: ['127.0.0.1'] },
    appsDomain: { name: 'apps.example.com' },
  };
  app = await startApp({ config, overrides: { runner: fakeRunner() } });
  world = await createWorld(app);
});
afterAll(() => app[Symbol.asyncDispose]());

const ACTION_OF: Record<string, AuditAction> = {
  createUser: 'user.create',
  disableUser: 'user.disable',
  enableUser: 'user.enable',
  deleteUser: 'user.delete',
  createOrganization: 'organization.create',
  deleteOrganization: 'organization.delete',
  setPlan: 'plan.set',
  setMember: 'member.set',
  removeMember: 'member.remove',
  createAccessToken: 'access_token.create',
  deleteAccessToken: 'access_token.delete',
  createApiKey: 'api_key.create',
  deleteApiKey: 'api_key.delete',
  addSshKey: 'ssh_key.add',
  deleteSshKey: 'ssh_key.delete',
  deleteSession: 'session.delete',
  deleteSessions: 'session.delete',
  deleteIdentity: 'identity.delete',
  createSignInLink: 'sign_in_link.create',
  addDeployKey: 'deploy_key.add',
  deleteDeployKey: 'deploy_key.delete',
  createBranch: 'repository.push',
  deleteBranch: 'repository.push',
  createTag: 'repository.push',
  deleteTag: 'repository.push',
  createCommit: 'repository.push',
  setBranchRule: 'branch_rule.set',
  deleteBranchRule: 'branch_rule.delete',
  setCommitStatus: 'commit_status.set',
  deleteCache: 'cache.delete',
  setSecret: 'secret.set',
  deleteSecret: 'secret.delete',
  setVariable: 'variable.set',
  deleteVariable: 'variable.delete',
  disallowSecret: 'secret.disallow',
  createRepository: 'repository.create',
  renameRepository: 'repository.rename',
  changeRepositoryVisibility: 'repository.change_visibility',
  updateRepository: 'repository.update',
  deleteRepository: 'repository.delete',
  transferRepository: 'repository.transfer',
  lockLfsFile: 'large_file.lock',
  unlockLfsFile: 'large_file.unlock',
  deleteLfsObjects: 'large_file.delete',
  createJob: 'job.create',
  rerunJob: 'job.rerun',
  cancelJob: 'job.cancel',
  releaseJob: 'job.release',
  endJobShell: 'job.shell_close',
  openJobPort: 'job.port',
  deleteJob: 'job.delete',
  cancelJobs: 'job.cancel',
  rerunJobs: 'job.rerun',
  deleteJobs: 'job.delete',
  setJobKept: 'job.keep',
  startRun: 'run.create',
  rerunRun: 'run.create',
  approveRun: 'run.approve',
  cancelRun: 'run.cancel',
  createSchedule: 'schedule.create',
  deleteSchedule: 'schedule.delete',
  deleteKeptArtifacts: 'artifacts.delete',
  setRetention: 'retention.set',
  setShellAccess: 'shell_access.set',
  setBudget: 'budget.set',
  deleteBudget: 'budget.delete',
  createWorkerToken: 'worker_token.create',
  revokeWorkerToken: 'worker_token.delete',
  drainMachine: 'machine.drain',
  resumeMachine: 'machine.resume',
  removeMachine: 'machine.remove',
  createWebhook: 'webhook.create',
  updateWebhook: 'webhook.update',
  deleteWebhook: 'webhook.delete',
  testWebhook: 'webhook.test',
  redeliver: 'webhook.redeliver',
};

type Row = {
  id: string;
  action: string;
  actor: string;
  address: string;
  credential_kind: string;
  subject: string;
  name: string;
  details: object;
  namespace: string;
};

/** All rows of one request. */
async function entriesOf(requestId: string): Promise<Row[]> {
  const { rows } = await app.pool.query(
    `select e.*, n.name as namespace from audit_entries e join namespaces n on n.id = e.namespace_id
     where request_id = $1 order by e.id, main desc`,
    [requestId],
  );
  return rows;
}

/** Sends a request, and returns its entries. */
async function call(client: Client, query: string, args: object = {}) {
  const requestId = crypto.randomUUID();
  const { body } = await client.post(
    '/graphql',
    { query, variables: args },
    { 'x-request-id': requestId },
  );
  return { body, entries: await entriesOf(requestId) };
}

describe('every mutation leaves one entry, and a refused mutation leaves none', () => {
  const fields = Object.values(schema.getMutationType()?.getFields() ?? {});

  test.each(fields.map((field) => [field.name, field] as const))('%s', async (name, field) => {
    const rule = MUTATIONS[name]?.[0];
    const make = async (actor: string) => (await rule?.args?.(world, actor)) ?? {};
    const outsider = world.callers.find((caller) => caller.name === 'outsider')?.client as Client;
    const admin = world.callers.find((caller) => caller.name === 'admin')?.client as Client;
    if (rule?.from !== 'user') {
      const args = await make('outsider');
      const refused = await call(outsider, queryOf('mutation', field, args), args);
      expect(refused.body.errors).toHaveLength(1);
      expect(refused.entries).toEqual([]);
    }
    if (name === 'removeMember') await admin.setMembers('acme', { alone: 'READ' });
    // The new role must differ from the current one.
    if (name === 'setMember') await admin.setMembers('acme', { reader: 'WRITE' });
    const args = await make('admin');
    // The job of the matrix is finished, and cannot be cancelled.
    if (name === 'cancelJob' || name === 'cancelJobs') {
      const { input } = args as { input: { name?: string; names?: string[] } };
      await app.pool.query(
        `update jobs set status = 'queued', available_at = now() + interval '1 h',
        completed_at = null where name = any($1)`,
        [input.names ?? [input.name]],
      );
    }
    if (name === 'releaseJob') {
      const { input } = args as { input: { name: string } };
      await app.pool.query(
        `update jobs set status = 'running', completed_at = null, hold_on_failure_minutes = 30, held_exit_code = 1,
        held_at = now(), held_until = now() + interval '30 min' where name = $1`,
        [input.name],
      );
    }
    if (name === 'openJobPort') {
      const { input } = args as { input: { name: string } };
      await app.pool.query(
        `update jobs set status = 'running', completed_at = null,
        attempt_id = (select id from job_attempts where job_id = jobs.id limit 1) where name = $1`,
        [input.name],
      );
    }
    const { body, entries: all } = await call(admin, queryOf('mutation', field, args), args);
    expect(body.errors).toBeUndefined();
    // Each job of a run has an entry, too.
    const entries = all.filter(({ details }) => !('run' in details));
    expect(new Set(entries.map(({ id }) => id)).size, JSON.stringify(entries)).toBe(1);
    expect(entries[0]).toMatchObject({
      action: ACTION_OF[name],
      actor: 'admin',
      credential_kind: 'pat',
      address: expect.stringMatching(/^127\.0\.0\.1$|^::1$/),
    });
    expect(entries[0]?.name).not.toBe('');
    expect(entries.map(({ namespace }) => namespace).length).toBe(
      name === 'transferRepository' ? 2 : 1,
    );
  });

  test('every action belongs to a mutation, a push, a sign-in, or the server', () => {
    const known = Object.keys(AUDIT_ACTIONS);
    const others = [
      'repository.push',
      'secret.allow',
      'session.create',
      'identity.connect',
      'device.approve',
      'budget.cancel_jobs',
      'retention.remove',
      'machine.join',
      'machine.silent',
      'machine.online',
      'job.shell',
      'job.shell_end',
    ];
    expect(known.sort()).toEqual([...new Set([...Object.values(ACTION_OF), ...others])].sort());
  });
});

test('a request that changes nothing leaves no entry', async () => {
  const admin = world.callers.find((caller) => caller.name === 'admin')?.client as Client;
  const created = await admin.gql(
    `mutation { createWebhook(input: {name: "same", url: "https://127.0.0.1/hook", secret: "a secret",
       eventTypes: [JOB_FAILED], namespaces: ["acme"]}) { webhook { id updatedAt } } }`,
  );
  const { id, updatedAt } = created.createWebhook.webhook;
  const again = {
    name: 'same',
    url: 'https://127.0.0.1/hook',
    secret: 'a secret',
    eventTypes: ['JOB_FAILED'],
    namespaces: ['ACME'],
    active: true,
  };
  const update = `mutation ($input: UpdateWebhookInput!) {
    updateWebhook(input: $input) { webhook { updatedAt } } }`;
  for (const input of [again, {}]) {
    const { body, entries } = await call(admin, update, { input: { id, ...input } });
    expect([body.data?.updateWebhook.webhook.updatedAt, entries]).toEqual([updatedAt, []]);
  }
  const other = { id, ...again, name: 'another', secret: 'another' };
  const { entries } = await call(admin, update, { input: other });
  expect(entries[0]?.details).toEqual({ changed: ['name', 'secret'], host: '127.0.0.1' });

  const set = `mutation ($role: Role!) { setMember(input: {namespace: "acme", username: "reader", role: $role}) {
    member { role } } }`;
  for (const [role, count] of [
    ['WRITE', 1],
    ['WRITE', 0],
    ['READ', 1],
  ] as const) {
    const { body, entries } = await call(admin, set, { role });
    expect([body.data?.setMember.member.role, entries.length]).toEqual([role, count]);
  }
});

test('REST leaves the same entries, and no entry contains a secret', async () => {
  const ada = await app.user('ada');
  const requestId = crypto.randomUUID();
  const { body } = await ada.post(
    '/auth/v1/pat',
    { name: 'ci', scopes: ['job:read'] },
    { 'x-request-id': requestId },
  );
  const key = await ada.post('/auth/v1/api_keys', { name: 'ada-key' });
  expect(await entriesOf(requestId)).toMatchObject([
    {
      action: 'access_token.create',
      actor: 'ada',
      namespace: 'ada',
      name: 'ci',
      subject: body.id,
      details: { scopes: ['job:read'] },
    },
  ]);
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  await submit(ada, {
    namespace: 'ada',
    name: 'hidden',
    repo: 'ada/code',
    command: 'echo in-the-command',
    env: variables({ PLAIN: 'in-the-env' }),
    secrets: variables({ HIDDEN: 'in-the-secrets' }),
  });
  const { rows } = await app.pool.query('select audit_entries::text as text from audit_entries');
  const all = rows.map(({ text }) => text).join();
  expect(all).toContain('hidden');
  for (const secret of [body.token, key.body.key.split('$')[1], ada.token, 'in-the-'])
    expect(all).not.toContain(secret);
});

test('a push leaves one entry, even when it is recorded late', async () => {
  const eve = await app.user('eve');
  await eve.post('/auth/v1/repository/eve', { name: 'pushed' });
  await using workspace = await Workspace.open();
  await workspace.clone(eve, 'eve/pushed');
  const sha = await workspace.commit('pushed', { a: 'a' });
  await workspace.git('pushed', 'push', '-q', 'origin', 'HEAD:main');
  const pushes = async () => {
    const { rows } = await app.pool.query(
      `select e.*, n.name as namespace from audit_entries e join namespaces n on n.id = e.namespace_id
       where action = 'repository.push' and actor = 'eve' order by e.id`,
    );
    return rows;
  };
  expect(await pushes()).toMatchObject([
    {
      namespace: 'eve',
      name: 'pushed',
      credential_name: 'test',
      request_id: expect.any(String),
      address: expect.stringMatching(/127\.0\.0\.1|::1/),
      details: { ref_count: 1, refs: [{ ref: 'refs/heads/main', after: sha }] },
    },
  ]);
  // The state and the entry are written together: a push that cannot be recorded has not happened yet.
  await app.pool.query('alter table audit_entries rename to audit_hidden');
  const { body } = await eve.post('/auth/v1/repository/eve', { name: 'never' });
  expect(body.error.code).toBe('internal_error');
  await workspace.commit('pushed', { b: 'b' });
  await expect(workspace.git('pushed', 'push', '-q', 'origin', 'HEAD:main')).rejects.toThrow();
  await app.pool.query('alter table audit_hidden rename to audit_entries');
  await eventually(async () => expect(await pushes()).toHaveLength(2));
  const [first, second] = await pushes();
  expect(second).toMatchObject({ credential_id: first.credential_id, address: first.address });
  const { body: list } = await eve.get('/auth/v1/repository/eve');
  expect(list.data.map(({ name }: { name: string }) => name)).toEqual(['pushed']);
  await eventually(() => expect(app.app.services.pushes.waiting).toBe(0));
  expect(await pushes()).toHaveLength(2);
});

test('admins read the log of their namespace, users their own actions, and operators everything', async () => {
  const by = (name: string) =>
    world.callers.find((caller) => caller.name === name)?.client as Client;
  const FIELDS = `totalCount nodes { id action actor subject name namespace details address requestId timestamp
    credential { kind name } } pageInfo { endCursor hasNextPage }`;
  const ofAcme = (client: Client, args = '') =>
    client.graphql(`{ namespace(name: "acme") { auditLog${args} { ${FIELDS} } } }`);
  const { data } = await ofAcme(by('manager'), '(first: 2)');
  const { nodes, totalCount, pageInfo } = data.namespace.auditLog;
  expect([nodes.length, pageInfo.hasNextPage]).toEqual([2, true]);
  expect(totalCount).toBeGreaterThan(10);
  expect(nodes[0]).toMatchObject({ namespace: 'acme', credential: { kind: 'pat' } });
  const next = await ofAcme(by('manager'), `(first: 1, after: "${pageInfo.endCursor}")`);
  expect(next.data.namespace.auditLog.nodes[0].id < nodes[1].id).toBe(true);
  for (const name of ['reader', 'writer', 'outsider', 'scoped']) {
    const refused = await ofAcme(by(name));
    expect([refused.data.namespace.auditLog, refused.errors?.[0]?.extensions.code], name).toEqual([
      null,
      'PERMISSION_DENIED',
    ]);
  }
  const filtered = await ofAcme(by('manager'), '(action: MEMBER_SET, actor: "admin", first: 100)');
  const members = filtered.data.namespace.auditLog.nodes;
  expect(members.length).toBeGreaterThan(2);
  expect(new Set(members.map((n: { action: string }) => n.action))).toEqual(
    new Set(['MEMBER_SET']),
  );
  const unknown = await ofAcme(by('manager'), '(actor: "nobody-of-this-name")');
  await expectRefusal(unknown, 'NOT_FOUND');

  // A transfer is in the logs of both namespaces, and once in the server log.
  const id = await world.repository();
  await by('admin').gql(
    'mutation ($id: ID!) { transferRepository(input: {id: $id, newNamespace: "manager"}) { repository { id } } }',
    { id },
  );
  const logs = await by('manager').gql(
    `{ acme: namespace(name: "acme") { auditLog(first: 1) { nodes { id action details } } }
       own: namespace(name: "manager") { auditLog(first: 1) { nodes { id action details } } } }`,
  );
  expect(logs.acme).toEqual(logs.own);
  expect(logs.own.auditLog.nodes[0]).toMatchObject({
    action: 'REPOSITORY_TRANSFER',
    details: { from: 'acme', to: 'manager' },
  });
  const whole = await by('admin').gql(
    `{ auditLog(first: 100, action: REPOSITORY_TRANSFER) { nodes { id subject } }
       viewer { auditLog(first: 1) { nodes { id actor } } } }`,
  );
  const same = whole.auditLog.nodes.filter(({ subject }: { subject: string }) => subject === id);
  expect(same).toEqual([{ id: logs.own.auditLog.nodes[0].id, subject: id }]);
  expect(whole.viewer.auditLog.nodes).toEqual([{ id: same[0].id, actor: 'admin' }]);
  const own = await by('manager').gql('{ viewer { auditLog { nodes { actor } } } }');
  expect(new Set(own.viewer.auditLog.nodes.map((n: { actor: string }) => n.actor))).toEqual(
    new Set(['manager']),
  );
  const scoped = await by('scoped').graphql('{ viewer { auditLog { nodes { id } } } }');
  await expectRefusal(scoped, 'PERMISSION_DENIED');
});

test('changes on the machine are recorded as made by the server, and old entries are removed', async () => {
  const { rows } = await app.pool.query(
    `select action from audit_entries where actor = 'server' and actor_id is null order by id`,
  );
  expect(rows.map(({ action }) => action)).toEqual(['user.create', 'access_token.create']);

  const { db, pool } = app.app.services;
  await pool.query('delete from audit_entries');
  const change = {
    action: 'job.create',
    namespaceIds: ['ns_x'],
    subject: 'job_x',
    name: 'x',
  } as const;
  const actor = { userId: null, username: 'server', credential: null };
  await recordAudit(db, actor, change);
  await pool.query(
    `insert into audit_entries (id, namespace_id, main, action, subject, name, details, actor, created_at)
     select 'aud_0' || lpad(n::text, 25, '0'), 'ns_x', true, 'job.create', 'job_x', 'x', '{}', 'x', now() - interval '366 days'
     from generate_series(1, 1500) n`,
  );
  expect(await removeOldEntries({ pool }, 365)).toBe(true);
  expect(await removeOldEntries({ pool }, 365)).toBe(false);
  expect(await db.auditEntry.count()).toBe(1);
});
