/** Webhooks as a resource: permissions, secrets, changes, deliveries, quota and deletion. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Prisma } from '../../prisma/generated/client.ts';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';
import { newId } from '../../src/base/ids.ts';
import { removeDeletedWebhooks, removeOldDeliveries } from '../../src/webhooks/retention.ts';
import { failUnwantedDeliveries } from '../../src/webhooks/unwanted.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { take, viaYoga } from '../support/subscribe.ts';

const PATH = '/auth/v1/seed/webhooks';
/** No server listens at this URL. */
const ENDPOINT = 'https://127.0.0.1:9/loam';

let app: TestApp;
/** Ada is an admin of `left` and `right`, Bob only of `left`. */
let ada: Client;
let bob: Client;
let count = 0;

beforeAll(async () => {
  const free = { ...PLAN_LIMITS.unlimited, webhooks: 2 };
  const webhooks = { allow: ['127.0.0.1'] };
  app = await startApp({ config: { webhooks, rateLimits: { ...PLAN_LIMITS, free } } });
  [ada, bob] = [await app.user('ada'), await app.user('bob')];
  await app.organization('left', { ada: 'ADMIN', bob: 'ADMIN' });
  await app.organization('right', { ada: 'ADMIN' });
});
afterAll(() => app[Symbol.asyncDispose]());

const input = (more: object = {}) => ({
  name: `hook-${++count}`,
  url: ENDPOINT,
  event_types: ['job.completed', 'job.failed'],
  namespaces: ['left'],
  ...more,
});

async function create(more: object = {}, by = ada): Promise<string> {
  const { status, body, text } = await by.post(PATH, input(more));
  expect(status, text).toBe(201);
  return body.id;
}

const patch = (by: Client, id: string, json: object) =>
  by.request('PATCH', `${PATH}/${id}`, { json });

/** The error of a call that must fail. */
const refused = async (answer: ReturnType<Client['get']>) => {
  const { status, body } = await answer;
  return [status, body.error.code, body.error.message];
};

const rowOf = (id: string) => app.app.services.db.webhook.findUniqueOrThrow({ where: { id } });

async function namespaceId(name: string): Promise<string> {
  return (await app.app.services.db.namespace.findUniqueOrThrow({ where: { name } })).id;
}

/** Inserts deliveries that no server sends, because they are due tomorrow. */
async function insertDeliveries(
  webhookId: string,
  namespace: string,
  rows: Partial<Prisma.DeliveryUncheckedCreateInput>[],
): Promise<string[]> {
  const { db } = app.app.services;
  const owner = await namespaceId(namespace);
  const ids: string[] = [];
  for (const row of rows) {
    const type = row.type ?? 'job.failed';
    const message = { id: newId('evt'), type, namespaceId: owner, namespace };
    const { id: messageId } = row.messageId
      ? { id: row.messageId }
      : await db.webhookMessage.create({
          data: { ...message, timestamp: new Date(), data: { id: 'job_1' } },
        });
    const nextAttemptAt = new Date(Date.now() + 86_400_000);
    const own = { id: newId('dlv'), webhookId, messageId, type, namespaceId: owner };
    await db.delivery.create({ data: { nextAttemptAt, ...row, ...own } });
    ids.push(own.id);
  }
  return ids;
}

/** Inserts copies of a delivery. Their ids start with `digit`, so that the ids of two calls differ. */
async function copy(deliveryId: string | undefined, times: number, digit: number): Promise<void> {
  await app.pool.query(
    `insert into deliveries (id, webhook_id, message_id, type, namespace_id, next_attempt_at)
     select 'dlv_' || $3 || lpad(n::text, 25, '0'), webhook_id, message_id, type, namespace_id, next_attempt_at
     from deliveries, generate_series(1, $2) n where id = $1`,
    [deliveryId, times, `${digit}`],
  );
}

describe('a request', () => {
  test('returns the stored values, without duplicates', async () => {
    const json = input({
      secret: 'hush hush',
      event_types: ['job.failed', 'service.scaled', 'job.failed'],
      namespaces: ['RIGHT', 'left', 'Left'],
    });
    const { status, body, text } = await ada.post(PATH, json);
    expect([status, body]).toEqual([
      201,
      {
        id: body.id,
        name: json.name,
        url: ENDPOINT,
        event_types: ['job.failed', 'service.scaled'],
        namespaces: ['left', 'right'],
        has_secret: true,
        active: true,
        created_at: body.created_at,
        updated_at: body.created_at,
      },
    ]);
    expect(text).not.toContain('hush');
    expect((await ada.get(`${PATH}/${body.id}`)).body).toEqual(body);
    // Encrypted for this webhook only.
    const { secret } = await rowOf(body.id);
    expect(Buffer.from(secret ?? []).toString('latin1')).not.toContain('hush');
    const { sealer } = app.app.services.webhooks;
    expect(sealer.open(body.id, secret as Uint8Array)).toBe('hush hush');
    expect(() => sealer.open(newId('wh'), secret as Uint8Array)).toThrow();
    const queue = await app.app.services.db.webhookQueue.findUnique({
      where: { webhookId: body.id },
    });
    expect(queue).toMatchObject({ dueAt: null, serverId: null });
  });

  test.each([
    ['name', { name: '' }],
    ['name', { name: '   ' }],
    ['name', { name: 'a\nb' }],
    ['name', { name: 'x'.repeat(101) }],
    ['url', { url: 'http://hooks.acme.example/' }],
    ['url', { url: 'https://user:word@hooks.acme.example/' }],
    ['url', { url: 'https://hooks.acme.example/#part' }],
    ['url', { url: 'https://10.0.0.1/' }],
    ['url', { url: 'https://[::ffff:169.254.169.254]/' }],
    ['url', { url: ' https://hooks.acme.example/' }],
    ['url', { url: 'https://hooks.acme\n.example/' }],
    ['url', { url: 'hooks' }],
    ['url', { url: `https://hooks.acme.example/${'x'.repeat(2_048)}` }],
    ['secret', { secret: '' }],
    ['secret', { secret: 'geheim-ü' }],
    ['secret', { secret: 'x'.repeat(257) }],
    ['secret', { secret: 'whsec_not base64' }],
    ['secret', { secret: 'whsec_' }],
    ['secret', { secret: 'whsec_abc' }],
    ['secret', { secret: 'whsec_ab==' }],
    ['event_types', { event_types: [] }],
    ['event_types', { event_types: ['job.exploded'] }],
    ['event_types', { event_types: ['job.failed', 'job.queued'] }],
    ['event_types', { event_types: ['ping'] }],
    ['event_types', { event_types: ['JOB_FAILED'] }],
    ['event_types', { event_types: 'job.failed' }],
    ['event_types', { event_types: null }],
    ['namespaces', { namespaces: [] }],
    ['namespaces', { namespaces: Array.from({ length: 101 }, (_, at) => `n${at}`) }],
    ['Unknown body fields', { active: true, webhook: 1 }],
  ])('is refused for a wrong %s: %j', async (field, wrong) => {
    const id = await create();
    const before = [await rowOf(id), await app.app.services.db.webhook.count()];
    const made = await refused(ada.post(PATH, input(wrong)));
    expect(made).toEqual([400, 'invalid_request', expect.stringMatching(`^${field}: `)]);
    if (field !== 'Unknown body fields') {
      const changed = await refused(patch(ada, id, wrong));
      expect(changed).toEqual([400, 'invalid_request', expect.stringMatching(`^${field}: `)]);
    }
    expect([await rowOf(id), await app.app.services.db.webhook.count()]).toEqual(before);
  });

  test('of GraphQL may use more types, except ping, and REST lists them', async () => {
    const make = (eventTypes: string[]) =>
      ada.graphql(
        `mutation ($input: CreateWebhookInput!) { createWebhook(input: $input) { webhook { id eventTypes } } }`,
        { input: { name: 'more', url: ENDPOINT, eventTypes, namespaces: ['left'] } },
      );
    const { data } = await make(['REPOSITORY_PUSHED', 'JOB_QUEUED']);
    const { id, eventTypes } = data.createWebhook.webhook;
    expect(eventTypes).toEqual(['REPOSITORY_PUSHED', 'JOB_QUEUED']);
    expect((await ada.get(`${PATH}/${id}`)).body.event_types).toEqual([
      'repository.pushed',
      'job.queued',
    ]);
    for (const types of [['PING'], []])
      expect((await make(types)).errors).toMatchObject([
        { extensions: { code: 'INVALID_REQUEST', field: 'eventTypes' } },
      ]);
  });
});

describe('permissions: an account that', () => {
  test('administers one of several namespaces can read the webhook and remove that namespace', async () => {
    const id = await create({ namespaces: ['left', 'right'] });
    const at = `${PATH}/${id}`;
    await app.admin.post(`${at}/test`);
    const { body: tests } = await bob.get(`${at}/deliveries`);
    expect(tests.pagination.total).toBe(1);
    expect((await bob.get(at)).body.namespaces).toEqual(['left', 'right']);
    expect((await bob.get(PATH)).body.data.map((each: { id: string }) => each.id)).toContain(id);
    for (const denied of [
      patch(bob, id, { name: 'mine' }),
      patch(bob, id, { url: ENDPOINT, namespaces: ['right'] }),
      patch(bob, id, { namespaces: ['left'] }),
      patch(bob, id, { namespaces: ['right', 'bob'] }),
      patch(bob, id, { namespaces: ['left', 'right'] }),
      patch(bob, id, {}),
      bob.delete(at),
      bob.post(`${at}/test`),
      bob.post(`${at}/deliveries/${tests.data[0].id}/redeliver`),
      bob.post(PATH, input({ namespaces: ['left', 'right'] })),
    ])
      expect(await refused(denied)).toEqual([
        403,
        'permission_denied',
        'You may not manage webhooks in this namespace: that needs the role admin, and you are not a member',
      ]);
    const out = await patch(bob, id, { namespaces: ['right'] });
    expect([out.status, out.body.namespaces]).toEqual([200, ['right']]);
    // The webhook is no longer counted for the removed namespace.
    const { db } = app.app.services;
    const queue = await db.webhookQueue.findUniqueOrThrow({ where: { webhookId: id } });
    expect(queue.namespaceId).toBe(await namespaceId('right'));
    expect((await bob.get(at)).status).toBe(403);
    expect((await ada.get(at)).body).toEqual(out.body);
    expect(await refused(patch(ada, id, { namespaces: [] }))).toContain(400);
  });

  test('administers no namespace cannot find the webhook', async () => {
    const id = await create({ namespaces: ['right'] });
    expect(await refused(bob.get(`${PATH}/${id}`))).toContain('permission_denied');
    const listed = await bob.get(`${PATH}?per_page=100`);
    expect(listed.text).not.toContain(id);
    expect((await bob.gql(`{ node(id: "${id}") { id } }`)).node).toBeNull();
    for (const unknown of [newId('wh'), 'wh_1', newId('job')])
      expect((await ada.get(`${PATH}/${unknown}`)).status, unknown).toBe(404);
    expect(
      (await bob.graphql('{ namespace(name: "right") { webhooks { nodes { id } } } }')).errors,
    ).toMatchObject([{ extensions: { code: 'PERMISSION_DENIED' } }]);
    expect(
      (
        await app.admin.graphql(
          `{ viewer { id } node(id: "${await userId('ada')}") { ... on User { webhooks { nodes { id } } } } }`,
        )
      ).errors,
    ).toMatchObject([{ extensions: { code: 'PERMISSION_DENIED' } }]);
  });

  async function userId(username: string): Promise<string> {
    return (await app.app.services.db.user.findUniqueOrThrow({ where: { username } })).id;
  }

  test('has a limited credential needs the scope, and no restriction to repositories', async () => {
    const id = await create();
    const token = async (limits: object) => {
      const { body } = await ada.post('/auth/v1/pat', { name: `pat-${++count}`, ...limits });
      return app.client(`Bearer ${body.token}`);
    };
    const { body: repository } = await ada.post('/auth/v1/repository/ada', { name: 'code' });
    const scoped = await token({ scopes: ['webhook:admin'] });
    expect((await scoped.get(PATH)).status).toBe(200);
    expect((await patch(scoped, id, { name: 'scoped' })).status).toBe(200);
    expect((await scoped.post(PATH, input())).status).toBe(201);
    // The credential may read deliveries, because it could have them sent to an endpoint of its own.
    const [sent = ''] = await insertDeliveries(id, 'left', [{}]);
    const payload = `{ node(id: "${sent}") { ... on Delivery { payload } } }`;
    expect((await scoped.gql(payload)).node.payload).toMatchObject({ type: 'job.failed' });
    const ofJobs = await token({ scopes: ['job:read'] });
    expect((await ofJobs.gql(payload)).node).toBeNull();
    const elsewhere = await token({ namespaces: ['right'] });
    expect((await elsewhere.get(PATH)).text).not.toContain(id);
    expect((await elsewhere.get(`${PATH}/${id}`)).status).toBe(403);
    for (const limits of [
      { scopes: ['repo:admin', 'job:write'] },
      { repositories: [repository.id] },
      { scopes: ['webhook:admin'], repositories: [repository.id] },
    ]) {
      const client = await token(limits);
      for (const denied of [
        client.get(PATH),
        client.get(`${PATH}/${id}`),
        client.get(`${PATH}/${id}/deliveries`),
        patch(client, id, { active: false }),
        client.post(PATH, input()),
      ])
        expect(await refused(denied), JSON.stringify(limits)).toContain(403);
    }
  });
});

describe('a secret', () => {
  const secretsOf = async (id: string) => {
    const { secret, formerSecret, formerUntil } = await rowOf(id);
    const { sealer } = app.app.services.webhooks;
    const open = (sealed: Uint8Array | null) => sealed && sealer.open(id, sealed);
    return { secret: open(secret), former: open(formerSecret), until: formerUntil };
  };
  const until = async (id: string) =>
    (await ada.gql(`{ webhook(id: "${id}") { formerSecretUntil } }`)).webhook.formerSecretUntil;

  test('signs for a day together with the next secret', async () => {
    const id = await create({ secret: 'first' });
    expect(await secretsOf(id)).toEqual({ secret: 'first', former: null, until: null });
    expect((await patch(ada, id, { secret: 'second' })).body.has_secret).toBe(true);
    const after = await secretsOf(id);
    expect(after).toMatchObject({ secret: 'second', former: 'first' });
    const hours = (Number(after.until) - Date.now()) / 3_600_000;
    expect([hours > 23.9, hours <= 24]).toEqual([true, true]);
    expect(await until(id)).toBe(after.until?.toISOString());
    // A repeated request does not remove the previous secret.
    await patch(ada, id, { secret: 'second' });
    await patch(ada, id, { name: 'other' });
    expect(await secretsOf(id)).toEqual(after);
    await patch(ada, id, { secret: 'whsec_AAECAwQFBgcICQ==' });
    expect(await secretsOf(id)).toMatchObject({ former: 'second' });
  });

  test('is removed by null, together with the previous secret, in REST and GraphQL', async () => {
    for (const remove of [
      (id: string) => patch(ada, id, { secret: null }),
      (id: string) =>
        ada.gql(
          `mutation { updateWebhook(input: { id: "${id}", secret: null }) { webhook { id } } }`,
        ),
    ]) {
      const id = await create({ secret: 'first' });
      await patch(ada, id, { secret: 'second' });
      await remove(id);
      expect(await secretsOf(id)).toEqual({ secret: null, former: null, until: null });
      const { body: without } = await ada.get(`${PATH}/${id}`);
      expect(without.has_secret).toBe(false);
      // No secret is left to remove.
      expect((await patch(ada, id, { secret: null })).body).toEqual(without);
      expect(await until(id)).toBeNull();
      await patch(ada, id, { secret: 'third' });
      expect(await secretsOf(id)).toEqual({ secret: 'third', former: null, until: null });
    }
    expect(await refused(ada.post(PATH, input({ secret: null })))).toContain(400);
  });
});

describe('a change', () => {
  test('does not affect omitted fields', async () => {
    const id = await create({ secret: 'hush' });
    const before = (await ada.get(`${PATH}/${id}`)).body;
    expect((await patch(ada, id, {})).body).toEqual(before);
    const renamed = (await patch(ada, id, { name: 'other' })).body;
    expect(renamed).toEqual({ ...before, name: 'other', updated_at: renamed.updated_at });
    expect(renamed.updated_at > before.updated_at).toBe(true);
    const moved = await ada.gql(
      `mutation { updateWebhook(input: { id: "${id}", name: null, url: null, eventTypes: [JOB_RUNNING], namespaces: ["right", "left"] }) {
         webhook { name url eventTypes namespaces hasSecret } } }`,
    );
    expect(moved.updateWebhook.webhook).toEqual({
      name: 'other',
      url: ENDPOINT,
      eventTypes: ['JOB_RUNNING'],
      namespaces: ['left', 'right'],
      hasSecret: true,
    });
  });

  test('that switches it off fails pending deliveries, and switching it on resets its failures', async () => {
    const id = await create();
    const [first, second] = await insertDeliveries(id, 'left', [
      {},
      { status: 'succeeded', outcome: 'status_200', nextAttemptAt: null },
    ]);
    expect((await patch(ada, id, { active: false })).body.active).toBe(false);
    const { data } = (await ada.get(`${PATH}/${id}/deliveries`)).body;
    expect(data).toMatchObject([
      { id: second, status: 'succeeded', outcome: 'status_200' },
      { id: first, status: 'failed', outcome: 'webhook_off', next_attempt_at: null },
    ]);
    expect(data[1].completed_at).not.toBeNull();
    const off = [409, 'conflict', 'The webhook is off: switch it on first'];
    expect(await refused(ada.post(`${PATH}/${id}/test`))).toEqual(off);
    expect(await refused(ada.post(`${PATH}/${id}/deliveries/${first}/redeliver`))).toEqual(off);

    await app.pool.query(
      `update webhooks set off_reason = 'failing', failing_since = now() where id = $1`,
      [id],
    );
    const query = `{ webhook(id: "${id}") { active offReason failingSince } }`;
    expect((await ada.gql(query)).webhook).toMatchObject({ active: false, offReason: 'FAILING' });
    await patch(ada, id, { active: true });
    expect((await ada.gql(query)).webhook).toEqual({
      active: true,
      offReason: null,
      failingSince: null,
    });
    expect((await ada.post(`${PATH}/${id}/test`)).status).toBe(202);
  });

  test('that switches it off fails a backlog after the response', async () => {
    const id = await create();
    const [one] = await insertDeliveries(id, 'left', [{}]);
    await copy(one, 7_000, 3);
    await patch(ada, id, { active: false });
    const pending = () =>
      app.app.services.db.delivery.count({ where: { webhookId: id, status: 'pending' } });
    await eventually(async () => expect(await pending()).toBe(0));
  });

  test('that removes a namespace fails all its pending deliveries', async () => {
    const id = await create({ namespaces: ['left', 'right'] });
    const [other] = await insertDeliveries(id, 'right', [{}]);
    const [one] = await insertDeliveries(id, 'left', [{}]);
    const { pool } = app.app.services;
    await copy(one, 2_500, 2);
    await patch(bob, id, { namespaces: ['right'] });
    const left = await pool.query(
      `select id, (select count(*)::int from deliveries where webhook_id = $1 and outcome = 'webhook_off') as ended
       from deliveries where webhook_id = $1 and status = 'pending'`,
      [id],
    );
    expect(left.rows).toEqual([{ id: other, ended: 2_501 }]);
    // Deliveries of a webhook that is on are not failed.
    await failUnwantedDeliveries(app.app.services, id);
    const again = await pool.query(
      `select id from deliveries where id = $1 and status = 'pending'`,
      [other],
    );
    expect(again.rows).toHaveLength(1);
  });
});

describe('deliveries', () => {
  test('are listed newest first, in pages and after cursors, by status and type', async () => {
    const id = await create();
    const rows = Array.from({ length: 7 }, (_, at) =>
      at % 3 === 0
        ? { status: 'failed' as const, outcome: 'status_500', responseStatus: 500, attempts: 10 }
        : { type: at % 2 ? 'job.completed' : 'job.failed' },
    );
    const ids = (await insertDeliveries(id, 'left', rows)).reverse();
    const page = await ada.get(`${PATH}/${id}/deliveries?page=2&per_page=3`);
    expect(page.body.data.map((each: { id: string }) => each.id)).toEqual(ids.slice(3, 6));
    expect(page.body.pagination).toEqual({ page: 2, per_page: 3, total: 7, total_pages: 3 });
    expect(page.headers.get('link')).toContain('rel="next"');

    const slice = async (args: string) => {
      const { webhook } = await ada.gql(
        `{ webhook(id: "${id}") { deliveries(${args}) { totalCount pageInfo { endCursor } nodes { id } } } }`,
      );
      const { totalCount, nodes, pageInfo } = webhook.deliveries;
      const found = nodes.map((node: { id: string }) => node.id);
      return { totalCount, found, end: pageInfo.endCursor };
    };
    const first = await slice('first: 3');
    expect(first).toMatchObject({ totalCount: 7, found: ids.slice(0, 3) });
    const next = await slice(`first: 100, after: "${first.end}"`);
    expect(next.found).toEqual(ids.slice(3));
    const failed = await slice('status: FAILED');
    expect(failed).toMatchObject({ totalCount: 3, found: [ids[0], ids[3], ids[6]] });
    const typed = await slice('type: JOB_COMPLETED, status: PENDING');
    expect(typed.found).toEqual([ids[1], ids[5]]);

    const listed = async (query: string) => {
      const { body } = await ada.get(`${PATH}/${id}/deliveries?${query}`);
      return [body.data.map((each: { id: string }) => each.id), body.pagination.total];
    };
    expect(await listed('status=failed')).toEqual([[ids[0], ids[3], ids[6]], 3]);
    expect(await listed('status=failed&per_page=2&page=2')).toEqual([[ids[6]], 3]);
    expect(await listed('event_type=job.completed&status=pending')).toEqual([[ids[1], ids[5]], 2]);
    expect(await listed('status=succeeded')).toEqual([[], 0]);
    expect(await listed('page=2147483647&per_page=100')).toEqual([[], 7]);
    for (const [name, value] of [
      ['status', 'FAILED'],
      ['event_type', 'job.started'],
    ]) {
      const wrong = await ada.get(`${PATH}/${id}/deliveries?${name}=${value}`);
      expect([wrong.status, wrong.body.error.message]).toEqual([
        400,
        expect.stringMatching(`^${name}: must be one of `),
      ]);
    }
  });

  test('of namespaces that the viewer administers, and tests, are shown', async () => {
    const id = await create({ namespaces: ['left', 'right'] });
    const [left = ''] = await insertDeliveries(id, 'left', [{}]);
    const [right = ''] = await insertDeliveries(id, 'right', [{}]);
    const { body: sent } = await ada.post(`${PATH}/${id}/test`);
    const listed = async (by: Client) =>
      (await by.get(`${PATH}/${id}/deliveries`)).body.data.map((each: { id: string }) => each.id);
    expect(await listed(ada)).toEqual([sent.id, right, left]);
    expect(await listed(bob)).toEqual([sent.id, left]);
    const nodes = `query ($ids: [ID!]!) { nodes(ids: $ids) { id } }`;
    const found = await bob.gql(nodes, { ids: [left, right, sent.id] });
    expect(found.nodes).toEqual([{ id: left }, null, { id: sent.id }]);
    const missing = await ada.post(`${PATH}/${await create()}/deliveries/${left}/redeliver`);
    expect(missing.status).toBe(404);
  });

  test('show the reason of TLS failures, and no reason of other failures', async () => {
    const id = await create();
    const tried = { at: new Date().toISOString(), took: 5, status: null, answer: null };
    const tries = [
      { ...tried, outcome: 'tls_failed', reason: 'certificate has expired' },
      { ...tried, outcome: 'timeout' },
    ];
    const [sent = ''] = await insertDeliveries(id, 'left', [{ tries }]);
    const query = `{ node(id: "${sent}") { ... on Delivery { tries { outcome reason } } } }`;
    expect((await ada.gql(query)).node.tries).toEqual([
      { outcome: 'tls_failed', reason: 'certificate has expired' },
      { outcome: 'timeout', reason: null },
    ]);
  });

  test('are created by a test, and by sending a message again', async () => {
    const id = await create({ event_types: ['dev.started'] });
    const { status, body: sent } = await ada.post(`${PATH}/${id}/test`);
    expect([status, sent]).toMatchObject([202, { event_type: 'ping', status: 'pending' }]);
    const again = await ada.post(`${PATH}/${id}/deliveries/${sent.id}/redeliver`);
    expect(again.status).toBe(202);
    expect(again.body).toEqual({
      ...sent,
      id: again.body.id,
      created_at: again.body.created_at,
      next_attempt_at: again.body.next_attempt_at,
    });
    expect(again.body.id > sent.id).toBe(true);
    const message = await app.app.services.db.webhookMessage.findUnique({
      where: { id: sent.event_id },
    });
    const { name } = (await ada.get(`${PATH}/${id}`)).body;
    expect(message).toMatchObject({ type: 'ping', namespace: 'left' });
    const { node } = await ada.gql(
      `{ node(id: "${again.body.id}") { ... on Delivery { eventId payload tries { outcome } } } }`,
    );
    expect(node).toMatchObject({
      eventId: sent.event_id,
      payload: {
        id: sent.event_id,
        type: 'ping',
        timestamp: message?.timestamp.toISOString(),
        namespace: 'left',
        data: { webhook_id: id, name },
      },
    });
    expect(Array.isArray(node.tries)).toBe(true);
    const { rows } = await app.pool.query(
      'select due_at is not null or server_id is not null as due from webhook_queues where webhook_id = $1',
      [id],
    );
    expect(rows).toHaveLength(1);
  });

  test('can be followed by viewers who may see them', async () => {
    const id = await create({ namespaces: ['left', 'right'] });
    await insertDeliveries(id, 'left', [{}]);
    const query = `subscription { webhookDeliveries(id: "${id}") { id eventType status outcome attempts } }`;
    const [mine, theirs] = [viaYoga(ada, query), viaYoga(bob, query)];
    const streams = app.app.services.rechecks.streams;
    const both = [take(mine, 'webhookDeliveries', 3), take(theirs, 'webhookDeliveries', 2)];
    await eventually(() => expect(app.app.services.rechecks.streams).toBe(streams + 2));
    const changed = async (delivery = '', status = 'pending') => {
      await app.pool.query(
        `update deliveries set updated_at = now(), status = $2, attempts = attempts + 1, outcome = 'timeout' where id = $1`,
        [delivery, status],
      );
      await app.pool.query(`select pg_notify('loam', $1)`, [`webhook:${id}`]);
    };
    const [right] = await insertDeliveries(id, 'right', [{}]);
    await changed(right);
    const [left] = await insertDeliveries(id, 'left', [{}]);
    await changed(left);
    const seen = { id: left, eventType: 'JOB_FAILED', outcome: 'timeout' };
    await eventually(async () => {
      await changed(left, 'failed');
      const of = await Promise.race([both[1], Promise.reject(new Error('not yet'))]);
      expect(of?.at(-1)).toMatchObject({ ...seen, status: 'FAILED' });
    });
    const [all, some] = await Promise.all(both);
    expect(some?.map((each) => each.id)).toEqual([left, left]);
    expect(all?.map((each) => each.id)).toEqual([right, left, left]);
  });

  test('are no longer followed after the permission is lost', async () => {
    const eve = await app.user('eve');
    await app.admin.setMembers('left', { eve: 'ADMIN' });
    const id = await create({ namespaces: ['left'] });
    const streams = app.app.services.rechecks.streams;
    const query = `subscription { webhookDeliveries(id: "${id}") { id } }`;
    const ended = take(viaYoga(eve, query), 'webhookDeliveries').catch(({ code }) => code);
    await eventually(() => expect(app.app.services.rechecks.streams).toBe(streams + 1));
    await app.admin.setMembers('left', { eve: 'WRITE' });
    expect(await ended).toBe('PERMISSION_DENIED');
    expect((await bob.graphql(query.replace(id, newId('wh')))).errors).toMatchObject([
      { extensions: { code: 'NOT_FOUND' } },
    ]);
  });
});

test('the quota applies to each namespace, and is counted under a lock', async () => {
  const carl = await app.user('carl', 'free');
  await app.admin.setMembers('left', { carl: 'ADMIN' });
  const json = (namespaces: string[]) => input({ namespaces });
  const made = await Promise.all(
    Array.from({ length: 5 }, () => carl.post(PATH, json(['left', 'carl']))),
  );
  expect(made.map(({ status }) => status).sort()).toEqual([201, 201, 403, 403, 403]);
  const full = [403, 'quota_exceeded', 'The free plan allows 2 webhooks in a namespace'];
  expect(await refused(carl.post(PATH, json(['carl'])))).toEqual(full);
  const { body } = await carl.post(PATH, json(['left']));
  expect(await refused(patch(carl, body.id, { namespaces: ['left', 'carl'] }))).toEqual(full);
  // A change without new namespaces needs no quota.
  const [{ body: one } = { body: {} }] = made.filter(({ status }) => status === 201);
  expect((await patch(carl, one.id, { name: 'other', namespaces: ['carl'] })).status).toBe(200);
  await carl.delete(`${PATH}/${one.id}`);
  expect((await patch(carl, body.id, { namespaces: ['left', 'carl'] })).status).toBe(200);
});

describe('deletion', () => {
  test('hides a webhook at once, and removes its rows in batches', async () => {
    const id = await create({ secret: 'hush' });
    const [one = ''] = await insertDeliveries(id, 'left', [{}]);
    const { pool, db } = app.app.services;
    await copy(one, 1_500, 1);
    expect([(await ada.delete(`${PATH}/${id}`)).status]).toEqual([204]);
    for (const gone of [
      ada.get(`${PATH}/${id}`),
      ada.get(`${PATH}/${id}/deliveries`),
      patch(ada, id, { active: true }),
      ada.post(`${PATH}/${id}/test`),
      ada.delete(`${PATH}/${id}`),
    ])
      expect((await gone).status).toBe(404);
    expect((await ada.get(`${PATH}?per_page=100`)).text).not.toContain(id);
    const found = await ada.gql(`query ($ids: [ID!]!) { nodes(ids: $ids) { id } }`, {
      ids: [id, one],
    });
    expect(found.nodes).toEqual([null, null]);

    // Not removed while the dispatcher may still write deliveries.
    await removeDeletedWebhooks(app.app.services);
    expect(await db.delivery.count({ where: { webhookId: id } })).toBe(1_501);
    const age = `update webhooks set deleted_at = now() - interval '2 minutes' where id = $1`;
    await pool.query(age, [id]);
    let batches = 0;
    while (await removeDeletedWebhooks(app.app.services)) batches++;
    // Webhooks that earlier tests deleted may be removed too.
    expect(batches).toBeGreaterThan(1);
    expect(await db.delivery.count({ where: { webhookId: id } })).toBe(0);
    expect(await db.webhook.count({ where: { id } })).toBe(0);
    expect(await db.webhookQueue.count({ where: { webhookId: id } })).toBe(0);
  });

  test('removes old deliveries, and messages without deliveries', async () => {
    const id = await create();
    const { pool, db } = app.app.services;
    const [old = '', again = ''] = await insertDeliveries(id, 'left', [{}, {}]);
    const messageOf = async (delivery: string) =>
      (await db.delivery.findUniqueOrThrow({ where: { id: delivery } })).messageId;
    const [gone, kept] = [await messageOf(old), await messageOf(again)];
    const [young = ''] = await insertDeliveries(id, 'left', [{ messageId: kept }]);
    // Ids that sort first, like those of the oldest deliveries.
    await pool.query(
      `update deliveries set created_at = now() - interval '31 days',
         id = case id when $1 then 'dlv_00000000000000000000000000' else 'dlv_00000000000000000000000001' end
       where id = any($2)`,
      [old, [old, again]],
    );
    expect(await removeOldDeliveries(app.app.services)).toBe(false);
    const left = await db.delivery.findMany({ where: { webhookId: id }, select: { id: true } });
    expect(left).toEqual([{ id: young }]);
    const messages = await db.webhookMessage.findMany({ where: { id: { in: [gone, kept] } } });
    expect(messages.map((message) => message.id)).toEqual([kept]);
  });
});
