/** Checkpoints: what of a job's folder its next attempt gets. */
import {
  appendFile,
  mkdir,
  mkdtemp,
  rename,
  rm,
  symlink,
  truncate,
  utimes,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { setImmediate } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { storeArtifacts } from '../../src/jobs/artifacts/store.ts';
import {
  checkpointTopic,
  removeUnusedCheckpoints,
  storeCheckpoint,
} from '../../src/jobs/checkpoints/store.ts';
import { UnchangedFiles } from '../../src/runners/runner.ts';
import { createSnapshot, createTar } from '../../src/runners/supervisor/tar.ts';
import { TarFingerprint, tarHeader } from '../../src/runners/supervisor/tar-format.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, lines, submit, submitRaw, until } from '../support/submit.ts';

const cleanup = new AsyncDisposableStack();
/** Its jobs are processes. */
let app: TestApp;
let ada: Client;
/** Its jobs run in a fake runner, which can be lost. */
let faked: TestApp;
let eve: Client;
const runner: FakeRunner = fakeRunner({ images: true });
/** Replaces what the fake runner sends; null: there is no such folder. */
let sent: (() => AsyncIterable<Buffer>) | null | undefined;
const { artifacts } = runner;
let reads = 0;
runner.artifacts = async (handle, path, snapshot) => {
  reads += 1;
  if (sent === undefined) return artifacts(handle, path, snapshot);
  return sent && Readable.from(sent(), { objectMode: false });
};

beforeAll(async () => {
  app = cleanup.use(await startApp({ config: { runner: 'process' } }));
  ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  faked = cleanup.use(await startApp({ overrides: { runner } }));
  eve = await faked.user('eve', 'unlimited');
});
afterAll(() => cleanup.disposeAsync());

const base = { namespace: 'ada', repo: 'ada/code', checkpointPath: 'ckpt', checkpointMinutes: 0 };
const CHECKPOINT = `query ($namespace: String!, $name: String!) { job(namespace: $namespace, name: $name) {
  id checkpointPath checkpointMinutes checkpoint { createdAt sizeBytes files attempt } } }`;

async function shown(name: string, client = ada, namespace = 'ada') {
  return (await client.gql(CHECKPOINT, { namespace, name })).job;
}

/** Makes the worker store a checkpoint now, instead of after minutes. */
async function storeNow(name: string, of = app, client = ada, namespace = 'ada'): Promise<void> {
  of.app.services.bus.notify(checkpointTopic((await shown(name, client, namespace)).id));
}

/** The storage has nothing of checkpoints other than the current ones. */
async function expectNothingLeft(of = app): Promise<void> {
  await eventually(async () => {
    const rows = await of.app.services.db.checkpoint.findMany();
    const keys: string[] = [];
    for await (const { key } of of.app.services.storage.list('checkpoints/')) keys.push(key);
    expect(rows.every(({ isCurrent }) => isCurrent)).toBe(true);
    const known = rows.map(({ id, namespaceId }) => `checkpoints/${namespaceId}/${id}`);
    expect(keys.filter((key) => !known.some((prefix) => key.startsWith(`${prefix}/`)))).toEqual([]);
    expect(keys.length).toBe(2 * rows.length);
  });
}

test('a retry gets what the failed attempt has left, and nothing stays after the end', async () => {
  const command = `
    test -d "$JOB_CHECKPOINT" || exit 9
    cat "$JOB_CHECKPOINT"/steps/* 2>/dev/null
    mkdir -p ckpt/steps ckpt/empty && echo "step $JOB_ATTEMPT" > ckpt/steps/$JOB_ATTEMPT
    ln -sf steps ckpt/latest; ln -sf /etc/passwd ckpt/outside; mkfifo ckpt/fifo
    ln ckpt/steps/$JOB_ATTEMPT ckpt/hard; chmod 750 ckpt/steps/$JOB_ATTEMPT; touch -d 2001-01-01 ckpt/steps/1
    test $JOB_ATTEMPT = 3 || exit 1
    ls ckpt | grep -v fifo; ls -l ckpt/steps/1 | cut -c1-10; date -r ckpt/steps/1 +%Y; cat ckpt/hard`;
  await submit(ada, {
    ...base,
    name: 'retry',
    command: command.replace('mkfifo', 'rm -f ckpt/hard ckpt/fifo; mkfifo'),
    retries: 2,
  });
  await until(ada, 'ada', 'retry', 'SUCCEEDED');
  expect(await lines(ada, 'ada', 'retry')).toEqual([
    ...['step 1', 'step 1', 'step 2'],
    ...['empty', 'hard', 'latest', 'outside', 'steps'],
    ...['-rwxr-x---', '2001', 'step 3'],
  ]);
  expect(await shown('retry')).toMatchObject({
    checkpointPath: 'ckpt',
    checkpointMinutes: 0,
    checkpoint: null,
  });
  await expectNothingLeft();
  const { storageBytes } = await app.app.services.db.namespace.findUniqueOrThrow({
    where: { name: 'ada' },
  });
  expect(Number(storageBytes)).toBeLessThan(10_000);
});

test('a checkpoint is stored while the job runs, and again only when files have changed', async () => {
  const command = `
    echo one > ckpt/.tmp && touch -d 2001-01-01 ckpt/.tmp && mv ckpt/.tmp ckpt/a; echo ready
    until test -e /tmp/go; do sleep 0.1; done; echo two > ckpt/b; echo changed; sleep 600`;
  await submit(ada, { ...base, name: 'live', command });
  await eventually(async () => expect(await lines(ada, 'ada', 'live')).toContain('ready'));
  await storeNow('live');
  await eventually(async () =>
    expect((await shown('live')).checkpoint).toMatchObject({ files: 1, attempt: 1 }),
  );
  const { checkpoint } = await shown('live');
  expect(checkpoint.sizeBytes).toBeGreaterThan(0);
  const { db } = app.app.services;
  const { id } = await shown('live');
  const stored = await db.checkpoint.findFirstOrThrow({ where: { jobId: id } });
  expect(stored.fingerprint).not.toBeNull();
  await cancel(ada, 'ada', 'live');
  await until(ada, 'ada', 'live', 'CANCELLED');
  await expectNothingLeft();
});

test('a lost attempt leaves its files, and the next one begins with them', async () => {
  const input = { ...base, namespace: 'eve', repo: undefined, image: 'busybox' };
  const command = 'echo 1 > ckpt/step; lose';
  await submit(eve, { ...input, name: 'lost', command });
  const ended = await until(eve, 'eve', 'lost', 'FAILED');
  expect(ended.attempts.nodes).toHaveLength(4);
  expect(runner.started.filter((spec) => spec.job.name === 'lost')[0]?.env).toMatchObject({
    JOB_CHECKPOINT: 'ckpt',
  });
  await expectNothingLeft(faked);
});

test('what is refused', async () => {
  const refused = async (more: object, field = 'checkpointPath') => {
    const given = { ...base, name: 'refused', command: 'true', ...more };
    await expectRefusal(submitRaw(ada, given), 'INVALID_REQUEST', field);
  };
  for (const checkpointPath of [
    '',
    '.',
    './',
    '/work/ckpt',
    'a/../b',
    '.git',
    'a/.git/b',
    'HEAD',
    'a\u0000b',
    'x'.repeat(256),
    'x/'.repeat(600),
  ])
    await refused({ checkpointPath });
  for (const checkpointMinutes of [-1, 1_441])
    await refused({ checkpointMinutes }, 'checkpointMinutes');
  await refused({ checkpointPath: null, checkpointMinutes: 5 }, 'checkpointMinutes');
  for (const to of ['ckpt', 'ckpt/', 'ckpt/in', './ckpt/x'])
    await refused({ inputs: [{ job: 'retry', to }] });
  await refused({ checkpointPath: 'data/ckpt', inputs: [{ job: 'retry', to: 'data' }] });
  for (const to of ['ckpt', '/work/ckpt/x']) await refused({ volumes: [{ name: 'any', to }] });
  const { checkpointPath, checkpointMinutes } = await (async () => {
    await submit(ada, {
      ...base,
      name: 'normal',
      command: 'true',
      checkpointPath: './a//b/',
      checkpointMinutes: undefined,
    });
    return shown('normal');
  })();
  expect({ checkpointPath, checkpointMinutes }).toEqual({
    checkpointPath: 'a/b',
    checkpointMinutes: 10,
  });
});

/* A job of the fake runner. */

const fakeBase = {
  namespace: 'eve',
  image: 'busybox',
  checkpointPath: 'ckpt',
  checkpointMinutes: 0,
};

/** A job that runs and has a checkpoint. No other is stored until `sent` is changed. */
async function checkpointed(name: string) {
  sent = undefined;
  const { id } = await submit(eve, {
    ...fakeBase,
    name,
    command: 'echo 1 > ckpt/step; hold',
    retries: 1,
  });
  await until(eve, 'eve', name, 'RUNNING');
  const now = () => storeNow(name, faked, eve, 'eve');
  await eventually(async () => {
    await now();
    expect((await shown(name, eve, 'eve')).checkpoint).not.toBeNull();
  });
  // When the folder is read the next time, the previous store has ended.
  sent = null;
  const before = reads;
  await eventually(async () => {
    await now();
    expect(reads).toBeGreaterThan(before + 1);
  });
  const current = () =>
    faked.app.services.db.checkpoint.findMany({ where: { jobId: id, isCurrent: true } });
  const [first] = await current();
  if (!first) throw new Error('no checkpoint');
  return { id, now, current, first };
}

async function end(name: string): Promise<void> {
  sent = undefined;
  await cancel(eve, 'eve', name);
  await until(eve, 'eve', name, 'CANCELLED');
  await expectNothingLeft(faked);
}

test('a server that ends while it stores keeps the last checkpoint, and the next one goes on', async () => {
  const { now, current, first } = await checkpointed('stopped');
  let bytes = 0;
  sent = async function* () {
    yield tarHeader({ name: Buffer.from('endless'), size: 2 ** 36, mode: 0o600 });
    for (bytes = 0; ; bytes += 65_536) {
      yield Buffer.alloc(65_536);
      await setImmediate();
    }
  };
  await now();
  await eventually(() => expect(bytes).toBeGreaterThan(0));
  await faked.restart();
  expect(await current()).toEqual([first]);
  await expectNothingLeft(faked);
  sent = undefined;
  await eventually(async () => {
    await now();
    expect((await current())[0]?.id).not.toBe(first.id);
  });
  await end('stopped');
});

test('what a server left when it was killed is removed with the next checkpoint, or by maintenance', async () => {
  const { id, now, current, first } = await checkpointed('killed');
  const { db, storage } = faked.app.services;
  const leave = async (attemptId: string) => {
    const row = { ...first, id: `ckp_${attemptId}`, attemptId, isCurrent: false, sizeBytes: 0n };
    await db.checkpoint.create({ data: row });
    const key = `checkpoints/${first.namespaceId}/${row.id}/artifacts.tar.gz`;
    await storage.put(key, Readable.from([Buffer.from('half')], { objectMode: false }));
  };
  await leave(first.attemptId);
  // The attempt runs, so it may be storing it.
  await removeUnusedCheckpoints({ db, storage });
  expect(await db.checkpoint.count({ where: { jobId: id } })).toBe(2);
  await leave('att_ended');
  await removeUnusedCheckpoints({ db, storage });
  expect(await db.checkpoint.count({ where: { jobId: id } })).toBe(2);
  sent = undefined;
  await now();
  await expectNothingLeft(faked);
  expect(await current()).toHaveLength(1);
  await end('killed');
});

test('an attempt that does not hold the job any more, or is late, replaces nothing', async () => {
  const { id, current, first } = await checkpointed('late');
  const { services } = faked.app;
  const { db } = services;
  const job = await db.job.findUniqueOrThrow({ where: { id }, include: { namespace: true } });
  const handle = { attempt: first.attemptId };
  const store = (attemptId: string) =>
    storeCheckpoint(
      { ...services, runner: { ...runner, artifacts } },
      { id: attemptId, number: 1, startedAt: null, job },
      handle,
      new AbortController().signal,
    );
  expect(await store('att_other')).toBeNull();
  expect(await current()).toEqual([first]);
  const newest = 'ckp_zzzzzzzzzzzzzzzzzzzzzzzzzz';
  await db.checkpoint.update({ where: { id: first.id }, data: { id: newest } });
  expect(await store(first.attemptId)).toBeNull();
  expect((await current()).map((row) => row.id)).toEqual([newest]);
  // Of an earlier attempt, on a server whose clock is ahead.
  await db.checkpoint.update({ where: { id: newest }, data: { attemptId: 'att_earlier' } });
  for await (const { key } of services.storage.list('checkpoints/'))
    if (key.includes(first.id)) await services.storage.remove(key);
  expect(await store(first.attemptId)).toBeNull();
  expect((await current()).map((row) => row.attemptId)).toEqual([first.attemptId]);
  await end('late');
});

test('a checkpoint that does not fit is not stored, the job goes on, and one line says so', async () => {
  const { now, current, first } = await checkpointed('large');
  sent = async function* () {
    yield tarHeader({ name: Buffer.from('large'), size: 2 ** 41, mode: 0o600 });
  };
  const notes = async () =>
    (await lines(eve, 'eve', 'large')).filter((line) => /checkpoint/.test(line));
  await now();
  await eventually(async () =>
    expect(await notes()).toEqual([
      expect.stringMatching(
        /^The files in ckpt were not stored as a checkpoint: they are larger than the job's disk of \d+ GB$/,
      ),
    ]),
  );
  sent = undefined;
  await faked.pool.query(
    `update namespaces set storage_bytes = storage_bytes + 2::bigint ^ 60, plan = 'free' where name = 'eve'`,
  );
  await now();
  await eventually(async () =>
    expect((await notes())[1]).toMatch(/as a checkpoint: Storage quota exceeded/),
  );
  await now();
  await faked.pool.query(
    `update namespaces set storage_bytes = storage_bytes - 2::bigint ^ 60, plan = 'unlimited' where name = 'eve'`,
  );
  expect(await current()).toEqual([first]);
  await eventually(async () => {
    await now();
    expect((await current())[0]?.id).not.toBe(first.id);
  });
  expect(await notes()).toHaveLength(2);
  await end('large');
});

/* A folder that changes while it is read. */

const LARGE = 4 * 2 ** 20;

async function folder(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-checkpoint-'));
  cleanup.defer(() => rm(dir, { recursive: true }));
  await mkdir(join(dir, 'root'));
  await writeFile(join(dir, 'root/a'), Buffer.alloc(LARGE));
  await writeFile(join(dir, 'root/b'), Buffer.alloc(2 ** 17));
  await mkdir(join(dir, 'root/sub/empty'), { recursive: true });
  await writeFile(join(dir, 'root/sub/c'), 'c');
  await symlink('a', join(dir, 'root/link'));
  return dir;
}

/** Reads a snapshot, and calls `change` after its beginning was read. */
async function readWhile(dir: string, change: () => Promise<unknown>): Promise<Buffer> {
  const tar = await createSnapshot({ path: join(dir, 'root'), owner: null }, { unless: null });
  const chunks: Buffer[] = [];
  for await (const chunk of tar) {
    if (chunks.length === 0) await change();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

test('a snapshot fails when a file or folder changes or disappears while it is read', async () => {
  const changes: Record<string, (root: string) => Promise<unknown>> = {
    'a file that grows': (root) => appendFile(join(root, 'a'), 'x'),
    'a file that shrinks': (root) => truncate(join(root, 'a'), 2 ** 20),
    'a file that gets another name': (root) => rename(join(root, 'b'), join(root, 'new')),
    'a folder that gets another name': (root) => rename(join(root, 'sub'), join(root, 'new')),
    async 'a folder that becomes a link to the outside'(root) {
      await rename(join(root, 'sub'), join(root, '../outside'));
      await symlink('../outside', join(root, 'sub'));
    },
  };
  for (const [title, change] of Object.entries(changes)) {
    const dir = await folder();
    await expect(
      readWhile(dir, () => change(join(dir, 'root'))),
      title,
    ).rejects.toThrow('a file changed while it was read');
  }
  const dir = await folder();
  // A complete file under another name, in place of one that is being read.
  const tar = await readWhile(dir, async () => {
    await writeFile(join(dir, 'root/.new'), 'new');
    await rename(join(dir, 'root/.new'), join(dir, 'root/a'));
  });
  expect(tar.length).toBeGreaterThan(LARGE);
});

test('a folder is the same as long as no name, size or time has changed', async () => {
  const dir = await folder();
  const output = { path: join(dir, 'root'), owner: null };
  const { storage } = app.app.services;
  const print = async () => {
    const fingerprint = new TarFingerprint();
    const key = { namespaceId: 'ns_1', checkpointId: 'ckp_1' };
    await storeArtifacts({ storage }, key, createTar(output), {
      folder: '/work/root',
      maxBytes: 2 ** 30,
      maxEntries: 100,
      requireRoom: async () => {},
      fingerprint,
      signal: new AbortController().signal,
    });
    return fingerprint.digest();
  };
  expect(await print()).toBeNull();
  const old = new Date('2001-01-01');
  for (const file of ['a', 'b', 'sub/c']) await utimes(join(dir, 'root', file), old, old);
  const unless = await print();
  expect(unless).not.toBeNull();
  await expect(createSnapshot(output, { unless })).rejects.toThrow(UnchangedFiles);
  await rename(join(dir, 'root/b'), join(dir, 'root/b2'));
  expect((await buffer(await createSnapshot(output, { unless }))).length).toBeGreaterThan(LARGE);
  await rename(join(dir, 'root/b2'), join(dir, 'root/b'));
  await expect(createSnapshot(output, { unless })).rejects.toThrow(UnchangedFiles);
  await utimes(join(dir, 'root/b'), old, new Date('2001-01-02'));
  await buffer(await createSnapshot(output, { unless }));
  await storage.remove('checkpoints/ns_1/ckp_1/artifacts.tar.gz');
  await storage.remove('checkpoints/ns_1/ckp_1/index.json');
});
