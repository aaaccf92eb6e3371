/** The organization `acme`, one caller of each kind, and targets created on demand. */
import { hash } from 'node:crypto';
import { newId } from '../../../src/base/ids.ts';
import { eventually } from '../eventually.ts';
import type { Client, Loam } from '../harness.ts';
import { ENDPOINT } from '../rest/cases.ts';
import { newPublicKey } from '../ssh-key.ts';

/** Each level includes the rights of the levels before it. */
export const LEVELS = [
  'anyone',
  // Any valid credential, even without any rights in acme.
  'account',
  // A credential with full rights, of a user who is not a member.
  'user',
  'read',
  'write',
  'admin',
  'operator',
] as const;
export type Level = (typeof LEVELS)[number];

export type Caller = {
  name: string;
  client: Client;
  level: Level;
  /** The caller's credential is refused. */
  refused?: true;
};

export type World = Awaited<ReturnType<typeof createWorld>>;

export async function createWorld(loam: Loam) {
  const { admin: operator, anonymous } = loam;
  let count = 0;
  const unique = () => `target-${++count}`;
  const members = { reader: 'READ', writer: 'WRITE', manager: 'ADMIN' } as const;
  const clients: Record<string, Client> = { admin: operator };
  for (const name of ['outsider', 'alone', ...Object.keys(members)])
    clients[name] = await loam.user(name);
  await loam.organization('acme', members);
  const by = (name: string) => clients[name] ?? operator;
  const pat = async (name: string, json: object) => {
    const { body } = await by(name).post('/auth/v1/pat', json);
    return loam.client(`Bearer ${body.token}`);
  };
  for (const name of Object.keys(clients)) await pat(name, { name: 'own' });
  const limits = { scopes: ['webhook:admin'], namespaces: ['manager'] };
  const scoped = await pat('manager', { name: 'scoped', ...limits });
  const expired = await pat('manager', { name: 'expired' });
  await loam.pool.query(`update access_tokens set expires_at = now() where name = 'expired'`);

  const callers: Caller[] = [
    { name: 'anonymous', client: anonymous, level: 'anyone' },
    { name: 'expired', client: expired, level: 'anyone', refused: true },
    { name: 'wrong', client: loam.client('Bearer wrong'), level: 'anyone', refused: true },
    { name: 'scoped', client: scoped, level: 'account' },
    { name: 'outsider', client: by('outsider'), level: 'user' },
    { name: 'reader', client: by('reader'), level: 'read' },
    { name: 'writer', client: by('writer'), level: 'write' },
    { name: 'manager', client: by('manager'), level: 'admin' },
    { name: 'admin', client: operator, level: 'operator' },
  ];

  const repository = ({ visibility = 'PRIVATE' } = {}) =>
    operator.repository(`acme/${unique()}`, { visibility, gitignoreTemplate: 'Go' });

  await operator.repository('acme/work');
  const jobInput = () => ({ namespace: 'acme', repo: 'acme/work', command: 'exit 0', gpu: 'NONE' });

  /** An ended job, of the operator unless another owner is given. */
  async function job(owner = 'admin', more: object = {}): Promise<string> {
    const name = unique();
    await by(owner).gql(
      `mutation ($input: CreateJobInput!) { createJob(input: $input) { job { id } } }`,
      { input: { ...jobInput(), name, ...more } },
    );
    await eventually(async () => {
      const { body } = await operator.get(`/acme/job/${name}`);
      if (body.completed_at === null) throw new Error(`the job is ${body.status}`);
    });
    return name;
  }

  /** In a job, as if it were running. */
  async function shell(owner?: string): Promise<string> {
    const id = newId('shl');
    await loam.pool.query(
      `insert into job_shells (id, attempt_id, worker_id, username, terminal)
       select $1, a.id, a.worker_id, 'admin', true from job_attempts a join jobs j on j.id = a.job_id where j.name = $2`,
      [id, await job(owner)],
    );
    return id;
  }

  const jobFile = 'jobs: {a: {on: {push: true, manual: true}, command: exit 0, gpu: none}}';

  async function commitJobFile(client: Client, id: string): Promise<void> {
    const changes = [{ path: '.loam/jobs.yml', content: jobFile }];
    await client.gql(
      'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
      { input: { id, branch: 'main', message: 'Add jobs', changes } },
    );
  }

  /** A repository with a file of jobs. */
  async function automated(): Promise<string> {
    const id = await repository();
    await commitJobFile(operator, id);
    return id;
  }

  /** A run that waits for approval, because the credential of the push may not create jobs. */
  async function waitingRun(): Promise<string> {
    const id = await repository();
    await commitJobFile(await pat('admin', { name: unique(), scopes: ['repo:write'] }), id);
    return eventually(async () => {
      const { node } = await operator.gql(
        `query ($id: ID!) { node(id: $id) { ... on Repository { runs { nodes { id status } } } } }`,
        { id },
      );
      const [run] = node.runs.nodes;
      if (run?.status !== 'WAITING_FOR_APPROVAL') throw new Error(`the run is ${run?.status}`);
      return run.id;
    });
  }

  async function endedRun(): Promise<string> {
    const id = await waitingRun();
    await operator.gql('mutation ($id: ID!) { cancelRun(input: {id: $id}) { run { id } } }', {
      id,
    });
    return id;
  }

  const scheduleInput = () => ({ name: unique(), cron: '0 3 1 1 *', file: jobFile });

  async function schedule(): Promise<string> {
    const { createSchedule } = await operator.gql(
      `mutation ($input: CreateScheduleInput!) { createSchedule(input: $input) { schedule { id } } }`,
      { input: { id: await repository(), ...scheduleInput() } },
    );
    return createSchedule.schedule.id;
  }

  /** Deletes a job and keeps its artifacts. @returns the id that the job had */
  async function keptArtifacts(owner = 'admin'): Promise<string> {
    const name = await job(owner, { command: 'echo done; mkdir out; exit 0', outputPath: 'out' });
    const { deleteJob } = await operator.gql(
      `mutation ($input: DeleteJobInput!) { deleteJob(input: $input) { id } }`,
      { input: { namespace: 'acme', name } },
    );
    return deleteJob.id;
  }

  /** Bound to acme, and created by its admin. */
  async function key(): Promise<string> {
    const name = unique();
    await by('manager').post('/auth/v1/api_keys', { name, namespace: 'acme' });
    return name;
  }

  const webhookInput = (...namespaces: string[]) => ({
    name: unique(),
    url: ENDPOINT,
    eventTypes: ['JOB_FAILED'],
    namespaces: namespaces.length > 0 ? namespaces : ['acme'],
  });

  async function webhook(...namespaces: string[]): Promise<string> {
    const { createWebhook } = await operator.gql(
      `mutation ($input: CreateWebhookInput!) { createWebhook(input: $input) { webhook { id } } }`,
      { input: webhookInput(...namespaces) },
    );
    return createWebhook.webhook.id;
  }

  /** @returns the id of the delivery */
  async function sendTest(id: string): Promise<string> {
    const { testWebhook } = await operator.gql(
      `mutation ($id: ID!) { testWebhook(input: { id: $id }) { delivery { id } } }`,
      { id },
    );
    return testWebhook.delivery.id;
  }

  async function delivery(...namespaces: string[]) {
    const webhookId = await webhook(...namespaces);
    return { webhookId, deliveryId: await sendTest(webhookId) };
  }

  async function token(owner: string): Promise<string> {
    const name = unique();
    await pat(owner, { name });
    return name;
  }

  /** A lock of the operator. */
  async function lock(): Promise<string> {
    const { lockLfsFile } = await operator.gql(
      'mutation ($input: LockLfsFileInput!) { lockLfsFile(input: $input) { lock { id } } }',
      { input: { repositoryId: await repository(), path: unique() } },
    );
    return lockLfsFile.lock.id;
  }

  /** A repository with a large file. */
  async function largeFile(): Promise<{ repositoryId: string; oids: string[] }> {
    const repositoryId = await repository();
    const { name } = (await operator.get(`/auth/v1/repository/acme/${repositoryId}`)).body;
    const oid = hash('sha256', repositoryId);
    const path = `/acme/${name}.git/info/lfs/objects/${oid}`;
    await operator.request('PUT', path, { body: repositoryId });
    return { repositoryId, oids: [oid] };
  }

  async function cache(): Promise<{ repositoryId: string; id: string }> {
    const repositoryId = await repository();
    const id = newId('cache');
    // An object without a row, as nothing reads it.
    await loam.pool.query(
      `with object as (
         insert into large_objects (store_id, oid, size, holders) values (1, $1, 0, 1)
       )
       insert into job_caches (id, repository_id, scope, path, key, store_id, oid, size, content_bytes, job_id)
       values ($1, $2, 'refs/heads/main', 'deps', 'k', 1, $1, 0, 0, 'job_1')`,
      [id, repositoryId],
    );
    return { repositoryId, id };
  }

  async function sshKey(owner: string): Promise<string> {
    const { addSshKey } = await by(owner).gql(
      'mutation ($key: String!) { addSshKey(input: {title: "x", key: $key}) { sshKey { id } } }',
      { key: newPublicKey() },
    );
    return addSshKey.sshKey.id;
  }

  async function session(owner: string): Promise<string> {
    const form = new URLSearchParams({ token: by(owner).token });
    await anonymous.request('POST', '/login', { headers: { origin: loam.base }, body: form });
    const { rows } = await loam.pool.query(
      `select s.id from browser_sessions s join users u on u.id = s.user_id
       where u.username = $1 order by s.id desc limit 1`,
      [by(owner) === operator ? 'admin' : owner],
    );
    return rows[0].id;
  }

  async function identity(owner: string): Promise<string> {
    const id = newId('idn');
    await loam.pool.query(
      `insert into identities (id, issuer, subject, user_id)
       select $1, 'https://issuer.example', $1, id from users where username = $2`,
      [id, by(owner) === operator ? 'admin' : owner],
    );
    return id;
  }

  async function deployKey(): Promise<string> {
    const { addDeployKey } = await operator.gql(
      'mutation ($input: AddDeployKeyInput!) { addDeployKey(input: $input) { deployKey { id } } }',
      { input: { repositoryId: await repository(), title: 'x', key: newPublicKey() } },
    );
    return addDeployKey.deployKey.id;
  }

  async function user(): Promise<string> {
    const username = unique();
    await operator.gql(
      'mutation ($input: CreateUserInput!) { createUser(input: $input) { user { id } } }',
      { input: { username, email: `${username}@example.com` } },
    );
    return username;
  }

  /** An empty organization, with this caller as a member. */
  async function organization(actor: string, role: 'READ' | 'WRITE' | 'ADMIN'): Promise<string> {
    const name = unique();
    await loam.organization(name, by(actor) === operator ? {} : { [actor]: role });
    return name;
  }

  /** As an accepted push leaves it. */
  async function allowedSecret(): Promise<{ id: string; finding: string }> {
    const id = await repository();
    await loam.pool.query(
      `insert into allowed_secrets values ($1, 'finding', 'a kind', 'a.txt', 'admin')`,
      [id],
    );
    return { id, finding: 'finding' };
  }

  async function branchRule(): Promise<{ id: string; pattern: string }> {
    const rule = { id: await repository(), pattern: 'release/*' };
    await operator.gql(
      `mutation ($input: SetBranchRuleInput!) { setBranchRule(input: $input) { repository { id } } }`,
      { input: rule },
    );
    return rule;
  }

  async function budget(owner: 'NAMESPACE' | 'OPERATOR') {
    const key = { namespace: 'acme', owner };
    await operator.gql(
      'mutation ($input: SetBudgetInput!) { setBudget(input: $input) { budget { cost } } }',
      { input: { ...key, month: '1000000' } },
    );
    return key;
  }

  async function workerToken(): Promise<string> {
    const { createWorkerToken } = await operator.gql(
      'mutation ($input: CreateWorkerTokenInput!) { createWorkerToken(input: $input) { workerToken { id } } }',
      { input: { name: unique(), namespace: 'acme' } },
    );
    return createWorkerToken.workerToken.id;
  }

  /** A machine of acme, as it is after it has joined. */
  async function machine(isDrained: boolean): Promise<string> {
    const name = unique();
    await loam.pool.query(
      `insert into machines (id, name, token_id, namespace_id, labels, secret_hash, facts, drain_since)
       select $1, $2, id, namespace_id, labels, '', $3, case when $4::boolean then now() end
       from worker_tokens where id = $5`,
      [newId('mch'), name, { gpus: [] }, isDrained, await workerToken()],
    );
    return name;
  }

  /** Of the namespace. */
  async function stored(kind: 'Secret' | 'Variable'): Promise<{ name: string }> {
    const name = unique().toUpperCase().replaceAll('-', '_');
    await operator.gql(
      `mutation ($input: Set${kind}Input!) { set${kind}(input: $input) { ${kind.toLowerCase()} { name } } }`,
      { input: { namespace: 'acme', name, value: 'x' } },
    );
    return { name };
  }
  const secret = () => stored('Secret');
  const variable = () => stored('Variable');
  await secret();
  await variable();
  await operator.gql(
    'mutation { setRetention(input: {namespace: "acme", jobDays: 3650}) { retention { jobDays } } }',
  );

  const {
    viewer,
    accessToken,
    namespace,
    job: aJob,
  } = await by('manager').gql(
    `query ($job: String!) { viewer { id } namespace(name: "acme") { id members { nodes { id } } }
       accessToken(name: "own") { id } job(namespace: "acme", name: $job) { id attempts { nodes { id } } } }`,
    { job: await job() },
  );
  const { apiKey } = await by('manager').gql(`{ apiKey(name: "${await key()}") { id } }`);
  const { webhookId, deliveryId } = await delivery();
  const ids: Record<string, string> = {
    User: viewer.id,
    Namespace: namespace.id,
    Repository: await repository(),
    Job: aJob.id,
    JobAttempt: aJob.attempts.nodes[0].id,
    Run: await waitingRun(),
    Member: namespace.members.nodes[0].id,
    AccessToken: accessToken.id,
    ApiKey: apiKey.id,
    SshKey: await sshKey('manager'),
    Session: await session('manager'),
    DeployKey: await deployKey(),
    Webhook: webhookId,
    Delivery: deliveryId,
  };
  // So that the list of the namespace has an entry from the start.
  await keptArtifacts();
  /** The caller's own namespace; `alone` for callers without one. */
  const home = (name: string) => (clients[name] ? name : 'alone');
  const made = {
    repository,
    automated,
    waitingRun,
    endedRun,
    schedule,
    allowedSecret,
    branchRule,
    budget,
    workerToken,
    machine,
    secret,
    variable,
    lock,
    largeFile,
    cache,
    job,
    shell,
    keptArtifacts,
    key,
    token,
    sshKey,
    session,
    identity,
    deployKey,
    webhook,
    delivery,
    user,
    organization,
  };
  const asOperator = (query: string, variables: object) => operator.gql(query, variables);
  const inputs = { jobFile, jobInput, scheduleInput, webhookInput };
  return { callers, ids, unique, home, ...inputs, sendTest, asOperator, ...made };
}

/** The same world, in which each object is created once and reused. */
export function shared(world: World): World {
  const { repository, allowedSecret, branchRule, lock, largeFile, job, keptArtifacts } = world;
  const { key, token, sshKey, session, deployKey, webhook, delivery, user } = world;
  return {
    ...world,
    repository: once(repository),
    automated: once(world.automated),
    waitingRun: once(world.waitingRun),
    endedRun: once(world.endedRun),
    schedule: once(world.schedule),
    allowedSecret: once(allowedSecret),
    branchRule: once(branchRule),
    budget: once(world.budget),
    workerToken: once(world.workerToken),
    machine: once(world.machine),
    secret: once(world.secret),
    variable: once(world.variable),
    lock: once(lock),
    largeFile: once(largeFile),
    job: once(job),
    keptArtifacts: once(keptArtifacts),
    key: once(key),
    token: once(token),
    sshKey: once(sshKey),
    session: once(session),
    deployKey: once(deployKey),
    webhook: once(webhook),
    delivery: once(delivery),
    user: once(user),
    // All callers without permission use a namespace of which none is a member.
    organization: once((_actor: string, _role: string) => world.organization('admin', 'ADMIN')),
  };
}

function once<A extends unknown[], T>(make: (...args: A) => T): (...args: A) => T {
  const made = new Map<string, T>();
  return (...args) => {
    const key = JSON.stringify(args);
    const value = made.get(key) ?? make(...args);
    made.set(key, value);
    return value;
  };
}
