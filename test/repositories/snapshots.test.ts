/** Snapshots: pushed working directories that only jobs see. */
import { rm } from 'node:fs/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { maintenanceTasks } from '../../src/maintenance.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

const REPOSITORIES = '/auth/v1/repository/ada';
const CREATE = `mutation ($input: CreateJobInput!) { createJob(input: $input) {
  job { name branch commitSha snapshot } } }`;

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  [ada, bob] = [await app.user('ada'), await app.user('bob')];
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

/** Creates a repository, a clone with one pushed commit, and a commit that is not pushed. @returns the latter */
async function createWithChange(name: string): Promise<{ id: string; change: string }> {
  const { body } = await ada.post(REPOSITORIES, { name });
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, { 'a.txt': name });
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD');
  await workspace.commit(name, { 'b.txt': 'not pushed' });
  return { id: body.id, change: await workspace.git(name, 'rev-parse', 'HEAD') };
}

const idOf = (digit: string) => digit.repeat(32);
const refOf = (id: string) => `refs/loam/snapshots/${id}`;

async function createJob(input: object, client = ada) {
  const common = { namespace: 'ada', command: 'true', gpu: 'NONE', ...input };
  return client.graphql(CREATE, { input: common });
}

test('a job runs a snapshot, which no branch, list, fetch or event shows', async () => {
  const { id, change } = await createWithChange('hidden');
  const before = (await ada.get(`${REPOSITORIES}/${id}`)).body;
  await workspace.git('hidden', 'push', '-q', 'origin', `HEAD:${refOf(idOf('a'))}`);

  const { data } = await createJob({ name: 'run', repo: 'ada/hidden', snapshot: idOf('a') });
  expect(data.createJob.job).toEqual({
    name: 'run',
    branch: null,
    commitSha: change,
    snapshot: idOf('a'),
  });
  const shown = await workspace.git('hidden', 'ls-remote', 'origin');
  expect(shown).not.toContain('refs/loam');
  const legacy = await workspace.git('hidden', '-c', 'protocol.version=0', 'ls-remote', 'origin');
  expect(legacy).not.toContain('refs/loam');
  for (const service of ['git-receive-pack', 'git-upload-pack']) {
    // The second answer comes from the cache.
    await ada.get(`/ada/hidden.git/info/refs?service=${service}`);
    const { text } = await ada.get(`/ada/hidden.git/info/refs?service=${service}`);
    expect(text).toContain('refs/heads/main');
    expect(text).not.toContain('refs/loam');
  }
  const after = (await ada.get(`${REPOSITORIES}/${id}`)).body;
  expect({ ...after, size_bytes: 0 }).toEqual({ ...before, size_bytes: 0 });
  expect(after.size_bytes).toBeGreaterThanOrEqual(before.size_bytes);
  const { rows } = await app.pool.query(
    `select count(*)::int as pushes from events where subject = $1 and type = 'repository.pushed'`,
    [id],
  );
  expect(rows).toEqual([{ pushes: 1 }]);
});

test('a push may contain a branch and a snapshot: only the branch is in its event', async () => {
  const { id } = await createWithChange('both');
  await workspace.git('both', 'push', '-q', 'origin', 'HEAD', `HEAD~1:${refOf(idOf('a'))}`);
  const { rows } = await app.pool.query(
    `select data -> 'push' -> 'refs' as refs from events
     where subject = $1 and type = 'repository.pushed' order by xid, seq`,
    [id],
  );
  expect(rows.at(-1).refs).toMatchObject([{ ref: 'refs/heads/main' }]);
  const { data } = await createJob({ name: 'both', repo: 'ada/both', snapshot: idOf('a') });
  expect(data.createJob.job.snapshot).toBe(idOf('a'));
});

test('a snapshot cannot be changed or deleted, and other hidden refs cannot be pushed', async () => {
  await createWithChange('fixed');
  const push = async (...refs: string[]) =>
    (await workspace.try('fixed', 'push', '-q', 'origin', ...refs)).stderr;
  expect(await push(`HEAD~1:${refOf(idOf('a'))}`)).toBe('');
  // Git does not show the ref to clients, so that they try to create it.
  expect(await push(`HEAD:${refOf(idOf('a'))}`)).toMatch('reference already exists');
  expect(await push(`:${refOf(idOf('a'))}`)).toMatch('cannot be changed or deleted');
  for (const ref of ['refs/loam/other', refOf('xyz'), refOf(idOf('A')), `${refOf(idOf('b'))}/c`])
    expect(await push(`HEAD:${ref}`)).toMatch('is reserved');
});

test('who cannot push cannot create a snapshot, and a job of an unknown one is refused', async () => {
  await createWithChange('guarded');
  const eve = await app.user('eve');
  const url = remote(eve, 'ada/guarded');
  const { code } = await workspace.try('guarded', 'push', '-q', url, `HEAD:${refOf(idOf('e'))}`);
  expect(code).not.toBe(0);

  const refused = async (input: object, client = ada) =>
    (await createJob({ name: 'no', repo: 'ada/guarded', ...input }, client)).errors?.[0]?.message;
  expect(await refused({ snapshot: idOf('e') })).toBe(`Snapshot ${idOf('e')} not found`);
  expect(await refused({ snapshot: 'main' })).toMatch('snapshot: must be 32');
  expect(await refused({ snapshot: idOf('e'), branch: 'main' })).toMatch('with branch');
  expect(await refused({ snapshot: idOf('e'), repo: null, image: 'debian:12' })).toMatch(
    'only be given with repo',
  );
});

test('maintenance removes a snapshot a day after its push, once no job has it', async () => {
  const { id } = await createWithChange('old');
  const push = (digit: string) =>
    workspace.git('old', 'push', '-q', 'origin', `HEAD:${refOf(idOf(digit))}`);
  for (const digit of ['1', '2', '3']) await push(digit);
  await createJob({ name: 'keeps', repo: 'ada/old', snapshot: idOf('2') });
  await app.pool.query(
    `update snapshots set created_at = now() - interval '25 hours' where repository_id = $1 and id <> $2`,
    [id, idOf('3')],
  );
  const removeUnused = maintenanceTasks(app.app.services)['remove unused snapshots'];
  await removeUnused?.();
  const left = async () => {
    const { rows } = await app.pool.query<{ id: string }>(
      'select id from snapshots where repository_id = $1 order by id',
      [id],
    );
    return rows.map((row) => row.id[0]).join('');
  };
  expect(await left()).toBe('23');
  expect(
    (await createJob({ name: 'gone', repo: 'ada/old', snapshot: idOf('1') })).errors,
  ).toHaveLength(1);

  await app.pool.query('delete from jobs where name = $1', ['keeps']);
  await removeUnused?.();
  expect(await left()).toBe('3');
});

test('a damaged repository does not keep the snapshots of others', async () => {
  const ids: string[] = [];
  for (const name of ['damaged', 'whole']) {
    ids.push((await createWithChange(name)).id);
    await workspace.git(name, 'push', '-q', 'origin', `HEAD:${refOf(idOf('e'))}`);
  }
  await app.pool.query(
    `update snapshots set created_at = now() - interval '25 hours' where repository_id = any ($1)`,
    [ids],
  );
  const { disk } = app.app.services.git;
  await rm(disk.pathOf(ids[0] as string), { recursive: true });
  const removeUnused = maintenanceTasks(app.app.services)['remove unused snapshots'];
  await expect(removeUnused?.()).rejects.toThrow();
  const left = await app.pool.query('select repository_id as id from snapshots where id = $1', [
    idOf('e'),
  ]);
  expect(left.rows).toEqual([{ id: ids[0] }]);
});

test('a rerun of a job with a snapshot runs the same snapshot', async () => {
  const { change } = await createWithChange('again');
  await workspace.git('again', 'push', '-q', 'origin', `HEAD:${refOf(idOf('a'))}`);
  await createJob({ name: 'again', repo: 'ada/again', snapshot: idOf('a') });
  const rerun = (more: string) =>
    ada.graphql(`mutation { rerunJob(input: { namespace: "ada", name: "again"${more} }) {
      job { name commitSha snapshot } } }`);
  expect((await rerun('')).data.rerunJob.job).toEqual({
    name: 'again-2',
    commitSha: change,
    snapshot: idOf('a'),
  });
  expect((await rerun(', newestCommit: true')).errors?.[0]?.message).toMatch('has no branch');
});

test('a lock also refuses a snapshot, and a branch whose commits a snapshot had', async () => {
  const { change } = await createWithChange('locked');
  const url = remote(ada, 'ada/locked');
  // Pushed before the lock: the branch is refused all the same, although its commits are known.
  await workspace.git('locked', 'push', '-q', url, `HEAD:${refOf(idOf('a'))}`);
  await app.admin.setMembers('ada', { bob: 'WRITE' });
  const locked = await bob.post('/ada/locked.git/info/lfs/locks', { path: 'b.txt' });
  expect(locked.status).toBe(201);
  for (const ref of ['refs/heads/main', refOf(idOf('b'))]) {
    const { stderr } = await workspace.try('locked', 'push', '-q', url, `${change}:${ref}`);
    expect(stderr).toMatch('b.txt is locked by bob');
  }
});
