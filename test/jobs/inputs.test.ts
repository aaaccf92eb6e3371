/** Artifacts of a job become files in the working directory of another job. */
import { once } from 'node:events';
import {
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { extract } from 'tar-stream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CONTRACT } from '../../src/base/hardware.ts';
import { newId } from '../../src/base/ids.ts';
import type { Account } from '../../src/identity/permissions.ts';
import { extractArtifacts, InputFolder } from '../../src/jobs/artifacts/extract.ts';
import { removeArtifacts, storeArtifacts } from '../../src/jobs/artifacts/store.ts';
import { nameFolders, resolveInputs } from '../../src/jobs/requests/inputs.ts';
import { insertJobs, type JobToInsert, prepareJob } from '../../src/jobs/requests/jobs.ts';
import { checkRequest } from '../../src/jobs/requests/request.ts';
import { openFolder } from '../../src/platform/storage/folder.ts';
import { type Storage, StorageUnavailable } from '../../src/platform/storage/storage.ts';
import {
  TAR_END,
  type TarEntry,
  tarHeader,
  tarPadding,
} from '../../src/runners/supervisor/tar-format.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { GIT_PATHS, ORDINARY_PATHS } from '../support/git-paths.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, job, lines, remove, submit, submitRaw, until } from '../support/submit.ts';

const cleanup = new AsyncDisposableStack();
let app: TestApp;
let ada: Client;
/** Its jobs run in a fake runner, which makes their working directories. */
let faked: TestApp;
let eve: Client;
let root: string;
let storage: Storage;
const runner = fakeRunner({ images: true });

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'loam-inputs-'));
  cleanup.defer(() => rm(root, { recursive: true }));
  storage = cleanup.adopt(await openFolder(join(root, 'storage')), (each) =>
    each[Symbol.dispose](),
  );
  app = cleanup.use(await startApp({ config: { runner: 'process' } }));
  ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  faked = cleanup.use(await startApp({ overrides: { runner } }));
  eve = await faked.user('eve', 'unlimited');
  await eve.post('/auth/v1/repository/eve', { name: 'code' });
});
afterAll(() => cleanup.disposeAsync());

/* Copies of an archive into a folder. */

type Entry = Partial<TarEntry> & { path: string; text?: string; link?: string };

/** Stores an archive. */
async function store(entries: Entry[]) {
  const key = { namespaceId: newId('ns'), jobId: newId('job'), attemptId: newId('att') };
  const chunks = entries.flatMap(({ path, text = '', link, ...more }) => {
    const contents = Buffer.from(text);
    const target = link === undefined ? {} : { type: 'link' as const, target: Buffer.from(link) };
    const size = link === undefined ? contents.length : 0;
    const header = tarHeader({ name: Buffer.from(path), mode: 0o644, ...more, ...target, size });
    return [header, contents, tarPadding(contents.length)];
  });
  await storeArtifacts({ storage }, key, Readable.from([...chunks, TAR_END]), {
    folder: '/work/out',
    maxBytes: 2 ** 30,
    maxEntries: 1_000,
    requireRoom: async () => {},
    signal: new AbortController().signal,
  });
  return key;
}

const UNLIMITED = { maxBytes: 2 ** 30, maxEntries: 10_000 };

/** Copies into a new folder, which `prepare` fills before. @returns path → contents, `-> target` or `/` */
async function copy(
  key: Awaited<ReturnType<typeof store>>,
  { path = '', to = '' }: { path?: string; to?: string } = {},
  {
    limits = UNLIMITED,
    prepare,
  }: { limits?: typeof UNLIMITED; prepare?: (dir: string) => Promise<unknown> } = {},
) {
  const dir = await mkdtemp(join(root, 'work-'));
  await prepare?.(dir);
  const folder = new InputFolder(dir, limits);
  await extractArtifacts({ storage }, key, { path, to }, folder, new AbortController().signal);
  return list(dir);
}

async function list(dir: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for (const entry of await readdir(dir, { recursive: true, withFileTypes: true })) {
    const at = join(entry.parentPath, entry.name);
    const path = at.slice(dir.length + 1);
    if (entry.isSymbolicLink()) found[path] = `-> ${await readlink(at)}`;
    else found[path] = entry.isDirectory() ? '/' : await readFile(at, 'utf8');
  }
  return found;
}

const MODEL: Entry[] = [
  { path: 'log.txt', text: 'log' },
  { path: 'model/a.bin', text: 'a', mode: 0o755 },
  { path: 'model/deep/b.bin', text: 'b' },
  { path: 'model/deep/up', link: '../a.bin' },
  { path: 'model/out', link: '../log.txt' },
  { path: 'model/empty', type: 'directory' },
  { path: 'model-2', text: 'other' },
];

test('all artifacts, a folder or a file are copied', async () => {
  const key = await store(MODEL);
  const model = {
    'a.bin': 'a',
    deep: '/',
    'deep/b.bin': 'b',
    'deep/up': '-> ../a.bin',
    empty: '/',
  };
  const below = (folder: string, files: Record<string, string>) =>
    Object.fromEntries(Object.entries(files).map(([path, text]) => [`${folder}/${path}`, text]));
  expect(await copy(key)).toEqual({
    'log.txt': 'log',
    model: '/',
    ...below('model', { ...model, out: '-> ../log.txt' }),
    'model-2': 'other',
  });
  // A link that leads out of the folder is left out.
  expect(await copy(key, { path: 'model' })).toEqual(model);
  expect(await copy(key, { path: 'model', to: 'in/x' })).toEqual({
    in: '/',
    'in/x': '/',
    ...below('in/x', model),
  });
  expect(await copy(key, { path: 'model', to: 'in/' })).toEqual({ in: '/', ...below('in', model) });
  expect(await copy(key, { path: 'model/deep/b.bin' })).toEqual({ 'b.bin': 'b' });
  expect(await copy(key, { path: 'model/a.bin', to: 'in/' })).toEqual({ in: '/', 'in/a.bin': 'a' });
  expect(await copy(key, { path: 'model/a.bin', to: 'run' })).toEqual({ run: 'a' });
  expect(await copy(key, { path: 'model/empty', to: 'in' })).toEqual({ in: '/' });
  for (const path of ['none', 'mod', 'model/a', 'log.txt/x'])
    await expect(copy(key, { path })).rejects.toThrow(`"${path}" is not among them`);
  await expect(copy(key, { path: 'model/out' })).rejects.toThrow('is a link');
});

test('files can be run, large files are whole, and names are bytes', async () => {
  const text = 'x'.repeat(300_000);
  const key = await store([
    { path: 'run', text: '#!', mode: 0o755 },
    { path: 'secret', text: 's', mode: 0o000 },
    { path: 'large', text },
    { path: 'ä/ü', text: 'umlaut' },
  ]);
  const dir = await mkdtemp(join(root, 'work-'));
  const folder = new InputFolder(dir, UNLIMITED);
  const signal = new AbortController().signal;
  await extractArtifacts({ storage }, key, { path: '', to: 'ö' }, folder, signal);
  expect((await lstat(join(dir, 'ö/run'))).mode & 0o777).toBe(0o755);
  expect((await lstat(join(dir, 'ö/secret'))).mode & 0o777).toBe(0o600);
  expect(await list(dir)).toMatchObject({ 'ö/large': text, 'ö/ä/ü': 'umlaut' });
  expect(await copy(key, { path: 'ä/ü' })).toEqual({ ü: 'umlaut' });
});

test('nothing is replaced, and no link of the checkout is followed', async () => {
  const key = await store([{ path: 'in/file', text: 'new' }]);
  const outside = await mkdtemp(join(root, 'outside-'));
  const refused = (problem: string, prepare: (dir: string) => Promise<unknown>) =>
    expect(copy(key, {}, { prepare })).rejects.toThrow(problem);
  await refused('"in/file" exists already', async (dir) => {
    await mkdir(join(dir, 'in'));
    await writeFile(join(dir, 'in/file'), 'old');
  });
  await refused('"in/file" exists already', async (dir) => {
    await mkdir(join(dir, 'in'));
    await symlink(join(outside, 'file'), join(dir, 'in/file'));
  });
  await refused('"in" exists already and is not a folder', (dir) =>
    symlink(outside, join(dir, 'in')),
  );
  await refused('"in" exists already and is not a folder', (dir) => writeFile(join(dir, 'in'), ''));
  expect(await readdir(outside)).toEqual([]);
  // Folders are merged.
  const merged = await copy(key, {}, { prepare: (dir) => mkdir(join(dir, 'in')) });
  expect(merged).toEqual({ in: '/', 'in/file': 'new' });
});

test('an archive cannot write through its own links, into .git or out of the folder', async () => {
  // The first entry is a link to a folder; then a file in that folder.
  const through = await store([
    { path: 'real', type: 'directory' },
    { path: 'a', link: 'real' },
    { path: 'a/file', text: 'x' },
  ]);
  await expect(copy(through)).rejects.toThrow('"a" exists already and is not a folder');
  const hook = await store([{ path: '.git/hooks/post-checkout', text: 'evil' }]);
  await expect(copy(hook)).rejects.toThrow('is inside .git');
  await expect(copy(hook, { path: '.git', to: '.git' })).rejects.toThrow('is inside .git');
  await expect(copy(hook, { to: 'in' })).rejects.toThrow('is inside .git');
  for (const path of GIT_PATHS)
    await expect(copy(await store([{ path, text: 'evil' }])), path).rejects.toThrow(
      /is inside .git$|would make its folder a git repository$/,
    );
  const ordinary = await store(ORDINARY_PATHS.map((path) => ({ path, text: 'x' })));
  expect(Object.keys(await copy(ordinary))).toEqual(expect.arrayContaining(ORDINARY_PATHS));
  const head = await store([{ path: 'config', text: 'evil' }]);
  await expect(copy(head, { path: 'config', to: 'in/HEAD' })).rejects.toThrow('a git repository');
  const symbolic = await store([{ path: 'HEAD', link: 'config' }]);
  await expect(copy(symbolic)).rejects.toThrow('"HEAD" would make its folder a git repository');
  const link = await store([{ path: 'a', link: '.Git/hooks' }]);
  await expect(copy(link)).rejects.toThrow('the link "a" leads into .git');
  // The store removes such entries already.
  const hostile = await store([
    { path: '../up', text: 'x' },
    { path: '/etc/abs', text: 'x' },
    { path: 'l', link: '/etc' },
    { path: 'm', link: '../..' },
    { path: 'good', text: 'x' },
  ]);
  expect(await copy(hostile)).toEqual({ good: 'x' });
});

test('limits hold for all copies together', async () => {
  const key = await store([
    { path: 'a', text: 'a' },
    { path: 'b', text: 'b'.repeat(5_000) },
  ]);
  const within = (limits: typeof UNLIMITED) => copy(key, {}, { limits });
  expect(Object.keys(await within({ maxBytes: 3 * 4_096, maxEntries: 2 }))).toHaveLength(2);
  await expect(within({ maxBytes: 3 * 4_096 - 1, maxEntries: 2 })).rejects.toThrow(
    'larger than the disk',
  );
  await expect(within({ maxBytes: 2 ** 20, maxEntries: 1 })).rejects.toThrow('more than 1 files');
  const dir = await mkdtemp(join(root, 'work-'));
  const folder = new InputFolder(dir, { maxBytes: 5 * 4_096, maxEntries: 10 });
  const signal = new AbortController().signal;
  await extractArtifacts({ storage }, key, { path: '', to: '' }, folder, signal);
  await expect(
    extractArtifacts({ storage }, key, { path: '', to: 'x' }, folder, signal),
  ).rejects.toThrow('larger than the disk');
});

test('artifacts that were removed, and a connection that is cut, are told apart', async () => {
  const key = await store([{ path: 'large', text: 'x'.repeat(3_000_000) }]);
  const cut: Storage = {
    ...storage,
    async open(name, range) {
      const found = await storage.open(name, range);
      if (!found || !name.endsWith('tar.gz')) return found;
      found.contents.once('data', () => found.contents.destroy());
      return found;
    },
  };
  const dir = await mkdtemp(join(root, 'work-'));
  const extracting = (from: Storage) =>
    extractArtifacts(
      { storage: from },
      key,
      { path: '', to: '' },
      new InputFolder(dir, UNLIMITED),
      new AbortController().signal,
    );
  await expect(extracting(cut)).rejects.toThrow(StorageUnavailable);
  await removeArtifacts({ storage }, key);
  await expect(extracting(storage)).rejects.toThrow('they were deleted');
});

test('an archive that is cut while the folder of a file is being created is an error', async () => {
  const entries = extract();
  entries.on('error', () => {});
  const header = { size: 3_000_000, mode: 0o644 };
  entries.write(tarHeader({ name: Buffer.from('large'), ...header }));
  const { value: entry } = await entries[Symbol.asyncIterator]().next();
  const contents = entry as unknown as Readable;
  const closed = once(contents, 'close');
  entries.destroy();
  await closed;
  const folder = new InputFolder(await mkdtemp(join(root, 'work-')), UNLIMITED);
  const added = folder.addFile('a/large', header, contents, AbortSignal.timeout(20_000));
  await expect(added).rejects.toMatchObject({ code: 'ERR_STREAM_PREMATURE_CLOSE' });
});

/* Jobs. */

const made = (client: Client, namespace: string, name: string, command: string) =>
  submit(client, { namespace, name, command, repo: `${namespace}/code`, outputPath: 'out' });

async function refused(client: Client, namespace: string, inputs: unknown) {
  const { errors } = await submitRaw(client, {
    namespace,
    name: newId('job'),
    command: 'true',
    repo: `${namespace}/code`,
    inputs,
  });
  return errors?.[0] && { message: errors[0].message, ...errors[0].extensions };
}

test('a job finds artifacts in its checkout, in each attempt', async () => {
  await made(
    ada,
    'ada',
    'train',
    'mkdir -p out/model; echo weights > out/model/w; echo x > out/log',
  );
  const source = await until(ada, 'ada', 'train', 'SUCCEEDED');
  const input = {
    namespace: 'ada',
    name: 'eval',
    repo: 'ada/code',
    // The first attempt removes the files, and fails.
    command: 'git status --short; cat in/w run; rm -r in run; test $JOB_ATTEMPT = 2',
    retries: 1,
    inputs: [
      { job: 'train', path: './model/', to: 'in/' },
      { job: 'train', path: 'log', to: 'run' },
    ],
  };
  await submit(ada, input);
  await until(ada, 'ada', 'eval', 'SUCCEEDED');
  const printed = await lines(ada, 'ada', 'eval');
  const once = ['?? in/', '?? run', 'weights', 'x'];
  expect(printed).toEqual([...once, ...once]);

  const INPUTS = `query ($name: String!) { job(namespace: "ada", name: $name) {
    inputs { jobName path to job { id name } } rerunOf { id } } }`;
  const inputs = [
    { jobName: 'train', path: 'model', to: 'in/', job: { id: source.id, name: 'train' } },
    { jobName: 'train', path: 'log', to: 'run', job: { id: source.id, name: 'train' } },
  ];
  expect((await ada.gql(INPUTS, { name: 'eval' })).job.inputs).toEqual(inputs);
  await ada.gql(`mutation { rerunJob(input: { namespace: "ada", name: "eval" }) { job { id } } }`);
  await until(ada, 'ada', 'eval-2', 'SUCCEEDED');
  expect((await ada.gql(INPUTS, { name: 'eval-2' })).job.inputs).toEqual(inputs);

  // Kept artifacts are inputs, too; deleted artifacts are not.
  await remove(ada, 'ada', 'train');
  await ada.gql(`mutation { rerunJob(input: { namespace: "ada", name: "eval" }) { job { id } } }`);
  await until(ada, 'ada', 'eval-3', 'SUCCEEDED');
  expect((await ada.gql(INPUTS, { name: 'eval-3' })).job.inputs[0]).toMatchObject({ job: null });
  await ada.gql(`mutation { deleteKeptArtifacts(input: { jobId: "${source.id}" }) { id } }`);
  const { errors } = await ada.graphql(
    `mutation { rerunJob(input: { namespace: "ada", name: "eval" }) { job { id } } }`,
  );
  expect(errors?.[0]).toMatchObject({
    message: 'inputs: the artifacts of the job train were deleted',
    extensions: { code: 'CONFLICT', field: 'inputs' },
  });
});

/** Runs a job with these inputs to its failure. @returns why it could not start */
async function reasonFor(name: string, inputs: object[], more: object = {}): Promise<string> {
  const settings = { namespace: 'eve', name, command: 'echo ran', inputs };
  await submit(eve, { ...settings, repo: 'eve/code', ...more });
  const { exitCode, progress } = await until(eve, 'eve', name, 'FAILED');
  expect(exitCode).toBe(125);
  expect(await lines(eve, 'eve', name)).toHaveLength(1);
  return progress;
}

test('a reason with a long name can be stored', async () => {
  // The name is cut between two halves of a character.
  for (const name of ['', 'x']) {
    const path = Array.from({ length: 8 }, () => '😀'.repeat(60)).join('/') + name;
    const job = `long${name}`;
    await made(eve, 'eve', job, `echo x > out/${path}`);
    await until(eve, 'eve', job, 'SUCCEEDED');
    expect(await reasonFor(`${job}-user`, [{ job }, { job }])).toMatch(/…" exists already$/);
  }
});

test('a job whose inputs cannot be copied fails with the reason', async () => {
  await eve.post('/auth/v1/repository/eve', { name: 'ignoring', gitignore_template: 'Node' });
  await made(eve, 'eve', 'source', 'echo x > out/.gitignore');
  await until(eve, 'eve', 'source', 'SUCCEEDED');
  const source = { job: 'source' };
  expect(await reasonFor('clash', [source], { repo: 'eve/ignoring' })).toBe(
    'failed: The artifacts of source could not be copied: ".gitignore" exists already',
  );
  expect(await reasonFor('twice', [source, source])).toContain('".gitignore" exists already');
  expect(await reasonFor('absent', [{ ...source, path: 'no' }])).toContain(
    '"no" is not among them',
  );
  // Without a repository, the directory has the inputs only.
  await submit(eve, {
    namespace: 'eve',
    name: 'image',
    command: 'echo ran',
    image: 'x',
    inputs: [source],
  });
  await until(eve, 'eve', 'image', 'SUCCEEDED');
});

test('a job waits for the jobs whose artifacts it takes', async () => {
  for (const name of ['ends', 'given-up', 'fails'])
    await made(eve, 'eve', name, `echo x > out/x; ${name === 'fails' ? 'hold; exit 1' : 'hold'}`);
  const use = (name: string, of: string, more: object = {}) =>
    submit(eve, {
      namespace: 'eve',
      name,
      command: 'echo ran',
      repo: 'eve/code',
      inputs: [{ job: of }],
      ...more,
    });
  await use('waits', 'ends');
  await use('waits-in-vain', 'given-up');
  await use('takes-all', 'fails', { needs: [{ job: 'fails', when: 'FINISHED' }] });
  expect(await job(eve, 'eve', 'waits')).toMatchObject({
    status: 'QUEUED',
    progress: 'waiting for ends',
  });
  await until(eve, 'eve', 'fails', 'RUNNING');
  await cancel(eve, 'eve', 'given-up');
  await until(eve, 'eve', 'waits-in-vain', 'CANCELLED');
  runner.release();
  await until(eve, 'eve', 'waits', 'SUCCEEDED');
  await until(eve, 'eve', 'fails', 'FAILED');
  await until(eve, 'eve', 'takes-all', 'SUCCEEDED');
});

test('a job takes artifacts of a job that is created together with it', async () => {
  const { services } = faked.app;
  const { db } = services;
  const namespace = await db.namespace.findUniqueOrThrow({ where: { name: 'eve' } });
  const user = await db.user.findUniqueOrThrow({ where: { username: 'eve' } });
  const viewer: Account = {
    kind: 'account',
    userId: user.id,
    username: 'eve',
    email: '',
    plan: 'unlimited',
    operator: false,
    namespace,
    roles: new Map(),
    credential: { kind: 'pat', id: '', name: '' },
    scopes: null,
    namespaces: null,
    repositories: null,
  };
  const common = { namespace: 'eve', gpu: 'none', image: 'x' };
  const first = { ...common, name: 'run-1-build', command: 'echo x > out/x', outputPath: 'out' };
  const second = {
    ...common,
    name: 'run-1-test',
    command: 'echo ran',
    inputs: [{ job: first.name }],
  };
  const siblings = { jobs: new Map([[first.name, first]]), arrays: new Map() };
  const requests = [first, second].map((input) => checkRequest(input, CONTRACT));
  const jobs: JobToInsert[] = [];
  for (const request of requests) {
    const inputs = await resolveInputs(services, viewer, namespace.id, request.inputs, {
      siblings,
    });
    const checked = { ...request, inputs, repositoryInputs: [], needs: [] };
    const newJob = { namespace, request: checked, source: null };
    jobs.push({
      job: await prepareJob(services, viewer, newJob),
      needs: jobs.length === 0 ? [] : [{ index: 0, when: 'succeeded' }],
    });
  }
  const inserted = await db.$transaction((tx) => insertJobs(services, tx, { namespace, jobs }));
  await until(eve, 'eve', second.name, 'SUCCEEDED');
  const { inputs } = await db.job.findFirstOrThrow({ where: { name: second.name } });
  expect(inputs).toEqual([{ job: first.name, jobId: inserted[0]?.[0]?.id, path: '', to: '' }]);

  const none = {
    siblings: { jobs: new Map([[first.name, { outputPath: null }]]), arrays: new Map() },
  };
  await expect(
    resolveInputs(services, viewer, namespace.id, requests[1]?.inputs ?? [], none),
  ).rejects.toThrow('has no artifacts');
});

test('artifacts that are deleted while a job waits, and a job that leaves none', async () => {
  await using waiting = await startApp({
    config: { jobSlots: 1 },
    overrides: { runner: fakeRunner() },
  });
  const bob = await waiting.user('bob', 'unlimited');
  await bob.post('/auth/v1/repository/bob', { name: 'code' });
  await made(bob, 'bob', 'source', 'echo x > out/x');
  await until(bob, 'bob', 'source', 'SUCCEEDED');
  await made(bob, 'bob', 'blocker', 'sleep 600');
  await until(bob, 'bob', 'blocker', 'RUNNING');
  await made(bob, 'bob', 'barren', 'exit 0');
  const use = (name: string, of: string) =>
    submit(bob, {
      namespace: 'bob',
      name,
      command: 'echo ran',
      repo: 'bob/code',
      inputs: [{ job: of }],
    });
  await use('user', 'source');
  await use('heir', 'barren');
  await remove(bob, 'bob', 'source', true);
  // Another job of the same name is not taken for it.
  await made(bob, 'bob', 'source', 'echo other > out/x');
  await cancel(bob, 'bob', 'blocker');
  expect((await until(bob, 'bob', 'user', 'FAILED')).progress).toContain('were deleted');
  expect((await until(bob, 'bob', 'heir', 'FAILED')).progress).toContain('it left none');
});

test('inputs are checked when a job is created', async () => {
  await made(eve, 'eve', 'good', 'echo x > out/x');
  await submit(eve, { namespace: 'eve', name: 'plain', command: 'hold', repo: 'eve/code' });
  await until(eve, 'eve', 'good', 'SUCCEEDED');
  const one = (input: object) => [{ job: 'good', ...input }];
  for (const [inputs, message] of [
    [one({ path: '/etc' }), 'path must be relative'],
    [one({ path: 'a/../b' }), 'path must not contain ".."'],
    [one({ to: '..' }), 'to must not contain ".."'],
    [one({ to: '/work/in' }), 'to must be relative'],
    [one({ to: './.git/hooks' }), 'to must not be inside .git'],
    [one({ to: 'a/GIT~1/hooks' }), 'to must not be inside .git'],
    [one({ path: 'a\u0000' }), 'without NUL'],
    [one({ path: 'x'.repeat(1_025) }), 'not be longer than 1024 bytes'],
    [[{ job: '../x' }], 'letters, digits'],
    [Array.from({ length: 21 }, () => ({ job: 'good' })), 'more than 20 entries'],
    [[{ job: 'plain' }], 'the job plain has no artifacts'],
  ] as const) {
    const error = await refused(eve, 'eve', inputs);
    expect(error, message).toMatchObject({ code: 'INVALID_REQUEST', field: 'inputs' });
    expect(error?.message).toContain(message);
  }
  expect(await refused(eve, 'eve', [{ job: 'missing' }])).toMatchObject({
    code: 'NOT_FOUND',
    field: 'inputs',
  });
  await cancel(eve, 'eve', 'plain');

  // A credential that is restricted to another repository may not read the artifacts.
  const other = (await eve.post('/auth/v1/repository/eve', { name: 'other' })).body;
  const token = { name: 'narrow', repositories: [other.id] };
  const narrow = faked.client(`Bearer ${(await eve.post('/auth/v1/pat', token)).body.token}`);
  await expectRefusal(
    submitRaw(narrow, {
      namespace: 'eve',
      name: 'spy',
      command: 'cat x',
      repo: 'eve/other',
      inputs: [{ job: 'good' }],
    }),
    'PERMISSION_DENIED',
  );
  // REST has no such field.
  const body = { name: 'rest', command: 'x', repo: 'eve/code', gpu: 'none', inputs: [] };
  expect((await eve.post('/auth/v1/seed/eve/jobs', body)).status).toBe(400);
});

test('an interrupted copy starts again', async () => {
  let opened = 0;
  const runner = fakeRunner();
  await using stopped = await startApp({ overrides: { runner } });
  const zoe = await stopped.user('zoe', 'unlimited');
  await zoe.post('/auth/v1/repository/zoe', { name: 'code' });
  await made(zoe, 'zoe', 'source', 'echo x > out/x');
  await until(zoe, 'zoe', 'source', 'SUCCEEDED');
  const { storage: real } = stopped.app.services;
  const { open } = real;
  real.open = async (key, range) => {
    opened += 1;
    if (opened < 3) throw new StorageUnavailable('away');
    return open(key, range);
  };
  await submit(zoe, {
    namespace: 'zoe',
    name: 'user',
    command: 'echo ran',
    repo: 'zoe/code',
    inputs: [{ job: 'source' }],
  });
  await until(zoe, 'zoe', 'user', 'SUCCEEDED');
  expect(opened).toBeGreaterThanOrEqual(3);
  expect((await job(zoe, 'zoe', 'user')).attempts.nodes).toHaveLength(1);
});

test('an array is an input as a whole: each of its jobs that has artifacts gets a folder', async () => {
  await submit(ada, {
    namespace: 'ada',
    name: 'sweep',
    repo: 'ada/code',
    outputPath: 'out',
    array: { size: 3 },
    command: 'test $JOB_ARRAY_INDEX = 1 || { mkdir out; echo $JOB_ARRAY_INDEX > out/score; }',
  });
  await submit(ada, {
    namespace: 'ada',
    name: 'collect',
    repo: 'ada/code',
    command: 'cd in; cat */score; ls',
    inputs: [{ job: 'sweep', to: 'in' }],
  });
  const { job: collect } = await ada.gql(
    `{ job(namespace: "ada", name: "collect") {
       needs { name array { name } } inputs { jobName to path job { name } array { name } } } }`,
  );
  expect(collect).toEqual({
    needs: [{ name: 'sweep', array: { name: 'sweep' } }],
    inputs: [{ jobName: 'sweep', to: 'in/', path: '', job: null, array: { name: 'sweep' } }],
  });
  await until(ada, 'ada', 'collect', 'SUCCEEDED');
  expect(await lines(ada, 'ada', 'collect')).toEqual(['0', '2', '0', '2']);
  await made(ada, 'ada', 'plain', 'true');
  expect(await refused(ada, 'ada', [{ job: 'nothing' }])).toMatchObject({
    message: 'inputs: there is no job or array nothing',
    code: 'NOT_FOUND',
  });
});

test('the folders of the jobs of an array have safe and different names', () => {
  const names = (...values: string[]) =>
    nameFolders(values.map((value) => ({ matrixValues: [{ key: 'lr', value }] })));
  expect(names('0.1', 'a/b', 'a b', '..', '', '1')).toEqual([
    ...['lr=0.1', 'lr=a-b-2', 'lr=a-b-3', 'lr=..', 'lr=', 'lr=1'],
  ]);
  expect(names('x', 'x', 'x-2')).toEqual(['lr=x', 'lr=x-2', 'lr=x-2-3']);
  expect(names('é'.repeat(200))[0]).toHaveLength(102);
  expect(nameFolders([{ arrayIndex: 4, matrixValues: [] }])).toEqual(['4']);
});
