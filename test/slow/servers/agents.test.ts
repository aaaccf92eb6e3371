/** Agents of clusters that reach their worker through another server. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { App } from '../../../src/app.ts';
import { SIGNATURE_HEADER, sign } from '../../../src/cluster/signature.ts';
import { oneMachine } from '../../../src/runners/agent/engine.ts';
import { PROGRAM_PATH } from '../../../src/runners/agent/program.ts';
import { LEASE_MS } from '../../../src/runners/agent/protocol.ts';
import { openAgentRunner } from '../../../src/runners/agent/runner.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import type { Client } from '../../support/harness.ts';
import { LoopbackEngine } from '../../support/loopback-engine.ts';
import { type Servers, startServers } from '../../support/servers.ts';
import { cancel, job, lines, submit, until } from '../../support/submit.ts';

/** A worker whose agents are told to send everything to `agentUrl`. */
async function openClusterRunner({ folder }: Servers, agentUrl: string) {
  const engine = new LoopbackEngine(join(folder, 'nodes'));
  const runner = await openAgentRunner({
    engine,
    name: 'cluster',
    dir: join(folder, 'worker/clusters/cluster'),
    placement: oneMachine(engine, { id: 'cluster', maxJobs: 4 }),
    agentUrl,
    leaseMs: LEASE_MS,
  });
  const findSession = runner.findSession.bind(runner);
  return Object.assign(runner, { agents: { findSession, program: PROGRAM_PATH } });
}

test('agents reach the worker that has their attempt through any server', async () => {
  await using servers = await startServers(1, { config: { role: 'serve' } });
  const [client] = servers.clients as [Client];
  const [server] = servers.apps as [App];
  await using runner = await openClusterRunner(servers, client.base);
  const worker = await servers.work('worker', { overrides: { runner } });
  await eventually(() =>
    expect(server.services.cluster.members.find(worker.services.cluster.members.id)).toBeDefined(),
  );
  await client.post('/auth/v1/repository/admin', { name: 'code', auto_init: true });
  await using work = await Workspace.open();
  await work.clone(client, 'admin/code', 'code');
  await work.commit('code', { 'a.txt': 'from the repository\n' });
  await work.git('code', 'push', '-q', 'origin', 'HEAD:main');
  const run = (name: string, command: string, more: object = {}) =>
    submit(client, { namespace: 'admin', repo: 'admin/code', name, command, ...more });

  const command = 'cat a.txt; seq 2000; mkdir out; head -c 5000000 /dev/urandom > out/large';
  await run('whole', command, { outputPath: 'out' });
  const whole = await until(client, 'admin', 'whole', 'SUCCEEDED');
  expect(whole).toMatchObject({ exitCode: 0, artifacts: { fileCount: 1 } });
  const [first, ...numbers] = await lines(client, 'admin', 'whole');
  expect([first, numbers.length]).toEqual(['from the repository', 2000]);

  await run('cancelled', 'trap "echo asked; exit 7" TERM; echo up; sleep 600 & wait');
  await eventually(async () => expect(await lines(client, 'admin', 'cancelled')).toEqual(['up']));
  const attempt = await server.services.db.jobAttempt.findFirstOrThrow({
    where: { endedAt: null },
  });
  const path = `/agents/${attempt.id}/control`;
  const send = async (base: string, headers: Record<string, string> = {}, at = path) => {
    const authorization = 'Bearer forged';
    const response = await fetch(base + at, { headers: { authorization, ...headers } });
    return { status: response.status, text: await response.text() };
  };
  // The worker checks the token, and the server sends nothing on that another process has forwarded.
  expect(await send(client.base)).toMatchObject({ status: 401 });
  expect(await send(client.base, {}, '/agents/att_unknown/control')).toMatchObject({ status: 410 });
  const signature = sign(server.services.cluster.key, ['forward', 'GET', path, '192.0.2.1']);
  const forwarded = { 'loam-client-address': '192.0.2.1', [SIGNATURE_HEADER]: signature };
  expect(await send(client.base, forwarded)).toMatchObject({ status: 503 });
  expect(await send(worker.address, forwarded)).toMatchObject({ status: 401 });

  await cancel(client, 'admin', 'cancelled');
  await eventually(async () =>
    expect(await job(client, 'admin', 'cancelled')).toMatchObject({ exitCode: 7 }),
  );

  // The agent goes on while its worker is away.
  await run('waiting', 'echo up; sleep 600');
  await eventually(async () => expect(await lines(client, 'admin', 'waiting')).toEqual(['up']));
  const { id } = await server.services.db.jobAttempt.findFirstOrThrow({ where: { endedAt: null } });
  await worker[Symbol.asyncDispose]();
  await eventually(async () =>
    expect(await send(client.base, {}, `/agents/${id}/control`)).toMatchObject({
      status: 503,
      text: expect.stringContaining('LOAM_INTERNAL_URL'),
    }),
  );
});
