/** Subscriptions to repository events, also of several namespaces. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, disablePolling, startApp, type TestApp } from '../support/harness.ts';
import { parseEvents } from '../support/sse.ts';
import { submit } from '../support/submit.ts';
import { postSubscription } from '../support/subscribe.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  bob = await app.user('bob');
  for (const name of ['acme', 'beta']) {
    await app.organization(name, { ada: 'ADMIN' });
    await create(name, 'code');
  }
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const create = async (namespace: string, name: string, more = ''): Promise<string> => {
  const { createRepository } = await ada.gql(
    `mutation { createRepository(input: {namespace: "${namespace}", name: "${name}" ${more}}) { repository { id } } }`,
  );
  return createRepository.repository.id;
};

// biome-ignore lint/suspicious/noExplicitAny: the assertions check each field.
type Event = any;

/** Yields events until the reader stops. */
async function* follow(client: Client, query: string): AsyncGenerator<Event> {
  const abort = new AbortController();
  const body = { query: `subscription { ${query} }` };
  const response = await postSubscription(client, body, abort.signal);
  try {
    if (!response.body) return;
    for await (const { event, data } of parseEvents(response.body)) {
      if (event !== 'next') continue;
      const { errors, data: told } = data as {
        errors?: { extensions: { code: string } }[];
        data: object;
      };
      yield errors ? { code: errors[0]?.extensions.code } : Object.values(told)[0];
    }
  } finally {
    abort.abort();
  }
}

async function take(events: AsyncGenerator<Event>, count: number): Promise<Event[]> {
  const seen: Event[] = [];
  for await (const event of events) if (seen.push(event) === count) break;
  return seen;
}

const FIELDS = `id cursor type repositoryId name fullName repository { name }
  push { pusher refCount refs { ref before after } }`;
const lastCursor = async () => {
  const { rows } = await app.app.services.pool.query('select max(seq)::int as seq from events');
  return rows[0].seq as number;
};

test('a push event arrives immediately and names the pusher and the changed refs', async () => {
  await create('ada', 'pushed');
  const before = app.app.services.bus.waiters;
  const events = follow(ada, `repositoryEvents(namespace: "ada", name: "PUSHED") { ${FIELDS} }`);
  const first = events.next();
  await eventually(() => expect(app.app.services.bus.waiters).toBeGreaterThan(before));
  await workspace.clone(ada, 'ada/pushed');
  const old = await workspace.git('pushed', 'rev-parse', 'HEAD');
  const sha = await workspace.commit('pushed', { a: 'a' });
  await workspace.git('pushed', 'push', '-q', 'origin', 'HEAD:main', 'HEAD:refs/heads/new');
  const { value: push } = await first;
  expect(push).toMatchObject({
    type: 'PUSHED',
    fullName: 'ada/pushed',
    repository: { name: 'pushed' },
    push: { pusher: 'ada', refCount: 2 },
  });
  expect(push.push.refs).toHaveLength(2);
  expect(push.push.refs).toContainEqual({ ref: 'refs/heads/main', before: old, after: sha });
  expect(push.push.refs).toContainEqual({ ref: 'refs/heads/new', before: null, after: sha });
  await workspace.git('pushed', 'push', '-q', 'origin', ':new');
  const { value: removal } = await events.next();
  expect(removal.push.refs).toEqual([{ ref: 'refs/heads/new', before: sha, after: null }]);
  // Once more, after the first event.
  const resumed = follow(
    ada,
    `repositoryEvents(namespace: "ada", name: "pushed", after: ${push.cursor}) { id }`,
  );
  expect(await take(resumed, 1)).toEqual([{ id: removal.id }]);
  await events.return(undefined);
});

test('one repository is followed through a transfer and until its deletion', async () => {
  // The reader is woken by events in any namespace.
  disablePolling(app);
  const after = await lastCursor();
  const id = await create('ada', 'wandering');
  const events = follow(
    ada,
    `repositoryEvents(namespace: "ada", name: "wandering", after: ${after}) { type fullName push { pusher } repository { id } }`,
  );
  expect((await events.next()).value).toEqual({
    type: 'CREATED',
    fullName: 'ada/wandering',
    push: null,
    repository: { id },
  });
  for (const change of [
    'renameRepository(input: {id: $id, name: "wandered"})',
    'changeRepositoryVisibility(input: {id: $id, visibility: INTERNAL})',
    'transferRepository(input: {id: $id, newNamespace: "acme"})',
  ])
    await ada.gql(`mutation ($id: ID!) { ${change} { repository { id } } }`, { id });
  await ada.gql('mutation ($id: ID!) { deleteRepository(input: {id: $id}) { id } }', { id });
  const rest: Event[] = [];
  for await (const event of events) rest.push(event);
  expect(rest.map(({ type, fullName }) => `${type} ${fullName}`)).toEqual([
    'RENAMED ada/wandered',
    'UPDATED ada/wandered',
    'TRANSFERRED acme/wandered',
    'DELETED acme/wandered',
  ]);
  expect(rest.at(-1).repository).toBeNull();
});

test('several namespaces are followed in one total order', async () => {
  const after = await lastCursor();
  for (const [namespace, name] of [
    ['acme', 'one'],
    ['beta', 'two'],
    ['ada', 'three'],
    ['acme', 'four'],
  ] as const)
    await create(namespace, name);
  const query = `repositoryEvents(namespaces: ["acme", "Beta", "acme"], after: ${after}) { fullName }`;
  const told = await take(follow(ada, query), 3);
  expect(told.map(({ fullName }) => fullName)).toEqual(['acme/one', 'beta/two', 'acme/four']);

  const jobs = follow(
    ada,
    `jobEvents(namespaces: ["acme", "beta"], after: ${after}) { type name }`,
  );
  for (const namespace of ['acme', 'beta'])
    await submit(ada, {
      namespace,
      repo: `${namespace}/code`,
      name: `in-${namespace}`,
      command: 'exit 0',
      gpu: 'T4',
    });
  expect(await take(jobs, 2)).toEqual([
    { type: 'QUEUED', name: 'in-acme' },
    { type: 'QUEUED', name: 'in-beta' },
  ]);
});

test('an invalid subscription is rejected with the reason', async () => {
  for (const [client, query, code] of [
    [ada, 'repositoryEvents { id }', 'INVALID_REQUEST'],
    [
      ada,
      'repositoryEvents(namespaces: ["ada", "acme"], name: "pushed") { id }',
      'INVALID_REQUEST',
    ],
    [ada, 'repositoryEvents(namespace: "none") { id }', 'NOT_FOUND'],
    [ada, 'repositoryEvents(namespace: "ada", name: "none") { id }', 'NOT_FOUND'],
    [ada, 'repositoryEvents(namespace: "ada", after: 99999999) { id }', 'INVALID_REQUEST'],
    [
      ada,
      `repositoryEvents(namespaces: [${Array.from({ length: 101 }, (_, i) => `"n${i}"`)}]) { id }`,
      'INVALID_REQUEST',
    ],
    [bob, 'repositoryEvents(namespaces: ["bob", "acme"]) { id }', 'PERMISSION_DENIED'],
    [app.anonymous, 'repositoryEvents(namespace: "acme") { id }', 'AUTHENTICATION_FAILED'],
    [ada, 'jobEvents { id }', 'INVALID_REQUEST'],
    [ada, 'jobEvents(namespaces: ["ada", "acme"], name: "x") { id }', 'INVALID_REQUEST'],
    [bob, 'jobEvents(namespaces: ["bob", "acme"]) { id }', 'PERMISSION_DENIED'],
  ] as const)
    expect(await take(follow(client, query), 1), query).toEqual([{ code }]);
});

test('anyone can follow a public repository until it becomes private', async () => {
  const id = await create('ada', 'open', 'visibility: PUBLIC');
  const events = follow(
    app.anonymous,
    `repositoryEvents(namespace: "ada", name: "open", after: 0) { type }`,
  );
  expect((await events.next()).value).toEqual({ type: 'CREATED' });
  await ada.gql(
    'mutation ($id: ID!) { changeRepositoryVisibility(input: {id: $id, visibility: PRIVATE}) { repository { id } } }',
    { id },
  );
  const last: Event[] = [];
  for await (const event of events) last.push(event);
  expect(last.at(-1)).toEqual({ code: 'AUTHENTICATION_FAILED' });
  expect(
    await take(follow(bob, 'repositoryEvents(namespace: "ada", name: "open") { type }'), 1),
  ).toEqual([{ code: expect.stringMatching(/NOT_FOUND|PERMISSION_DENIED/) }]);
});

test('a removed member gets an error and no further events', async () => {
  await app.admin.setMembers('acme', { bob: 'READ' });
  const events = follow(
    bob,
    'repositoryEvents(namespaces: ["bob", "acme"], after: 0) { fullName }',
  );
  expect((await events.next()).value).toEqual({ fullName: 'acme/code' });
  await app.admin.gql(
    'mutation { removeMember(input: {namespace: "acme", username: "bob"}) { id } }',
  );
  let last: Event;
  for await (const event of events) last = event;
  expect(last).toEqual({ code: 'PERMISSION_DENIED' });
  await eventually(() => expect(app.app.services.rechecks.streams).toBe(0));
});
