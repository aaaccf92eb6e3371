/** `loam listen`: events arrive at a local address as the messages of a webhook. */
import { Webhook } from 'standardwebhooks';
import { expect, test } from 'vitest';
import { openCuttableProxy } from '../support/cut.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { startLocalReceiver } from '../support/local-receiver.ts';
import { needs } from '../support/needs.ts';
import { submit, until } from '../support/submit.ts';
import { makeAuthority, startReceiver } from '../support/webhook-receiver.ts';

const createRepository = (client: Client, name: string) =>
  client.post('/auth/v1/repository/ada', { name });

/** Changes the record of a repository. */
async function describe(client: Client, name: string): Promise<void> {
  const { repository } = await client.gql(
    `{ repository(namespace: "ada", name: "${name}") { id } }`,
  );
  await client.gql(
    'mutation ($id: ID!) { updateRepository(input: {id: $id, description: "x"}) { repository { id } } }',
    repository,
  );
}

/** Waits until the listener has its cursor: later events are not missed. */
const READY = /Events of .* on .*:\n/;

test('a local program gets what a webhook sends', async (ctx) => {
  needs(ctx, 'openssl');
  await using authority = await makeAuthority();
  await using receiver = await startReceiver(authority);
  await using local = await startLocalReceiver();
  const webhooks = { allow: ['127.0.0.1'], authorities: authority.file };
  await using app = await startApp({ config: { webhooks } });
  const ada = await app.user('ada');
  await using user = await LoamUser.open(ada);
  const secret = (
    await user.loam([
      ...['webhooks', 'create', `${receiver.url}/hook?from=loam`],
      ...['--events', 'repository.created,repository.pushed,job.queued,job.running,job.completed'],
    ])
  ).trim();
  await createRepository(ada, 'before');
  await eventually(() => expect(receiver.received).toHaveLength(1));

  const listener = user.start(['listen', '--forward', local.url], {
    env: { LOAM_WEBHOOK_SECRET: secret },
  });
  await listener.said(READY);
  await createRepository(ada, 'model');
  await submit(ada, { namespace: 'ada', name: 'train', repo: 'ada/model', command: 'exit 0' });
  await until(ada, 'ada', 'train', 'SUCCEEDED');
  await describe(ada, 'model');
  const types = ['repository.created', 'job.queued', 'job.running', 'job.completed'];
  await eventually(() => expect(local.received).toHaveLength(types.length));
  await eventually(() => expect(receiver.received).toHaveLength(types.length + 1));

  const names = (one: { rawHeaders: string[] }) => one.rawHeaders.filter((_, at) => at % 2 === 0);
  for (const [at, one] of local.received.entries()) {
    const sent = receiver.received.find(
      ({ headers }) => headers['webhook-id'] === one.headers['webhook-id'],
    );
    const verified = new Webhook(secret).verify(one.body, one.headers as Record<string, string>);
    expect(verified).toMatchObject({ type: types[at], namespace: 'ada' });
    expect(withoutSignatures(one.body)).toBe(withoutSignatures(sent?.body ?? ''));
    expect(one.path).toBe(sent?.path);
    const { host: _, 'webhook-timestamp': __, 'webhook-signature': ___, ...own } = one.headers;
    const { 'x-service-signature': ofBody, ...same } = own;
    const { 'x-service-signature': ____, ...expected } = sent?.headers ?? {};
    expect({ ...same, host: '' }).toEqual({
      ...expected,
      host: '',
      'webhook-timestamp': undefined,
      'webhook-signature': undefined,
    });
    expect(ofBody).toMatch(/^sha256=[0-9a-f]{64}$/);
    expect(names(one)).toContain('X-Service-Signature');
  }

  await eventually(() => expect(listener.stdout.trim().split('\n')).toHaveLength(5));
  const rows = listener.stdout.split('\n').map((line) => line.split('\t').slice(1));
  expect(rows.slice(0, 4).map(([type, subject, status]) => [type, subject, status])).toEqual([
    ['repository.created', 'ada/model', '204'],
    ['job.queued', 'ada/train', '204'],
    ['job.running', 'ada/train', '204'],
    ['job.completed', 'ada/train', '204'],
  ]);
  // Webhooks do not send this type.
  expect(rows[4]).toEqual(['repository.updated', 'ada/model', '', '']);
  expect(listener.stderr).not.toContain('secret of this session');
  listener.child.kill('SIGINT');
  const { code, stderr } = await listener.result();
  expect([code, stderr]).toEqual([130, expect.stringMatching(/add --after \d+\n$/)]);
});

/** Links to artifacts are signed for each attempt. */
const withoutSignatures = (body: string) => body.replaceAll(/(?:expires|signature)=[^&"]+/g, '');

test('each event comes once and in order through restarts of the server and cuts of the network', async () => {
  await using app = await startApp();
  await using proxy = openCuttableProxy();
  await using local = await startLocalReceiver();
  const ada = await app.user('ada');
  const address = await proxy.before(Number(new URL(app.base).port));
  await using user = await LoamUser.open();
  const env = { LOAM_URL: `http://${address}`, LOAM_TOKEN: ada.token };
  const listener = user.start(['listen', '--forward', local.url, '--json'], { env });
  await listener.said(READY);
  const [, secret = ''] = await listener.said(/The secret of this session is (whsec_\S+)\n/);

  let made = 0;
  const create = async (count: number) => {
    for (let more = count; more > 0; more--) {
      const { status } = await createRepository(ada, `r${made}`);
      expect(status).toBe(201);
      made++;
    }
  };
  const arrived = () => eventually(() => expect(local.received).toHaveLength(made));
  // Before the first event, too.
  await app.restart();
  await create(3);
  await arrived();
  await proxy.cut();
  await listener.said(/Cannot reach .*\. Events continue when it is back\.\n/);
  await create(150);
  await proxy.mend();
  await listener.said(/Connected to .* again\.\n/);
  await create(3);
  await app.restart();
  await create(3);
  await arrived();

  const bodies = local.received.map(
    ({ body, headers }) =>
      new Webhook(secret).verify(body, headers as Record<string, string>) as {
        data: { name: string };
      },
  );
  const expected = Array.from({ length: made }, (_, at) => `r${at}`);
  expect(bodies.map(({ data }) => data.name)).toEqual(expected);
  await eventually(() => expect(listener.stdout.trim().split('\n')).toHaveLength(made));
  const printed = listener.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(printed.map(({ data }) => data.name)).toEqual(expected);
  expect(printed[0]).toMatchObject({ type: 'repository.created', delivery: { status: 204 } });
  listener.child.kill('SIGINT');
  await listener.result();

  // By its cursor, another listener begins where one wants.
  const later = user.start(['listen', '--after', `${printed.at(-4).cursor}`], { env });
  await eventually(() => expect(later.stdout.trim().split('\n')).toHaveLength(3));
  expect(later.stdout).toContain(`ada/r${made - 1}\t\t\n`);
  later.child.kill('SIGTERM');
  expect((await later.result()).code).toBe(130);
});

test('a post that fails is shown, and not repeated', async () => {
  await using app = await startApp();
  const ada = await app.user('ada');
  await using user = await LoamUser.open(ada);
  let isBroken = true;
  await using local = await startLocalReceiver(() => (isBroken ? 500 : 302));
  const target = `127.0.0.1:${local.port}`;
  const options = ['--events', 'repository.created', '--namespace', 'ada'];
  const listener = user.start(['listen', '--forward', target, ...options]);
  await listener.said(READY);
  await createRepository(ada, 'one');
  await eventually(() => expect(listener.stdout).toMatch(/ada\/one\t500\t\d+ ms\n/));
  isBroken = false;
  await describe(ada, 'one');
  await createRepository(ada, 'two');
  await eventually(() => expect(listener.stdout).toMatch(/ada\/two\t302\t\d+ ms\n/));
  expect(local.received.map(({ path }) => path)).toEqual(['/', '/']);
  await local[Symbol.asyncDispose]();
  await createRepository(ada, 'three');
  await eventually(() => expect(listener.stdout).toMatch(/ada\/three\tECONNREFUSED\t\d+ ms\n/));
  expect(listener.stdout.split('\n')).toHaveLength(4);
  listener.child.kill('SIGINT');
  await listener.result();
});

test('what cannot be followed is refused', async () => {
  await using app: TestApp = await startApp();
  const ada = await app.user('ada');
  await app.user('bob');
  await using user = await LoamUser.open(ada);
  const codes = async (...options: string[]) => {
    const { code, stdout, stderr } = await user.run(['listen', ...options]);
    expect([stdout, stderr]).toEqual(['', expect.stringMatching(/\S/)]);
    return code;
  };
  expect(await codes('--events', 'job.exploded')).toBe(2);
  expect(await codes('--forward', 'ftp://localhost')).toBe(2);
  expect(await codes('--after', '-1')).toBe(2);
  expect(await codes('--forward', 'localhost:9', '--secret', 'whsec_!')).toBe(2);
  expect(await codes('--namespace', 'nobody')).toBe(1);
  expect(await codes('--namespace', 'bob')).toBe(5);
  expect(await codes('--after', '999999999')).toBe(1);
});
