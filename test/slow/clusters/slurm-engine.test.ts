/** The engine on a real Slurm cluster, with a stand-in for the agent that Loam serves. */
import { once } from 'node:events';
import { chmod, readdir, readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { newId } from '../../../src/base/ids.ts';
import { createLog } from '../../../src/base/log.ts';
import type { EngineState, SharingEngine, Submission } from '../../../src/runners/agent/engine.ts';
import { RunnerUnavailable } from '../../../src/runners/runner.ts';
import { openSlurmEngine } from '../../../src/runners/slurm/engine.ts';
import { eventually } from '../../support/eventually.ts';
import { has, needs } from '../../support/needs.ts';
import { openSlurmCluster, type SlurmCluster } from '../../support/slurm/slurm.ts';

/** Seconds of silence until Slurm gives a node up, and between TERM and KILL. */
const SLURMD_TIMEOUT = 5;
const KILL_WAIT = 2;

let cluster: SlurmCluster;

beforeAll(async () => {
  if (!has('slurm')) return;
  cluster = await openSlurmCluster({ slurmdTimeout: SLURMD_TIMEOUT, killWait: KILL_WAIT });
});
afterAll(() => cluster?.[Symbol.asyncDispose]());
beforeEach((ctx) => needs(ctx, 'slurm'));

type Options = { worker?: string; config?: Partial<SlurmCluster['config']> };

/** Disposed after the test; its attempts are removed. */
async function openEngine({ worker = newId('srv'), config }: Options = {}) {
  const engine = await openSlurmEngine({
    config: { ...cluster.config, ...config },
    worker,
    log: createLog('silent'),
  });
  onTestFinished(async () => {
    for (const attempt of await engine.list()) await engine.remove(attempt);
    await engine[Symbol.asyncDispose]();
  });
  return engine;
}

type Received = { attempt: string; dir: string; command: string; environment: string };

/** Serves a stand-in for the agent, and records what agents send. */
async function serveAgent(program: string) {
  const received: Received[] = [];
  const server = createServer(async (request, response) => {
    if (request.url?.endsWith('/agent.mjs')) return void response.end(program);
    const body = await request.toArray();
    received.push(JSON.parse(Buffer.concat(body).toString()));
    response.end('ok');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}/agents`, received };
}

/** An agent that reports itself, runs, and ends as told. */
const agent = (rest: string) => `import { readFileSync, rmSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
export async function runAgent(options) {
  const { url, dir } = options;
  const command = readFileSync('/proc/self/cmdline', 'utf8');
  const environment = readFileSync('/proc/self/environ', 'utf8');
  const [uid, gid] = [process.getuid(), process.getgid()];
  const body = { ...options, env: process.env, uid, gid, cwd: process.cwd(), command, environment };
  await fetch(url + '/claim', { method: 'POST', body: JSON.stringify(body) });
  ${rest}
}
`;
const RUNS_LONG = agent('await delay(600_000);');

function submission(url: string, changes: Partial<Submission> = {}): Submission {
  return {
    attempt: newId('att'),
    machine: 'cluster',
    job: { id: newId('job'), name: 'train', namespace: 'ada' },
    agent: { url, token: 'secret-of-the-attempt' },
    image: null,
    hardware: { gpu: 'none', gpuCount: 1, cpu: 2, memoryGb: 1, diskGb: 1, region: 'us-east-1' },
    cpus: 2,
    memoryBytes: 2 ** 29,
    timeoutMs: 60_000,
    ...changes,
  };
}

/** Waits by `nextChange`, so the test shows that it reports each change. */
async function reach(
  engine: SharingEngine,
  attempt: string,
  kind: EngineState['kind'],
): Promise<EngineState> {
  const limit = AbortSignal.timeout(120_000);
  for (;;) {
    const change = engine.nextChange(attempt, limit);
    const state = engine.state(attempt);
    if (state.kind === kind) return state;
    if (limit.aborted) throw new Error(`not ${kind}, but ${JSON.stringify(state)}`);
    await change;
  }
}

const jobsOf = async (attempt: string) =>
  (await cluster.command('squeue', '-h', `--name=loam-${attempt}`, '-o', '%i')).trim();

/** Whether a process of the attempt's job runs on this machine, which runs all nodes. */
async function isRunning(attempt: string): Promise<boolean> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const environments = await Promise.all(
    pids.map((pid) => readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '')),
  );
  return environments.some((text) => text.includes(`SLURM_JOB_NAME=loam-${attempt}`));
}

test('an attempt waits, runs on a node as its account, and ends with its exit code', async () => {
  const engine = await openEngine();
  expect(engine.capacity).toEqual({
    cpus: 2,
    memoryBytes: 2_000 * 2 ** 20,
    gpus: { T4: 2 },
    withImage: false,
    withoutImage: true,
    volumes: [],
  });
  vi.stubEnv('LOAM_SLURM_SECRET', 'of this process');
  onTestFinished(() => void vi.unstubAllEnvs());
  const { url, received } = await serveAgent(
    agent('await delay(1_500); rmSync(dir, { recursive: true }); return 3;'),
  );
  const submitted = submission(url);
  const { attempt } = submitted;
  expect(engine.state(attempt)).toEqual({ kind: 'unknown' });
  await engine.submit(submitted);
  expect(engine.state(attempt).kind).toBe('waiting');
  await engine.submit(submitted);
  await reach(engine, attempt, 'running');
  expect(await jobsOf(attempt)).toMatch(/^\d+$/);
  expect(await engine.list()).toEqual([attempt]);
  const { node = '', inspect } = engine.describe(attempt) ?? {};
  expect(cluster.nodes).toContain(node);
  expect(await cluster.command('sh', '-c', inspect ?? '')).toContain(`JobName=loam-${attempt}`);
  expect(await reach(engine, attempt, 'ended')).toEqual({
    kind: 'ended',
    end: {
      exitCode: 3,
      outOfMemory: false,
      isLoss: false,
      reason: expect.stringMatching(/^exit code 3 on /),
    },
  });
  const [claim] = received;
  expect(received).toHaveLength(1);
  expect(claim).toMatchObject({
    url,
    attempt,
    token: 'secret-of-the-attempt',
    node,
    uid: 65_534,
    gid: 65_534,
    cwd: '/',
    env: { SLURM_JOB_NAME: `loam-${attempt}` },
  });
  expect(claim?.dir).toMatch(new RegExp(`^${cluster.shared}/srv_\\w+/loam-${attempt}-\\w{6}$`));
  expect(claim?.command).not.toContain('secret-of');
  expect(claim?.environment).not.toContain('secret-of');
  expect(claim?.environment).not.toContain('LOAM_SLURM_SECRET');
  expect(await engine.list()).toEqual([]);
  await engine.remove(attempt);
  expect(engine.state(attempt)).toEqual({ kind: 'unknown' });
});

test('a waiting attempt says why in plain words, and is removed without having run', async () => {
  const engine = await openEngine();
  const { url, received } = await serveAgent(RUNS_LONG);
  const all = [submission(url), submission(url), submission(url)];
  const [first, second, third] = all.map(({ attempt }) => attempt) as [string, string, string];
  for (const one of all) await engine.submit(one);
  await reach(engine, first, 'running');
  await reach(engine, second, 'running');
  await eventually(() =>
    expect(engine.state(third)).toEqual({
      kind: 'waiting',
      reason: expect.stringMatching(
        /^no node has enough free resources \(Resources\), expected at \d\d:\d\d UTC$/,
      ),
    }),
  );
  expect(new Set(await engine.list())).toEqual(new Set([first, second, third]));
  await eventually(() => expect(received).toHaveLength(2));
  await engine.remove(third);
  await eventually(async () => expect(await jobsOf(third)).toBe(''));
  await engine.remove(first);
  await engine.remove(second);
  await eventually(async () => expect(await jobsOf(`${first},loam-${second}`)).toBe(''));
  expect(await engine.list()).toEqual([]);
  expect(received.map((claim) => claim.attempt).sort()).toEqual([first, second].sort());
  // Their agents were killed before they removed their folders.
  await eventually(async () =>
    expect((await readdir(cluster.shared, { recursive: true })).join('\n')).not.toMatch(
      new RegExp(`${first}|${second}|${third}`),
    ),
  );
});

test('an agent that has reported its end exits by itself, or is cancelled', async () => {
  const engine = await openEngine();
  const { url } = await serveAgent(RUNS_LONG);
  const submitted = submission(url);
  await engine.submit(submitted);
  await reach(engine, submitted.attempt, 'running');
  await engine.remove(submitted.attempt, { hasEnded: true });
  expect(await jobsOf(submitted.attempt)).not.toBe('');
  await eventually(async () => expect(await jobsOf(submitted.attempt)).toBe(''));
});

test('an engine that is closed leaves no agent whose attempt it has removed', async () => {
  const engine = await openEngine();
  const { url } = await serveAgent(RUNS_LONG);
  const submitted = submission(url);
  await engine.submit(submitted);
  await reach(engine, submitted.attempt, 'running');
  await engine.remove(submitted.attempt, { hasEnded: true });
  await engine[Symbol.asyncDispose]();
  await eventually(async () => expect(await jobsOf(submitted.attempt)).toBe(''));
});

test('a cancelled job is a loss, and a job out of memory is not', async () => {
  const engine = await openEngine();
  const { url } = await serveAgent(RUNS_LONG);
  const cancelled = submission(url);
  await engine.submit(cancelled);
  await cluster.command('scancel', `--name=loam-${cancelled.attempt}`);
  expect(await reach(engine, cancelled.attempt, 'ended')).toMatchObject({
    end: { isLoss: true, reason: 'the job was cancelled in Slurm' },
  });
  const { url: greedyUrl } = await serveAgent(
    agent('const all = []; for (;;) all.push(Buffer.alloc(2 ** 24, 1));'),
  );
  const greedy = submission(greedyUrl, { memoryBytes: 2 ** 28 });
  await engine.submit(greedy);
  expect(await reach(engine, greedy.attempt, 'ended')).toMatchObject({
    end: { exitCode: 137, isLoss: false, outOfMemory: true },
  });
});

test('what Slurm cannot run is refused in its own words', async () => {
  const { url } = await serveAgent(RUNS_LONG);
  const engine = await openEngine();
  const many = { ...submission(url).hardware, gpu: 'T4', gpuCount: 4 };
  await expect(engine.submit(submission(url, { hardware: many }))).rejects.toThrow(
    'Slurm refused the job: Requested node configuration is not available',
  );
  const strict = await openEngine({ config: { constraint: 'missing' } });
  await expect(strict.submit(submission(url))).rejects.toThrow(
    'Slurm refused the job: Invalid feature specification',
  );
  await expect(openEngine({ config: { partition: 'missing' } })).rejects.toThrow(
    'Slurm has no partition missing with nodes (LOAM_SLURM_PARTITION)',
  );
  await expect(openEngine({ config: { users: undefined } })).rejects.toThrow('runs as root');
});

test('an agent that cannot begin says why', async () => {
  const { url, received } = await serveAgent(RUNS_LONG);
  const withoutNode = await openEngine({ config: { node: '/nonexistent/node' } });
  const first = submission(url);
  await withoutNode.submit(first);
  expect(await reach(withoutNode, first.attempt, 'ended')).toMatchObject({
    end: { isLoss: false, reason: expect.stringContaining('set LOAM_SLURM_NODE to its path') },
  });
  const worker = newId('srv');
  const withoutFolder = await openEngine({ worker });
  await chmod(join(cluster.shared, worker), 0o700);
  const second = submission(url);
  await withoutFolder.submit(second);
  expect(await reach(withoutFolder, second.attempt, 'ended')).toMatchObject({
    end: { isLoss: false, reason: expect.stringContaining('could not make its folder there') },
  });
  expect(received).toEqual([]);
  const programs: [string, string, RegExp][] = [
    ['broken', 'echo "node: libc.so.6: version GLIBC_2.28 not found" >&2; exit 1', /GLIBC_2\.28/],
    [
      'old',
      `exec ${process.execPath} --import 'data:text/javascript,Object.defineProperty(process.versions, "node", { value: "18.20.4" })' "$@"`,
      / on \w+: Loam needs Node\.js 22 or later, and this is v\S+; /,
    ],
  ];
  for (const [name, command, reason] of programs) {
    const node = join(cluster.shared, name);
    await writeFile(node, `#!/bin/sh\n${command}\n`, { mode: 0o755 });
    const engine = await openEngine({ config: { node } });
    const third = submission(url);
    await engine.submit(third);
    expect(await reach(engine, third.attempt, 'ended'), name).toMatchObject({
      end: { reason: expect.stringMatching(reason) },
    });
  }
  expect(received).toEqual([]);
});

test('without a shared folder, agents use the temporary folder of their node', async () => {
  const engine = await openEngine({ config: { dir: undefined } });
  const { url, received } = await serveAgent(agent('rmSync(dir, { recursive: true }); return 0;'));
  const submitted = submission(url);
  await engine.submit(submitted);
  expect(await reach(engine, submitted.attempt, 'ended')).toMatchObject({ end: { exitCode: 0 } });
  expect(received[0]?.dir).toMatch(new RegExp(`^/tmp/loam-${submitted.attempt}-\\w{6}$`));
});

test('GPUs are requested by their generic resource', async () => {
  const engine = await openEngine();
  const { url, received } = await serveAgent(agent(''));
  const hardware = { ...submission(url).hardware, gpu: 'T4', gpuCount: 2 };
  const submitted = submission(url, { hardware });
  await engine.submit(submitted);
  await reach(engine, submitted.attempt, 'ended');
  expect(engine.describe(submitted.attempt)?.node).toBe(cluster.nodes[1]);
  expect(received).toMatchObject([{ env: { SLURM_JOB_GPUS: '0,1' } }]);
});

test('an engine adopts the attempts of its worker after a restart, and no others', async () => {
  const { url } = await serveAgent(RUNS_LONG);
  const worker = newId('srv');
  const first = await openEngine({ worker });
  const other = await openEngine();
  const [mine, theirs] = [submission(url), submission(url)];
  await first.submit(mine);
  await other.submit(theirs);
  await reach(first, mine.attempt, 'running');
  await first[Symbol.asyncDispose]();
  const second = await openEngine({ worker });
  expect(second.state(mine.attempt)).toEqual({ kind: 'running' });
  expect(second.state(theirs.attempt)).toEqual({ kind: 'unknown' });
  expect(await second.list()).toEqual([mine.attempt]);
  await second.submit(mine);
  expect(await jobsOf(mine.attempt)).toMatch(/^\d+$/);
  expect((await second.list()).length).toBe(1);
});

test('attempts go on while the controller is away', async () => {
  const engine = await openEngine();
  const { url } = await serveAgent(RUNS_LONG);
  const submitted = submission(url);
  await engine.submit(submitted);
  await reach(engine, submitted.attempt, 'running');
  await cluster.saved();
  await cluster.kill('slurmctld');
  await Promise.all([
    expect(engine.submit(submission(url))).rejects.toThrow(RunnerUnavailable),
    expect(engine.remove(submitted.attempt)).rejects.toThrow(RunnerUnavailable),
    expect(engine.list()).rejects.toThrow(RunnerUnavailable),
  ]);
  await eventually(() => expect(engine.unavailableReason).toMatch(/slurm/i));
  expect(engine.state(submitted.attempt)).toEqual({ kind: 'running' });
  await cluster.start('slurmctld');
  await eventually(() => expect(engine.unavailableReason).toBeUndefined());
  expect(engine.state(submitted.attempt)).toEqual({ kind: 'running' });
  await engine.remove(submitted.attempt);
  await eventually(async () => expect(await jobsOf(submitted.attempt)).toBe(''));
});

test('an attempt that the controller has lost is unknown, and can be submitted again', async () => {
  const engine = await openEngine();
  const { url } = await serveAgent(RUNS_LONG);
  const submitted = submission(url);
  const { attempt } = submitted;
  // The state that the controller reads after its restart, older than the attempt.
  await engine.submit(submission(url));
  await cluster.saved();
  await engine.submit(submitted);
  await cluster.kill('slurmctld');
  await cluster.start('slurmctld');
  await reach(engine, attempt, 'unknown');
  await engine.submit(submitted);
  await reach(engine, attempt, 'running');
  expect(await jobsOf(attempt)).toMatch(/^\d+$/);
});

test.for(['left alone', 'cancelled'])(
  'a job on a silent node, %s, is unknown until its node has killed it',
  async (how) => {
    const engine = await openEngine();
    const { url, received } = await serveAgent(RUNS_LONG);
    const submitted = submission(url);
    const { attempt } = submitted;
    await engine.submit(submitted);
    await reach(engine, attempt, 'running');
    await eventually(() => expect(received).toHaveLength(1));
    const node = engine.describe(attempt)?.node ?? '';
    const daemon = await cluster.pid(`${node}/slurmd`);
    process.kill(daemon, 'SIGSTOP');
    try {
      if (how === 'cancelled') await cluster.command('scancel', `--name=loam-${attempt}`);
      await reach(engine, attempt, 'unknown');
      expect(await cluster.command('sinfo', '-h', '-n', node, '-o', '%T')).toBe('down*\n');
      expect(await isRunning(attempt)).toBe(true);
    } finally {
      process.kill(daemon, 'SIGCONT');
    }
    expect(await reach(engine, attempt, 'ended')).toMatchObject({ end: { isLoss: true } });
    expect(await isRunning(attempt)).toBe(false);
  },
);

test('an attempt whose node dies has ended when the node is back', async () => {
  const engine = await openEngine();
  const { url } = await serveAgent(RUNS_LONG);
  const submitted = submission(url);
  await engine.submit(submitted);
  await reach(engine, submitted.attempt, 'running');
  const node = engine.describe(submitted.attempt)?.node ?? '';
  await cluster.kill(node);
  await reach(engine, submitted.attempt, 'unknown');
  await cluster.start(node);
  expect(await reach(engine, submitted.attempt, 'ended')).toMatchObject({
    end: { isLoss: true, reason: `the node failed: ${node}` },
  });
});
