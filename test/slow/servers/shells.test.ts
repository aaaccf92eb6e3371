/** A shell in a job of another process: it goes through a tunnel to the worker. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { App } from '../../../src/app.ts';
import type { Config } from '../../../src/base/config/config.ts';
import { AppVisitor, openPort, serveApp } from '../../support/app-visitor.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import type { Client } from '../../support/harness.ts';
import { joinMachine } from '../../support/joined-machine.ts';
import { needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { startServers } from '../../support/servers.ts';
import { shellSocket } from '../../support/shell-socket.ts';
import { sshUser } from '../../support/ssh-client.ts';
import { cancel, submit, until } from '../../support/submit.ts';

/** A server without jobs, and a worker. */
async function startBoth(runner: Config['runner']) {
  await using cleanup = new AsyncDisposableStack();
  const ssh = { host: '127.0.0.1', port: 0 };
  const config = { role: 'serve', ssh } as const;
  const servers = cleanup.use(await startServers(1, { config }));
  const [client] = servers.clients as [Client];
  const [server] = servers.apps as [App];
  const worker = await servers.work('worker', { config: { runner } });
  const { members } = server.services.cluster;
  const workerId = worker.services.cluster.members.id;
  await eventually(() => expect(members.find(workerId)).toBeDefined());
  await client.post('/auth/v1/repository/admin', { name: 'code', auto_init: true });
  const workspace = cleanup.use(await Workspace.open());
  const user = await sshUser(client, workspace, server.ssh?.port ?? 0);
  const owned = cleanup.move();
  return {
    client,
    server,
    run: (line: string, input = '') => user.ssh([line], input, { user: 'admin/far' }),
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

async function showShells({ client, server, run }: Awaited<ReturnType<typeof startBoth>>) {
  const command = 'sleep 600 & wait';
  await submit(client, { namespace: 'admin', repo: 'admin/code', name: 'far', command });
  await until(client, 'admin', 'far', 'RUNNING');
  await eventually(async () =>
    expect(await run('echo here')).toEqual({ code: 0, stdout: 'here\n', stderr: '' }),
  );
  const text = 'line\n'.repeat(100_000);
  expect(await run('cat; echo bad >&2; exit 3', text)).toEqual({
    code: 3,
    stdout: text,
    stderr: 'bad\n',
  });
  const watched = run('sleep 601');
  const list = async () => {
    const { job } = await client.gql(
      '{ job(namespace: "admin", name: "far") { shells { id command } } }',
    );
    return job.shells;
  };
  await eventually(async () => expect(await list()).toMatchObject([{ command: 'sleep 601' }]));
  const [{ id }] = await list();
  await client.gql('mutation ($id: ID!) { endJobShell(input: { id: $id }) { id } }', { id });
  expect(await watched).toMatchObject({
    code: 255,
    stderr: 'loam: The shell was ended by admin\n',
  });
  expect(await list()).toEqual([]);
  const held = run('echo up; sleep 600');
  await eventually(async () => {
    const { rows } = await server.services.pool.query(
      `select from audit_entries where action = 'job.shell' and details ->> 'command' like 'echo up%'`,
    );
    expect(rows).toHaveLength(1);
  });
  await cancel(client, 'admin', 'far');
  expect((await held).code).not.toBe(0);
}

test('a shell leads to the worker of the job, and ends with the job', async (ctx) => {
  needs(ctx, 'ssh');
  await using both = await startBoth('process');
  await showShells(both);
});

test('a machine opens the session at any server, which leads it to the worker that waits', async (ctx) => {
  needs(ctx, 'ssh');
  await using both = await startBoth('none');
  const { client, server } = both;
  const dir = await mkdtemp(join(tmpdir(), 'loam-machine-'));
  onTestFinished(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  await using _ = await joinMachine({ admin: client, base: client.base }, { dir, name: 'box' });
  await showShells(both);
  // Otherwise the worker would wait for the machine when it stops.
  await eventually(async () => expect(await readdir(join(dir, 'attempts'))).toEqual([]));
  // Only as an upgrade.
  const { id } = await server.services.db.jobAttempt.findFirstOrThrow({});
  expect((await fetch(`${client.base}/agents/${id}/exec?session=x`)).status).toBe(404);
});

test('a shell over a WebSocket leads to the worker of the job', async () => {
  await using servers = await startServers(1, { config: { role: 'serve' } });
  const [client] = servers.clients as [Client];
  const [server] = servers.apps as [App];
  const worker = await servers.work('worker', { config: { runner: 'process' } });
  const { members } = server.services.cluster;
  const workerId = worker.services.cluster.members.id;
  await eventually(() => expect(members.find(workerId)).toBeDefined());
  await client.post('/auth/v1/repository/admin', { name: 'code', auto_init: true });
  const command = 'sleep 600 & wait';
  await submit(client, { namespace: 'admin', repo: 'admin/code', name: 'far', command });
  await until(client, 'admin', 'far', 'RUNNING');
  const text = 'line\n'.repeat(100_000);
  await eventually(async () => {
    using shell = await shellSocket(client, 'admin/far');
    shell.exec({ command: 'cat; echo bad >&2; exit 3' }).data(text).end();
    await shell.closed;
    expect([shell.code, `${shell.stdout}`, shell.stderr]).toEqual([3, text, 'bad\n']);
  });
  using shell = await shellSocket(client, 'admin/far');
  shell.exec({ terminal: { columns: 77, rows: 33 } }).data('stty size\n');
  await eventually(() => expect(`${shell.stdout}`).toMatch(/33 77/));
  await worker[Symbol.asyncDispose]();
  await shell.closed;
  expect(shell.code).not.toBe(0);
});

test('a program is opened in the browser at any server', async (ctx) => {
  needs(ctx, 'python3');
  const appsDomain = { name: 'apps.localhost' };
  const config = { role: 'serve', jobShell: 'on', appsDomain } as const;
  await using servers = await startServers(2, { config });
  const [admin, other] = servers.clients as [Client, Client];
  const worker = await servers.work('worker', { config: { runner: 'process', jobShell: 'on' } });
  const workerId = worker.services.cluster.members.id;
  for (const { services } of servers.apps)
    await eventually(() => expect(services.cluster.members.find(workerId)).toBeDefined());
  await admin.gql(
    `mutation { createUser(input: {username: "ada", email: "a@example.com", plan: UNLIMITED}) { user { id } } }`,
  );
  const ada = await admin.withToken({ username: 'ada' });
  await ada.repository('ada/code');
  const port = await freePort();
  await serveApp(ada, 'far', port);
  const url = new URL(await openPort(ada, 'far', port));
  url.port = new URL(other.base).port;
  const visitor = await AppVisitor.signIn(url.href);
  const body = randomBytes(5 * 2 ** 20);
  const sent = createHash('sha256').update(body).digest('hex');
  expect((await visitor.get('/digest', { method: 'POST', body })).text).toBe(
    `${body.length} ${sent}`,
  );
  expect((await visitor.get(`/bytes?${2 ** 20}`)).bytes).toHaveLength(2 ** 20);
  const socket = await visitor.webSocket();
  socket.send('far away');
  expect(String((await once(socket, 'message'))[0])).toBe('far away');
  await Promise.all([once(socket, 'close'), worker[Symbol.asyncDispose]()]);
  expect((await visitor.get('/')).status).toBe(503);
  // With the worker, which is gone, its job would be left.
  await cancel(ada, 'ada', 'far');
  expect((await visitor.get('/')).status).toBe(410);
});
