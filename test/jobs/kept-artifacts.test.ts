/** Artifacts of deleted jobs, and artifacts that cannot be kept. */
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { setImmediate } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { newId } from '../../src/base/ids.ts';
import {
  type ArtifactEntry,
  archiveKey,
  listArtifacts,
  openArtifact,
  storeArtifacts,
} from '../../src/jobs/artifacts/store.ts';
import { type Runner, RunnerUnavailable } from '../../src/runners/runner.ts';
import { createTar } from '../../src/runners/supervisor/tar.ts';
import { tarHeader } from '../../src/runners/supervisor/tar-format.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { cancel, job, lines, remove, submit, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let namespaceId: string;
let whenCollected: (() => Promise<void>) | undefined;
/** Replaces the output of the runner. */
let collected: (() => AsyncGenerator<Buffer>) | undefined;
/** Aborts when the worker of the latest process stops. */
let stopping: AbortSignal;

beforeAll(async () => {
  const fake = fakeRunner({ graceMs: 100 });
  const runner: Runner = {
    ...fake,
    wait(handle, signal) {
      stopping = signal;
      return fake.wait(handle, signal);
    },
    async artifacts(handle, path) {
      const tar = await fake.artifacts(handle, path);
      await whenCollected?.();
      return collected ? Readable.from(collected(), { objectMode: false }) : tar;
    },
  };
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  namespaceId = (await ada.gql('{ namespace(name: "ada") { id } }')).namespace.id;
});
afterAll(() => app[Symbol.asyncDispose]());

async function finished(name: string, repo = 'ada/code') {
  await submit(ada, { namespace: 'ada', name, repo, command: 'echo out', outputPath: 'out' });
  return until(ada, 'ada', name, 'SUCCEEDED');
}

async function kept(client = ada) {
  const { namespace } = await client.gql(`{ namespace(name: "ada") { keptArtifacts {
    totalCount nodes { jobId jobName artifacts { sizeBytes fileCount downloadUrl files { nodes { path downloadUrl } } } } } } }`);
  return namespace.keptArtifacts;
}

const stored = async () =>
  Number(
    (await app.app.services.db.namespace.findUniqueOrThrow({ where: { name: 'ada' } }))
      .storageBytes,
  );
const folderOf = (jobId: string) =>
  join(app.config.dataDir, 'storage/artifacts', namespaceId, jobId);
const DELETE = `mutation ($input: DeleteKeptArtifactsInput!) { deleteKeptArtifacts(input: $input) { id } }`;
const discard = (client: Client, jobId: string) => client.graphql(DELETE, { input: { jobId } });
const codeOf = async (answer: ReturnType<typeof discard>) =>
  (await answer).errors?.[0]?.extensions.code;

test('kept artifacts stay at their URL and in the storage, are listed, and can be removed', async () => {
  const before = await stored();
  const { id, artifacts } = await finished('left');
  // The log is deleted too.
  expect(await stored()).toBeGreaterThan(before + artifacts.sizeBytes);
  await remove(ada, 'ada', 'left');
  expect(await stored()).toBe(before + artifacts.sizeBytes);

  const { totalCount, nodes } = await kept();
  expect([totalCount, nodes[0]]).toMatchObject([
    1,
    { jobId: id, jobName: 'left', artifacts: { sizeBytes: artifacts.sizeBytes, fileCount: 1 } },
  ]);
  const [file] = nodes[0].artifacts.files.nodes;
  expect((await app.anonymous.get(file.downloadUrl)).text).toBe('out\n');
  expect((await app.anonymous.get(nodes[0].artifacts.downloadUrl)).status).toBe(200);
  const bob = await app.user('bob');
  const bare = nodes[0].artifacts.downloadUrl.split('?')[0];
  const statuses = [ada, bob, app.anonymous].map(async (who) => (await who.get(bare)).status);
  expect(await Promise.all(statuses)).toEqual([200, 403, 401]);

  expect((await kept(bob)).totalCount).toBe(0);
  expect(await codeOf(discard(bob, id))).toBe('PERMISSION_DENIED');
  expect(await codeOf(discard(app.anonymous, id))).toBe('AUTHENTICATION_FAILED');
  expect((await discard(ada, id)).data.deleteKeptArtifacts).toEqual({ id });
  expect([await stored(), (await kept()).totalCount]).toEqual([before, 0]);
  expect(existsSync(folderOf(id))).toBe(false);
  expect((await ada.get(bare)).status).toBe(404);
  expect(await codeOf(discard(ada, id))).toBe('NOT_FOUND');
  expect(await codeOf(discard(ada, newId('job')))).toBe('NOT_FOUND');
  expect(await codeOf(discard(ada, 'nonsense'))).toBe('NOT_FOUND');
});

test('removing kept artifacts requires permission to delete the job; a restricted token sees only its own', async () => {
  const { id } = await finished('shared');
  await remove(ada, 'ada', 'shared');
  const { db } = app.app.services;
  const carol = await app.user('carol');
  const { id: userId } = await db.user.findUniqueOrThrow({ where: { username: 'carol' } });
  const role = (name: 'read' | 'write') =>
    db.member.upsert({
      where: { namespaceId_userId: { namespaceId, userId } },
      create: { namespaceId, userId, role: name },
      update: { role: name },
    });
  for (const name of ['read', 'write'] as const) {
    await role(name);
    expect((await kept(carol)).totalCount).toBe(1);
    expect(await codeOf(discard(carol, id))).toBe('PERMISSION_DENIED');
  }
  const other = (await ada.post('/auth/v1/repository/ada', { name: 'other' })).body;
  const token = async (repositories: string[]) => {
    const { body } = await ada.post('/auth/v1/pat', { name: newId('pat'), repositories });
    return app.client(`Bearer ${body.token}`);
  };
  const { repositoryId } = await db.keptArtifacts.findUniqueOrThrow({ where: { id } });
  const [seeing, blind] = [await token([repositoryId ?? '']), await token([other.id])];
  const { downloadUrl } = (await kept(seeing)).nodes[0].artifacts;
  expect((await kept(blind)).totalCount).toBe(0);
  const bare = downloadUrl.split('?')[0];
  expect([(await seeing.get(bare)).status, (await blind.get(bare)).status]).toEqual([200, 403]);
  await discard(ada, id);
});

test('artifacts are deleted with their job, also if the server was killed before it removed the files', async () => {
  const before = await stored();
  const { id } = await finished('whole');
  await remove(ada, 'ada', 'whole', true);
  expect([await stored(), (await kept()).totalCount]).toEqual([before, 0]);
  expect(existsSync(folderOf(id))).toBe(false);

  const left = await finished('half');
  await remove(ada, 'ada', 'half');
  const { db } = app.app.services;
  await db.keptArtifacts.update({ where: { id: left.id }, data: { removing: true } });
  expect((await kept()).totalCount).toBe(0);
  await app.restart();
  await eventually(async () => expect(await stored()).toBe(before));
  expect(existsSync(folderOf(left.id))).toBe(false);
});

/** Starts a job and blocks it before its artifacts are stored. @returns a function that unblocks it */
async function storing(name: string, command: string): Promise<() => void> {
  const reached = Promise.withResolvers<void>();
  const release = Promise.withResolvers<void>();
  whenCollected = async () => {
    whenCollected = undefined;
    reached.resolve();
    await release.promise;
  };
  await submit(ada, { namespace: 'ada', name, repo: 'ada/code', command, outputPath: 'out' });
  await reached.promise;
  return release.resolve;
}

const openAttempts = () => app.app.services.db.jobAttempt.count({ where: { endedAt: null } });

/** The usage of all jobs of the namespace until now, from the ledger and the running attempts. */
async function secondsUsed(): Promise<number> {
  const day = (days: number) => new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10);
  const { namespace } = await ada.gql(
    `query ($from: Date!, $to: Date!) { namespace(name: "ada") {
      usage(from: $from, to: $to) { nodes { runtimeSeconds } } } }`,
    { from: day(-1), to: day(1) },
  );
  return namespace.usage.nodes.reduce(
    (sum: number, used: { runtimeSeconds: number | string }) => sum + Number(used.runtimeSeconds),
    0,
  );
}

test('time and cost stop while artifacts are stored, and a cancellation keeps the exit code', async () => {
  const before = await secondsUsed();
  const release = await storing('ended', 'echo out; exit 3');
  // As if the process had run for ten seconds and ended twenty hours ago.
  await app.pool.query(`update job_attempts set started_at = exited_at - interval '72010 s',
    exited_at = exited_at - interval '72000 s' where ended_at is null`);
  expect(await job(ada, 'ada', 'ended')).toMatchObject({
    status: 'RUNNING',
    progress: 'storing artifacts',
    runtimeSeconds: 10,
    attempts: { nodes: [{ outcome: null, exitCode: 3 }] },
  });
  // The same values by another query.
  const { jobs } = (
    await ada.gql(
      '{ namespace(name: "ada") { jobs(filter: { namePrefix: "ended" }) { nodes { runtimeSeconds totalCost } } } }',
    )
  ).namespace;
  expect(jobs.nodes).toMatchObject([{ runtimeSeconds: 10 }]);
  expect((await secondsUsed()) - before).toBe(10);

  const { cancelJob } = (await cancel(ada, 'ada', 'ended')).data;
  expect(cancelJob).toMatchObject({
    message: expect.stringMatching(/had ended already/),
    job: { status: 'CANCELLED', runtimeSeconds: 10, totalCost: jobs.nodes[0].totalCost },
  });
  expect(await job(ada, 'ada', 'ended')).toMatchObject({ exitCode: 3, artifacts: null });
  release();
  await eventually(async () => expect(await openAttempts()).toBe(0));
  expect(await job(ada, 'ada', 'ended')).toMatchObject({
    status: 'CANCELLED',
    exitCode: 3,
    runtimeSeconds: 10,
    artifacts: { fileCount: 1 },
  });
  expect((await secondsUsed()) - before).toBe(10);
  await remove(ada, 'ada', 'ended', true);
});

test('a server that resumes storing keeps the end of the process and the progress of the program', async () => {
  const release = await storing('resumed', 'echo out; echo ::progress::all done');
  const exited = async () =>
    (await app.app.services.db.jobAttempt.findFirstOrThrow({ where: { endedAt: null } })).exitedAt;
  const first = await exited();
  expect(first).not.toBeNull();
  expect(await job(ada, 'ada', 'resumed')).toMatchObject({
    status: 'RUNNING',
    progress: 'all done',
  });
  const again = Promise.withResolvers<void>();
  const goOn = Promise.withResolvers<void>();
  const restarting = app.restart();
  whenCollected = async () => {
    whenCollected = undefined;
    again.resolve();
    await goOn.promise;
  };
  // Otherwise the first server would finish storing.
  await eventually(() => expect(stopping.aborted).toBe(true));
  release();
  await restarting;
  await again.promise;
  expect(await exited()).toEqual(first);
  goOn.resolve();
  expect(await until(ada, 'ada', 'resumed', 'SUCCEEDED')).toMatchObject({
    progress: 'all done',
    artifacts: { fileCount: 1 },
  });
  const { endedAt } = await app.app.services.db.jobAttempt.findFirstOrThrow({
    where: { job: { name: 'resumed' } },
  });
  expect(endedAt).toEqual(first);
  await remove(ada, 'ada', 'resumed', true);
});

test('a job that is deleted with its artifacts while they are stored leaves no artifacts', async () => {
  await submit(ada, {
    namespace: 'ada',
    name: 'racing',
    repo: 'ada/code',
    command: 'echo out; sleep 600',
    outputPath: 'out',
  });
  await until(ada, 'ada', 'racing', 'RUNNING');
  const before = await stored();
  const deleted = Promise.withResolvers<void>();
  whenCollected = async () => {
    whenCollected = undefined;
    expect((await remove(ada, 'ada', 'racing', true)).errors).toBeUndefined();
    deleted.resolve();
  };
  await cancel(ada, 'ada', 'racing');
  await deleted.promise;
  const { db } = app.app.services;
  await eventually(async () =>
    expect(await db.jobAttempt.count({ where: { endedAt: null } })).toBe(0),
  );
  await app.restart();
  expect(await Array.fromAsync(app.app.services.storage.list(`artifacts/${namespaceId}/`))).toEqual(
    [],
  );
  expect([await stored(), (await kept()).totalCount]).toEqual([before, 0]);
});

test('a job that is deleted while its process ends keeps the artifacts of the process', async () => {
  const before = await stored();
  const submitted = async (name: string, command: string) => {
    const more = { repo: 'ada/code', outputPath: 'out' };
    const { id } = await submit(ada, { namespace: 'ada', name, command, ...more });
    await eventually(async () => expect(await lines(ada, 'ada', name)).toEqual(['out']));
    return id;
  };
  // The process ignores SIGTERM and is killed after the grace period.
  const id = await submitted('ending', 'stubborn; echo out; sleep 600');
  await cancel(ada, 'ada', 'ending');
  expect((await remove(ada, 'ada', 'ending')).errors).toBeUndefined();
  await eventually(async () => expect((await kept()).totalCount).toBe(1));
  const { nodes } = await kept();
  expect(nodes).toMatchObject([{ jobId: id, jobName: 'ending', artifacts: { fileCount: 1 } }]);
  const { sizeBytes, downloadUrl } = nodes[0].artifacts;
  expect(sizeBytes).toBeGreaterThan(0);
  expect(await stored()).toBe(before + sizeBytes);
  expect((await app.anonymous.get(downloadUrl)).status).toBe(200);
  await discard(ada, id);
  expect([await stored(), (await kept()).totalCount]).toEqual([before, 0]);

  // Rows of attempts that store nothing, or whose server is gone, are removed.
  const { db } = app.app.services;
  collected = async function* () {
    yield tarHeader({ name: Buffer.from('large'), size: 2 ** 50, mode: 0o600 });
  };
  await submitted('none', 'stubborn; echo out; sleep 600');
  await cancel(ada, 'ada', 'none');
  await remove(ada, 'ada', 'none');
  await eventually(async () => expect(await db.keptArtifacts.count()).toBe(0));
  collected = undefined;
});

test('a job whose artifacts cannot be kept fails without a retry, with the reason in its log', async () => {
  collected = async function* () {
    yield tarHeader({ name: Buffer.from('large'), size: 2 ** 40, mode: 0o600 });
  };
  await submit(ada, {
    namespace: 'ada',
    name: 'many',
    repo: 'ada/code',
    command: 'echo out',
    outputPath: 'out',
    retries: 2,
    diskGb: 1,
  });
  const reason = "the artifacts were not kept: they are larger than the job's disk of 1 GB";
  expect(await until(ada, 'ada', 'many', 'FAILED')).toMatchObject({
    exitCode: 125,
    retryCount: 0,
    progress: `failed: ${reason}`,
    artifacts: null,
    attempts: { nodes: [{ outcome: 'EXITED', exitCode: 0 }] },
  });
  expect((await lines(ada, 'ada', 'many')).at(-1)).toBe(reason.replace('the', 'The'));
});

test('a transfer that breaks is repeated, also in the middle of the tar', async () => {
  let tries = 0;
  whenCollected = async () => {
    if (++tries === 1) throw new RunnerUnavailable('the engine interrupted it');
    if (tries === 3) collected = undefined;
  };
  collected = async function* () {
    yield tarHeader({ name: Buffer.from('half'), size: 100, mode: 0o644 });
    throw new RunnerUnavailable('the node disconnected');
  };
  try {
    const job = await finished('broken-transfer');
    expect(job.artifacts).toMatchObject({ fileCount: 1 });
    expect(tries).toBe(3);
  } finally {
    whenCollected = undefined;
    collected = undefined;
  }
});

test('entries that are left out count too, so that a hostile tar ends', async () => {
  let sent = 0;
  async function* endless() {
    const name = Buffer.from('device');
    yield tarHeader({ name, size: 8 * 2 ** 30, mode: 0, type: 'other' });
    for (; ; sent++) yield Buffer.alloc(2 ** 16);
  }
  const tar = Readable.from(endless(), { objectMode: false });
  await expect(
    storeArtifacts(app.app.services, { namespaceId, jobId: 'endless', attemptId: 'a' }, tar, {
      folder: '/work/out',
      maxBytes: 2 ** 30,
      maxEntries: 5,
      requireRoom: async () => {},
      signal: new AbortController().signal,
    }),
  ).rejects.toThrow("larger than the job's disk of 1 GB");
  expect(sent).toBeLessThan(100);
});

test('the number of files, links and folders is limited, and no names are read beyond the limit', async () => {
  const path = await mkdtemp(join(tmpdir(), 'loam-outputs-'));
  for (const name of ['a/b', 'c/d']) await mkdir(join(path, name), { recursive: true });
  for (const name of ['a/1', 'a/b/2', 'c/d/3', '4']) await writeFile(join(path, name), name);
  await symlink('../1', join(path, '5'));
  const place = { path, owner: process.getuid?.() ?? 0 };
  const store = (tar: Readable, maxEntries: number) =>
    storeArtifacts(app.app.services, { namespaceId, jobId: 'counted', attemptId: 'a' }, tar, {
      folder: '/work/out',
      maxBytes: 1_000,
      maxEntries,
      requireRoom: async () => {},
      signal: new AbortController().signal,
    });
  // The four folders are not in the archive.
  expect(await store(createTar(place, { maxEntries: 9 }), 5)).toMatchObject({
    files: 4,
    leftOut: 1,
  });
  await expect(store(createTar(place, { maxEntries: 8 }), 5)).rejects.toThrow(
    'more than 8 files, links and folders',
  );
  await expect(store(createTar(place, { maxEntries: 9 }), 4)).rejects.toThrow(
    'more than 4 files, links and folders',
  );
  await rm(path, { recursive: true });
});

test('empty folders and links that stay inside are kept, but no link that may lead outside', async () => {
  const path = await mkdtemp(join(tmpdir(), 'loam-outputs-'));
  const into = await mkdtemp(join(tmpdir(), 'loam-outputs-'));
  for (const name of ['a/b', 'empty', 'c/empty'])
    await mkdir(join(path, name), { recursive: true });
  await writeFile(join(path, 'a/file'), 'contents');
  const inside = {
    link: 'a/file',
    folder: 'a',
    'a/b/up': '../../a/file',
    'a/b/itself': '../b',
    absolute: '/work/out/a/file',
    'a/root': '/work/out',
    dangling: `a/${'x'.repeat(200)}`,
  };
  const outside = {
    parent: '../x',
    passwd: '/etc/passwd',
    beside: '/work/out-2/file',
    'a/deep': '../../x',
    // Through a link, this path leads to another place.
    winding: 'folder/../../x',
  };
  for (const [name, target] of Object.entries({ ...inside, ...outside }))
    await symlink(target, join(path, name));
  const place = { path, owner: process.getuid?.() ?? 0 };
  const key = { namespaceId, jobId: 'links', attemptId: 'a' };
  const { storage } = app.app.services;
  const stored = await storeArtifacts({ storage }, key, createTar(place), {
    folder: '/work/out',
    maxBytes: 1_000,
    maxEntries: 100,
    requireRoom: async () => {},
    signal: new AbortController().signal,
  });
  expect(stored).toMatchObject({ files: 1, leftOut: Object.keys(outside).length });
  expect(await listArtifacts({ storage }, key)).toMatchObject([{ path: 'a/file' }]);
  execFileSync('tar', [
    '-xzf',
    join(app.config.dataDir, 'storage', archiveKey(key)),
    ...['-C', into],
  ]);
  const found = execFileSync('find', ['.', '-mindepth', '1', '-printf', '%P %y %l\n'], {
    cwd: into,
  });
  const links = { ...inside, absolute: 'a/file', 'a/root': '../' };
  expect(found.toString().trim().split('\n').sort()).toEqual(
    [
      ...Object.entries(links).map(([name, target]) => `${name} l ${target}`),
      ...['a', 'a/b', 'c', 'c/empty', 'empty'].map((name) => `${name} d `),
      'a/file f ',
    ].sort(),
  );
  expect(await readFile(join(into, 'absolute'), 'utf8')).toBe('contents');
  for (const folder of [path, into]) await rm(folder, { recursive: true });
});

test('small files share members of the archive, and each can still be sent alone', async () => {
  const path = await mkdtemp(join(tmpdir(), 'loam-outputs-'));
  const into = await mkdtemp(join(tmpdir(), 'loam-outputs-'));
  const sizes = [0, 1, 511, 512, 513, 65_535, 65_536, 65_537, 300_000];
  const files = new Map<string, Buffer>();
  // Files of all sizes among many tiny ones, so that members start and end at each size.
  for (let n = 0; n < 1_000; n++) {
    const size = n % 50 === 0 ? (sizes[(n / 50) % sizes.length] ?? 0) : n % 7;
    files.set(String(n).padStart(4, '0'), Buffer.alloc(size, `${n} `));
  }
  for (const [name, contents] of files) await writeFile(join(path, name), contents);
  const place = { path, owner: process.getuid?.() ?? 0 };
  const key = { namespaceId, jobId: 'small', attemptId: 'a' };
  const { storage } = app.app.services;
  const stored = await storeArtifacts({ storage }, key, createTar(place), {
    folder: '/work/out',
    maxBytes: 2 ** 30,
    maxEntries: 1_000,
    requireRoom: async () => {},
    signal: new AbortController().signal,
  });
  expect(stored).toMatchObject({ files: 1_000, leftOut: 0 });

  const listed = (await listArtifacts({ storage }, key)) as (ArtifactEntry & { offset: number })[];
  expect(listed.map((entry) => [entry.path, entry.sizeBytes])).toEqual(
    [...files].map(([name, contents]) => [name, contents.length]),
  );
  expect(new Set(listed.map(({ offset }) => offset)).size).toBeLessThan(50);
  for (const [name, contents] of files) {
    if (contents.length < 7 && Number(name) % 50 !== 1) continue;
    const file = await openArtifact({ storage }, key, name);
    if (!file) throw new Error(`${name} is not there`);
    expect((await buffer(await file.open())).equals(contents), name).toBe(true);
  }
  const archive = join(app.config.dataDir, 'storage', archiveKey(key));
  execFileSync('tar', ['-xzf', archive, '-C', into]);
  execFileSync('diff', ['-r', path, into]);
  for (const folder of [path, into]) await rm(folder, { recursive: true });
});

test('storing stops when the job is deleted, and the next server starts it again', async () => {
  let bytes = 0;
  let ended = 0;
  collected = async function* () {
    try {
      yield tarHeader({ name: Buffer.from('endless'), size: 2 ** 36, mode: 0o600 });
      for (bytes = 0; ; bytes += 65_536) {
        yield Buffer.alloc(65_536);
        await setImmediate();
      }
    } finally {
      ended += 1;
    }
  };
  const begin = async (name: string, command: string) => {
    const more = { repo: 'ada/code', outputPath: 'out' };
    const { id } = await submit(ada, { namespace: 'ada', name, command, ...more });
    await until(ada, 'ada', name, 'RUNNING');
    return id;
  };
  const id = await begin('deleted', 'echo out; sleep 600');
  await cancel(ada, 'ada', 'deleted');
  await eventually(() => expect(bytes).toBeGreaterThan(0));
  await remove(ada, 'ada', 'deleted', true);
  await eventually(() => expect(ended).toBe(1));
  const unfinished = join(app.config.dataDir, 'storage/.unfinished');
  await eventually(async () => expect(await readdir(unfinished)).toEqual([]));
  expect(existsSync(folderOf(id))).toBe(false);

  bytes = 0;
  await begin('stopped', 'echo out');
  await eventually(() => expect(bytes).toBeGreaterThan(0));
  await app.restart();
  expect(ended).toBe(2);
  await eventually(() => expect(bytes).toBeGreaterThan(0));
  collected = undefined;
  await app.restart();
  expect(await until(ada, 'ada', 'stopped', 'SUCCEEDED')).toMatchObject({
    artifacts: { fileCount: 1 },
  });
});
