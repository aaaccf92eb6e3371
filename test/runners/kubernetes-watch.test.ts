/** Following pods, against a stand-in for the API server that says what real ones say only after minutes. */
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { connectToCluster } from '../../src/runners/kubernetes/api.ts';
import { PodWatch } from '../../src/runners/kubernetes/pod-watch.ts';
import { RunnerUnavailable } from '../../src/runners/runner.ts';
import { eventually } from '../support/eventually.ts';

type Watching = { version: string; response: ServerResponse };

/** `lists`: an answer to each list, the last one again and again. */
async function openApiServer(lists: { version: string; names: string[] }[]) {
  const requests: string[] = [];
  const watching: Watching[] = [];
  /** Statuses of the next watches, instead of 200. */
  const failures: number[] = [];
  const sockets = new Set<unknown>();
  const server = createServer((request, response) => {
    const { searchParams } = new URL(request.url ?? '', 'http://localhost');
    const version = searchParams.get('resourceVersion') ?? '';
    response.setHeader('content-type', 'application/json');
    if (searchParams.has('watch')) {
      requests.push(`watch ${version}`);
      const status = failures.shift();
      if (status !== undefined) return void response.writeHead(status).end('{}');
      response.writeHead(200).flushHeaders();
      watching.push({ version, response });
      return;
    }
    requests.push('list');
    const [list = { version: '', names: [] }] = lists.length > 1 ? lists.splice(0, 1) : lists;
    const { version: listed, names } = list;
    const items = names.map((name) => podOf(name, listed));
    response.end(JSON.stringify({ metadata: { resourceVersion: listed }, items }));
  }).listen(0, '127.0.0.1');
  server.on('connection', (socket) => sockets.add(socket));
  await once(server, 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, requests, watching, failures, sockets };
}

function podOf(name: string, resourceVersion: string) {
  return {
    metadata: { name, uid: `uid-${name}`, resourceVersion },
    spec: { containers: [] },
    status: {},
  };
}

async function openWatch(url: string) {
  const folder = await mkdtemp(join(tmpdir(), 'loam-kubeconfig-'));
  const kubeconfig = join(folder, 'config');
  // The client refuses HTTP unless TLS need not be verified.
  const cluster = { server: url, 'insecure-skip-tls-verify': true };
  await writeFile(
    kubeconfig,
    JSON.stringify({
      'current-context': 'c',
      contexts: [{ name: 'c', context: { cluster: 'k', user: 'u', namespace: 'jobs' } }],
      clusters: [{ name: 'k', cluster }],
      users: [{ name: 'u', user: { token: 't' } }],
    }),
  );
  const events: string[] = [];
  const errors: Error[] = [];
  const api = connectToCluster({ kubeconfig });
  const watch = new PodWatch({
    api,
    workerLabel: 'w1',
    events: {
      onPod: ({ metadata }) => events.push(`pod ${metadata?.name}`),
      onDeleted: ({ name }, last) => events.push(`${last ? 'deleted' : 'vanished'} ${name}`),
      onConnected: () => events.push('connected'),
      onError: (error) => errors.push(error),
    },
  });
  onTestFinished(async () => {
    await Promise.all([watch[Symbol.asyncDispose](), api[Symbol.asyncDispose]()]);
    await rm(folder, { recursive: true });
  });
  watch.start();
  return { events, errors };
}

const send = ({ response }: Watching, type: string, object: object) =>
  response.write(`${JSON.stringify({ type, object })}\n`);

test('a watch that ends is resumed at its last version', async () => {
  const server = await openApiServer([{ version: '10', names: ['a'] }]);
  const { events, errors } = await openWatch(server.url);
  await eventually(() => expect(events).toEqual(['pod a', 'connected']));
  const [first] = server.watching as [Watching];
  send(first, 'ADDED', podOf('b', '11'));
  send(first, 'BOOKMARK', podOf('', '15'));
  first.response.end();
  await eventually(() => expect(server.watching).toHaveLength(2));
  const second = server.watching[1] as Watching;
  send(second, 'DELETED', podOf('b', '16'));
  await eventually(() => expect(events.at(-1)).toBe('deleted b'));
  expect(server.requests).toEqual(['list', 'watch 10', 'watch 15']);
  expect(errors).toEqual([]);
});

test.each(['as an event', 'as a status'])(
  'when the server has forgotten the version, %s, pods are listed again',
  async (how) => {
    const server = await openApiServer([
      { version: '10', names: ['a', 'b'] },
      { version: '50', names: ['b'] },
    ]);
    const { events, errors } = await openWatch(server.url);
    await eventually(() => expect(server.watching).toHaveLength(1));
    const [first] = server.watching as [Watching];
    if (how === 'as a status') server.failures.push(410);
    else send(first, 'ERROR', { code: 410, reason: 'Expired', message: 'too old' });
    first.response.end();
    await eventually(() => expect(server.watching).toHaveLength(2));
    await eventually(() => expect(events.at(-1)).toBe('connected'));
    expect(server.watching[1]?.version).toBe('50');
    expect(events).toEqual(['pod a', 'pod b', 'connected', 'pod b', 'vanished a', 'connected']);
    expect(errors).toEqual([]);
  },
);

test('errors are reported, and the watch goes on when the server answers', async () => {
  const server = await openApiServer([{ version: '10', names: [] }]);
  server.failures.push(500, 503);
  const { events, errors } = await openWatch(server.url);
  await eventually(() => expect(events).toEqual(['connected']));
  expect(errors).toHaveLength(2);
  for (const error of errors) expect(error).toBeInstanceOf(RunnerUnavailable);
  // The requests share connections: a watch has one, and the others another.
  expect(server.sockets.size).toBeLessThanOrEqual(2);
});
