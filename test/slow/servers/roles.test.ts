/** API servers without jobs, workers without an API, and both together. */

import { hash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { createServer, type RequestListener, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { deserialize, serialize } from 'node:v8';
import { createRemoteJWKSet, jwtVerify } from 'jose';
import { expect, test } from 'vitest';
import type { App } from '../../../src/app.ts';
import { PLAN_LIMITS } from '../../../src/base/config/plans.ts';
import { busy } from '../../../src/base/errors.ts';
import { chooseOwner } from '../../../src/cluster/placement.ts';
import { sign } from '../../../src/cluster/signature.ts';
import {
  type CheckOutJob,
  createRemoteCheckout,
  createRemoteInputReader,
} from '../../../src/jobs/attempts/checkouts.ts';
import { startWorker } from '../../../src/jobs/attempts/worker.ts';
import { claimJobs } from '../../../src/jobs/queue/claim.ts';
import { LOCAL_MACHINE } from '../../../src/runners/runner.ts';
import { eventually } from '../../support/eventually.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { Workspace } from '../../support/git.ts';
import { Client } from '../../support/harness.ts';
import { startServers } from '../../support/servers.ts';
import { cancel, job, lines, remove, submit, until, variables } from '../../support/submit.ts';

/** Time for the start of several processes. */
const SERVE = { config: { role: 'serve' } } as const;

/** A repository with two commits, the second with these files. @returns its id and that commit */
async function withCode(client: Client, name: string, files: Record<string, string | Buffer>) {
  await using work = await Workspace.open();
  const { body } = await client.post('/auth/v1/repository/admin', { name, auto_init: true });
  await work.clone(client, `admin/${name}`, 'code');
  await work.commit('code', files);
  await work.git('code', 'push', '-q', 'origin', 'HEAD:main');
  return { id: body.id as string, commitSha: await work.git('code', 'rev-parse', 'HEAD') };
}

const run = (client: Client, name: string, command: string, more: object = {}) =>
  submit(client, { namespace: 'admin', repo: 'admin/code', name, command, ...more });

test('a worker without repositories runs the jobs of a server without a worker', async () => {
  await using servers = await startServers(1, SERVE);
  const [client] = servers.clients as [Client];
  const [first] = servers.apps as [App];
  const unlimited = { ...PLAN_LIMITS.unlimited, logLines: 20 };
  const rateLimits = { ...PLAN_LIMITS, unlimited };
  const worker = await servers.work('worker', { config: { diskFloor: 0, rateLimits } });
  const { commitSha } = await withCode(client, 'code', {
    'a.txt': 'first\n',
    'sub/large.bin': Buffer.alloc(3_000_000, 'loam'),
  });
  await withCode(client, 'data', { 'sub/b.txt': 'second\n' });
  await run(client, 'reads', 'cat in/*', {
    inputs: [{ repo: 'admin/data', path: 'sub', to: 'in' }],
  });
  await until(client, 'admin', 'reads', 'SUCCEEDED');
  expect(await lines(client, 'admin', 'reads')).toEqual(['second']);
  const command = `cat a.txt; wc -c < sub/large.bin; git rev-parse HEAD; git log --oneline | wc -l
    git status --porcelain; echo "$KEY"; echo ::progress::half; mkdir out; echo kept > out/kept.txt`;
  await run(client, 'whole', command, {
    secrets: variables({ KEY: 'hidden value' }),
    outputPath: 'out',
  });
  const whole = await until(client, 'admin', 'whole', 'SUCCEEDED');
  expect(whole).toMatchObject({ exitCode: 0, progress: 'half', artifacts: { fileCount: 1 } });
  expect(await lines(client, 'admin', 'whole')).toEqual([
    'first',
    '3000000',
    commitSha,
    '1',
    '***',
  ]);
  const archive = await fetch(whole.artifacts.downloadUrl);
  expect(archive.status).toBe(200);
  expect((await archive.arrayBuffer()).byteLength).toBeGreaterThan(100);
  await run(client, 'flood', 'seq 100');
  await until(client, 'admin', 'flood', 'SUCCEEDED');
  expect(await lines(client, 'admin', 'flood')).toHaveLength(21);

  // The server notifies the worker through the database, and reads the log that the worker stores there.
  await run(client, 'cancelled', 'trap "echo asked; exit 7" TERM; echo up; sleep 600 & wait');
  await run(client, 'deleted', 'echo up; sleep 600');
  const follower = await fetch(`${client.base}/admin/job/cancelled/logs?stream=true`, {
    headers: { authorization: client.authorization ?? '', 'last-event-id': '0' },
  });
  for (const name of ['cancelled', 'deleted'])
    await eventually(async () => expect(await lines(client, 'admin', name)).toEqual(['up']));
  await eventually(async () => {
    const { body } = await client.get('/admin/job/cancelled/analytics');
    expect(body).toHaveProperty('cpu_utilization_percent');
    const { usage } = await first.services.db.job.findFirstOrThrow({
      where: { name: 'cancelled' },
    });
    expect(usage).toMatchObject({ memoryBytes: expect.any(Number) });
  });
  await cancel(client, 'admin', 'cancelled');
  expect(await follower.text()).toMatch(/"up".*"asked".*event: end\n.*"exit_code":7/s);
  await cancel(client, 'admin', 'deleted');
  await remove(client, 'admin', 'deleted');
  const attempts = join(servers.folder, 'worker/attempts');
  await eventually(async () =>
    expect((await readdir(attempts)).filter((name) => name.startsWith('att_'))).toEqual([]),
  );

  // The container runner, if there is an engine.
  expect(['attempts', 'containers', 'instance-id', 'machines']).toEqual(
    expect.arrayContaining(await readdir(join(servers.folder, 'worker'))),
  );
  expect(await readdir(join(servers.folder, 'server-0'))).not.toContain('attempts');
  const outside = new Client(worker.address, null);
  for (const path of ['/livez', '/readyz'])
    expect([(await outside.get(path)).status, (await outside.get(path)).text]).toEqual([200, 'ok']);
  const other = await outside.get('/auth/v1/whoami');
  expect([other.status, other.body.error.code]).toEqual([404, 'not_found']);
  expect(other.headers.get('x-request-id')).toBe(other.body.error.request_id);
});

test('a worker signs identity tokens for the issuer, and a server that it does not know accepts the token of a job', async () => {
  await using servers = await startServers(2, SERVE);
  const [client, other] = servers.clients as [Client, Client];
  const [first, second] = servers.apps as [App, App];
  const runner = fakeRunner();
  await servers.work('worker', { overrides: { runner } });
  await withCode(client, 'code', { 'a.txt': 'first\n' });
  await run(client, 'trusted', 'hold', {
    permissions: { jobs: 'READ' },
    idTokens: [{ variable: 'CLOUD', audience: 'sts.example.com' }],
  });
  await until(client, 'admin', 'trusted', 'RUNNING');
  const [spec] = runner.running();
  const { LOAM_TOKEN, LOAM_URL } = spec?.env ?? {};
  expect(LOAM_URL).toBe(first.services.urls.base);
  // The servers share their keys.
  const keys = createRemoteJWKSet(new URL(`${second.services.urls.base}/.well-known/jwks.json`));
  const { payload } = await jwtVerify(spec?.files.CLOUD ?? '', keys, {
    audience: 'sts.example.com',
  });
  expect(payload).toMatchObject({
    iss: first.services.urls.base,
    sub: 'repo:admin/code:ref:refs/heads/main',
  });
  const asJob = new Client(other.base, `Bearer ${LOAM_TOKEN}`);
  expect((await asJob.get('/admin/jobs')).status).toBe(200);
  await cancel(client, 'admin', 'trusted');
  expect((await asJob.get('/admin/jobs')).status).toBe(401);
});

test('a worker runs jobs of repositories that another server owns', async () => {
  await using servers = await startServers(1, SERVE);
  const [client] = servers.clients as [Client];
  await servers.start('second');
  const [first, second] = servers.apps as [App, App];
  const firstId = first.services.cluster.members.id;
  await eventually(() => expect(second.services.cluster.members.serving).toHaveLength(2));
  // The owner of each repository is one of the two servers at random.
  const ran = new Set<string>();
  for (let i = 0; i < 20 && ran.size < 2; i++) {
    const { id } = await withCode(client, i === 0 ? 'code' : `code${i}`, { 'a.txt': `in ${i}\n` });
    const place = chooseOwner(id, second.services.cluster.members.serving).id;
    if (ran.has(place)) continue;
    ran.add(place);
    const repo = i === 0 ? 'admin/code' : `admin/code${i}`;
    await run(client, `job${i}`, 'cat a.txt', { repo });
    await until(client, 'admin', `job${i}`, 'SUCCEEDED');
    expect(await lines(client, 'admin', `job${i}`)).toEqual([`in ${i}`]);
  }
  expect(ran).toContain(firstId);
  const workers = await first.services.db.jobAttempt.findMany({ select: { workerId: true } });
  expect(new Set(workers.map(({ workerId }) => workerId))).toEqual(
    new Set([second.services.cluster.members.id]),
  );
});

test('a commit is sent only to the attempt that waits for it', async () => {
  await using servers = await startServers(1, SERVE);
  const [client] = servers.clients as [Client];
  const { services } = servers.apps[0] as App;
  const { id, commitSha } = await withCode(client, 'code', { 'a.txt': 'first\n' });
  const { id: otherId } = await withCode(client, 'other', { 'a.txt': 'secret\n' });
  await run(client, 'waiting', 'true');
  const grant = { machine: LOCAL_MACHINE, cpus: 1, memoryBytes: 1, shared: false };
  const [claim] = await claimJobs(services, {
    workerId: 'w',
    runner: 'fake',
    pools: new Map([['none', { 'us-east-1': 0 }]]),
    maxQueues: 1,
    maxJobsPerQueue: 1,
    reserved: [],
    decide: ([line]) => (line?.jobs ?? []).map((job) => ({ job, grant })),
  });
  const attemptId = String(claim?.attemptId);

  const { key } = services.cluster;
  type Asked = { repositoryId?: string; input?: object; signed?: string[] | null; now?: number };
  const ask = async ({ repositoryId = id, input = {}, signed, now }: Asked) => {
    const path = `/_loam/streams/checkout/${repositoryId}`;
    const body = serialize({ attemptId, commitSha, ...input });
    const contentHash = hash('sha256', body);
    const parts = signed === undefined ? ['call', path, contentHash] : signed;
    const answer = await fetch(client.base + path, {
      method: 'POST',
      body,
      headers: {
        'Content-Type': 'application/x-loam-call',
        'Loam-Content': contentHash,
        ...(parts && { 'Loam-Signature': sign(key, parts, now) }),
      },
    });
    const bytes = Buffer.from(await answer.arrayBuffer());
    const isData = answer.headers.get('content-type') === 'application/x-loam-call';
    return isData
      ? deserialize(bytes).failure.message
      : `${answer.status} ${bytes.subarray(0, 4).toString()}`;
  };
  expect(await ask({})).toBe('200 PACK');
  // Without the key, or with an expired or wrong signature, the route does not exist.
  expect(await ask({ signed: null })).toMatch(/^404/);
  expect(await ask({ signed: ['call', `/_loam/streams/checkout/${otherId}`, ''] })).toMatch(/^404/);
  expect(await ask({ now: Date.now() - 600_000 })).toMatch(/^404/);
  expect(await ask({ repositoryId: otherId })).toBe('Attempt not found');
  expect(
    await ask({
      input: { commitSha: commitSha.replace(/^./, (digit) => (digit === '0' ? '1' : '0')) },
    }),
  ).toBe('Attempt not found');
  expect(await ask({ input: { attemptId: `${attemptId}x` } })).toBe('Attempt not found');
  await services.db.jobAttempt.updateMany({ data: { handle: { attempt: attemptId } } });
  expect(await ask({})).toBe('Attempt not found');
  await services.db.jobAttempt.updateMany({ data: { handle: null as never } });
  await cancel(client, 'admin', 'waiting');
  expect(await ask({})).toBe('Attempt not found');
});

test('an interrupted checkout is requested again, from the current owner of the repository', async () => {
  await using servers = await startServers(1, SERVE);
  const [client] = servers.clients as [Client];
  const { services } = servers.apps[0] as App;
  const { db } = services;
  const { id } = await withCode(client, 'code', {
    'a.txt': 'first\n',
    'b.bin': randomBytes(2e6),
  });
  await run(client, 'job', 'cat a.txt; wc -c < b.bin; git status --porcelain');

  // The owner dies while it sends the checkout, and then does not answer at all.
  let asked = 0;
  await using dying = await listening((req, res) => {
    if (++asked > 1) return void req.socket.destroy();
    const options = { method: 'POST', headers: req.headers };
    const onwards = request(client.base + req.url, options, (answer) => {
      res.writeHead(200, answer.headers);
      let bytes = 0;
      answer.on('data', (chunk: Buffer) => {
        res.write(chunk);
        bytes += chunk.length;
        if (bytes > 1e6) req.socket.destroy();
      });
      res.on('close', () => answer.destroy());
    });
    req.pipe(onwards);
  });
  const [own] = services.cluster.members.serving;
  const candidates = Array.from({ length: 100 }, (_, i) => ({ id: `dying-${i}` }));
  const dead = candidates.find((one) => chooseOwner(id, [one, { id: String(own?.id) }]) === one);
  const far = new Date(Date.now() + 3_600_000);
  const row = {
    role: 'serve',
    url: dying.url,
    storage: services.storage.identity,
    heartbeatAt: far,
  } as const;
  await db.server.create({ data: { id: String(dead?.id), ...row } });

  const worker = await servers.work('worker');
  await eventually(() => expect(asked).toBeGreaterThan(2));
  expect(await job(client, 'admin', 'job')).toMatchObject({ status: 'QUEUED' });
  await db.server.delete({ where: { id: String(dead?.id) } });
  await until(client, 'admin', 'job', 'SUCCEEDED');
  expect(await lines(client, 'admin', 'job')).toEqual(['first', '2000000']);
  expect(worker.services.cluster.members.serving).toHaveLength(1);
  expect(await db.jobAttempt.count()).toBe(1);
});

async function listening(answer: RequestListener) {
  const server = createServer(answer).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
    },
  };
}

test('a job waits for an available owner of its repository, and fails after the last retry', async () => {
  await using servers = await startServers(1, SERVE);
  const [client] = servers.clients as [Client];
  await withCode(client, 'code', { 'a.txt': 'first\n' });
  await run(client, 'lonely', 'true');
  await run(client, 'patient', 'true');
  const { services } = await servers.work('worker', { config: { jobSlots: 0 } });
  await servers.apps[0]?.[Symbol.asyncDispose]();
  await eventually(() => expect(services.cluster.members.serving).toEqual([]));
  const db = services.db as Parameters<typeof startWorker>[0]['db'];
  const config = { ...services.config, jobSlots: 1 };
  const fromServers = createRemoteCheckout(services);
  const asked: string[] = [];
  const checkout: CheckOutJob = async (input) => {
    asked.push(input.attemptId);
    if (input.attemptId === asked[0]) return fromServers(input);
    // More busy responses than the number of other errors that a checkout may have.
    if (asked.filter((id) => id === input.attemptId).length < 12) throw busy('Too much');
    return 0;
  };
  const readInput = createRemoteInputReader(services);
  const deps = { ...services, db, config, runner: fakeRunner(), checkout, readInput };
  await using _ = await startWorker(deps, { pauses: { firstMs: 5, longestMs: 20 } });
  const hasBecome = (name: string, row: object) =>
    eventually(async () => expect(await db.job.findFirst({ where: { name } })).toMatchObject(row));
  await hasBecome('lonely', {
    status: 'failed',
    exitCode: 125,
    progress: 'failed: The repository could not be cloned: no server that has it could be reached',
  });
  await hasBecome('patient', { status: 'succeeded' });
});

test('a restarted worker resumes its own jobs and no others', async () => {
  await using servers = await startServers(1, SERVE);
  const [client] = servers.clients as [Client];
  await withCode(client, 'code', { 'a.txt': 'first\n' });
  const options = () => ({
    config: { jobSlots: 1 },
    overrides: { runner: fakeRunner({ graceMs: 100 }) },
  });
  const [one, two] = [options(), options()];
  const first = await servers.work('one', one);
  await servers.work('two', two);
  for (const name of ['a', 'b', 'c']) await run(client, name, `echo ${name}; sleep 600`);
  const runners = [one, two].map(({ overrides }) => overrides.runner);
  await eventually(() => {
    for (const runner of runners) expect(runner.running()).toHaveLength(1);
  });
  const { db } = (servers.apps[0] as App).services;
  const held = () => db.jobAttempt.findMany({ orderBy: { id: 'asc' }, select: attemptColumns });
  const attemptColumns = { id: true, workerId: true, endedAt: true } as const;
  const before = await held();
  expect(new Set(before.map(({ workerId }) => workerId)).size).toBe(2);

  await first[Symbol.asyncDispose]();
  await servers.work('one', one);
  expect(await held()).toEqual(before);
  for (const runner of runners) expect(runner.started).toHaveLength(1);
  // Each job is cancelled by its own worker, and the waiting job takes a slot.
  for (const name of ['a', 'b']) await cancel(client, 'admin', name);
  await until(client, 'admin', 'c', 'RUNNING');
  await cancel(client, 'admin', 'c');
  await eventually(async () => {
    expect(runners.flatMap((runner) => runner.running())).toEqual([]);
    const attempts = await held();
    expect(attempts).toHaveLength(3);
    expect(attempts.every(({ endedAt }) => endedAt !== null)).toBe(true);
  });
});

test('a worker needs its own data folder', async () => {
  await using servers = await startServers(1, SERVE);
  const taken = { dataDir: join(servers.folder, 'server-0') };
  await expect(servers.work('worker', { config: taken })).rejects.toThrow(
    /^LOAM_DATA_DIR: another Loam server is using/,
  );
});
