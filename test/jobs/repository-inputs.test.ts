/** Files of repositories become files in the working directory of a job. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, mkdir, readdir, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { PassThrough, Readable } from 'node:stream';
import { extract } from 'tar-stream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { findStreamProducer } from '../../src/cluster/streams.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { lines, submit, submitRaw, until } from '../support/submit.ts';

const cleanup = new AsyncDisposableStack();
/** Runs processes. */
let app: TestApp;
let ada: Client;
/** Its jobs run in a fake runner, which makes their working directories. */
let faked: TestApp;
let eve: Client;
let mallory: Client;
const runner = fakeRunner({ images: true });
/** Called with the id of an attempt before its working directory is made. */
let onPrepare = async (_id: string) => {};
/** The commits of `ada/dataset`, oldest first, and of the tag `v1`, which is the first. */
let commits: string[];

const LARGE = Buffer.alloc(3_000_000, 'loam');

beforeAll(async () => {
  app = cleanup.use(await startApp({ config: { runner: 'process' } }));
  ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  commits = await makeDataset(app, ada);
  const prepare: typeof runner.prepare = async (spec, signal) => {
    await onPrepare(spec.id);
    return runner.prepare(spec, signal);
  };
  faked = cleanup.use(await startApp({ overrides: { runner: { ...runner, prepare } } }));
  eve = await faked.user('eve', 'unlimited');
  mallory = await faked.user('mallory', 'unlimited');
  await eve.post('/auth/v1/repository/eve', { name: 'code', gitignore_template: 'Node' });
});
afterAll(() => cleanup.disposeAsync());

/** A private repository with a large file, a program, links, and attributes that would hide and change files. */
async function makeDataset(on: TestApp, client: Client): Promise<string[]> {
  const { body } = await client.post('/auth/v1/repository/ada', {
    name: 'dataset',
    visibility: 'private',
  });
  const oid = createHash('sha256').update(LARGE).digest('hex');
  const { largeFiles } = on.app.services;
  const signal = new AbortController().signal;
  await largeFiles.put(body.id, { oid, size: LARGE.length }, Readable.from([LARGE]), signal);
  const pointer = `version https://git-lfs.github.com/spec/v1\noid sha256:${oid}\nsize ${LARGE.length}\n`;
  await using work = await Workspace.open();
  await work.clone(client, 'ada/dataset');
  const dir = join(work.path, 'dataset');
  await mkdir(join(dir, 'train/deep'), { recursive: true });
  await symlink('deep/b.txt', join(dir, 'train/in'));
  await symlink('../README', join(dir, 'train/out'));
  const long = `train/${'n'.repeat(120)}/${'ü'.repeat(60)}`;
  const first = await work.commit('dataset', {
    '.gitattributes': '* text eol=crlf\n*.sh export-ignore\n*.txt export-subst\n',
    README: 'read\n',
    'train/run.sh': '#!/bin/sh\n',
    'train/deep/b.txt': '$Format:%H$\n',
    'train/large.bin': pointer,
    'train/:(glob)*': 'odd\n',
    [long]: 'long\n',
    'test/c.txt': 'test\n',
  });
  await chmod(join(dir, 'train/run.sh'), 0o755);
  const second = await work.commit('dataset', { 'train/new.txt': 'new\n' });
  await work.git('dataset', 'tag', 'v1', first);
  await work.git('dataset', 'push', '-q', 'origin', 'HEAD:main', 'HEAD:refs/heads/next/1', 'v1');
  return [first, second];
}

const READ = `query ($namespace: String!, $name: String!) { job(namespace: $namespace, name: $name) {
  repositoryInputs { repo ref commitSha path to readOnly repository { name } } inputs { jobName } } }`;
const inputsOf = async (client: Client, namespace: string, name: string) =>
  (await client.gql(READ, { namespace, name })).job.repositoryInputs;

test('a job finds files of a commit, with large files, and without the repository', async () => {
  await submit(ada, {
    namespace: 'ada',
    name: 'train',
    repo: 'ada/code',
    outputPath: 'out',
    command: `cd data && ls -A && cat deep/b.txt in new.txt n*/* ':(glob)*' && test -x run.sh && wc -c < large.bin && ls -A ../one
      cat ../b; ls -A ..; rm -r ../data ../b ../one; test $JOB_ATTEMPT = 2`,
    retries: 1,
    inputs: [
      { repo: 'ada/dataset', path: './train/', to: 'data/' },
      { repo: 'ADA/dataset', ref: 'v1', path: 'test/c.txt', to: 'one/' },
      { repo: 'ada/dataset', ref: commits[0], path: 'test/c.txt', to: 'b' },
    ],
  });
  const { retryCount } = await until(ada, 'ada', 'train', 'SUCCEEDED');
  expect(retryCount).toBe(1);
  const names = [':(glob)*', 'deep', 'in', 'large.bin', 'new.txt', 'n'.repeat(120), 'run.sh'];
  const once = [
    ...names,
    ...['$Format:%H$', '$Format:%H$', 'new', 'long', 'odd', `${LARGE.length}`, 'c.txt'],
    ...['test', '.git', 'b', 'data', 'one'],
  ];
  const printed = await lines(ada, 'ada', 'train');
  expect(printed).toEqual([...once, ...once]);
  const repository = { name: 'dataset' };
  const readOnly = false;
  const [first, second] = commits;
  const pinned = [
    {
      repo: 'ada/dataset',
      ref: 'main',
      commitSha: second,
      path: 'train',
      to: 'data/',
      readOnly,
      repository,
    },
    {
      repo: 'ADA/dataset',
      ref: 'v1',
      commitSha: first,
      path: 'test/c.txt',
      to: 'one/',
      readOnly,
      repository,
    },
    {
      repo: 'ada/dataset',
      ref: first,
      commitSha: first,
      path: 'test/c.txt',
      to: 'b',
      readOnly,
      repository,
    },
  ];
  expect(await inputsOf(ada, 'ada', 'train')).toEqual(pinned);

  // A rerun has the same commit after the branch has moved.
  await using work = await Workspace.open();
  await work.clone(ada, 'ada/dataset');
  await work.commit('dataset', { 'train/later.txt': 'later\n' });
  await work.git('dataset', 'push', '-q', 'origin', 'HEAD:main');
  await ada.gql('mutation { rerunJob(input: { namespace: "ada", name: "train" }) { job { id } } }');
  await until(ada, 'ada', 'train-2', 'SUCCEEDED');
  expect(await lines(ada, 'ada', 'train-2')).toEqual(printed);
  expect(await inputsOf(ada, 'ada', 'train-2')).toEqual(pinned);
});

test('a folder that jobs only read is on the machine once, and none of them can change it', async (ctx) => {
  needs(ctx, 'bubblewrap');
  const shared = join(app.app.services.config.dataDir, 'inputs');
  const inputs = [
    { repo: 'ada/dataset', ref: 'next/1', path: 'train', to: 'in/data', readOnly: true },
    { repo: 'ada/dataset', ref: 'v1', path: 'README', to: 'in/readme', readOnly: true },
  ];
  const command = `cat in/data/deep/b.txt in/readme; wc -c < in/data/large.bin; test -x in/data/run.sh && ls in
    touch in/data/x 2>/dev/null || rm -r in/data/deep 2>/dev/null || echo kept`;
  const reader = { namespace: 'ada', repo: 'ada/code', command, inputs };
  for (const name of ['reader', 'other']) await submit(ada, { ...reader, name });
  for (const name of ['reader', 'other']) {
    await until(ada, 'ada', name, 'SUCCEEDED');
    expect(await lines(ada, 'ada', name)).toEqual([
      '$Format:%H$',
      'read',
      `${LARGE.length}`,
      'data',
      'readme',
      'kept',
    ]);
  }
  expect(await readdir(shared)).toHaveLength(1);
  expect((await inputsOf(ada, 'ada', 'reader'))[0]).toMatchObject({ readOnly: true });
});

test('an image without a checkout has the inputs of jobs and repositories together', async () => {
  await submit(eve, {
    namespace: 'eve',
    name: 'source',
    repo: 'eve/code',
    command: 'echo x > out/x',
    outputPath: 'out',
  });
  await until(eve, 'eve', 'source', 'SUCCEEDED');
  await submit(eve, {
    namespace: 'eve',
    name: 'both',
    image: 'x',
    command: 'echo ran',
    inputs: [{ job: 'source', to: 'a/' }, { repo: 'eve/code' }],
  });
  await until(eve, 'eve', 'both', 'SUCCEEDED');
});

const refusal = async (client: Client, inputs: unknown) => {
  const input = { namespace: 'eve', name: 'refused', command: 'true', repo: 'eve/code', inputs };
  const { errors } = await submitRaw(client, input);
  return errors?.[0] && { message: errors[0].message, ...errors[0].extensions };
};

test('inputs that cannot be are refused, and name the field', async () => {
  await eve.post('/auth/v1/repository/eve', { name: 'empty', auto_init: false });
  await mallory.post('/auth/v1/repository/mallory', {
    name: 'hidden',
    visibility: 'private',
  });
  const code = { repo: 'eve/code' };
  for (const [inputs, message, codeOf = 'INVALID_REQUEST'] of [
    [[{}], 'each must have either job or repo'],
    [[{ ...code, job: 'x' }], 'each must have either job or repo'],
    [[{ job: 'x', ref: 'main' }], 'ref can only be given with repo'],
    [[{ ...code, readOnly: true }], 'those that are read only must have repo and to'],
    [[{ job: 'x', to: 'x', readOnly: true }], 'those that are read only must have repo and to'],
    [
      [
        { ...code, to: 'a', readOnly: true },
        { ...code, to: 'a/b' },
      ],
      'a is read only, and overlaps a/b',
    ],
    [[{ repo: 'code' }], 'must be "namespace/name"'],
    [[{ repo: 'eve/none' }], 'there is no repository eve/none', 'NOT_FOUND'],
    [[{ repo: 'mallory/hidden' }], 'there is no repository mallory/hidden', 'NOT_FOUND'],
    [[{ ...code, ref: 'none' }], 'there is no branch, tag or commit none in eve/code', 'NOT_FOUND'],
    [[{ ...code, ref: '-x' }], 'there is no branch, tag or commit -x in eve/code', 'NOT_FOUND'],
    [
      [{ ...code, path: 'none' }],
      'there is no file or folder none in eve/code at main',
      'NOT_FOUND',
    ],
    [[{ repo: 'eve/empty' }], 'the repository eve/empty has no commits'],
    [[{ ...code, to: '../x' }], 'to must not contain ".."'],
    [[{ ...code, to: '/x' }], 'to must be relative'],
    [[{ ...code, to: 'a/.git/x' }], 'to must not be inside .git'],
    [[{ ...code, path: '../x' }], 'path must not contain ".."'],
    [[code, { ...code, path: '.' }], 'two of them have the same place: the working directory'],
    [
      [
        { ...code, to: 'x' },
        { ...code, to: './x/' },
      ],
      'two of them have the same place: x',
    ],
    [
      Array.from({ length: 17 }, (_, i) => ({ ...code, to: `x${i}` })),
      'must not have more than 16 repositories',
    ],
  ] as const)
    expect(await refusal(eve, inputs), JSON.stringify(inputs)).toMatchObject({
      message: `inputs: ${message}`,
      code: codeOf,
      field: 'inputs',
    });
});

/** Holds the only slots of the server, so that a job waits until `change` is over. @returns why it could not start */
async function reasonAfter(name: string, repo: string, change: () => Promise<unknown>) {
  const before = { namespace: 'mallory', name: `before-${name}`, image: 'x', command: 'hold' };
  await submit(mallory, before);
  const needs = [{ job: before.name }];
  const inputs = [{ repo, to: 'data' }];
  const waiting = { namespace: 'mallory', name, image: 'x', command: 'echo ran', needs, inputs };
  await submit(mallory, waiting);
  await change();
  runner.release();
  const { progress, exitCode } = await until(mallory, 'mallory', name, 'FAILED');
  expect(exitCode).toBe(125);
  return progress;
}

test('a job does not start when its creator may not read the repository any more', async () => {
  await faked.organization('team', { eve: 'ADMIN', mallory: 'READ' });
  for (const name of ['gone', 'private'])
    await eve.post('/auth/v1/repository/team', { name, visibility: 'private' });
  const { id } = (await eve.gql('{ repository(namespace: "team", name: "gone") { id } }'))
    .repository;
  const remove = () =>
    eve.gql('mutation ($id: ID!) { deleteRepository(input: { id: $id }) { id } }', { id });
  expect(await reasonAfter('deleted', 'team/gone', remove)).toBe(
    'failed: The repository team/gone is an input, and was deleted',
  );
  const leave = () =>
    eve.gql('mutation { removeMember(input: { namespace: "team", username: "mallory" }) { id } }');
  expect(await reasonAfter('left', 'team/private', leave)).toBe(
    'failed: The repository team/private is an input, and the creator of the job may not read it any more',
  );
  const { errors } = await mallory.graphql(
    'mutation { rerunJob(input: { namespace: "mallory", name: "left" }) { job { id } } }',
  );
  expect(errors?.[0]).toMatchObject({
    message: 'inputs: the repository team/private was deleted, or you may not read it',
    extensions: { code: 'NOT_FOUND', field: 'inputs' },
  });
  expect(await inputsOf(mallory, 'mallory', 'left')).toMatchObject([{ repository: null }]);
});

test('an input follows its repository to another name', async () => {
  const { body } = await mallory.post('/auth/v1/repository/mallory', { name: 'old' });
  await submit(mallory, { namespace: 'mallory', name: 'gate', image: 'x', command: 'hold' });
  const needs = [{ job: 'gate' }];
  const inputs = [{ repo: 'mallory/old', to: 'data' }];
  const renamed = { namespace: 'mallory', name: 'renamed', image: 'x', needs, inputs };
  await submit(mallory, { ...renamed, command: 'echo ran' });
  await mallory.gql(
    'mutation ($id: ID!) { renameRepository(input: { id: $id, name: "new" }) { repository { id } } }',
    { id: body.id },
  );
  runner.release();
  await until(mallory, 'mallory', 'renamed', 'SUCCEEDED');
  expect(await inputsOf(mallory, 'mallory', 'renamed')).toMatchObject([
    { repo: 'mallory/old', repository: { name: 'new' } },
  ]);
});

test('files that exist are not replaced', async () => {
  const clash = { namespace: 'eve', name: 'clash', repo: 'eve/code', command: 'echo ran' };
  await submit(eve, { ...clash, inputs: [{ repo: 'eve/code' }] });
  const { progress } = await until(eve, 'eve', 'clash', 'FAILED');
  expect(progress).toMatch(
    /^failed: The files of eve\/code could not be copied: ".+" exists already$/,
  );
});

test('folders without end are refused before they are read', async () => {
  await eve.post('/auth/v1/repository/eve', { name: 'bomb' });
  await using work = await Workspace.open();
  await work.clone(eve, 'eve/bomb');
  let tree = await work.git('bomb', 'hash-object', '-w', '-t', 'tree', '/dev/null');
  for (let level = 0; level < 20; level++) {
    const list = Array.from({ length: 10 }, (_, i) => `040000 tree ${tree}\tx${i}\n`).join('');
    const options = { cwd: join(work.path, 'bomb'), input: list, encoding: 'utf8' } as const;
    tree = execFileSync('git', ['mktree'], options).trim();
  }
  const commit = await work.git('bomb', 'commit-tree', '-m', 'bomb', tree);
  await work.git('bomb', 'push', '-q', 'origin', `${commit}:refs/heads/bomb`);
  const inputs = [{ repo: 'eve/bomb', ref: 'bomb', path: 'x1', to: 'data' }];
  await submit(eve, { namespace: 'eve', name: 'bombed', image: 'x', command: 'echo ran', inputs });
  const { progress } = await until(eve, 'eve', 'bombed', 'FAILED');
  expect(progress).toMatch(
    /^failed: The files of eve\/bomb could not be copied: The checkout has more/,
  );
});

test('another server gets the files of an input only for an attempt that waits for them', async () => {
  const { services } = faked.app;
  const produce = findStreamProducer('jobInput');
  const { id } = (await eve.gql('{ repository(namespace: "eve", name: "code") { id } }'))
    .repository;
  const send = async (input: object, repositoryId = id) => {
    const output = new PassThrough();
    const names = listTar(output);
    const signal = new AbortController().signal;
    await produce?.(services, repositoryId, input, { begin: () => output, signal });
    output.end();
    return names;
  };
  const found: unknown[] = [];
  let attemptId = '';
  onPrepare = async (attempt) => {
    attemptId = attempt;
    const commitSha = (await services.db.job.findFirstOrThrow({ where: { name: 'remote' } }))
      .commitSha;
    const input = { attemptId, commitSha, path: '.gitignore' };
    for (const [one, repository] of [
      [input],
      [{ ...input, path: '' }],
      [{ ...input, commitSha: '0'.repeat(40) }],
      [{ ...input, attemptId: 'att_x' }],
      [input, 'repo_x'],
    ] as const)
      found.push(await send(one, repository).catch(({ message }) => message));
  };
  const inputs = [{ repo: 'eve/code', path: '.gitignore', to: 'x' }];
  const remote = { namespace: 'eve', name: 'remote', repo: 'eve/code', command: 'echo ran' };
  await submit(eve, { ...remote, inputs });
  const { commitSha } = await until(eve, 'eve', 'remote', 'SUCCEEDED');
  onPrepare = async () => {};
  expect(found).toEqual([['.gitignore'], ...Array(4).fill('Attempt not found')]);
  // The attempt has ended.
  await expect(send({ attemptId, commitSha, path: '.gitignore' })).rejects.toThrow(
    'Attempt not found',
  );
});

async function listTar(tar: Readable): Promise<string[]> {
  const entries = tar.pipe(extract());
  const names: string[] = [];
  for await (const entry of entries) {
    names.push(entry.header.name);
    entry.resume();
  }
  return names;
}
