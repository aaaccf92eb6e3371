/** The engine on a real Kubernetes cluster, with a stand-in for the agent that Loam serves. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest';
import type { KubernetesConfig } from '../../../src/base/config/kubernetes.ts';
import { newId } from '../../../src/base/ids.ts';
import { createLog } from '../../../src/base/log.ts';
import type { EngineState, SharingEngine, Submission } from '../../../src/runners/agent/engine.ts';
import { openKubernetesEngine } from '../../../src/runners/kubernetes/engine.ts';
import { podName } from '../../../src/runners/kubernetes/pod.ts';
import { RunnerUnavailable } from '../../../src/runners/runner.ts';
import { eventually } from '../../support/eventually.ts';
import { type KubeCluster, openKubeCluster } from '../../support/kube/kube.ts';
import { has, needs } from '../../support/needs.ts';

let cluster: KubeCluster;

beforeAll(async () => {
  if (has('kubernetes')) cluster = await openKubeCluster();
});
afterAll(() => cluster?.[Symbol.asyncDispose]());
beforeEach((ctx) => needs(ctx, 'kubernetes'));

type Options = { worker?: string; config?: Partial<KubernetesConfig>; agentUrl?: string };

/** Disposed after the test; its attempts are removed. */
async function openEngine({ worker = newId('srv'), config, agentUrl }: Options = {}) {
  const engine = await openKubernetesEngine({
    config: { ...cluster.config, ...config },
    worker,
    agentUrl: agentUrl ?? `http://${cluster.hostAddress}:3000`,
    log: createLog('silent'),
  });
  onTestFinished(async () => {
    await eventually(async () => {
      for (const attempt of await engine.list()) await engine.remove(attempt);
    });
    await engine[Symbol.asyncDispose]();
  });
  return engine;
}

type Report = { attempt: string; token: string; node: string; words: string[] };

/** Serves a stand-in for the agent, and records what agents report. */
async function serveAgent(command: string) {
  const reports: Report[] = [];
  const server = createServer(async (request, response) => {
    if (request.url?.endsWith('/agent.mjs')) return void response.end(agentProgram(command));
    const body = await request.toArray();
    reports.push(JSON.parse(Buffer.concat(body).toString()));
    response.end('ok');
  }).listen(0, cluster.hostAddress);
  await once(server, 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  const words = (attempt: string) =>
    reports.filter((report) => report.attempt === attempt).flatMap((report) => report.words);
  return { url: `http://${cluster.hostAddress}:${port}/agents`, reports, words };
}

/** Runs the command through the FIFOs, reports every line, and ends with the command, or at once. */
const agentProgram = (command: string) => `import { execFileSync } from 'node:child_process';
import { constants, openSync, renameSync, writeFileSync } from 'node:fs';
import { Socket } from 'node:net';
import { createInterface } from 'node:readline';
export async function runAgent({ url, attempt, token, node, dir, jobDir, sharedDir }) {
  const say = (...words) => fetch(url + '/report', { method: 'POST', body: JSON.stringify({ attempt, token, node, words }) }).catch(() => {});
  const command = ${JSON.stringify(command)};
  await say('uid', String(process.getuid()), 'dirs', dir, jobDir);
  if (command === 'leave') {
    console.error('cannot start here');
    return 75;
  }
  process.on('SIGTERM', () => writeFileSync(sharedDir + '/control', 'TERM\\n'));
  const ended = Promise.withResolvers();
  execFileSync('mkfifo', ['-m', '600', ...['out', 'err', 'end', 'control'].map((name) => sharedDir + '/' + name)]);
  for (const name of ['out', 'err', 'end']) {
    const reader = openSync(sharedDir + '/' + name, constants.O_RDONLY | constants.O_NONBLOCK);
    openSync(sharedDir + '/' + name, constants.O_WRONLY);
    createInterface(new Socket({ fd: reader, readable: true, writable: false })).on('line', async (line) => {
      await say(name, line);
      if (name === 'end' && line.startsWith('exit')) ended.resolve(Number(line.split(' ')[1]));
    });
  }
  writeFileSync(sharedDir + '/start.new', command, { mode: 0o600 });
  renameSync(sharedDir + '/start.new', sharedDir + '/start');
  return await ended.promise;
}
`;

function submission(url: string, changes: Partial<Submission> = {}): Submission {
  return {
    attempt: newId('att'),
    machine: 'cluster',
    job: { id: newId('job'), name: 'train', namespace: 'ada' },
    agent: { url, token: 'credential-of-the-attempt' },
    image: null,
    hardware: {
      gpu: 'none',
      gpuCount: 1,
      cpu: 2,
      memoryGb: 1,
      diskGb: 1,
      region: 'us-east-1',
    },
    cpus: 0.2,
    memoryBytes: 64 * 2 ** 20,
    timeoutMs: 600_000,
    ...changes,
  };
}

const never = new AbortController().signal;

/** Waits, by changes alone, until the state has this kind. */
async function stateOf<K extends EngineState['kind']>(
  engine: SharingEngine,
  attempt: string,
  kind: K,
): Promise<Extract<EngineState, { kind: K }>> {
  for (;;) {
    const state = engine.state(attempt);
    if (state.kind === kind) return state as Extract<EngineState, { kind: K }>;
    await engine.nextChange(attempt, never);
  }
}

/** Names of the pods and Secrets of an attempt. */
async function left(attempt: string): Promise<string[]> {
  const names = await cluster.kubectl('get', 'pods,secrets', '-o', 'name');
  return names.split('\n').filter((name) => name.includes(podName(attempt)));
}

test('an attempt runs as a pod with few rights, and nothing of it is left', async () => {
  const agent = await serveAgent(
    'echo hello; id -u; touch /work/a /tmp/a "/home/job/a"; touch /.loam/a || echo refused; grep -E "CapEff|Seccomp:|NoNewPrivs" /proc/self/status; ls /var/run/secrets /loam-token /agent; exit 3',
  );
  const engine = await openEngine();
  expect(engine.unavailableReason).toBeUndefined();
  const job = submission(agent.url);
  const { attempt } = job;
  expect(engine.state(attempt)).toEqual({ kind: 'unknown' });
  await engine.submit(job);
  expect(engine.state(attempt).kind).toBe('waiting');
  const { end } = await stateOf(engine, attempt, 'ended');
  expect(end).toMatchObject({ exitCode: 3, outOfMemory: false, isLoss: false });
  expect(engine.describe(attempt)).toEqual({
    node: expect.stringMatching(/^node-[12]$/),
    inspect: `kubectl -n loam-jobs describe pod ${podName(attempt)}`,
  });
  const lines = agent.words(attempt);
  for (const word of ['hello', '1000', 'refused', 'ready', 'begun', 'CapEff:\t0000000000000000'])
    expect(lines).toContain(word);
  expect(lines).toContain('NoNewPrivs:\t1');
  expect(lines).toContain('Seccomp:\t2');
  expect(agent.reports[0]).toMatchObject({
    token: 'credential-of-the-attempt',
    node: engine.describe(attempt)?.node,
    words: ['uid', '1000', 'dirs', '/agent', '/job'],
  });
  // What the job must not see: the credentials of the agent and of Kubernetes.
  expect(lines.filter((line) => /No such file/.test(line))).toHaveLength(3);
  expect(await engine.list()).toEqual([attempt]);
  await engine.remove(attempt, { hasEnded: true });
  expect(await engine.list()).toEqual([]);
  expect(engine.state(attempt)).toEqual({ kind: 'unknown' });
  await eventually(async () => expect(await left(attempt)).toEqual([]));
});

test('where root is allowed, a job has the user of its image, without capabilities', async () => {
  const agent = await serveAgent('id -u; touch /work/a; grep CapEff /proc/self/status; exit 0');
  const engine = await openEngine({ config: { allowRoot: true } });
  const job = submission(agent.url);
  await engine.submit(job);
  expect((await stateOf(engine, job.attempt, 'ended')).end).toMatchObject({ exitCode: 0 });
  expect(agent.words(job.attempt)).toEqual(
    expect.arrayContaining(['begun', '0', 'CapEff:\t0000000000000000']),
  );
});

test('an attempt is submitted once, and found after a restart', async () => {
  const agent = await serveAgent('echo up; sleep 600');
  const worker = newId('srv');
  const engine = await openEngine({ worker });
  const job = submission(agent.url);
  await Promise.all([engine.submit(job), engine.submit(job)]);
  await engine.submit(job);
  await stateOf(engine, job.attempt, 'running');
  const restarted = await openEngine({ worker });
  expect(await restarted.list()).toEqual([job.attempt]);
  expect(restarted.state(job.attempt)).toEqual({ kind: 'running' });
  await restarted.submit(job);
  const stranger = await openEngine();
  expect(await stranger.list()).toEqual([]);
  await eventually(() => expect(agent.words(job.attempt)).toContain('up'));
  expect(agent.words(job.attempt).filter((word) => word === 'up')).toHaveLength(1);
  // One that runs is ended.
  await restarted.remove(job.attempt);
  await eventually(async () => expect(await left(job.attempt)).toEqual([]));
  // Removing what is not there is no error.
  await restarted.remove(job.attempt);
  await stateOf(engine, job.attempt, 'ended');
});

test('the engine says why an attempt waits, and what it can never run', async () => {
  const agent = await serveAgent('exit 0');
  const engine = await openEngine();
  const hardware = { ...submission('').hardware, gpu: 'T4', gpuCount: 4 };
  const many = submission(agent.url, { hardware });
  await engine.submit(many);
  await eventually(() =>
    expect(engine.state(many.attempt)).toEqual({
      kind: 'waiting',
      reason: expect.stringMatching(/^no node (has 4 free nvidia.com\/gpu|fits)/),
    }),
  );
  expect(engine.describe(many.attempt)).toBeUndefined();
  const few = submission(agent.url, { hardware: { ...hardware, gpuCount: 2 } });
  await engine.submit(few);
  expect(await stateOf(engine, few.attempt, 'ended')).toMatchObject({ end: { exitCode: 0 } });
  expect(engine.describe(few.attempt)?.node).toBe('node-2');

  const wrong = submission(agent.url, { image: 'UPPER/case:1' });
  await engine.submit(wrong);
  expect(await stateOf(engine, wrong.attempt, 'refused')).toMatchObject({
    reason: expect.stringContaining('UPPER/case:1'),
  });
  const missing = submission(agent.url, { image: 'registry.invalid/missing:1' });
  await engine.submit(missing);
  await eventually(() =>
    expect(engine.state(missing.attempt)).toEqual({
      kind: 'waiting',
      reason: expect.stringMatching(/"registry\.invalid\/missing:1" cannot be pulled: .*lookup/s),
    }),
  );
  const broken = await openEngine({ config: { runtimeClass: 'missing' } });
  await expect(broken.submit(submission(agent.url))).rejects.toThrow(/refused the job.*missing/);
});

test('without permissions the cluster takes no jobs, until they are granted', async () => {
  const agent = await serveAgent('exit 0');
  const engine = await openEngine();
  await cluster.kubectl('delete', 'rolebinding', 'loam');
  const grant = () =>
    cluster.kubectl(
      'create',
      'rolebinding',
      'loam',
      '--role=loam',
      '--serviceaccount=loam-jobs:loam',
    );
  const job = submission(agent.url);
  // The API server may know the binding for a moment.
  await eventually(async () =>
    expect(await engine.submit(job).catch((error) => error)).toBeInstanceOf(RunnerUnavailable),
  );
  const reason =
    'Loam has no permission for pods (create, get, list, watch, delete), secrets (create) in the namespace loam-jobs (docs/clusters.md)';
  await eventually(() => expect(engine.unavailableReason).toBe(reason));
  const late = await openEngine();
  expect(late.unavailableReason).toBe(reason);
  await grant();
  for (const one of [engine, late])
    await eventually(() => expect(one.unavailableReason).toBeUndefined());
  await engine.submit(job);
  expect((await stateOf(engine, job.attempt, 'ended')).end).toMatchObject({ exitCode: 0 });
});

test('a pod that somebody deletes is lost when it has ended', async () => {
  const agent = await serveAgent(
    "trap 'echo told; exit 9' TERM; echo up; while :; do sleep 0.1; done",
  );
  const engine = await openEngine();
  const job = submission(agent.url);
  await engine.submit(job);
  // This version of the kubelet overlooks for a minute that a pod is deleted in its first second, and makes up the end of
  // containers that it has not reported yet.
  await eventually(() => expect(agent.words(job.attempt).join()).toMatch(/usage/));
  await stateOf(engine, job.attempt, 'running');
  await cluster.kubectl('delete', 'pod', podName(job.attempt), '--wait=false');
  const { end } = await stateOf(engine, job.attempt, 'ended');
  expect(end?.isLoss).toBe(true);
  // Of a container that has ended, too, the kubelet of a busy machine may make up the end. A lost attempt needs no exit code.
  expect([9, null]).toContain(end?.exitCode);
  expect(agent.words(job.attempt)).toContain('told');
});

test('a job without its agent is ended, and lost with the last output of the agent', async () => {
  const agent = await serveAgent('leave');
  const engine = await openEngine();
  const job = submission(agent.url);
  await engine.submit(job);
  expect((await stateOf(engine, job.attempt, 'ended')).end).toMatchObject({
    isLoss: true,
    reason: expect.stringMatching(
      /^the agent ended with exit code 75 on node-\d: cannot start here$/,
    ),
  });
});

test('a job that needs more memory than it has is reported', async () => {
  const agent = await serveAgent('x=$(head -c 200000000 /dev/zero | tr "\\0" x); echo done');
  const engine = await openEngine();
  const job = submission(agent.url);
  await engine.submit(job);
  expect((await stateOf(engine, job.attempt, 'ended')).end).toMatchObject({
    outOfMemory: true,
    isLoss: false,
  });
});

test('pods go on while the API server is away, and their states are caught up with', async () => {
  const agent = await serveAgent('echo up; until [ -e /tmp/go ]; do sleep 0.1; done; exit 4');
  const engine = await openEngine();
  const job = submission(agent.url);
  await engine.submit(job);
  await eventually(() => expect(agent.words(job.attempt)).toContain('up'));
  await stateOf(engine, job.attempt, 'running');
  await cluster.kill('apiserver');
  await eventually(() => expect(engine.unavailableReason).toMatch(/ECONNREFUSED/));
  await expect(engine.submit(submission(agent.url))).rejects.toThrow(RunnerUnavailable);
  await expect(engine.remove(job.attempt)).rejects.toThrow(RunnerUnavailable);
  await expect(engine.list()).rejects.toThrow(RunnerUnavailable);
  const late = await openEngine();
  expect(late.unavailableReason).toMatch(/ECONNREFUSED/);
  expect(engine.state(job.attempt)).toEqual({ kind: 'running' });
  await cluster.start('apiserver');
  await eventually(() => expect(engine.unavailableReason).toBeUndefined());
  await eventually(() => expect(late.unavailableReason).toBeUndefined());
  // Until the kubelet has reached the API server too, its node may count as silent.
  await stateOf(engine, job.attempt, 'running');
  await cluster.kubectl('delete', 'pod', podName(job.attempt), '--wait=false');
  await stateOf(engine, job.attempt, 'ended');
});

test('a pod on a silent node is unknown until the node answers; a restarted node has lost it', async () => {
  const agent = await serveAgent('echo up; sleep 600');
  const engine = await openEngine();
  const job = submission(agent.url);
  await engine.submit(job);
  await stateOf(engine, job.attempt, 'running');
  const node = engine.describe(job.attempt)?.node ?? '';
  await cluster.kill(`${node}/kubelet`);
  await stateOf(engine, job.attempt, 'unknown');
  await cluster.start(`${node}/kubelet`);
  await stateOf(engine, job.attempt, 'running');
  await cluster.kill(node);
  await cluster.start(node);
  expect((await stateOf(engine, job.attempt, 'ended')).end).toMatchObject({
    exitCode: null,
    isLoss: true,
  });
});

test('an attempt on a node that died before it began is unknown, so that it can be given up', async () => {
  const agent = await serveAgent('exit 0');
  const nodeSelector = { 'kubernetes.io/hostname': 'node-1' };
  const engine = await openEngine({ config: { nodeSelector } });
  // It may still count as silent after an earlier test, and then gets no pods.
  await eventually(async () =>
    expect(await cluster.admin('get', 'node', 'node-1', '-o', 'jsonpath={.spec.taints}')).toBe(''),
  );
  await cluster.kill('node-1/kubelet');
  const job = submission(agent.url);
  await engine.submit(job);
  await eventually(() => expect(engine.describe(job.attempt)?.node).toBe('node-1'));
  await cluster.kill('node-1');
  await stateOf(engine, job.attempt, 'unknown');
  expect(agent.words(job.attempt)).toEqual([]);
  await engine.remove(job.attempt);
  expect(await engine.list()).toEqual([]);
  await cluster.start('node-1');
  await eventually(async () => expect(await left(job.attempt)).toEqual([]));
});

test('the size of the largest node is the capacity, unless the operator has set it', async () => {
  const { maxCpus: _, maxMemoryGb: __, ...config } = cluster.config;
  const engine = await openKubernetesEngine({
    config,
    worker: newId('srv'),
    agentUrl: `http://${cluster.hostAddress}:3000`,
    log: createLog('silent'),
  });
  onTestFinished(() => engine[Symbol.asyncDispose]());
  const [node] = JSON.parse(await cluster.kubectl('get', 'nodes', '-o', 'json')).items;
  const { cpus, memoryBytes, gpus } = engine.capacity;
  expect(cpus).toBeCloseTo(Number(node.status.allocatable.cpu) - 0.05);
  expect(memoryBytes).toBeGreaterThan(2 ** 30);
  expect(gpus).toEqual({ T4: 2 });
  expect((await openEngine()).capacity).toMatchObject({ cpus: 0.2, memoryBytes: 2 ** 28 });
  const policies = await cluster.kubectl('get', 'networkpolicies', '-o', 'json');
  expect(JSON.parse(policies).items.length).toBeGreaterThan(0);
});
