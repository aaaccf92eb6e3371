/** Retention removes old jobs, logs and artifacts by the rules of their namespace, each once, and nothing that is needed. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { removeMarkedLeftovers } from '../../src/jobs/artifacts/kept.ts';
import { removeDeletedPages } from '../../src/jobs/logs/removal.ts';
import { createRetentionSweep } from '../../src/jobs/retention/retention-sweep.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, job, lines, remove, submit, until } from '../support/submit.ts';

const DAY_MS = 86_400_000;

let app: TestApp;
let ada: Client;
const runner = fakeRunner({ graceMs: 50 });

beforeAll(async () => {
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
});
afterAll(() => app[Symbol.asyncDispose]());
beforeEach(async () => {
  await app.pool.query('delete from retention_rules');
});

const SET = `mutation ($input: SetRetentionInput!) {
  setRetention(input: $input) { retention { jobDays logDays artifactDays updatedBy } } }`;
const set = (days: object, client = ada) =>
  client.graphql(SET, { input: { namespace: 'ada', ...days } });

const PREVIEW = `query ($jobDays: Int, $logDays: Int, $artifactDays: Int) { namespace(name: "ada") {
  retentionPreview(jobDays: $jobDays, logDays: $logDays, artifactDays: $artifactDays) { kind count bytes names } } }`;
async function preview(days: object) {
  const { namespace } = await ada.gql(PREVIEW, days);
  return namespace.retentionPreview;
}

const KEEP = `mutation ($input: SetJobKeptInput!) {
  setJobKept(input: $input) { job { labels { key value } } } }`;
const setKept = (name: string, kept: boolean, client = ada) =>
  client.graphql(KEEP, { input: { namespace: 'ada', name, kept } });

const run = (name: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', repo: 'ada/code', name, command: 'echo out', ...more });

async function finished(name: string, more: object = {}) {
  await run(name, more);
  const ended = await until(ada, 'ada', name, 'SUCCEEDED');
  return ended.id as string;
}

/** As if the jobs had ended that long ago. */
async function age(days: number, ...names: string[]) {
  await app.pool.query(
    'update jobs set completed_at = completed_at - make_interval(days => $1) where name = any ($2)',
    [days, names],
  );
}

async function sweep(now?: () => Date): Promise<void> {
  const { services } = app.app;
  const batch = createRetentionSweep(services, now);
  while (await batch());
  while (await removeDeletedPages(services));
  while (await removeMarkedLeftovers(services));
}

async function names(): Promise<string[]> {
  const { rows } = await app.pool.query('select name from jobs order by name');
  return rows.map(({ name }) => name);
}

type Removal = { kind: string; count: number; jobs: string[] };
async function removals(): Promise<Removal[]> {
  const { rows } = await app.pool.query(
    `select details, actor from audit_entries where action = 'retention.remove' order by id`,
  );
  for (const { actor } of rows) expect(actor).toBe('server');
  return rows.map(({ details }) => details);
}

async function storage() {
  const { rows } = await app.pool.query(`select storage_bytes from namespaces where name = 'ada'`);
  return Number(rows[0].storage_bytes);
}

test('old jobs are deleted with their logs; young, kept, queued and running jobs stay', async () => {
  await finished('old', { outputPath: 'out', command: 'echo x > out/file; echo up' });
  await finished('young');
  await finished('kept', { labels: [{ key: 'keep', value: 'paper' }] });
  await run('busy', { command: 'hold' });
  await until(ada, 'ada', 'busy', 'RUNNING');
  await finished('storing');
  await age(31, 'old', 'kept', 'storing');
  // The last attempt still stores artifacts.
  await app.pool.query(`update job_attempts set ended_at = null where job_id = (
    select id from jobs where name = 'storing')`);
  expect(await preview({ jobDays: 300, logDays: 300, artifactDays: 300 })).toEqual(
    ['LOGS', 'ARTIFACTS', 'JOBS'].map((kind) => ({ kind, count: 0, bytes: 0, names: [] })),
  );
  expect(await preview({ jobDays: 30 })).toEqual([
    { kind: 'JOBS', count: 1, bytes: expect.any(Number), names: ['old'] },
  ]);
  expect(await names()).toContain('old');
  expect((await set({ jobDays: 30 })).errors).toBeUndefined();
  await sweep();
  expect(await names()).toEqual(['busy', 'kept', 'storing', 'young']);
  expect(await removals()).toEqual([{ kind: 'jobs', count: 1, jobs: ['old'] }]);
  const { rows } = await app.pool.query(`select type from events where type = 'job.deleted'`);
  expect(rows).toHaveLength(1);
  // Without `artifactDays` the artifacts stay.
  const { namespace } = await ada.gql(
    '{ namespace(name: "ada") { keptArtifacts { nodes { jobName } } } }',
  );
  expect(namespace.keptArtifacts.nodes).toEqual([{ jobName: 'old' }]);

  // The attempt has ended, and the next sweep finds the job although it had passed it.
  await app.pool.query(`update job_attempts set ended_at = now() where ended_at is null and job_id = (
    select id from jobs where name = 'storing')`);
  await sweep();
  expect(await names()).toEqual(['busy', 'kept', 'young']);

  // Time passes.
  expect((await setKept('kept', false)).errors).toBeUndefined();
  await sweep(() => new Date(Date.now() + 31 * DAY_MS));
  expect(await names()).toEqual(['busy']);
  runner.release();
  await until(ada, 'ada', 'busy', 'SUCCEEDED');
});

test('logs and artifacts are removed before their jobs, and free their storage', async () => {
  const before = await storage();
  await finished('both', { outputPath: 'out', command: 'echo 1 > out/file; echo up' });
  await finished('gone', { outputPath: 'out', command: 'echo 2 > out/file; echo up' });
  await remove(ada, 'ada', 'gone');
  await finished('exempt', {
    outputPath: 'out',
    command: 'echo 3 > out/file; echo up',
    labels: [{ key: 'keep', value: '' }],
  });
  await age(8, 'both', 'exempt');
  await app.pool.query(`update kept_artifacts set deleted_at = deleted_at - interval '8 days'`);
  expect(await preview({ logDays: 7, artifactDays: 7 })).toEqual([
    { kind: 'LOGS', count: 1, bytes: 3, names: ['both'] },
    { kind: 'ARTIFACTS', count: 3, bytes: expect.any(Number), names: expect.any(Array) },
  ]);
  await set({ logDays: 7, artifactDays: 7 });
  await sweep();
  expect(await lines(ada, 'ada', 'both')).toEqual([]);
  expect(await job(ada, 'ada', 'both')).toMatchObject({ status: 'SUCCEEDED', artifacts: null });
  expect(await lines(ada, 'ada', 'exempt')).toEqual(['up']);
  expect((await job(ada, 'ada', 'exempt')).artifacts).not.toBeNull();
  const { rows } = await app.pool.query('select name from kept_artifacts');
  expect(rows).toEqual([]);
  const { rows: pages } = await app.pool.query(
    `select from journal_pages p join jobs j on j.id = p.job_id where j.name = 'both'`,
  );
  expect(pages).toEqual([]);

  // The job can still be deleted, and everything is free again.
  expect((await remove(ada, 'ada', 'both')).errors).toBeUndefined();
  expect((await remove(ada, 'ada', 'exempt', true)).errors).toBeUndefined();
  await sweep();
  expect(await storage()).toBeLessThanOrEqual(before);
});

test('a job can be deleted while its log is being removed', async () => {
  await finished('noted');
  await app.pool.query(
    `insert into deleted_journals (job_id) select id from jobs where name = 'noted'`,
  );
  expect((await remove(ada, 'ada', 'noted')).errors).toBeUndefined();
});

test('artifacts that a waiting job needs stay until it has ended', async () => {
  await finished('model', { outputPath: 'out', command: 'echo 1 > out/file' });
  // No worker has such a GPU.
  await run('waiting', { gpu: 'T4', inputs: [{ job: 'model' }] });
  await age(8, 'model');
  await set({ artifactDays: 7 });
  await sweep();
  expect((await job(ada, 'ada', 'model')).artifacts).not.toBeNull();
  await remove(ada, 'ada', 'model');
  await app.pool.query(`update kept_artifacts set deleted_at = deleted_at - interval '8 days'`);
  await sweep();
  expect((await app.pool.query('select from kept_artifacts')).rowCount).toBe(1);
  await cancel(ada, 'ada', 'waiting');
  await sweep();
  expect((await app.pool.query('select from kept_artifacts')).rowCount).toBe(0);
});

test('a job stays until no waiting job needs it any more', async () => {
  await finished('first');
  // No worker has such a GPU.
  await run('second', { gpu: 'T4', needs: [{ job: 'first' }] });
  await age(31, 'first');
  await set({ jobDays: 30 });
  await sweep();
  expect(await names()).toContain('first');
  await cancel(ada, 'ada', 'second');
  await sweep();
  expect(await names()).not.toContain('first');
});

test('two servers at once, one of them killed between batches, remove each job once', async () => {
  await finished('template');
  await app.pool.query(`update retention_rules set jobs_until = null`);
  await app.pool.query(`
    insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
      timeout_minutes, retries, cost_per_hour, created_at, completed_at)
    select 'job_many' || n, namespace_id, 'many-' || n, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb,
      region, timeout_minutes, retries, cost_per_hour, now() - interval '40 days', now() - interval '40 days'
    from jobs, generate_series(1, 350) n where name = 'template'`);
  const seen = (await removals()).length;
  await set({ jobDays: 30 });
  const { services } = app.app;
  const killed = createRetentionSweep(services);
  // Finds the rules, and removes one batch.
  await killed();
  await killed();
  const [one, two] = [createRetentionSweep(services), createRetentionSweep(services)];
  const finish = async (batch: () => Promise<boolean>) => {
    while (await batch());
  };
  await Promise.all([finish(one), finish(two)]);
  await finish(createRetentionSweep(services));
  expect((await names()).filter((name) => name.startsWith('many'))).toEqual([]);
  const removed = (await removals()).slice(seen);
  const all = removed.flatMap(({ jobs }) => jobs);
  expect(all).toHaveLength(350);
  expect(new Set(all).size).toBe(350);
  for (const { count, jobs } of removed) {
    expect(count).toBe(jobs.length);
    expect(count).toBeLessThanOrEqual(100);
  }
});

test('only admins set rules, with days in range, and each change is in the audit log', async () => {
  for (const field of ['jobDays', 'logDays', 'artifactDays']) {
    for (const value of [0, -1, 3_651, 2 ** 31 - 1]) {
      const { errors } = await set({ [field]: value });
      expect(errors?.[0]?.extensions, `${field} ${value}`).toMatchObject({
        code: 'INVALID_REQUEST',
        field,
      });
    }
    for (const value of [2 ** 31, 1.5, '5', 1e308, true, []])
      expect((await set({ [field]: value })).errors, String(value)).toBeDefined();
  }
  for (const field of ['logDays', 'artifactDays']) {
    const { errors } = await set({ jobDays: 30, [field]: 31 });
    expect(errors?.[0]?.extensions).toMatchObject({ field });
  }
  await expectRefusal(ada.graphql(PREVIEW, { jobDays: 0 }), 'INVALID_REQUEST', 'jobDays');
  const { rows: none } = await app.pool.query('select from retention_rules');
  expect(none).toEqual([]);

  const bob = await app.user('bob');
  await finished('shared');
  for (const refused of [
    await set({ jobDays: 1 }, bob),
    await setKept('shared', true, bob),
    await bob.graphql(PREVIEW, { jobDays: 1 }),
    await bob.graphql('{ namespace(name: "ada") { retention { jobDays } } }'),
  ])
    await expectRefusal(refused, 'PERMISSION_DENIED');

  const { data } = await set({ jobDays: 90, logDays: 30, artifactDays: 60 });
  expect(data.setRetention.retention).toEqual({
    jobDays: 90,
    logDays: 30,
    artifactDays: 60,
    updatedBy: 'ada',
  });
  expect((await set({})).data.setRetention.retention).toBeNull();
  const { rows } = await app.pool.query(
    `select details, actor from audit_entries where action = 'retention.set' order by id desc limit 2`,
  );
  expect(rows).toEqual([
    { actor: 'ada', details: { jobDays: null, logDays: null, artifactDays: null } },
    { actor: 'ada', details: { jobDays: 90, logDays: 30, artifactDays: 60 } },
  ]);
});

test('the label keep can be set and removed, with an audit entry for each change', async () => {
  await finished('labelled', { labels: [{ key: 'team', value: 'nlp' }] });
  const team = { key: 'team', value: 'nlp' };
  for (const kept of [true, true, false, false]) {
    const { data } = await setKept('labelled', kept);
    const labels = kept ? [{ key: 'keep', value: '' }, team] : [team];
    expect(data.setJobKept.job.labels).toEqual(labels);
  }
  const { rows } = await app.pool.query(
    `select details from audit_entries where action = 'job.keep' and name = 'labelled' order by id`,
  );
  expect(rows).toEqual([{ details: { kept: true } }, { details: { kept: false } }]);
  const labels = Array.from({ length: 32 }, (_, n) => ({ key: `k${n}`, value: '' }));
  await finished('full', { labels });
  await expectRefusal(setKept('full', true), 'INVALID_REQUEST');
  await expectRefusal(setKept('missing', true), 'NOT_FOUND');
});
