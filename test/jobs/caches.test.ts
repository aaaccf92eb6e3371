/** Caches of jobs: restored before the command, saved after its success, and kept apart by ref. */
// biome-ignore-all lint/suspicious/noTemplateCurlyInString: keys have variables.
import { existsSync } from 'node:fs';
import { readdir, symlink, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pack } from 'tar-stream';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import type { Actor } from '../../src/identity/audit.ts';
import { packCache } from '../../src/jobs/caches/archive.ts';
import {
  insertCache,
  MAX_CACHES,
  makeRoom,
  removeUnusedCaches,
} from '../../src/jobs/caches/entries.ts';
import { recordBegin } from '../../src/jobs/shells/sessions.ts';
import { commitFiles, createRepository } from '../support/caches.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { checkStore, sweepAll } from '../support/large-files.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, lines, submit, submitRaw, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let count = 0;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada', 'unlimited');
});
afterAll(() => app[Symbol.asyncDispose]());

type Options = {
  client?: Client;
  branch?: string;
  command?: string;
  cache?: object[];
  status?: string;
  namespace?: string;
  [field: string]: unknown;
};

/** Runs a job to its end. @returns its lines and its caches */
async function run(repo: string, options: Options = {}) {
  const { client = ada, namespace = 'ada', status = 'SUCCEEDED', ...input } = options;
  const name = `job-${++count}`;
  await submit(client, { namespace, name, repo, command: WRITE, cache: [CACHE], ...input });
  await until(client, namespace, name, status);
  return {
    name,
    lines: await lines(client, namespace, name),
    caches: await cachesOf(name, namespace),
  };
}

/** Starts a job that succeeds when it is released. */
async function hold(repo: string, { client = ada, ...input }: Options) {
  const name = `held-${++count}`;
  const command = 'mkdir -p deps; echo x > deps/x; until [ -e go ]; do sleep 0.1; done';
  await submit(client, { namespace: 'ada', name, repo, command, ...input });
  await until(client, 'ada', name, 'RUNNING');
  const { rows } = await app.pool.query(
    `select a.id as "attemptId", a.worker_id as "workerId", j.namespace_id as namespace
     from job_attempts a join jobs j on j.id = a.job_id where j.name = $1`,
    [name],
  );
  const [{ attemptId, workerId, namespace }] = rows;
  const release = async () => {
    await writeFile(join(app.config.dataDir, 'attempts', attemptId, 'work/go'), '');
    await until(client, 'ada', name, 'SUCCEEDED');
  };
  return { name, attemptId, workerId, namespace, release };
}

const CACHE = { path: 'deps', key: 'deps-${hash:lock}' };
/** Prints what it finds, and leaves something else. */
const WRITE =
  'cat deps/made 2>/dev/null || echo nothing; mkdir -p deps; echo "made by $JOB_NAME" > deps/made';

async function cachesOf(name: string, namespace = 'ada') {
  const query = `query ($namespace: String!, $name: String!) { job(namespace: $namespace, name: $name) {
    caches { path key resolvedKey restoredKey restoredBytes isSaved readOnly problem } } }`;
  return (await app.admin.gql(query, { namespace, name })).job.caches;
}

const LIST = `query ($namespace: String!, $name: String!, $prefix: String) {
  repository(namespace: $namespace, name: $name) {
    caches(first: 100, prefix: $prefix) { nodes { id key path ref sizeBytes contentBytes hits } totalCount }
    cacheUsage { sizeBytes maxBytes hits misses } } }`;
async function list(repo: string, prefix?: string, client = ada) {
  const [namespace, name] = repo.split('/');
  return (await client.gql(LIST, { namespace, name, prefix })).repository;
}

const remove = (client: Client, input: object) =>
  client.graphql(
    'mutation ($input: DeleteCacheInput!) { deleteCache(input: $input) { deletedCount } }',
    {
      input,
    },
  );

test('a job finds what an earlier job with the key has left, and never changes it', async () => {
  const { repo, id } = await createRepository(ada, 'ada', { lock: 'one' });
  const first = await run(repo);
  expect(first.lines).toEqual(['nothing']);
  expect(first.caches).toEqual([
    {
      path: 'deps',
      key: 'deps-${hash:lock}',
      resolvedKey: expect.stringMatching(/^deps-[0-9a-f]{40}$/),
      restoredKey: null,
      restoredBytes: null,
      isSaved: true,
      readOnly: false,
      problem: null,
    },
  ]);
  for (let i = 0; i < 2; i++) {
    const next = await run(repo);
    expect(next.lines).toEqual([`made by ${first.name}`]);
    expect(next.caches[0]).toMatchObject({
      restoredKey: first.caches[0].resolvedKey,
      isSaved: false,
      problem: null,
    });
  }
  const { caches, cacheUsage } = await list(repo);
  expect(caches.nodes).toMatchObject([{ path: 'deps', ref: 'refs/heads/main', hits: 2 }]);
  expect(cacheUsage).toMatchObject({ hits: 2, misses: 1, sizeBytes: caches.nodes[0].sizeBytes });

  // Another lock file: another key.
  await commitFiles(ada, id, { lock: 'two' });
  const other = await run(repo, { cache: [{ ...CACHE, restoreKeys: ['deps-'] }] });
  expect(other.lines).toEqual([`made by ${first.name}`]);
  expect(other.caches[0]).toMatchObject({
    restoredKey: first.caches[0].resolvedKey,
    isSaved: true,
  });
  expect(other.caches[0].resolvedKey).not.toBe(first.caches[0].resolvedKey);
  await checkStore(app.app.services);
});

test('caches are in the home folder, too, with times, modes and links', async () => {
  const { repo } = await createRepository(ada, 'ada');
  const cache = [
    { path: '~/.cache/tool', key: 'k' },
    { path: 'one/file', key: 'k' },
  ];
  const make =
    'mkdir -p ~/.cache/tool/sub one; cd ~/.cache/tool; echo x > sub/x; chmod 755 sub/x; touch -d @1000000 sub/x; ln -s sub/x link; ln -s /etc/passwd out; ln -s ../../.ssh up; mkfifo fifo; mkdir empty; ln sub/x hard; echo single > /work/one/file 2>/dev/null || echo single > "$OLDPWD/one/file"';
  await run(repo, { cache, command: make });
  const show =
    'cat one/file; cd ~/.cache/tool; find . | sort | tr "\\n" " "; stat -c "%a %Y" sub/x; readlink link; cat link hard';
  const { lines: found } = await run(repo, { cache, command: show });
  expect(found).toEqual([
    'single',
    './. ./empty ./hard ./link ./sub ./sub/x 755 1000000'.replace('./. ', '. '),
    'sub/x',
    'x',
    'x',
  ]);
});

test('a job that fails saves nothing', async () => {
  const { repo } = await createRepository(ada, 'ada');
  await run(repo, { command: `${WRITE}; exit 3`, status: 'FAILED' });
  expect((await list(repo)).caches.totalCount).toBe(0);
  expect((await run(repo)).lines).toEqual(['nothing']);
  expect((await list(repo)).caches.totalCount).toBe(1);
});

test('a job reads caches of its branch and of the default branch, and writes only those of its branch', async () => {
  const { repo, id } = await createRepository(ada, 'ada', { lock: '1' });
  await commitFiles(ada, id, { other: '1' }, 'feature');
  await commitFiles(ada, id, { other: '2' }, 'rival');
  const poison = await run(repo, { branch: 'feature' });
  expect(poison.caches[0].isSaved).toBe(true);
  expect(
    (await run(repo, { branch: 'rival', cache: [{ ...CACHE, restoreKeys: ['d'] }] })).lines,
  ).toEqual(['nothing']);
  const main = await run(repo, { cache: [{ ...CACHE, restoreKeys: ['d'] }] });
  expect(main.lines).toEqual(['nothing']);
  expect(main.caches[0].isSaved).toBe(true);
  // Its own comes before that of the default branch.
  expect((await run(repo, { branch: 'feature' })).lines).toEqual([`made by ${poison.name}`]);
  await commitFiles(ada, id, { other: '3' }, 'third');
  const third = await run(repo, { branch: 'third' });
  expect(third.lines).toEqual([`made by ${main.name}`]);
  expect(third.caches[0].isSaved).toBe(false);
});

test('bad requests are refused with the name of the field', async () => {
  const { repo } = await createRepository(ada, 'ada');
  const refuse = async (cache: object[], text: RegExp, more = {}) => {
    const input = { namespace: 'ada', name: 'bad', repo, command: 'true', cache, ...more };
    const { errors } = await submitRaw(ada, input);
    expect(errors?.[0]?.extensions).toMatchObject({ code: 'INVALID_REQUEST', field: 'cache' });
    expect(errors?.[0]?.message).toMatch(text);
  };
  const key = 'k';
  for (const path of [
    '',
    '.',
    './',
    '/',
    '/etc',
    '..',
    'a/../..',
    '~',
    '~/',
    '~/.',
    '.git',
    'a/.GIT/x',
    '~/.loam',
    '~/.loam/x',
    './~/.loam',
    '~//.loam/x',
    '~/.loam-cache/x',
    'a\nb',
    'x'.repeat(1_025),
  ])
    await refuse([{ path, key }], /cache.*path/i);
  for (const bad of [
    '',
    'x'.repeat(513),
    'a\u0000',
    '${what}',
    '${hash:}',
    '${hash:a',
    '${hash:/etc/passwd}',
    '${hash:../x}',
    '${hash:.}',
    '${hash:.//}',
    // Searching for variables in it would take minutes.
    '${'.repeat(400_000),
    `\${hash:${'x'.repeat(513)}}`,
    `${'x'.repeat(480)}\${hash:a}`,
  ])
    await refuse([{ path: 'a', key: bad }], /cache.*key/i);
  await refuse(
    [{ path: 'a', key, restoreKeys: Array.from({ length: 11 }, (_, i) => `${i}`) }],
    /restoreKeys/,
  );
  await refuse(
    [
      { path: 'a', key },
      { path: 'a/', key },
    ],
    /same/,
  );
  for (const paths of [
    ['a/b', './a'],
    ['~/a', '~//a/b'],
    ['./~/a', '~/a'],
  ])
    await refuse(
      paths.map((path) => ({ path, key })),
      /same|inside/,
    );
  const hashes = Array.from({ length: 65 }, (_, i) => `\${hash:${i}}`);
  await refuse(
    [0, 13, 26, 39, 52].map((from) => ({
      path: `a${from}`,
      key,
      restoreKeys: [
        hashes.slice(from, from + 7).join(''),
        hashes.slice(from + 7, from + 13).join(''),
      ],
    })),
    /64/,
  );
  await refuse(
    [
      { path: 'node', key },
      { path: 'a', key },
      { path: '/work/a', key },
    ],
    /path/,
  );
  await refuse(
    Array.from({ length: 17 }, (_, i) => ({ path: `a${i}`, key })),
    /16/,
  );
  await refuse([{ path: 'a', key }], /repo/, { repo: undefined, image: 'busybox' });
});

test('old caches make room, and unused ones are removed', async () => {
  await using small = await startApp({
    config: { runner: 'process', caches: { maxBytes: 300_000, days: 7 } },
  });
  const bob = await small.user('bob', 'unlimited');
  const { repo } = await createRepository(bob, 'bob');
  const fill = async (key: string, kb: number) => {
    const name = `fill-${++count}`;
    const command = `mkdir -p data; head -c ${kb}000 /dev/urandom > data/x`;
    await submit(bob, { namespace: 'bob', name, repo, command, cache: [{ path: 'data', key }] });
    await until(bob, 'bob', name, 'SUCCEEDED');
    return lines(bob, 'bob', name);
  };
  const keys = async () =>
    (await list(repo, undefined, bob)).caches.nodes.map(({ key }: { key: string }) => key).sort();
  await fill('a', 120);
  await fill('b', 120);
  await fill('a', 1);
  await fill('c', 120);
  expect(await keys()).toEqual(['a', 'c']);
  expect(await fill('d', 400)).toEqual([
    expect.stringMatching(/^The cache d was not saved: .*LOAM_CACHE_GB/),
  ]);
  expect(await keys()).toEqual(['a', 'c']);
  const { services } = small.app;
  // Nothing is written for a cache that cannot be kept.
  const packs = async () =>
    (await small.pool.query('select count(*)::int as n from large_packs')).rows[0].n;
  const before = await packs();
  const setPlan = (plan: string, bytes: number) =>
    small.pool.query(
      'update namespaces set plan = $1::"Plan", storage_bytes = storage_bytes + $2',
      [plan, bytes],
    );
  await setPlan('free', 2 ** 40);
  expect(await fill('d', 100)).toEqual([
    expect.stringMatching(/^The cache d was not saved: Storage quota exceeded/),
  ]);
  await setPlan('unlimited', -(2 ** 40));
  expect(await packs()).toBe(before);
  const stored = async () =>
    (
      await small.pool.query(`select cache_bytes::int as cache, storage_bytes::int - size_bytes::int as rest
      from repositories r join namespaces n on n.id = r.namespace_id`)
    ).rows[0];
  const { cache, rest } = await stored();
  expect(cache).toBeGreaterThan(240_000);
  expect(rest).toBeGreaterThanOrEqual(cache);
  await sweepAll(services);
  await checkStore(services);
  await small.pool.query(
    `update job_caches set used_at = now() - interval '8 days' where key = 'a'`,
  );
  await removeUnusedCaches(services);
  expect(await keys()).toEqual(['c']);
  await sweepAll(services);
  await checkStore(services);
  // Without the repository nothing is left.
  const { id } = (await small.pool.query('select id from repositories')).rows[0];
  await bob.gql(
    'mutation ($input: DeleteRepositoryInput!) { deleteRepository(input: $input) { id } }',
    { input: { id } },
  );
  await sweepAll(services);
  await checkStore(services);
  expect((await small.pool.query('select count(*)::int as n from job_caches')).rows[0].n).toBe(0);
  expect((await small.pool.query('select count(*)::int as n from large_chunks')).rows[0].n).toBe(0);
});

test('a repository has a limited number of caches', async () => {
  const { id } = await createRepository(ada, 'ada');
  await store(id, 'oldest', Readable.from([Buffer.alloc(1_024)]));
  await app.pool.query(
    `with copies as (
       insert into job_caches (id, repository_id, scope, path, key, store_id, oid, size, content_bytes, job_id)
       select id || i, repository_id, scope, path, key || i, store_id, oid, 0, 0, job_id
       from job_caches, generate_series(1, $2) i where repository_id = $1
     ) update large_objects set holders = holders + $2 where oid in (select oid from job_caches where repository_id = $1)`,
    [id, MAX_CACHES + 150],
  );
  expect(await makeRoom(app.app.services, id, 1)).toBe(true);
  const { rows } = await app.pool.query(
    `select count(*)::int as n, bool_or(key = 'oldest') as "hasOldest" from job_caches where repository_id = $1`,
    [id],
  );
  expect(rows).toEqual([{ n: MAX_CACHES - 1, hasOldest: false }]);
});

test('caches are listed by prefix, and deleted by writers', async () => {
  const { repo, id } = await createRepository(ada, 'ada');
  for (const key of ['npm-1', 'npm-2', 'pip-1'])
    await run(repo, { cache: [{ path: 'deps', key }] });
  const { caches } = await list(repo, 'npm-');
  expect(caches.nodes.map(({ key }: { key: string }) => key)).toEqual(['npm-2', 'npm-1']);
  const eve = await app.user(`eve${count}`);
  await expectRefusal(remove(eve, { repositoryId: id, key: 'npm-1' }), 'PERMISSION_DENIED');
  await expectRefusal(remove(ada, { repositoryId: id }), 'INVALID_REQUEST', 'id');
  await expectRefusal(remove(ada, { repositoryId: id, key: 'none' }), 'NOT_FOUND');
  expect(
    (await remove(ada, { repositoryId: id, key: 'npm-1' })).data.deleteCache.deletedCount,
  ).toBe(1);
  expect(
    (await remove(ada, { repositoryId: id, id: caches.nodes[0].id })).data.deleteCache.deletedCount,
  ).toBe(1);
  expect((await list(repo)).caches.nodes.map(({ key }: { key: string }) => key)).toEqual(['pip-1']);
});

test('jobs on one machine read a remote storage once for a cache', async () => {
  await using far = await startApp({ config: { runner: 'process' } });
  const { services } = far.app;
  const carol = await far.user('carol', 'unlimited');
  const { repo } = await createRepository(carol, 'carol');
  const input = { namespace: 'carol', repo, cache: [{ path: 'data', key: 'k' }] };
  const command = 'mkdir data; head -c 3000000 /dev/urandom > data/x';
  await submit(carol, { ...input, name: 'saver', command });
  await until(carol, 'carol', 'saver', 'SUCCEEDED');
  // Only an operator with S3 has a remote one.
  services.config.storage = { kind: 's3' } as never;
  const reads = vi.spyOn(services.storage, 'read');
  const names = ['r1', 'r2', 'r3', 'r4'];
  for (const name of names) await submit(carol, { ...input, name, command: 'wc -c < data/x' });
  for (const name of names) {
    await until(carol, 'carol', name, 'SUCCEEDED');
    expect(await lines(carol, 'carol', name)).toEqual(['3000000']);
  }
  const { rows } = await far.pool.query('select count(*)::int as packs from large_packs');
  expect(reads).toHaveBeenCalledTimes(rows[0].packs);
  // A damaged copy is not used, and read again from the storage.
  const [copy = ''] = await readdir(join(far.config.dataDir, 'inputs'));
  await truncate(join(far.config.dataDir, 'inputs', copy, 'files/archive'), 1_000_000);
  for (const [name, found] of [
    ['damaged', '0'],
    ['repaired', '3000000'],
  ] as const) {
    const show = 'cat data/x 2>/dev/null | wc -c';
    await submit(carol, { ...input, name, command: show });
    await until(carol, 'carol', name, 'SUCCEEDED');
    expect((await lines(carol, 'carol', name))[0]).toBe(found);
  }
});

/* Attacks. */

test('who may not push to a branch cannot change its caches, whatever job he creates', async () => {
  const { repo, id } = await createRepository(ada, 'ada', { lock: 'a' });
  const bob = await app.user(`bob${++count}`);
  await ada.setMembers('ada', { [`bob${count}`]: 'WRITE' });
  await app.admin.gql(
    'mutation ($i: SetBranchRuleInput!) { setBranchRule(input: $i) { repository { id } } }',
    { i: { id, pattern: 'main', pushRole: 'ADMIN' } },
  );
  const poison = await run(repo, { client: bob });
  expect(poison.caches[0]).toMatchObject({ readOnly: true, isSaved: false, restoredKey: null });
  // Nor by the rerun of somebody who may push.
  const rerun = await ada.gql(
    'mutation ($i: RerunJobInput!) { rerunJob(input: $i) { job { name } } }',
    { i: { namespace: 'ada', name: poison.name } },
  );
  await until(ada, 'ada', rerun.rerunJob.job.name, 'SUCCEEDED');
  expect((await cachesOf(rerun.rerunJob.job.name))[0]).toMatchObject({
    readOnly: true,
    isSaved: false,
  });
  expect((await list(repo)).caches.totalCount).toBe(0);
  // He may read them, and write those of a branch to which he may push.
  const good = await run(repo);
  expect(good.caches[0].isSaved).toBe(true);
  expect((await run(repo, { client: bob })).lines).toEqual([`made by ${good.name}`]);
  await commitFiles(bob, id, { lock: 'b' }, 'his');
  expect((await run(repo, { client: bob, branch: 'his' })).caches[0].isSaved).toBe(true);
  expect(
    (await run(repo, { cache: [{ path: 'deps', key: 'x', restoreKeys: ['deps-'] }] })).caches[0]
      .restoredKey,
  ).toBe(good.caches[0].resolvedKey);

  // A right that was lost while the job ran counts, too.
  const late = await hold(repo, {
    client: bob,
    branch: 'his',
    cache: [{ path: 'deps', key: 'late' }],
  });
  await app.admin.gql(
    'mutation ($i: SetBranchRuleInput!) { setBranchRule(input: $i) { repository { id } } }',
    { i: { id, pattern: 'his', pushRole: 'ADMIN' } },
  );
  await late.release();
  expect((await list(repo, 'late')).caches.totalCount).toBe(0);
});

test('jobs that a job creates only read caches', async () => {
  const { repo } = await createRepository(ada, 'ada', { lock: 'a' });
  const parent = `parent-${++count}`;
  const command = 'until [ -e stop ]; do sleep 0.1; done';
  const permissions = { repo: 'READ', jobs: 'WRITE' };
  await submit(ada, { namespace: 'ada', name: parent, repo, command, permissions });
  await until(ada, 'ada', parent, 'RUNNING');
  const { rows } = await app.pool.query('select attempt_id as id from jobs where name = $1', [
    parent,
  ]);
  const token = app.app.services.jobTokens.tokenOf(rows[0].id);
  const child = await run(repo, { client: app.client(`Bearer ${token}`) });
  expect(child.caches[0]).toMatchObject({ readOnly: true, isSaved: false });
  expect((await list(repo)).caches.totalCount).toBe(0);
  await cancel(ada, 'ada', parent);
});

test('a job in which somebody had a shell saves nothing', async () => {
  const { repo } = await createRepository(ada, 'ada');
  for (const [isTouched, saved] of [
    [true, 0],
    [false, 1],
  ] as const) {
    const held = await hold(repo, { cache: [{ path: 'deps', key: 'k' }] });
    const { name, attemptId, workerId, namespace } = held;
    const { userId } = (
      await app.pool.query(`select id as "userId" from users where username = 'ada'`)
    ).rows[0];
    const about = { namespaceIds: [namespace], subject: 'job', name };
    const shell = { attemptId, workerId, command: null, terminal: true };
    if (isTouched)
      await recordBegin(app.app.services.db, { userId, username: 'ada' } as Actor, about, shell);
    await held.release();
    expect((await list(repo)).caches.totalCount).toBe(saved);
  }
});

test('jobs of snapshots read the caches of the default branch, and save none', async () => {
  await using workspace = await Workspace.open();
  const { repo } = await createRepository(ada, 'ada', { lock: 'a' });
  const main = await run(repo);
  await workspace.clone(ada, repo, 'snapshot');
  await workspace.commit('snapshot', { 'a.txt': 'a' });
  const snapshot = 'c'.repeat(32);
  await workspace.git('snapshot', 'push', '-q', 'origin', `HEAD:refs/loam/snapshots/${snapshot}`);
  expect((await run(repo, { snapshot })).lines).toEqual([`made by ${main.name}`]);
  const other = await run(repo, { snapshot, cache: [{ path: 'deps', key: 'other' }] });
  expect(other.caches[0]).toMatchObject({
    isSaved: false,
    problem: expect.stringMatching(/^not saved: /),
  });
  expect(other.lines.at(-1)).toMatch(
    /^The cache other was not saved: only jobs of a branch or tag /,
  );
  expect((await list(repo)).caches.totalCount).toBe(1);
});

test('hostile contents of a cache do no harm, and a damaged one is a miss', async () => {
  const { repo, id } = await createRepository(ada, 'ada', {
    'deps/kept': 'of the commit',
    'deps/folder/x': 'x',
  });
  await using workspace = await Workspace.open();
  await workspace.clone(ada, repo, 'links');
  await workspace.git('links', 'config', 'core.symlinks', 'true');
  await symlink('/tmp', join(workspace.path, 'links/deps/out'));
  await workspace.git('links', 'add', '.');
  await workspace.git('links', 'commit', '-qm', 'links');
  await workspace.git('links', 'push', '-q', 'origin', 'HEAD:main');
  const archive = pack();
  const add = (header: object, text = '') => archive.entry(header as never, text);
  const canary = `canary-${id}`;
  add({ name: '../escaped' }, 'x');
  add({ name: '/tmp/escaped' }, 'x');
  add({ name: 'kept' }, 'replaced');
  add({ name: 'folder', type: 'symlink', linkname: '/etc' });
  add({ name: `out/${canary}` }, 'x');
  add({ name: 'link', type: 'symlink', linkname: '..' });
  add({ name: `link/${canary}` }, 'x');
  add({ name: 'absolute', type: 'symlink', linkname: '/etc/passwd' });
  add({ name: 'up', type: 'symlink', linkname: 'folder/../../../x' });
  add({ name: 'hard', type: 'link', linkname: '/etc/passwd' });
  add({ name: 'device', type: 'character-device', devmajor: 1, devminor: 3 });
  add({ name: 'fifo', type: 'fifo' });
  add({ name: 'twice' }, 'first');
  add({ name: 'twice' }, 'second');
  add({ name: 'suid', mode: 0o6755 }, 'x');
  add({ name: '.git/hooks/post-checkout', mode: 0o755 }, 'x');
  archive.finalize();
  await store(id, 'evil', archive as unknown as Readable);
  await store(id, 'cut', Readable.from([Buffer.alloc(5_000, 1)]), true);
  const command =
    'cat deps/kept; readlink deps/out; find deps -type f | sort | tr "\\n" " "; find deps ! -type f ! -type d; stat -c %a deps/suid; cat deps/twice; ls -A "$HOME" /work';
  const cache = [{ path: 'deps', key: 'evil' }];
  const { lines: found } = await run(repo, { command, cache });
  expect(found.join('\n').split(/\s+/)).toEqual([
    ...['of', 'the', 'commit/tmp'],
    ...['deps/.git/hooks/post-checkout', 'deps/folder/x', 'deps/kept', `deps/link/${canary}`],
    ...['deps/suid', 'deps/twice', 'deps/out', '755', 'first/home/job:', '/work:', '.git', 'deps'],
  ]);
  expect(existsSync(join('/tmp', canary))).toBe(false);
  const damaged = await run(repo, { cache: [{ path: 'other', key: 'cut' }], command: 'ls -A' });
  expect(damaged.caches[0]).toMatchObject({
    restoredKey: null,
    problem: 'not restored: it cannot be read',
  });
  expect(damaged.lines).not.toContain('other');
});

test('a cache whose bytes the storage has lost is saved again', async () => {
  const { repo } = await createRepository(ada, 'ada');
  // The same bytes each time.
  const command = 'mkdir -p data; cat data/x; echo found > data/x; touch -d @0 data/x';
  const cache = [{ path: 'data', key: 'lost' }];
  await run(repo, { command, cache });
  const { rows } = await app.pool.query(
    `select key from large_packs where state = 'kept' order by id desc limit 1`,
  );
  await writeFile(join(app.config.dataDir, 'storage', rows[0].key), 'lost');
  const second = await run(repo, { command, cache });
  expect(second.caches[0]).toMatchObject({ restoredKey: null, isSaved: true });
  const third = await run(repo, { command, cache });
  expect(third.caches[0]).toMatchObject({ restoredKey: 'lost' });
  expect(third.lines).toContain('found');
});

/** Saves a cache as if a job had packed the tar. */
async function store(repositoryId: string, key: string, tar: Readable, isRaw = false) {
  const { services } = app.app;
  const body = isRaw ? tar : packCache(tar, { bytes: 0 }, 2 ** 30);
  const path = isRaw ? 'other' : 'deps';
  const options = { atMost: 2 ** 30, signal: new AbortController().signal };
  await services.largeFiles.write(repositoryId, body, options, (stored) =>
    stored.attach((client, object) =>
      insertCache(services, client, object, {
        repositoryId,
        scope: 'refs/heads/main',
        path,
        key,
        jobId: 'job',
        contentBytes: 0,
      }),
    ),
  );
}

test('a repository of the same name, and jobs of other namespaces, get nothing', async () => {
  const made = await createRepository(ada, 'ada', { lock: 'same' });
  await run(made.repo);
  const [, name] = made.repo.split('/');
  const carl = await app.user(`carl${++count}`, 'unlimited');
  const foreign = `carl${count}`;
  await ada.post(`/auth/v1/repository/ada/${made.id}/visibility`, { visibility: 'public' });
  // A public repository of another namespace.
  const stranger = await run(made.repo, { client: carl, namespace: foreign });
  expect(stranger.lines).toEqual(['nothing', expect.stringContaining('not saved: only jobs of')]);
  expect(stranger.caches[0]).toMatchObject({ isSaved: false, readOnly: true });
  // Renamed, it keeps its caches; a new one with the old name has none.
  await ada.gql(
    'mutation ($i: RenameRepositoryInput!) { renameRepository(input: $i) { repository { id } } }',
    { i: { id: made.id, name: `${name}-old` } },
  );
  expect((await run(`${made.repo}-old`)).lines).not.toEqual(['nothing']);
  const { body } = await ada.post('/auth/v1/repository/ada', { name });
  await commitFiles(ada, body.id, { lock: 'same' });
  expect((await run(made.repo)).lines).toEqual(['nothing']);
  // Transferred, it takes them along, with their bytes.
  const bytes = async (owner: string) =>
    Number(
      (await app.pool.query('select storage_bytes from namespaces where name = $1', [owner]))
        .rows[0].storage_bytes,
    );
  const before = await bytes(foreign);
  await carl.setMembers(foreign, {}).catch(() => {});
  await app.admin.gql(
    'mutation ($i: TransferRepositoryInput!) { transferRepository(input: $i) { repository { id } } }',
    { i: { id: made.id, newNamespace: foreign } },
  );
  const moved = await run(`${foreign}/${name}-old`, { client: carl, namespace: foreign });
  expect(moved.lines).not.toEqual(['nothing']);
  const { cacheUsage } = await list(`${foreign}/${name}-old`, undefined, carl);
  expect(await bytes(foreign)).toBeGreaterThanOrEqual(before + cacheUsage.sizeBytes);
});
