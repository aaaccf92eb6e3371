/** What the engine does without permissions, against a stand-in for the API server that grants and refuses them. */
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { json } from 'node:stream/consumers';
import { pino } from 'pino';
import { expect, onTestFinished, test, vi } from 'vitest';
import { kubernetesOptions } from '../../src/base/config/kubernetes.ts';
import type { Submission } from '../../src/runners/agent/engine.ts';
import { openKubernetesEngine } from '../../src/runners/kubernetes/engine.ts';
import { RunnerUnavailable, Unstartable } from '../../src/runners/runner.ts';
import { eventually } from '../support/eventually.ts';

const ALL = [
  ...['create', 'get', 'list', 'watch', 'delete'].map((verb) => `pods ${verb}`),
  ...['secrets create', 'events list', 'nodes list'],
  ...['networkpolicies create', 'networkpolicies update'],
];

/** `granted`: resource and verb. `refusals`: messages of the next refusals of pods, for reasons of the job. */
async function openApiServer() {
  const granted = new Set(ALL);
  const refusals: string[] = [];
  const answer = (response: ServerResponse, status: number, body: object) =>
    void response
      .writeHead(status, { 'content-type': 'application/json' })
      .end(JSON.stringify(body));
  const refuse = (response: ServerResponse, message: string) =>
    answer(response, 403, { kind: 'Status', reason: 'Forbidden', message });
  const serve = async (request: IncomingMessage, response: ServerResponse) => {
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://localhost');
    const body = request.method === 'POST' ? ((await json(request)) as never) : {};
    if (pathname.endsWith('/selfsubjectaccessreviews')) {
      const { resource, verb } = (body as { spec: { resourceAttributes: Record<string, string> } })
        .spec.resourceAttributes;
      return answer(response, 201, { status: { allowed: granted.has(`${resource} ${verb}`) } });
    }
    const resource = /\/(pods|secrets|events|nodes|networkpolicies)/.exec(pathname)?.[1] ?? '';
    const isNamed = !pathname.endsWith(resource);
    const verb = {
      POST: 'create',
      PUT: 'update',
      DELETE: 'delete',
      GET: searchParams.has('watch') ? 'watch' : isNamed ? 'get' : 'list',
    }[request.method ?? ''];
    if (!granted.has(`${resource} ${verb}`))
      return refuse(
        response,
        `${resource} is forbidden: User "loam" cannot ${verb} resource "${resource}" in API group ""`,
      );
    const refusal = resource === 'pods' && verb === 'create' ? refusals.shift() : undefined;
    if (refusal !== undefined) return refuse(response, refusal);
    if (verb === 'watch') return void response.writeHead(200).flushHeaders();
    if (verb === 'list')
      return answer(response, 200, { metadata: { resourceVersion: '1' }, items: [] });
    answer(response, 201, body);
  };
  const server = createServer((request, response) => void serve(request, response));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, granted, refusals };
}

async function openEngine(url: string, config: object = { maxCpus: 1, maxMemoryGb: 1 }) {
  const folder = await mkdtemp(join(tmpdir(), 'loam-kubeconfig-'));
  const kubeconfig = join(folder, 'config');
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
  const logged: string[] = [];
  const sink = new Writable({
    write(chunk, _encoding, done) {
      logged.push(JSON.parse(String(chunk)).msg);
      done();
    },
  });
  const engine = await openKubernetesEngine({
    config: kubernetesOptions.parse({ kubeconfig, ...config }),
    worker: 'w1',
    agentUrl: 'http://127.0.0.1:3000',
    log: pino(sink),
  });
  onTestFinished(async () => {
    await engine[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });
  return { engine, logged };
}

const SUBMISSION: Submission = {
  attempt: 'att_01',
  machine: 'cluster',
  job: { id: 'job_01', name: 'train', namespace: 'ada' },
  agent: { url: 'http://127.0.0.1:3000/agents', token: 't' },
  image: null,
  hardware: {
    gpu: 'none',
    gpuCount: 1,
    cpu: 2,
    memoryGb: 1,
    diskGb: 1,
    region: 'us-east-1',
  },
  cpus: 1,
  memoryBytes: 2 ** 30,
  timeoutMs: 60_000,
};

/** The engine looks missing permissions up again after a while, which passes at once here. */
function skipTheWait() {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'], shouldAdvanceTime: true });
  onTestFinished(() => void vi.useRealTimers());
}

test('a cluster whose permissions are missing takes no jobs, says which, and takes jobs when they are granted', async () => {
  skipTheWait();
  const server = await openApiServer();
  for (const permission of ['pods create', 'pods delete', 'secrets create', 'nodes list'])
    server.granted.delete(permission);
  const { engine, logged } = await openEngine(server.url, {});
  const reason =
    'Loam has no permission for pods (create, delete), secrets (create) in the namespace jobs and nodes (list) (docs/clusters.md)';
  expect(engine.unavailableReason).toBe(reason);
  expect(logged).toEqual([`Kubernetes takes no jobs: ${reason}`]);
  for (const permission of ALL) server.granted.add(permission);
  await vi.advanceTimersByTimeAsync(10_000);
  await eventually(() => expect(engine.unavailableReason).toBeUndefined());
  expect(logged.slice(1)).toEqual(['Kubernetes takes jobs again']);
});

test.each(['list', 'watch'])('without the permission to %s pods, it is named', async (verb) => {
  const server = await openApiServer();
  server.granted.delete(`pods ${verb}`);
  const { engine } = await openEngine(server.url);
  expect(engine.unavailableReason).toBe(
    `Loam has no permission for pods (${verb}) in the namespace jobs (docs/clusters.md)`,
  );
  server.granted.add(`pods ${verb}`);
  await eventually(() => expect(engine.unavailableReason).toBeUndefined());
});

test.each(['pods create', 'secrets create', 'pods delete'])(
  'a permission that is withdrawn later is no fault of a job: %s',
  async (permission) => {
    const server = await openApiServer();
    const { engine } = await openEngine(server.url);
    expect(engine.unavailableReason).toBeUndefined();
    server.granted.delete(permission);
    const [resource, verb] = permission.split(' ');
    const step = verb === 'delete' ? engine.remove(SUBMISSION.attempt) : engine.submit(SUBMISSION);
    await expect(step).rejects.toThrow(RunnerUnavailable);
    expect(engine.unavailableReason).toContain(`${resource} (${verb}) in the namespace jobs`);
  },
);

test('an admission policy that refuses a job is a matter of the job, and a quota frees itself', async () => {
  const server = await openApiServer();
  const { engine } = await openEngine(server.url);
  server.refusals.push(
    'pods "loam-x" is forbidden: violates PodSecurity "restricted:latest"',
    'admission webhook "policy.example.com" denied the request: no label',
    'pods "loam-x" is forbidden: exceeded quota: jobs, requested: cpu=1',
  );
  await expect(engine.submit(SUBMISSION)).rejects.toThrow(Unstartable);
  await expect(engine.submit(SUBMISSION)).rejects.toThrow(Unstartable);
  await expect(engine.submit(SUBMISSION)).rejects.toThrow(RunnerUnavailable);
  expect(engine.unavailableReason).toBeUndefined();
});

test('without optional permissions the cluster takes jobs, and the log says what does not work', async () => {
  const server = await openApiServer();
  for (const permission of ['events list', 'networkpolicies update'])
    server.granted.delete(permission);
  const { engine, logged } = await openEngine(server.url);
  expect(engine.unavailableReason).toBeUndefined();
  expect(logged).toEqual([
    'Kubernetes: Loam has no permission for events (list) in the namespace jobs (docs/clusters.md): a job does not say why its pod gets no containers',
    'Kubernetes: Loam has no permission for networkpolicies (update) in the namespace jobs (docs/clusters.md): jobs may reach private networks',
  ]);
});
