/** Requests to a container engine: their time limit, and their independence of the environment. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import type Docker from 'dockerode';
import { expect, onTestFinished, test, vi } from 'vitest';
import { connect } from '../../../src/runners/docker/engine.ts';
import { RunnerAway } from '../../../src/runners/runner.ts';
import { DOCKER } from '../../support/docker.ts';
import { engineProxy } from '../../support/engine-proxy.ts';
import { eventually } from '../../support/eventually.ts';
import { needs } from '../../support/needs.ts';

const REQUESTS: Record<string, (docker: Docker) => Promise<unknown>> = {
  'a ping': (docker) => docker.ping(),
  'its version': (docker) => docker.version(),
  'what it is': (docker) => docker.info(),
  'a container': (docker) => docker.getContainer('one').inspect(),
  'the start of a container': (docker) => docker.getContainer('one').start(),
  'an image': (docker) => docker.getImage('one').inspect(),
  'a network': (docker) => docker.getNetwork('one').inspect(),
  'all networks': (docker) => docker.listNetworks(),
};

test('requests to a frozen engine are aborted at their time limit, with their connections', async () => {
  const open = new Set<Socket>();
  const frozen = createServer((socket) => {
    open.add(socket);
    socket.resume();
    socket.on('error', () => {});
    socket.on('close', () => open.delete(socket));
  });
  frozen.listen(0, '127.0.0.1');
  await once(frozen, 'listening');
  onTestFinished(async () => {
    for (const socket of open) socket.destroy();
    frozen.close();
    await once(frozen, 'close');
  });
  const { port } = frozen.address() as AddressInfo;
  const engine = connect({ ...DOCKER, host: `tcp://127.0.0.1:${port}` });
  const all = Object.entries(REQUESTS).map(([what, request]) =>
    expect(engine.call(request, 500), what).rejects.toThrow(RunnerAway),
  );
  await eventually(() => expect(open.size).toBe(all.length));
  await Promise.all(all);
  await eventually(() => expect(open.size).toBe(0));
});

test("Docker's environment variables affect a connection only through the configuration", async (ctx) => {
  needs(ctx, 'docker');
  await using proxy = await engineProxy(DOCKER.host);
  vi.stubEnv('DOCKER_HOST', 'tcp://192.0.2.1:2375');
  vi.stubEnv('DOCKER_TLS_VERIFY', '1');
  vi.stubEnv('DOCKER_CERT_PATH', '/nonexistent');
  vi.stubEnv('DOCKER_PATH_PREFIX', '/elsewhere');
  // dockerode reads it in milliseconds.
  vi.stubEnv('DOCKER_CLIENT_TIMEOUT', '1');
  onTestFinished(() => void vi.unstubAllEnvs());
  for (const host of [proxy.host, DOCKER.host]) {
    const { Version } = await connect({ ...DOCKER, host }).call((docker) => docker.version());
    expect(Version).toMatch(/^\d/);
  }
});
