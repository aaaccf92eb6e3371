/**
 * The subject of a request is deleted while the request runs: before its first access to the database, before its second, and so
 * on. The request succeeds, or fails because the subject does not exist.
 */
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { newPublicKey } from '../support/ssh-key.ts';
import { submit, until } from '../support/submit.ts';

let app: TestApp;
/** With a token of its own, because lookups of one token are shared. */
let operator: Client;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ images: true }) } });
  operator = await app.admin.withToken({});
});
afterAll(() => app[Symbol.asyncDispose]());

/** `bob` is an admin of the organization, which has the repository `one` and the finished job `done`. */
type World = {
  bob: Client;
  username: string;
  organization: string;
  repositoryId: string;
  webhookId: string;
};
let worlds = 0;
const JOB = { command: 'true', image: 'alpine' };

async function createWorld(): Promise<World> {
  const [username, organization] = [`bob-${worlds}`, `acme-${worlds++}`];
  const bob = await app.user(username);
  await app.organization(organization, { [username]: 'ADMIN' });
  const repositoryId = await bob.repository(`${organization}/one`);
  const { createWebhook } = await bob.gql(
    `mutation ($organization: String!) {
      createWebhook(input: { name: "hook", namespaces: [$organization], url: "https://hooks.acme.example", eventTypes: [JOB_FAILED] }) {
        webhook { id } } }`,
    { organization },
  );
  await submit(bob, { ...JOB, namespace: organization, name: 'done' });
  await until(bob, organization, 'done', 'SUCCEEDED');
  return {
    bob,
    username,
    organization,
    repositoryId,
    webhookId: createWebhook.webhook.id,
  };
}

type Input = (world: World) => object;

const DELETIONS = {
  deleteUser: ({ username }) => ({ username }),
  deleteRepository: ({ repositoryId: id }) => ({ id }),
  deleteJob: ({ organization: namespace }) => ({ namespace, name: 'done' }),
  deleteWebhook: ({ webhookId: id }) => ({ id }),
} satisfies Record<string, Input>;

const rerun: Input = ({ organization: namespace }) => ({ namespace, name: 'done' });

/** A deletion, and the request that it interrupts. */
const CASES: [keyof typeof DELETIONS, caller: 'admin' | 'bob', mutation: string, Input][] = [
  ['deleteUser', 'admin', 'enableUser', ({ username }) => ({ username })],
  ['deleteUser', 'admin', 'disableUser', ({ username }) => ({ username })],
  ['deleteUser', 'admin', 'createAccessToken', ({ username }) => ({ username, name: 't' })],
  [
    'deleteUser',
    'admin',
    'setMember',
    ({ username, organization: namespace }) => ({ namespace, username, role: 'READ' }),
  ],
  ['deleteUser', 'bob', 'addSshKey', () => ({ title: 't', key: newPublicKey() })],
  ['deleteUser', 'bob', 'lockLfsFile', ({ repositoryId }) => ({ repositoryId, path: 'a.bin' })],
  [
    'deleteUser',
    'bob',
    'createJob',
    ({ organization: namespace }) => ({ ...JOB, namespace, name: 'new', gpu: 'NONE' }),
  ],
  ['deleteUser', 'bob', 'rerunJob', rerun],
  [
    'deleteRepository',
    'bob',
    'addDeployKey',
    ({ repositoryId }) => ({ repositoryId, title: 't', key: newPublicKey(), write: true }),
  ],
  [
    'deleteRepository',
    'bob',
    'setSecret',
    ({ organization: namespace }) => ({ namespace, repository: 'one', name: 'KEY', value: 'v' }),
  ],
  [
    'deleteJob',
    'bob',
    'setJobKept',
    ({ organization: namespace }) => ({ namespace, name: 'done', kept: true }),
  ],
  ['deleteJob', 'bob', 'rerunJob', rerun],
  ['deleteWebhook', 'bob', 'updateWebhook', ({ webhookId: id }) => ({ id, name: 'renamed' })],
  ['deleteWebhook', 'bob', 'testWebhook', ({ webhookId: id }) => ({ id })],
];

function send(client: Client, mutation: string, input: object) {
  const type = `${mutation.charAt(0).toUpperCase()}${mutation.slice(1)}Input!`;
  const query = `mutation ($input: ${type}) { ${mutation}(input: $input) { __typename } }`;
  return client.graphql(query, { input });
}

/** Runs `action` before the server's access to the database with this index. */
function interpose(index: number, action: () => Promise<unknown>): void {
  const connect = app.pool.connect.bind(app.pool);
  let accesses = 0;
  vi.spyOn(app.pool, 'connect').mockImplementation(async (callback?: Callback) => {
    if (accesses++ === index) await action();
    return callback ? connect(callback) : connect();
  });
}
type Callback = Parameters<TestApp['pool']['connect']>[0];

test.each(CASES)('%s during a request of %s: %s', async (deletion, caller, mutation, input) => {
  for (let index = 0, isOver = false; !isOver; index++) {
    const world = await createWorld();
    const client = caller === 'admin' ? app.admin : world.bob;
    let deleted: ReturnType<typeof send> | undefined;
    interpose(index, () => {
      deleted = send(operator, deletion, DELETIONS[deletion](world));
      return deleted;
    });
    const { errors = [] } = await send(client, mutation, input(world));
    vi.restoreAllMocks();
    expect((await deleted)?.errors, `access ${index}`).toBeUndefined();
    for (const { extensions } of errors)
      expect(['NOT_FOUND', 'AUTHENTICATION_FAILED'], `access ${index}`).toContain(extensions.code);
    isOver = !deleted;
  }
});
