/** For each route: a successful request with its answer, and a request for each of its own errors. */
import { expect } from 'vitest';
import { eventually } from '../eventually.ts';
import type { Client, Loam } from '../harness.ts';
import * as fields from './fields.ts';

export type Call = {
  as: Client;
  params: Record<string, string>;
  query?: Record<string, string>;
  json?: object;
};

export type Case = {
  status: number;
  call(world: World): Call | Promise<Call>;
  /** The expected body, or a check of it. 204 has none. */
  body?: object | ((body: never, call: Call) => void);
  /** Changes of the successful call. */
  errors?: Partial<
    Record<
      403 | 404 | 409 | 422,
      (world: World, call: Call) => Partial<Call> | Promise<Partial<Call>>
    >
  >;
};

export type World = Awaited<ReturnType<typeof createWorld>>;

/** Alice owns the objects; Bob has no access to them; Alice's tokens have one scope each. */
export async function createWorld(loam: Loam) {
  const alice = await loam.user('alice');
  const bob = await loam.user('bob');
  const narrow = await alice.post('/auth/v1/pat', { name: 'narrow', scopes: ['webhook:admin'] });
  const reader = await alice.post('/auth/v1/pat', { name: 'reader', scopes: ['repo:read'] });
  await alice.post('/auth/v1/repository/alice', { name: 'work' });
  let count = 0;
  return {
    loam,
    alice,
    bob,
    narrow: loam.client(`Bearer ${narrow.body.token}`),
    reader: loam.client(`Bearer ${reader.body.token}`),
    unique: () => `name-${++count}`,
  };
}

type Json = Record<string, never>;

const page = (item: object) => (body: { data: Json[]; pagination: Json }) => {
  expect(Object.keys(body).sort()).toEqual(['data', 'pagination']);
  expect(body.data.length).toBeGreaterThan(0);
  for (const each of body.data) expect(each).toEqual(item);
  expect(body.pagination).toEqual(fields.pagination);
};

const list = (item: object) => (body: { data: Json[] }) => {
  expect(Object.keys(body)).toEqual(['data']);
  expect(body.data.length).toBeGreaterThan(0);
  for (const each of body.data) expect(each).toEqual(item);
};

async function newRepository({
  alice,
  unique,
}: World): Promise<{ name: string; params: Call['params'] }> {
  const name = unique();
  const json = { name, gitignore_template: 'Python' };
  const { body } = await alice.post('/auth/v1/repository/alice', json);
  return { name, params: { namespace: 'alice', id: body.id } };
}

/** A call on a new repository of Alice. */
const onRepository =
  (more: Partial<Call> | ((world: World) => Partial<Call>) = {}) =>
  async (world: World): Promise<Call> => {
    const { params } = await newRepository(world);
    const given = typeof more === 'function' ? more(world) : more;
    return { as: world.alice, ...given, params: { ...params, ...given.params } };
  };

const noSuchNamespace = (_world: World, { params }: Call) => ({
  params: { ...params, namespace: 'nobody' },
});
const noSuchRepository = (_world: World, { params }: Call) => ({
  params: { ...params, id: 'repo_01jd8m9x2hfa3v0k6n5q7r8s9t' },
});
const asOutsider = ({ bob }: World) => ({ as: bob });
const asNarrow = ({ narrow }: World) => ({ as: narrow });
const repositoryErrors = { 403: asOutsider, 404: noSuchRepository };

/** Leaves artifacts in every runner. */
const PRODUCTIVE = 'echo hello; mkdir out; touch out/file';
const JOB = { command: 'exit 0', repo: 'alice/work', gpu: 'none', output_path: 'out' };

/** A call on a new job of Alice that has reached `status`. */
const onJob =
  (command: string, status = 'succeeded') =>
  async ({ alice, unique }: World): Promise<Call & { params: { name: string } }> => {
    const params = { namespace: 'alice', name: unique() };
    const made = await alice.post('/auth/v1/seed/alice/jobs', {
      ...JOB,
      name: params.name,
      command,
    });
    expect(made.status, made.text).toBe(201);
    await eventually(async () =>
      expect((await alice.get(`/alice/job/${params.name}`)).body.status).toBe(status),
    );
    return { as: alice, params };
  };
const jobErrors = {
  403: asOutsider,
  404: (_world: World, { params }: Call) => ({ params: { ...params, name: 'none' } }),
};

/** Nothing listens at this address; the walk allows webhooks to it. */
export const ENDPOINT = 'https://127.0.0.1:9/loam';
const WEBHOOK = { url: ENDPOINT, secret: 'hush', event_types: ['job.completed', 'dev.started'] };

async function newWebhook({ alice, unique }: World): Promise<string> {
  const json = { ...WEBHOOK, name: unique(), namespaces: ['alice'] };
  const { status, text, body } = await alice.post('/auth/v1/seed/webhooks', json);
  expect(status, text).toBe(201);
  return body.id;
}

const noSuchWebhook = (_world: World, { params }: Call) => ({
  params: { ...params, id: 'wh_01jd8me9k2g4s6v8x1z3b5d7f9' },
});
const webhookErrors = { 403: asOutsider, 404: noSuchWebhook };
const switchedOff = async ({ alice }: World, { params }: Call) => {
  await alice.request('PATCH', `/auth/v1/seed/webhooks/${params.id}`, { json: { active: false } });
  return {};
};

/** A call on a new webhook of Alice. */
const onWebhook =
  (more: Partial<Call> = {}) =>
  async (world: World): Promise<Call> => ({
    as: world.alice,
    params: { id: await newWebhook(world) },
    ...more,
  });

/** A call on a webhook that was tested. */
async function onDelivery(world: World): Promise<Call> {
  const call = await onWebhook()(world);
  const { body } = await world.alice.post(`/auth/v1/seed/webhooks/${call.params.id}/test`);
  return { ...call, params: { ...call.params, delivery: body.id } };
}

export const cases: Record<string, Case> = {
  getHealth: {
    status: 200,
    call: ({ loam }) => ({ as: loam.anonymous, params: {} }),
    body: { status: 'ok' },
  },
  getVersion: {
    status: 200,
    call: ({ loam }) => ({ as: loam.anonymous, params: {} }),
    body: fields.version,
  },
  whoami: {
    status: 200,
    call: ({ alice }) => ({ as: alice, params: {} }),
    body: { ...fields.identity, username: 'alice', namespace: 'alice' },
  },

  listRepositories: {
    status: 200,
    call: onRepository({
      query: { visibility: 'private', per_page: '2', sort: 'name', order: 'asc' },
    }),
    body: page(fields.repositoryListItem),
    errors: { 404: noSuchNamespace },
  },
  getRepository: {
    status: 200,
    call: onRepository(),
    body: fields.repository,
    errors: repositoryErrors,
  },
  createRepository: {
    status: 201,
    call: ({ alice, unique }) => ({
      as: alice,
      params: { namespace: 'alice' },
      json: { name: unique() },
    }),
    // The fixed values of every new repository.
    body: {
      ...fields.createdRepository,
      visibility: 'private',
      default_branch: 'main',
      size_bytes: 0,
      language: null,
      content_addressed: true,
      branch_protection: false,
      secret_scanning: false,
      collaborators: 1,
      branches: 1,
      tags: 0,
      pushed_at: null,
    },
    errors: {
      403: asOutsider,
      404: noSuchNamespace,
      409: async (world) => ({ json: { name: (await newRepository(world)).name.toUpperCase() } }),
    },
  },
  renameRepository: {
    status: 200,
    call: onRepository(({ unique }) => ({ json: { name: unique() } })),
    body: fields.movedRepository,
    errors: {
      ...repositoryErrors,
      409: async (world) => ({ json: { name: (await newRepository(world)).name } }),
    },
  },
  changeRepositoryVisibility: {
    status: 200,
    call: onRepository({ json: { visibility: 'internal' } }),
    body: { ...fields.repositoryVisibility, visibility: 'internal' },
    errors: repositoryErrors,
  },
  transferRepository: {
    status: 200,
    call: async (world) => {
      const organization = world.unique();
      await world.loam.organization(organization, { alice: 'ADMIN' });
      return onRepository({ json: { new_namespace: organization } })(world);
    },
    body: fields.movedRepository,
    errors: {
      403: () => ({ json: { new_namespace: 'bob' } }),
      404: () => ({ json: { new_namespace: 'nobody' } }),
      409: async ({ alice }, { params, json }) => {
        const { new_namespace } = json as { new_namespace: string };
        const { body } = await alice.get(`/auth/v1/repository/alice/${params.id}`);
        await alice.post(`/auth/v1/repository/${new_namespace}`, { name: body.name });
        return {};
      },
    },
  },
  deleteRepository: { status: 204, call: onRepository(), errors: repositoryErrors },
  getTree: {
    status: 200,
    call: onRepository({ params: { path: '' } }),
    body: (body: { path: string; ref: string; entries: Json[] }) =>
      expect(body).toEqual({ path: '', ref: 'main', entries: [fields.fileEntry] }),
    errors: repositoryErrors,
  },
  getFile: {
    status: 200,
    call: onRepository({ params: { path: '.gitignore' }, query: { ref: 'main' } }),
    body: fields.inlineFile,
    errors: repositoryErrors,
  },
  listCommits: {
    status: 200,
    call: onRepository({ params: { revision: 'main' }, query: { page: '1' } }),
    body: page(fields.commit),
    errors: repositoryErrors,
  },

  listJobs: {
    status: 200,
    call: async (world) => ({
      ...(await onJob('exit 0')(world)),
      query: { status: 'succeeded', sort: 'completed_at', order: 'asc', per_page: '3' },
    }),
    body: page(fields.jobListItem),
    errors: { 403: asOutsider, 404: noSuchNamespace },
  },
  getJob: {
    status: 200,
    call: onJob(PRODUCTIVE),
    body: { ...fields.finishedJob, status: 'succeeded', exit_code: 0 },
    errors: jobErrors,
  },
  getJobLogs: {
    status: 200,
    call: async (world) => ({ ...(await onJob('echo hello')(world)), query: { tail: '10' } }),
    body: (body: object, { params }) =>
      expect(body).toEqual({ ...params, lines: [fields.logLine], has_more: false }),
    // A stream is for running jobs.
    errors: { ...jobErrors, 409: () => ({ query: { stream: 'true' } }) },
  },
  getJobAnalytics: {
    status: 200,
    call: onJob('echo hello'),
    body: fields.jobAnalytics,
    errors: jobErrors,
  },
  createJob: {
    status: 201,
    call: ({ alice, unique }) => ({
      as: alice,
      params: { namespace: 'alice' },
      json: { ...JOB, name: unique(), env: { A: 'b' } },
    }),
    body: (body: object, { json }) => {
      expect(body).toEqual(fields.createdJob);
      expect(body).toMatchObject({ ...json, namespace: 'alice', branch: 'main' });
    },
    errors: {
      403: asOutsider,
      404: noSuchNamespace,
      409: async (world, { json }) => ({
        json: { ...json, name: (await onJob('exit 0')(world)).params.name },
      }),
      422: (_world, { json }) => ({ json: { ...json, gpu: 'none', gpu_count: 2 } }),
    },
  },
  cancelJob: {
    status: 200,
    call: onJob('sleep 60', 'running'),
    body: fields.cancelledJob,
    errors: {
      ...jobErrors,
      409: async (world) => ({ params: (await onJob('exit 1', 'failed')(world)).params }),
    },
  },
  deleteJob: {
    status: 204,
    call: async (world) => ({
      ...(await onJob(PRODUCTIVE)(world)),
      query: { delete_artifacts: 'true' },
    }),
    errors: {
      ...jobErrors,
      409: async (world) => ({ params: (await onJob('sleep 60', 'running')(world)).params }),
    },
  },

  listWebhooks: {
    status: 200,
    // The list for a credential with this scope only.
    call: async (world) => {
      await newWebhook(world);
      return { as: world.narrow, params: {}, query: { per_page: '3' } };
    },
    body: page(fields.webhook),
    errors: { 403: ({ reader }) => ({ as: reader }) },
  },
  createWebhook: {
    status: 201,
    call: ({ alice, unique }) => ({
      as: alice,
      params: {},
      json: { ...WEBHOOK, name: unique(), namespaces: ['alice'] },
    }),
    body: (body: object, { json }) => {
      const { secret, ...shown } = json as Json;
      expect(secret).toBeDefined();
      expect(body).toEqual({ ...fields.webhook, ...shown, has_secret: true, active: true });
    },
    errors: {
      403: (_world, { json }) => ({ json: { ...json, namespaces: ['alice', 'bob'] } }),
      404: (_world, { json }) => ({ json: { ...json, namespaces: ['bob', 'nobody'] } }),
    },
  },
  getWebhook: {
    status: 200,
    call: onWebhook(),
    body: { ...fields.webhook, url: ENDPOINT, has_secret: true, active: true },
    errors: webhookErrors,
  },
  updateWebhook: {
    status: 200,
    call: onWebhook({
      json: { name: 'other', secret: null, event_types: ['job.failed'], active: false },
    }),
    body: {
      ...fields.webhook,
      name: 'other',
      url: ENDPOINT,
      event_types: ['job.failed'],
      namespaces: ['alice'],
      has_secret: false,
      active: false,
    },
    errors: webhookErrors,
  },
  deleteWebhook: { status: 204, call: onWebhook(), errors: webhookErrors },
  testWebhook: {
    status: 202,
    call: onWebhook(),
    body: { ...fields.newDelivery, event_type: 'ping' },
    errors: { ...webhookErrors, 409: switchedOff },
  },
  listDeliveries: {
    status: 200,
    // Disabled, or its attempts would change it between two requests.
    call: async (world) => {
      const call = await onDelivery(world);
      await switchedOff(world, call);
      return { ...call, query: { page: '1' } };
    },
    body: page({ ...fields.delivery, status: 'failed', event_type: 'ping' }),
    errors: webhookErrors,
  },
  redeliver: {
    status: 202,
    call: onDelivery,
    body: { ...fields.newDelivery, event_type: 'ping' },
    errors: {
      403: asOutsider,
      404: (_world, { params }) => ({
        params: { ...params, delivery: 'dlv_01jd8mg2p5j7t9w1y3a5c7e9g1' },
      }),
      409: switchedOff,
    },
  },

  createAccessToken: {
    status: 201,
    call: ({ alice, unique }) => ({
      as: alice,
      params: {},
      json: { name: unique(), expires_in_days: 1, scopes: ['repo:read'] },
    }),
    body: { ...fields.createdAccessToken, scopes: ['repo:read'] },
    errors: {
      403: asNarrow,
      404: (_world, { json }) => ({ json: { ...json, namespaces: ['nobody'] } }),
      409: (_world, { json }) => ({ json: { ...json, name: 'narrow' } }),
    },
  },
  listAccessTokens: {
    status: 200,
    call: ({ alice }) => ({ as: alice, params: {} }),
    body: list(fields.accessToken),
    errors: { 403: asNarrow },
  },
  getAccessToken: {
    status: 200,
    // A token that is not used: `last_used_at` would change between GET and HEAD.
    call: async ({ alice, unique }) => {
      const name = unique();
      await alice.post('/auth/v1/pat', { name });
      return { as: alice, params: { name } };
    },
    body: fields.accessToken,
    errors: { 403: asNarrow, 404: () => ({ params: { name: 'none' } }) },
  },
  deleteAccessToken: {
    status: 204,
    call: async ({ alice, unique }) => {
      const name = unique();
      await alice.post('/auth/v1/pat', { name });
      return { as: alice, params: { name } };
    },
    errors: { 403: asNarrow, 404: () => ({ params: { name: 'none' } }) },
  },
  createApiKey: {
    status: 201,
    call: ({ alice, unique }) => ({
      as: alice,
      params: {},
      json: { name: unique(), namespace: 'alice' },
    }),
    body: { ...fields.createdApiKey, namespace: 'alice', scopes: [] },
    errors: {
      403: (_world, { json }) => ({ json: { ...json, namespace: 'bob' } }),
      404: (_world, { json }) => ({ json: { ...json, namespace: 'nobody' } }),
      409: async ({ alice, unique }) => {
        const json = { name: unique() };
        await alice.post('/auth/v1/api_keys', json);
        return { json };
      },
    },
  },
  listApiKeys: {
    status: 200,
    call: async (world) => withKey(world),
    body: list(fields.apiKey),
    errors: { 403: asNarrow },
  },
  getApiKey: {
    status: 200,
    call: async (world) => withKey(world),
    body: fields.apiKey,
    errors: { 403: asOutsider, 404: () => ({ params: { name: 'none' } }) },
  },
  deleteApiKey: {
    status: 204,
    call: async (world) => withKey(world),
    errors: { 403: asOutsider, 404: () => ({ params: { name: 'none' } }) },
  },
};

async function withKey({ alice, unique }: World): Promise<Call> {
  const name = unique();
  await alice.post('/auth/v1/api_keys', { name });
  return { as: alice, params: { name } };
}
