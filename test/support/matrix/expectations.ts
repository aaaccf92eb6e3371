/**
 * The permission table of the tests: the lowest level of caller for every root field of the GraphQL schema. REST has no rows
 * of its own, because each of its operations is one of these fields.
 */
import { newPublicKey } from '../ssh-key.ts';
import type { Level, World } from './world.ts';

export type Rule = {
  from: Level;
  /**
   * The arguments of the field, by the caller's name. Each permitted caller gets its own target, so that none finds an object
   * that another has deleted; callers without permission share one target.
   */
  args?(world: World, actor: string): object | Promise<object>;
  /** Callers below `from` are told that there is no such object, because its name could be guessed. */
  isHidden?: true;
  /** Accounts that are not members are told so; members who may see the object are told that they lack a permission. */
  isHiddenFromStrangers?: true;
  /** Causes an event for a subscription that shows new events only. */
  event?(world: World): Promise<unknown>;
};

const namespace = 'acme';
const named = { args: () => ({ namespace }) };

/** Targets by visibility: visibility only adds the right to read. */
const reading: Rule[] = (
  [
    ['PRIVATE', 'read'],
    ['INTERNAL', 'account'],
    ['PUBLIC', 'anyone'],
  ] as const
).map(([visibility, from]) => ({
  from,
  args: async (world) => ({ namespace, id: await world.repository({ visibility }) }),
}));

const repository = (more: object): NonNullable<Rule['args']> => {
  return async (world) => ({ input: { namespace, id: await world.repository(), ...more } });
};

/** A new branch or tag. */
const ref =
  (mutation: 'createBranch' | 'createTag'): NonNullable<Rule['args']> =>
  async (world) => {
    const id = await world.repository();
    const name = world.unique();
    await world.asOperator(
      `mutation ($input: ${mutation[0]?.toUpperCase()}${mutation.slice(1)}Input!) { ${mutation}(input: $input) { repository { id } } }`,
      { input: { id, name } },
    );
    return { input: { namespace, id, name } };
  };

/** The owner of the job that a caller uses: a writer uses a job of its own. */
const owner = (actor: string) => (actor === 'writer' ? actor : 'admin');

const job = async (world: World, by?: string) => ({ namespace, name: await world.job(by) });
const jobs = async (world: World) => ({ namespace, names: [await world.job()] });

/** A machine of the namespace. */
const machine = ({ drain = false } = {}): Rule => ({
  from: 'admin',
  isHiddenFromStrangers: true,
  args: async (world) => ({ input: { name: await world.machine(drain) } }),
});

const array = async (world: World) => {
  const name = world.unique();
  const input = { namespace, name, repo: 'acme/work', command: 'exit 0', gpu: 'NONE' };
  await world.asOperator(
    'mutation ($input: CreateJobInput!) { createJob(input: $input) { job { id } } }',
    { input: { ...input, array: { size: 1 } } },
  );
  return { namespace, name };
};

export const QUERIES: Record<string, Rule[]> = {
  health: [{ from: 'anyone' }],
  version: [{ from: 'anyone' }],
  viewer: [{ from: 'anyone' }],
  whoami: [{ from: 'account' }],
  identityIssuers: [{ from: 'anyone' }],
  sshHostKeys: [{ from: 'anyone' }],
  // NODES lists what callers find here.
  node: [{ from: 'anyone', args: ({ ids }) => ({ id: ids.User }) }],
  nodes: [{ from: 'anyone', args: ({ ids }) => ({ ids: Object.values(ids) }) }],
  namespace: [{ from: 'account', args: () => ({ name: namespace }) }],
  accessTokens: [{ from: 'user' }],
  accessToken: [{ from: 'user', args: () => ({ name: 'own' }) }],
  apiKeys: [{ from: 'user' }],
  apiKey: [{ from: 'admin', args: async (world) => ({ name: await world.key() }) }],
  repository: reading,
  // Shows only what the caller may see, possibly nothing.
  repositoryPage: [{ from: 'anyone', ...named }],
  auditLog: [{ from: 'operator' }],
  jobOptions: [{ from: 'account' }],
  volumes: [{ from: 'account' }, { from: 'read', ...named }],
  checkJob: [
    {
      from: 'write',
      args: async (world) => ({ input: { ...(await world.jobInput()), name: world.unique() } }),
    },
  ],
  checkJobFile: [{ from: 'account', args: ({ jobFile }) => ({ text: jobFile }) }],
  search: [{ from: 'account', args: () => ({ text: namespace }) }],
  users: [{ from: 'operator' }],
  organizations: [{ from: 'operator' }],
  serverHealth: [{ from: 'operator' }],
  servers: [{ from: 'operator' }],
  queue: [{ from: 'operator' }],
  // Shows only what the caller may see, possibly nothing.
  machines: [{ from: 'account' }, { from: 'read', ...named }],
  machine: [
    {
      from: 'read',
      isHiddenFromStrangers: true,
      args: async (world) => ({ name: await world.machine(false) }),
    },
  ],
  workerTokens: [{ from: 'user' }, { from: 'admin', ...named }],
  job: [{ from: 'read', args: (world) => job(world) }],
  jobArray: [{ from: 'read', args: array }],
  compareJobs: [
    {
      from: 'read',
      args: async (world) => ({ jobs: [{ ...(await jobs(world)), names: null, filter: {} }] }),
    },
  ],
  jobPage: [{ from: 'read', ...named }],
  webhook: [{ from: 'admin', args: async (world) => ({ id: await world.webhook() }) }],
  // Shows only what the caller may administer, possibly nothing.
  webhookPage: [{ from: 'account' }],
};

export const MUTATIONS: Record<string, Rule[]> = {
  createUser: [
    {
      from: 'operator',
      args: ({ unique }) => {
        const username = unique();
        return { input: { username, email: `${username}@example.com` } };
      },
    },
  ],
  createOrganization: [{ from: 'operator', args: ({ unique }) => ({ input: { name: unique() } }) }],
  setPlan: [
    {
      from: 'operator',
      args: async (world) => {
        const name = world.unique();
        await world.asOperator(
          'mutation ($input: CreateOrganizationInput!) { createOrganization(input: $input) { namespace { id } } }',
          { input: { name } },
        );
        return { input: { namespace: name, plan: 'TEAM' } };
      },
    },
  ],
  setMember: [
    { from: 'admin', args: () => ({ input: { namespace, username: 'reader', role: 'READ' } }) },
  ],
  removeMember: [
    { from: 'admin', args: () => ({ input: { namespace, username: 'alone' } }) },
    // The caller's own account.
    {
      from: 'user',
      args: async (world, actor) => ({
        input: { namespace: await world.organization(actor, 'READ'), username: actor },
      }),
    },
  ],
  deleteOrganization: [
    // From another organization.
    {
      from: 'operator',
      args: async (world) => ({ input: { name: await world.organization('outsider', 'WRITE') } }),
    },
    // The caller is admin of that organization.
    {
      from: 'user',
      args: async (world, actor) => ({ input: { name: await world.organization(actor, 'ADMIN') } }),
    },
  ],
  disableUser: [
    { from: 'operator', args: async ({ user }) => ({ input: { username: await user() } }) },
  ],
  enableUser: [
    {
      from: 'operator',
      args: async (world) => {
        const username = await world.user();
        await world.asOperator(
          'mutation ($input: DisableUserInput!) { disableUser(input: $input) { user { id } } }',
          { input: { username } },
        );
        return { input: { username } };
      },
    },
  ],
  deleteUser: [
    { from: 'operator', args: async ({ user }) => ({ input: { username: await user() } }) },
  ],
  createAccessToken: [
    { from: 'user', args: ({ unique }) => ({ input: { name: unique() } }) },
    {
      from: 'operator',
      args: ({ unique }) => ({ input: { name: unique(), username: 'alone' } }),
    },
  ],
  deleteAccessToken: [
    { from: 'user', args: async (world, actor) => ({ input: { name: await world.token(actor) } }) },
  ],
  createApiKey: [
    { from: 'user', args: ({ unique }) => ({ input: { name: unique() } }) },
    { from: 'admin', args: ({ unique }) => ({ input: { name: unique(), namespace } }) },
  ],
  deleteApiKey: [
    { from: 'admin', args: async (world) => ({ input: { name: await world.key() } }) },
  ],
  addSshKey: [{ from: 'user', args: () => ({ input: { title: 'x', key: newPublicKey() } }) }],
  deleteSshKey: [
    { from: 'user', args: async (world, actor) => ({ input: { id: await world.sshKey(actor) } }) },
  ],
  deleteSession: [
    { from: 'user', args: async (world, actor) => ({ input: { id: await world.session(actor) } }) },
  ],
  deleteSessions: [
    {
      from: 'user',
      args: async (world, actor) => {
        await world.session(actor);
        return { input: { keepCurrent: false } };
      },
    },
  ],
  deleteIdentity: [
    {
      from: 'user',
      args: async (world, actor) => ({ input: { id: await world.identity(actor) } }),
    },
  ],
  createSignInLink: [
    { from: 'user', args: () => ({ input: {} }) },
    { from: 'operator', args: () => ({ input: { username: 'alone' } }) },
  ],
  addDeployKey: [
    {
      from: 'admin',
      args: async (world) => ({
        input: { repositoryId: await world.repository(), title: 'x', key: newPublicKey() },
      }),
    },
  ],
  deleteDeployKey: [
    { from: 'admin', args: async (world) => ({ input: { id: await world.deployKey() } }) },
  ],

  createRepository: [
    { from: 'admin', args: ({ unique }) => ({ input: { namespace, name: unique() } }) },
  ],
  renameRepository: [
    {
      from: 'admin',
      args: (world, actor) => repository({ name: world.unique() })(world, actor),
    },
  ],
  changeRepositoryVisibility: [{ from: 'admin', args: repository({ visibility: 'INTERNAL' }) }],
  updateRepository: [{ from: 'admin', args: repository({ description: 'new' }) }],
  createBranch: [
    { from: 'write', args: (world) => repository({ name: world.unique() })(world, '') },
  ],
  createTag: [{ from: 'write', args: (world) => repository({ name: world.unique() })(world, '') }],
  deleteBranch: [{ from: 'write', args: ref('createBranch') }],
  deleteTag: [{ from: 'write', args: ref('createTag') }],
  createCommit: [
    {
      from: 'write',
      args: (world) =>
        repository({
          branch: world.unique(),
          message: 'change',
          changes: [{ path: 'a.txt', content: 'a' }],
        })(world, ''),
    },
  ],
  setCommitStatus: [
    {
      from: 'write',
      args: async (world) => {
        const id = await world.repository();
        const { repository } = await world.asOperator(
          'query ($id: ID!) { repository(namespace: "acme", id: $id) { commit(revision: "main") { sha } } }',
          { id },
        );
        const { sha } = repository.commit;
        return { input: { namespace, id, sha, context: 'ci', state: 'SUCCESS' } };
      },
    },
  ],
  setBranchRule: [{ from: 'admin', args: repository({ pattern: 'main' }) }],
  deleteBranchRule: [
    {
      from: 'admin',
      args: async (world) => ({ input: { ...(await world.branchRule()), namespace } }),
    },
  ],
  setSecret: [{ from: 'admin', args: () => ({ input: { namespace, name: 'SET', value: 'x' } }) }],
  setVariable: [{ from: 'admin', args: () => ({ input: { namespace, name: 'SET', value: 'x' } }) }],
  deleteCache: [{ from: 'write', args: async (world) => ({ input: await world.cache() }) }],
  deleteSecret: [
    {
      from: 'admin',
      args: async (world) => ({ input: { ...(await world.secret()), namespace } }),
    },
  ],
  deleteVariable: [
    {
      from: 'admin',
      args: async (world) => ({ input: { ...(await world.variable()), namespace } }),
    },
  ],
  disallowSecret: [
    {
      from: 'admin',
      args: async (world) => ({ input: { ...(await world.allowedSecret()), namespace } }),
    },
  ],
  deleteRepository: [{ from: 'admin', args: repository({}) }],
  transferRepository: [
    {
      from: 'admin',
      args: (world, actor) => repository({ newNamespace: world.home(actor) })(world, actor),
    },
    // Needs `admin` in the target namespace too.
    {
      from: 'operator',
      args: repository({ newNamespace: 'alone' }),
    },
  ],

  lockLfsFile: [
    {
      from: 'write',
      args: async (world) => ({
        input: { repositoryId: await world.repository(), path: world.unique() },
      }),
    },
  ],
  unlockLfsFile: [
    { from: 'admin', args: async (world) => ({ input: { id: await world.lock(), force: true } }) },
  ],
  deleteLfsObjects: [
    { from: 'admin', args: async (world) => ({ input: await world.largeFile() }) },
  ],

  createJob: [
    {
      from: 'write',
      args: async (world) => ({ input: { ...(await world.jobInput()), name: world.unique() } }),
    },
  ],
  cancelJob: [{ from: 'write', args: async (world) => ({ input: await job(world) }) }],
  releaseJob: [{ from: 'write', args: async (world) => ({ input: await job(world) }) }],
  endJobShell: [
    {
      from: 'admin',
      args: async (world) => ({ input: { id: await world.shell() } }),
      isHiddenFromStrangers: true,
    },
    // In the caller's own job.
    {
      from: 'write',
      args: async (world, actor) => ({ input: { id: await world.shell(owner(actor)) } }),
      isHiddenFromStrangers: true,
    },
  ],
  // Refused with a conflict when the job has ended.
  openJobPort: [
    { from: 'admin', args: async (world) => ({ input: { ...(await job(world)), port: 8888 } }) },
    // The caller's own.
    {
      from: 'write',
      args: async (world, actor) => ({
        input: { ...(await job(world, owner(actor))), port: 8888 },
      }),
    },
  ],
  rerunJob: [{ from: 'write', args: async (world) => ({ input: await job(world) }) }],
  deleteJob: [
    { from: 'admin', args: async (world) => ({ input: await job(world) }) },
    // The caller's own.
    {
      from: 'write',
      args: async (world, actor) => ({ input: await job(world, owner(actor)) }),
    },
  ],
  cancelJobs: [{ from: 'write', args: async (world) => ({ input: await jobs(world) }) }],
  rerunJobs: [{ from: 'write', args: async (world) => ({ input: await jobs(world) }) }],
  // Jobs of others are skipped.
  deleteJobs: [{ from: 'write', args: async (world) => ({ input: await jobs(world) }) }],
  deleteKeptArtifacts: [
    {
      from: 'admin',
      args: async (world) => ({ input: { jobId: await world.keptArtifacts() } }),
    },
    // Those of the caller's own job.
    {
      from: 'write',
      args: async (world, actor) => ({
        input: { jobId: await world.keptArtifacts(owner(actor)) },
      }),
    },
  ],

  startRun: [
    { from: 'write', args: async (world) => ({ input: { id: await world.automated() } }) },
  ],
  approveRun: [
    { from: 'write', args: async (world) => ({ input: { id: await world.waitingRun() } }) },
  ],
  cancelRun: [
    { from: 'write', args: async (world) => ({ input: { id: await world.waitingRun() } }) },
  ],
  rerunRun: [{ from: 'write', args: async (world) => ({ input: { id: await world.endedRun() } }) }],
  createSchedule: [
    {
      from: 'write',
      args: async (world) => ({
        input: { id: await world.repository(), ...world.scheduleInput() },
      }),
    },
  ],
  deleteSchedule: [
    { from: 'write', args: async (world) => ({ input: { id: await world.schedule() } }) },
  ],
  setJobKept: [
    {
      from: 'write',
      args: async (world) => ({ input: { ...(await job(world)), kept: true } }),
    },
  ],
  setShellAccess: [{ from: 'admin', args: () => ({ input: { namespace, access: 'NONE' } }) }],
  setRetention: [{ from: 'admin', args: () => ({ input: { namespace, jobDays: 3650 } }) }],
  setBudget: [
    { from: 'admin', args: () => ({ input: { namespace, month: '1000000' } }) },
    {
      from: 'operator',
      args: () => ({ input: { namespace, owner: 'OPERATOR', month: '1000000' } }),
    },
  ],
  deleteBudget: [
    { from: 'admin', args: async (world) => ({ input: await world.budget('NAMESPACE') }) },
    { from: 'operator', args: async (world) => ({ input: await world.budget('OPERATOR') }) },
  ],

  createWorkerToken: [
    { from: 'admin', args: ({ unique }) => ({ input: { name: unique(), namespace } }) },
    { from: 'operator', args: ({ unique }) => ({ input: { name: unique() } }) },
  ],
  revokeWorkerToken: [
    { from: 'admin', args: async (world) => ({ input: { id: await world.workerToken() } }) },
  ],
  drainMachine: [machine()],
  resumeMachine: [machine({ drain: true })],
  removeMachine: [machine()],

  createWebhook: [
    { from: 'admin', args: ({ webhookInput }) => ({ input: webhookInput() }) },
    // Needs `admin` in all of its namespaces.
    {
      from: 'operator',
      args: ({ webhookInput }) => ({ input: webhookInput(namespace, 'alone') }),
    },
  ],
  updateWebhook: [
    {
      from: 'admin',
      args: async ({ webhook, unique }) => ({ input: { id: await webhook(), name: unique() } }),
    },
    {
      from: 'operator',
      args: async ({ webhook, unique }) => ({
        input: { id: await webhook(namespace, 'alone'), name: unique() },
      }),
    },
    // The caller's own namespace can be removed without rights in the others.
    {
      from: 'admin',
      args: async ({ webhook }) => ({
        input: { id: await webhook(namespace, 'alone'), namespaces: ['alone'] },
      }),
    },
  ],
  deleteWebhook: [
    { from: 'admin', args: async ({ webhook }) => ({ input: { id: await webhook() } }) },
    {
      from: 'operator',
      args: async ({ webhook }) => ({ input: { id: await webhook(namespace, 'alone') } }),
    },
  ],
  testWebhook: [
    { from: 'admin', args: async ({ webhook }) => ({ input: { id: await webhook() } }) },
    {
      from: 'operator',
      args: async ({ webhook }) => ({ input: { id: await webhook(namespace, 'alone') } }),
    },
  ],
  redeliver: [
    { from: 'admin', args: async ({ delivery }) => ({ input: await delivery() }) },
    {
      from: 'operator',
      args: async ({ delivery }) => ({ input: await delivery(namespace, 'alone') }),
    },
  ],
};

export const SUBSCRIPTIONS: Record<string, Rule[]> = {
  jobLog: [{ from: 'read', args: async (world) => ({ ...(await job(world)), after: 0 }) }],
  jobLogBatches: [{ from: 'read', args: async (world) => ({ ...(await job(world)), after: 0 }) }],
  jobMetrics: [{ from: 'read', args: (world) => job(world) }],
  jobEvents: [{ from: 'read', args: () => ({ namespace, after: 0 }) }],
  repositoryEvents: [{ from: 'read', args: () => ({ namespaces: [namespace], after: 0 }) }],
  events: [{ from: 'read', args: () => ({ namespaces: [namespace], after: 0 }) }],
  runChanges: [{ from: 'read', isHidden: true, args: () => ({ namespace, name: 'work' }) }],
  webhookDeliveries: [
    {
      from: 'admin',
      args: async ({ webhook }) => ({ id: await webhook() }),
      event: async ({ webhook, sendTest }) => sendTest(await webhook()),
    },
  ],
};

/** Who finds a node by its id; `owner`: only the member called `admin`. */
export const NODES: Record<string, Level | 'owner'> = {
  User: 'account',
  Namespace: 'account',
  Repository: 'read',
  Job: 'read',
  JobAttempt: 'read',
  Run: 'read',
  Member: 'read',
  AccessToken: 'owner',
  ApiKey: 'admin',
  SshKey: 'owner',
  Session: 'owner',
  DeployKey: 'admin',
  Webhook: 'admin',
  Delivery: 'admin',
};

/** The lists and objects of a namespace: callers below `from` see no private entries, or are refused. */
export const NAMESPACE_LISTS: Record<
  string,
  { args: string; selection: string; refused: boolean; from?: Level }
> = {
  members: { args: '', selection: '{ edges { node { role } } }', refused: true },
  repositories: {
    args: '(visibility: PRIVATE)',
    selection: '{ edges { node { id } } }',
    refused: false,
  },
  secrets: { args: '', selection: '{ edges { node { name } } }', refused: true, from: 'write' },
  variables: { args: '', selection: '{ edges { node { name } } }', refused: true, from: 'write' },
  jobs: { args: '', selection: '{ edges { node { id } } }', refused: false },
  usage: {
    args: '(from: "2026-01-01", to: "2026-12-31")',
    selection: '{ edges { node { jobs } } }',
    refused: true,
  },
  budget: { args: '', selection: '{ cost }', refused: true },
  retention: { args: '', selection: '{ jobDays }', refused: true },
  retentionPreview: {
    args: '(jobDays: 1)',
    selection: '{ kind }',
    refused: true,
    from: 'admin',
  },
  keptArtifacts: { args: '', selection: '{ edges { node { jobId } } }', refused: false },
  events: { args: '', selection: '{ edges { node { id payload } } }', refused: true },
  webhooks: { args: '', selection: '{ edges { node { id } } }', refused: true, from: 'admin' },
  auditLog: {
    args: '',
    selection: '{ edges { node { id } } }',
    refused: true,
    from: 'admin',
  },
};

/** Parameters of REST operations that are not arguments of a root field. */
export const PLACES: Record<string, string> = { path: '.gitignore', revision: 'main' };
