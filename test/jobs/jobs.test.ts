import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../../src/base/ids.ts';
import { moveJob } from '../../src/jobs/record/state.ts';
import { inTransaction } from '../../src/platform/database/client.ts';
import { openProcessRunner, type ProcessRunner } from '../../src/runners/process/runner.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import {
  cancel,
  job,
  lines,
  remove,
  submit,
  submitRaw,
  until,
  variables,
} from '../support/submit.ts';

/** `usage_days`, counted from the attempts and jobs that there are. */
const RECOUNTED = `
  INSERT INTO "usage_days" ("namespace_id", "day", "user_id", "seconds", "gpu_seconds", "price_seconds", "jobs")
  WITH ran AS (
    SELECT j.namespace_id, coalesce(j.created_by_id, '') AS user_id, j.cost_per_hour,
      CASE WHEN j.gpu = 'none' THEN 0 ELSE j.gpu_count END AS gpus, a.started_at AS began,
      greatest(0, round(extract(epoch FROM
        CASE WHEN j.status = 'cancelled' THEN least(a.ended_at, j.completed_at) ELSE a.ended_at END
        - a.started_at)))::bigint AS seconds
    FROM job_attempts a JOIN jobs j ON j.id = a.job_id
    WHERE a.started_at IS NOT NULL AND (a.outcome = 'exited' OR (j.status = 'cancelled'
      AND a.started_at <= j.completed_at AND (a.ended_at IS NULL OR a.ended_at >= j.completed_at)))
  ), parts AS (
    SELECT namespace_id, user_id, day::date AS day, gpus, cost_per_hour, 0 AS jobs,
      least(seconds, round(extract(epoch FROM (day + interval '1 day') AT TIME ZONE 'UTC' - began)))
      - greatest(0, round(extract(epoch FROM day AT TIME ZONE 'UTC' - began))) AS seconds
    FROM ran CROSS JOIN LATERAL generate_series(
      date_trunc('day', began AT TIME ZONE 'UTC'),
      date_trunc('day', (began + make_interval(secs => seconds)) AT TIME ZONE 'UTC'), interval '1 day'
    ) AS day
    UNION ALL
    SELECT namespace_id, coalesce(created_by_id, ''), (completed_at AT TIME ZONE 'UTC')::date, 0, 0, 1, 0
    FROM jobs WHERE completed_at IS NOT NULL
  )
  SELECT namespace_id, day, user_id, sum(seconds)::bigint, sum(seconds * gpus)::bigint,
    sum(seconds * cost_per_hour), sum(jobs)::int
  FROM parts WHERE seconds > 0 OR jobs > 0 GROUP BY 1, 2, 3`;

const REPO =
  'mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) { repository { id } } }';
const withRepo = async (app: TestApp, username: string): Promise<Client> => {
  const client = await app.user(username);
  await client.repository(`${username}/code`);
  return client;
};

describe('creating jobs', () => {
  let app: TestApp;
  let ada: Client;
  let bob: Client;
  const base = { namespace: 'ada', command: 'echo hi', repo: 'ada/code' };
  beforeAll(async () => {
    // Without slots, so that jobs stay queued.
    app = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
    ada = await withRepo(app, 'ada');
    bob = await withRepo(app, 'bob');
  });
  afterAll(() => app[Symbol.asyncDispose]());

  test('a new job has defaults, a pinned commit and a price, and shows its env once', async () => {
    const { data } = await submitRaw(ada, {
      ...base,
      name: 'plain',
      env: variables({ A: '1' }),
      secrets: variables({ S: 'x' }),
    });
    expect(data.createJob.env).toEqual([{ name: 'A', value: '1' }]);
    expect(data.createJob.job).toMatchObject({
      id: expect.stringMatching(/^job_/),
      status: 'QUEUED',
      branch: 'main',
      commitSha: expect.stringMatching(/^[0-9a-f]{40}$/),
      gpuCount: 1,
      cpu: 8,
      memoryGb: 32,
      diskGb: 100,
      region: 'US_EAST_1',
      timeoutMinutes: 1440,
      retries: 0,
      costPerHour: '0.288',
      totalCost: '0.00',
      startedAt: null,
      artifacts: null,
    });
    expect(await job(ada, 'ada', 'plain')).toMatchObject({ status: 'QUEUED' });
    expect((await submitRaw(ada, { ...base, name: 'plain' })).errors?.[0]).toMatchObject({
      extensions: { code: 'ALREADY_EXISTS', field: 'name' },
    });
  });

  test.each(['A100_40GB', 'A100_80GB', 'H100_80GB', 'L4', 'T4', 'NONE'])(
    'all defaults are valid with %s; a job that no worker can run waits with a reason',
    async (gpu) => {
      const { status, progress } = await submit(ada, { ...base, name: `on-${gpu}`, gpu });
      expect(status).toBe('QUEUED');
      if (gpu !== 'NONE')
        expect(progress).toMatch(
          /^waiting for (?:a T4|an [AHL].*) in us-east-1: no worker offers it$/,
        );
    },
  );

  test.each([
    ['name', { name: 'a b' }],
    ['name', { name: 'x'.repeat(101) }],
    ['command', { command: ' ' }],
    ['command', { command: 'a\0b' }],
    ['command', { command: 'x'.repeat(100_001) }],
    [undefined, { repo: null }],
    ['repo', { repo: 'nonsense' }],
    ['image', { repo: null, image: '-rf' }],
    ['image', { repo: null, image: 'debian:' }],
    ['image', { repo: null, image: 'http://x/y' }],
    ['image', { repo: null, image: 'DEBIAN' }],
    ['branch', { repo: null, image: 'x', branch: 'main' }],
    ['gpuCount', { gpuCount: 3 }],
    ['cpu', { cpu: 3 }],
    ['memoryGb', { memoryGb: 0 }],
    ['diskGb', { diskGb: 0 }],
    ['diskGb', { diskGb: 10_241 }],
    ['retries', { retries: -1 }],
    ['timeoutMinutes', { timeoutMinutes: 0 }],
    ['timeoutMinutes', { timeoutMinutes: 10081 }],
    ['retries', { retries: 6 }],
    ['env', { env: variables({ 'A B': 'x' }) }],
    ['env', { env: [...variables({ A: 'x' }), ...variables({ A: 'y' })] }],
    ['env', { env: variables({ A: '\0' }) }],
    ['env', { env: variables({ A: 'x'.repeat(70_000) }) }],
    ['secrets', { secrets: variables({ '9': 'x' }) }],
    ['outputPath', { outputPath: '' }],
    ['outputPath', { outputPath: '../../etc' }],
    ['labels', { labels: [{ key: '', value: 'x' }] }],
    ['labels', { labels: [{ key: 'a/b/c', value: 'x' }] }],
    ['labels', { labels: [{ key: 'Example.com/team', value: 'x' }] }],
    ['labels', { labels: [{ key: `${'a'.repeat(254)}/team`, value: 'x' }] }],
    ['labels', { labels: [{ key: '-team', value: 'x' }] }],
    ['labels', { labels: [{ key: 'x'.repeat(64), value: 'x' }] }],
    ['labels', { labels: [{ key: 'team', value: 'x'.repeat(64) }] }],
    ['labels', { labels: [{ key: 'team', value: 'a b' }] }],
    ['labels', { labels: [{ key: 'team', value: 'a\0' }] }],
    ['labels', { labels: Array(2).fill({ key: 'team', value: 'x' }) }],
    ['labels', { labels: Array.from({ length: 33 }, (_, i) => ({ key: `k${i}`, value: '' })) }],
    // Combinations of allowed values.
    ['gpuCount', { gpu: 'NONE', gpuCount: 2 }],
    ['cpu', { gpu: 'T4', gpuCount: 8, cpu: 4 }],
    ['memoryGb', { cpu: 2, memoryGb: 33 }],
    ['memoryGb', { cpu: 96, memoryGb: 23 }],
  ])('an invalid %s is refused (%#)', async (field, change) => {
    const { errors } = await submitRaw(ada, { ...base, name: 'bad', ...change });
    expect(errors?.[0]?.extensions).toEqual({ code: 'INVALID_REQUEST', ...(field && { field }) });
  });

  test.each([
    [400, { disk_gb: 999_999_999 }],
    [400, { disk_gb: 0 }],
    [400, { memory_gb: 0 }],
    [422, { memory_gb: 999_999_999 }],
    [400, { timeout_minutes: 10_081 }],
    [400, { timeout_minutes: 0 }],
    [400, { retries: 6 }],
    [400, { retries: -1 }],
    [400, { gpu_count: 3 }],
    [400, { cpu: 1 }],
    [400, { region: 'mars' }],
    [400, { gpu: 'B200' }],
  ])('over REST an invalid number gives %i and names its field: %j', async (status, change) => {
    const body = { name: 'bad', command: 'true', repo: 'ada/code', gpu: 'none', ...change };
    const answer = await ada.post('/auth/v1/seed/ada/jobs', body);
    expect([answer.status, answer.body.error.code]).toEqual([status, 'invalid_request']);
    expect(answer.body.error.message).toContain(Object.keys(change)[0]);
  });

  test('the largest disk is accepted', async () => {
    expect(await submit(ada, { ...base, name: 'wide-disk', diskGb: 10_240 })).toMatchObject({
      diskGb: 10_240,
    });
  });

  test('repositories and branches must exist and be readable', async () => {
    const code = async (change: object) =>
      (await submitRaw(ada, { ...base, name: 'r', ...change })).errors?.[0]?.extensions.code;
    expect(await code({ repo: 'ada/none' })).toBe('NOT_FOUND');
    expect(await code({ branch: 'none' })).toBe('NOT_FOUND');
    expect(await code({ repo: 'bob/code' })).toBe('NOT_FOUND');
    expect(await code({ namespace: 'bob' })).toBe('PERMISSION_DENIED');
    expect(await code({ namespace: 'nobody' })).toBe('NOT_FOUND');
  });

  test('a non-member sees no jobs: 403 by name, null by id, an empty connection', async () => {
    const { id } = await submit(ada, { ...base, name: 'private' });
    const ask = (query: string) => bob.graphql(query);
    const byName = await ask('{ job(namespace: "ada", name: "private") { id } }');
    await expectRefusal(byName, 'PERMISSION_DENIED');
    const list = await ask('{ jobPage(namespace: "ada") { total } }');
    await expectRefusal(list, 'PERMISSION_DENIED');
    const node = `{ node(id: "${id}") { ... on Job { name } } }`;
    expect((await ask(node)).data).toEqual({ node: null });
    expect((await ada.gql(node)).node).toEqual({ name: 'private' });
    const owned = await ask('{ namespace(name: "ada") { jobs { totalCount } } }');
    expect(owned.data.namespace.jobs.totalCount).toBe(0);
  });

  test('pages and connections are sorted, filtered and paged', async () => {
    const { jobPage } = await ada.gql(
      '{ jobPage(namespace: "ada", sort: NAME, order: ASC, perPage: 2, page: 2) { total nodes { name } } }',
    );
    expect(jobPage.nodes.map((n: { name: string }) => n.name)).toEqual(['on-H100_80GB', 'on-L4']);
    const running = await ada.gql('{ jobPage(namespace: "ada", status: RUNNING) { total } }');
    expect(running.jobPage.total).toBe(0);
    const { namespace } = await ada.gql(
      '{ namespace(name: "ada") { jobs(first: 1, status: QUEUED) { totalCount edges { node { name } } pageInfo { hasNextPage } } } }',
    );
    expect(namespace.jobs.totalCount).toBe(jobPage.total);
    expect(namespace.jobs.pageInfo.hasNextPage).toBe(true);
  });

  describe('labels and filters', () => {
    const FILTER = `query ($of: String!, $filter: JobFilter, $after: String, $first: Int!) {
      namespace(name: $of) { jobs(first: $first, after: $after, sort: NAME, order: ASC, filter: $filter) {
        totalCount nodes { name } pageInfo { hasNextPage endCursor } } } }`;
    const found = async (filter: object, client = ada, of = 'ada') => {
      const { namespace } = await client.gql(FILTER, { of, filter, first: 100 });
      return namespace.jobs.nodes.map(({ name }: { name: string }) => name);
    };
    const make = (name: string, labels: Record<string, string>, more: object = {}) =>
      submit(ada, {
        ...base,
        name,
        labels: Object.entries(labels).map(([key, value]) => ({ key, value })),
        ...more,
      });

    beforeAll(async () => {
      await ada.repository('ada/other');
      await make('f_one', { team: 'red', 'example.com/run': '1.0', done: '' });
      await make('f_two', { team: 'red', 'example.com/run': '2.0' }, { gpu: 'T4' });
      await make('f_three', { team: 'blue' }, { repo: 'ada/other' });
      await make('fxfour', {}, { repo: null, image: 'busybox:1' });
      await cancel(ada, 'ada', 'f_two');
    });

    test('a job shows its labels sorted by key, in GraphQL only; REST accepts no labels', async () => {
      const { job: shown } = await ada.gql(
        '{ job(namespace: "ada", name: "f_one") { labels { key value } } }',
      );
      expect(shown.labels).toEqual([
        { key: 'done', value: '' },
        { key: 'example.com/run', value: '1.0' },
        { key: 'team', value: 'red' },
      ]);
      expect((await ada.get('/ada/job/f_one')).body).not.toHaveProperty('labels');
      const { rows } = await app.pool.query("select data from events where type like 'job.%'");
      expect(JSON.stringify(rows)).not.toContain('example.com/run');
      const refused = await ada.post('/auth/v1/seed/ada/jobs', {
        ...base,
        namespace: undefined,
        name: 'labelled',
        gpu: 'none',
        labels: [],
      });
      expect([refused.status, refused.body.error.message]).toEqual([
        400,
        expect.stringContaining('labels'),
      ]);
    });

    test('lists can be filtered by each filter and by combinations', async () => {
      const team = (...values: string[]) => ({ key: 'team', values });
      expect(await found({ labels: [team('red')] })).toEqual(['f_one', 'f_two']);
      expect(await found({ labels: [team('red', 'blue')] })).toEqual(['f_one', 'f_three', 'f_two']);
      expect(await found({ labels: [{ key: 'example.com/run' }] })).toEqual(['f_one', 'f_two']);
      expect(await found({ labels: [{ key: 'done', values: [''] }] })).toEqual(['f_one']);
      expect(await found({ labels: [team('red'), { key: 'done' }] })).toEqual(['f_one']);
      expect(await found({ labels: [team('red'), team('blue')] })).toEqual([]);
      expect(await found({ labels: [team()] })).toEqual([]);
      // An underscore is not a wildcard.
      expect(await found({ namePrefix: 'f_' })).toEqual(['f_one', 'f_three', 'f_two']);
      expect(await found({ namePrefix: 'f_', statuses: ['CANCELLED'] })).toEqual(['f_two']);
      expect(
        await found({ namePrefix: 'f', statuses: ['QUEUED', 'RUNNING'], gpus: ['NONE'] }),
      ).toEqual(['f_one', 'f_three', 'fxfour']);
      expect(await found({ gpus: ['T4'], labels: [team('red')] })).toEqual(['f_two']);
      expect(await found({ repository: 'ada/other' })).toEqual(['f_three']);
      expect(await found({ image: 'busybox:1' })).toEqual(['fxfour']);
      expect(await found({ creator: 'bob' })).toEqual([]);
      expect(await found({ creator: 'Ada', namePrefix: 'f_t' })).toEqual(['f_three', 'f_two']);
      const { createdAt } = await job(ada, 'ada', 'f_three');
      expect(await found({ namePrefix: 'f', createdTo: createdAt })).toEqual(['f_one', 'f_two']);
      expect(await found({ namePrefix: 'f', createdFrom: createdAt })).toEqual([
        'f_three',
        'fxfour',
      ]);
      expect(await found({ completedFrom: '2020-01-01T00:00:00Z' })).toEqual(['f_two']);
      expect(await found({ completedTo: '0001-01-01T00:00:00Z' })).toEqual([]);
      expect(await found({ createdFrom: '9999-12-31T23:59:59Z' })).toEqual([]);
    });

    test('jobs are found by the new name of a renamed repository, and by the old name of a deleted one', async () => {
      const { createRepository } = await ada.gql(REPO, {
        input: { namespace: 'ada', name: 'was' },
      });
      await make('moved', {}, { repo: 'ada/was' });
      const { id } = createRepository.repository;
      await ada.put(`/auth/v1/repository/ada/${id}/name`, { name: 'is' });
      expect(await found({ repository: 'ada/is' })).toEqual(['moved']);
      await ada.delete(`/auth/v1/repository/ada/${id}`);
      expect(await found({ repository: 'ada/was' })).toEqual(['moved']);
    });

    test('pages of a filtered list are exact', async () => {
      const names: string[] = [];
      let after: string | null = null;
      for (;;) {
        const asked: object = { of: 'ada', filter: { labels: [{ key: 'team' }] }, first: 1, after };
        const { namespace } = await ada.gql(FILTER, asked);
        const { jobs } = namespace;
        expect(jobs.totalCount).toBe(3);
        names.push(...jobs.nodes.map(({ name }: { name: string }) => name));
        if (!jobs.pageInfo.hasNextPage) break;
        after = jobs.pageInfo.endCursor;
      }
      expect(names).toEqual(['f_one', 'f_three', 'f_two']);
    });

    test('a filter finds nothing that the viewer may not see', async () => {
      expect(await found({ labels: [{ key: 'team' }] }, bob)).toEqual([]);
      expect(await found({ labels: [{ key: 'team' }] }, bob, 'bob')).toEqual([]);
    });

    test.each([
      ['labels', { labels: [{ key: 'a b' }] }],
      ['labels', { labels: [{ key: 'a', values: ['?'] }] }],
      ['labels', { labels: [{ key: 'a', values: Array(21).fill('x') }] }],
      ['labels', { labels: Array(21).fill({ key: 'a' }) }],
      ['namePrefix', { namePrefix: '%' }],
      ['namePrefix', { namePrefix: '' }],
      ['repository', { repository: 'ada' }],
      ['createdTo', { createdFrom: '2026-01-01T00:00Z', createdTo: '2026-01-01T00:00Z' }],
    ])('a wrong %s in a filter is refused (%#)', async (field, filter) => {
      const { errors } = await ada.graphql(FILTER, { of: 'ada', filter, first: 1 });
      expect(errors?.[0]?.extensions).toEqual({ code: 'INVALID_REQUEST', field });
    });

    test('a filter with invalid text or an unknown user is refused', async () => {
      const code = async (filter: object) =>
        (await ada.graphql(FILTER, { of: 'ada', filter, first: 1 })).errors?.[0]?.extensions.code;
      expect(await code({ image: 'a\0' })).toBe('INVALID_REQUEST');
      expect(await code({ repository: 'ada/\0' })).toBe('INVALID_REQUEST');
      for (const year of ['0000-01-01T00:00Z', '0001-01-01T00:00+01:00', '9999-12-31T23:00-02:00'])
        expect(await code({ createdFrom: year })).toBe('INVALID_REQUEST');
      expect(await code({ creator: 'nobody' })).toBe('NOT_FOUND');
      expect(await code({ creator: 'a\0' })).toBe('NOT_FOUND');
    });

    test('labels are deleted with their job', async () => {
      await make('short-lived', { gone: 'soon' });
      await cancel(ada, 'ada', 'short-lived');
      await remove(ada, 'ada', 'short-lived');
      const { rows } = await app.pool.query("select from job_labels where key = 'gone'");
      expect(rows).toEqual([]);
    });
  });

  describe('rerunning a job', () => {
    const RERUN = `mutation ($input: RerunJobInput!) { rerunJob(input: $input) { job {
      id name status command repo branch commitSha image gpu gpuCount cpu memoryGb diskGb region timeoutMinutes retries
      outputPath labels { key value } rerunOf { name } createdBy { username } } } }`;
    const rerun = (client: Client, name: string, more: object = {}, headers = {}) =>
      client.post(
        '/graphql',
        { query: RERUN, variables: { input: { namespace: 'ada', name, ...more } } },
        headers,
      );
    const refusal = async (client: Client, name: string, more: object = {}) => {
      const { errors } = (await rerun(client, name, more)).body;
      return [errors?.[0]?.extensions.code, errors?.[0]?.extensions.field];
    };
    const SETTINGS = {
      command: 'make it',
      gpuCount: 2,
      cpu: 4,
      memoryGb: 16,
      diskGb: 7,
      region: 'EU_WEST_1',
      timeoutMinutes: 5,
      retries: 2,
      outputPath: 'out',
      gpu: 'T4',
      labels: [{ key: 'team', value: 'x' }],
    };
    let cleo: Client;
    beforeAll(async () => {
      cleo = await app.user('cleo');
      await ada.setMembers('ada', { cleo: 'WRITE' });
      await submit(ada, {
        ...base,
        name: 'run',
        ...SETTINGS,
        env: variables({ A: '1' }),
        secrets: variables({ KEY: 'hush' }),
      });
    });

    test('a rerun has all settings, a new name, and a link to the first job', async () => {
      const before = await job(ada, 'ada', 'run');
      const { rerunJob } = (await rerun(cleo, 'run')).body.data;
      expect(rerunJob.job).toMatchObject({
        ...SETTINGS,
        name: 'run-2',
        status: 'QUEUED',
        repo: 'ada/code',
        branch: 'main',
        commitSha: before.commitSha,
        image: null,
        rerunOf: { name: 'run' },
        createdBy: { username: 'cleo' },
      });
      const { rows } = await app.pool.query('select env, secrets from jobs where id = $1', [
        rerunJob.job.id,
      ]);
      expect(rows[0].env).toEqual({ A: '1' });
      const { secretBox } = app.app.services;
      expect(secretBox.open(rerunJob.job.id, rows[0].secrets)).toEqual({ KEY: 'hush' });
      // Encrypted again, because the secrets of a job can only be decrypted for that job.
      expect(() => secretBox.open(before.id, rows[0].secrets)).toThrow();
    });

    test('names of reruns are numbered, can be chosen, and must be free and short enough', async () => {
      const named = async (name: string, more?: object) =>
        (await rerun(ada, name, more)).body.data?.rerunJob?.job.name;
      expect(await named('run-2')).toBe('run-3');
      expect(await named('run')).toBe('run-4');
      expect(await named('run', { newName: 'mine' })).toBe('mine');
      expect(await refusal(ada, 'run', { newName: 'mine' })).toEqual(['ALREADY_EXISTS', 'newName']);
      expect(await refusal(ada, 'run', { newName: 'a b' })).toEqual(['INVALID_REQUEST', 'newName']);
      const long = 'x'.repeat(100);
      await submit(ada, { ...base, name: long });
      expect(await named(long)).toBe(`${'x'.repeat(98)}-2`);
      const together = await Promise.all(Array.from({ length: 4 }, () => named('mine')));
      expect(new Set(together).size).toBe(4);
    });

    test('repeated requests create one job, also when concurrent', async () => {
      const key = { 'Idempotency-Key': 'again' };
      const both = await Promise.all([1, 2].map(() => rerun(ada, 'run', {}, key)));
      const last = await rerun(ada, 'run', {}, key);
      const made = [...both, last]
        .flatMap(({ status, body }) => (status === 200 ? [body.data.rerunJob.job.id] : []))
        .filter((id, at, all) => all.indexOf(id) === at);
      expect(made).toHaveLength(1);
    });

    test('a rerun uses the same commit, or the newest on request', async () => {
      const createRepository = await ada.gql(REPO, { input: { namespace: 'ada', name: 'moving' } });
      const { id } = createRepository.createRepository.repository;
      const { commitSha } = await submit(ada, { ...base, name: 'at', repo: 'ada/moving' });
      await using at = await Workspace.open();
      await at.clone(ada, 'ada/moving', 'w');
      await at.commit('w', { 'next.txt': 'next' });
      await at.git('w', 'push', '-q', 'origin', 'HEAD:main');
      await ada.put(`/auth/v1/repository/ada/${id}/name`, { name: 'moved-on' });
      const again = async (more?: object) => (await rerun(ada, 'at', more)).body.data.rerunJob.job;
      expect(await again()).toMatchObject({ commitSha, repo: 'ada/moved-on' });
      const { commitSha: newest } = await again({ newestCommit: true });
      expect(newest).not.toBe(commitSha);

      await app.pool.query("update jobs set commit_sha = repeat('1', 40) where name = 'at'");
      expect(await refusal(ada, 'at')).toEqual(['CONFLICT', 'newestCommit']);
      await ada.delete(`/auth/v1/repository/ada/${id}`);
      expect(await refusal(ada, 'at')).toEqual(['NOT_FOUND', undefined]);
    });

    test('a rerun requires permission to create jobs, and the secrets of others stay with their commit', async () => {
      const code = async (...asked: Parameters<typeof refusal>) => (await refusal(...asked))[0];
      expect(await code(bob, 'run')).toBe('PERMISSION_DENIED');
      expect(await code(bob, 'no-such-name')).toBe('PERMISSION_DENIED');
      expect(await code(app.anonymous, 'run')).toBe('AUTHENTICATION_FAILED');
      expect(await code(ada, 'no-such-name')).toBe('NOT_FOUND');
      expect(await code(cleo, 'run', { newestCommit: true })).toBe('PERMISSION_DENIED');
      expect(await code(ada, 'run', { newestCommit: true })).toBeUndefined();
      await submit(ada, { ...base, name: 'in-image', repo: null, image: 'busybox' });
      expect(await refusal(ada, 'in-image', { newestCommit: true })).toEqual([
        'INVALID_REQUEST',
        'newestCommit',
      ]);
      expect(await code(cleo, 'in-image')).toBeUndefined();
      // A token for another repository only may not rerun this job.
      const reader = await ada.withToken({ scopes: ['JOB_READ'] });
      expect(await code(reader, 'run')).toBe('PERMISSION_DENIED');
      const apart = await ada.withToken({ repositories: [await ada.repository('ada/apart')] });
      expect(await code(apart, 'run')).toBe('PERMISSION_DENIED');
      expect(await code(apart, 'in-image')).toBe('PERMISSION_DENIED');
    });

    test('reruns count for quotas, and the link to a deleted job is null', async () => {
      const dora = await app.user('dora', 'free');
      const input = { namespace: 'dora', command: 'true', image: 'busybox' };
      for (let i = 0; i < 20; i++) await submit(dora, { ...input, name: `j${i}` });
      const again = { namespace: 'dora', name: 'j0' };
      await expectRefusal(dora.graphql(RERUN, { input: again }), 'QUOTA_EXCEEDED');
      await cancel(dora, 'dora', 'j0');
      expect((await dora.gql(RERUN, { input: again })).rerunJob.job.rerunOf).toEqual({
        name: 'j0',
      });
      await remove(dora, 'dora', 'j0');
      const linked = '{ job(namespace: "dora", name: "j0-2") { rerunOf { name } } }';
      expect((await dora.gql(linked)).job).toEqual({ rerunOf: null });
    });
  });
});

describe('the life cycle of a job', () => {
  let app: TestApp;
  let runner: FakeRunner;
  let ada: Client;
  beforeAll(async () => {
    runner = fakeRunner({ graceMs: 100 });
    app = await startApp({ overrides: { runner } });
    ada = await withRepo(app, 'ada');
  });
  afterAll(() => app[Symbol.asyncDispose]());

  const run = (name: string, command: string, more: object = {}) =>
    submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...more });
  const reaches = (name: string, status: string) => until(ada, 'ada', name, status);

  test('exit code 0 succeeds', async () => {
    await run('good', 'echo one; echo ::progress:: halfway ; echo two');
    expect(await reaches('good', 'SUCCEEDED')).toMatchObject({
      exitCode: 0,
      progress: 'halfway',
      startedAt: expect.any(String),
      completedAt: expect.any(String),
      attempts: { nodes: [{ number: 1, outcome: 'EXITED', exitCode: 0 }] },
    });
    expect(await lines(ada, 'ada', 'good')).toEqual(['one', 'two']);
  });

  test.each(['waiting for data', 'failed to load 3 rows', 'running', 'the machine is warm'])(
    'the progress that a program prints is kept, even if it looks like a phase: %s',
    async (said) => {
      const name = `said-${said.replaceAll(' ', '-')}`;
      await run(name, `echo ::progress::${said}; exit 0`);
      expect(await reaches(name, 'SUCCEEDED')).toMatchObject({ progress: said });
    },
  );

  test('the phase replaces the progress of the program when the job is retried', async () => {
    await run('said-once', 'echo ::progress::halfway; exit 1', { retries: 1 });
    await eventually(async () =>
      expect((await job(ada, 'ada', 'said-once')).progress).toBe('waiting for retry 1 of 1'),
    );
    await cancel(ada, 'ada', 'said-once');
    expect((await job(ada, 'ada', 'said-once')).progress).toBe('cancelled');
  });

  test('another exit code fails the job with this code', async () => {
    await run('bad', 'exit 7');
    expect(await reaches('bad', 'FAILED')).toMatchObject({
      exitCode: 7,
      progress: 'failed with exit code 7',
    });
  });

  test('a job that cannot be started fails with exit code 125 and the reason in its log', async () => {
    await run('image', 'true', { image: 'debian:12' });
    await run('unstartable', 'unstartable', { retries: 5 });
    for (const name of ['image', 'unstartable'])
      expect(await reaches(name, 'FAILED')).toMatchObject({ exitCode: 125, retryCount: 0 });
    expect(await lines(ada, 'ada', 'image')).toEqual(['no image "debian:12"']);
    expect(await lines(ada, 'ada', 'unstartable')).toEqual(['there is no such thing']);
  });

  test('a reason that PostgreSQL cannot store ends the job all the same', async () => {
    // Half of the last character of `progress` is cut off.
    await run('odd-reason', `unstartable \\u0000${'x'.repeat(990)}\\ud83d\\ude00`);
    const { progress } = await reaches('odd-reason', 'FAILED');
    expect(progress).toBe(`failed: \ufffd${'x'.repeat(990)}\ufffd`);
    expect(await lines(ada, 'ada', 'odd-reason')).toEqual([`\ufffd${'x'.repeat(990)}😀`]);
  });

  test('failures are retried after a delay; all attempts share one log', async () => {
    await run('again', 'echo try; exit 1', { retries: 1 });
    const done = await reaches('again', 'FAILED');
    expect(done).toMatchObject({ retryCount: 1, exitCode: 1 });
    expect(done.attempts.nodes).toHaveLength(2);
    expect(await lines(ada, 'ada', 'again')).toEqual(['try', 'try']);
    const [first, second] = runner.started.filter((s) => s.env.JOB_NAME === 'again');
    expect([first?.env.JOB_ATTEMPT, second?.env.JOB_ATTEMPT]).toEqual(['1', '2']);
  });

  test('a lost machine uses no retry, and the fourth loss fails the job', async () => {
    await run('lost', 'echo here; lose');
    expect(await reaches('lost', 'FAILED')).toMatchObject({ retryCount: 0, exitCode: null });
    expect(await lines(ada, 'ada', 'lost')).toEqual(['here', 'here', 'here', 'here']);
  });

  test('a cancellation returns at once, keeps the last lines, and works only once', async () => {
    await run('long', 'echo up; stubborn; sleep 600');
    await eventually(async () => expect(await lines(ada, 'ada', 'long')).toEqual(['up']));
    const { data } = await cancel(ada, 'ada', 'long');
    const { job: cancelled } = data.cancelJob;
    expect(cancelled).toMatchObject({ status: 'CANCELLED', completedAt: expect.any(String) });
    expect(data.cancelJob.message).toMatch(/SIGKILL after 30 seconds/);
    await expectRefusal(cancel(ada, 'ada', 'long'), 'CONFLICT');
    await eventually(async () => expect((await job(ada, 'ada', 'long')).exitCode).toBe(137));
    expect(runner.running()).toEqual([]);
  });

  test('only a finished job can be deleted; then its name is free', async () => {
    await run('removed', 'sleep 600');
    await reaches('removed', 'RUNNING');
    await expectRefusal(remove(ada, 'ada', 'removed'), 'CONFLICT');
    await cancel(ada, 'ada', 'removed');
    expect((await remove(ada, 'ada', 'removed')).errors).toBeUndefined();
    await expectRefusal(remove(ada, 'ada', 'removed'), 'NOT_FOUND');
    await eventually(() => expect(runner.running()).toEqual([]));
    await run('removed', 'exit 0');
    await reaches('removed', 'SUCCEEDED');
  });

  test('the analytics of a finished job are its last sample with the peaks', async () => {
    await run('measured', 'sleep 0.8');
    await reaches('measured', 'SUCCEEDED');
    const { analytics } = (
      await ada.gql(
        '{ job(namespace: "ada", name: "measured") { analytics { cpuUtilizationPercent memoryUsedGb diskUsedGb runtimeSeconds } } }',
      )
    ).job;
    expect(analytics).toEqual({
      cpuUtilizationPercent: 50,
      memoryUsedGb: 3,
      diskUsedGb: 1,
      runtimeSeconds: 1,
    });
  });

  test('the samples of an attempt are kept for charts', async () => {
    await run('charted', 'sleep 0.8; exit 1', { retries: 1 });
    await reaches('charted', 'FAILED');
    const samples = async (args: string) => {
      const { job: found } = await ada.gql(
        `{ job(namespace: "ada", name: "charted") { usageSamples${args} {
          attempt time gpuUtilizationPercent cpuUtilizationPercent memoryUsedBytes diskUsedBytes } } }`,
      );
      return found.usageSamples;
    };
    const [last] = await samples('');
    expect(last).toEqual({
      attempt: 2,
      time: expect.any(String),
      gpuUtilizationPercent: 0,
      cpuUtilizationPercent: 50,
      memoryUsedBytes: 3 * 2 ** 30,
      diskUsedBytes: 2 ** 30,
    });
    expect((await samples('(attempt: 1)'))[0].attempt).toBe(1);
    expect(await samples(`(since: "${last.time}")`)).toEqual([]);
    for (const attempt of [-1, 0, 3]) expect(await samples(`(attempt: ${attempt})`)).toEqual([]);
    await remove(ada, 'ada', 'charted');
    const { rows } = await app.pool.query(
      'select from attempt_usage where attempt_id not in (select id from job_attempts)',
    );
    expect(rows).toEqual([]);
  });

  describe('usage of a namespace', () => {
    const USAGE = `query ($from: Date!, $to: Date!, $period: UsagePeriod, $byUser: Boolean!, $first: Int!, $after: String) {
      namespace(name: "grace") { usage(from: $from, to: $to, period: $period, byUser: $byUser, first: $first, after: $after) {
        totalCount pageInfo { hasNextPage endCursor }
        nodes { from to user { username } runtimeSeconds gpuSeconds cost jobs } } } }`;
    const WIDE = { from: '2026-01-01', to: '2026-12-31', byUser: false, first: 100 };
    let grace: Client;
    let hugo: Client;
    let namespaceId: string;
    const ask = (client: Client, args: object) => client.graphql(USAGE, { ...WIDE, ...args });
    const rowsOf = async (args: object = {}) =>
      (await ask(grace, args)).data.namespace.usage.nodes as Record<string, never>[];
    /** An attempt that started at a time and ended some seconds later, or still runs. */
    const ended = (name: string, from: string, seconds: number, by = grace) =>
      submit(by, {
        namespace: 'grace',
        repo: 'grace/code',
        name,
        command: 'sleep 600',
        gpu: 'T4',
        gpuCount: 2,
      }).then(async ({ id }) => {
        const startedAt = new Date(from);
        const attemptId = newId('att');
        const { db } = app.app.services;
        await db.jobAttempt.create({
          data: { id: attemptId, jobId: id, number: 1, runner: 'x', workerId: 'x', startedAt },
        });
        await inTransaction(db, (tx) =>
          moveJob(tx, id, () => ({ to: 'running', phase: '', set: { attemptId, startedAt } })),
        );
        const endedAt = new Date(startedAt.getTime() + seconds * 1000);
        await inTransaction(db, (tx) =>
          moveJob(tx, id, () => ({
            to: 'succeeded',
            phase: '',
            ran: { from: startedAt, seconds },
            set: { exitCode: 0 },
          })),
        );
        await db.jobAttempt.update({
          where: { id: attemptId },
          data: { endedAt, outcome: 'exited', exitCode: 0 },
        });
      });

    beforeAll(async () => {
      grace = await withRepo(app, 'grace');
      hugo = await app.user('hugo');
      namespaceId = (await grace.gql('{ namespace(name: "grace") { id } }')).namespace.id;
      await grace.setMembers('grace', { hugo: 'WRITE' });
      // A T4 costs 0.35 per hour; with 8 vCPUs, 32 GB and two T4 the price is 0.988.
      await ended('over-midnight', '2026-01-31T23:59:00.600Z', 120);
      await ended('days-long', '2026-02-10T12:00:00Z', 2.5 * 86_400);
      await ended('by-hugo', '2026-02-11T00:00:00Z', 10, hugo);
      await ended('empty', '2026-03-01T00:00:00Z', 0);
    });

    test('usage is exact by month, by day, by user and in total', async () => {
      const whole = await rowsOf();
      const today = new Date().toISOString().slice(0, 10);
      expect(whole).toEqual([
        {
          from: '2026-01-01',
          to: '2026-12-31',
          user: null,
          runtimeSeconds: 216_130,
          gpuSeconds: 432_260,
          cost: '59.3157',
          jobs: 4,
        },
      ]);
      const months = await rowsOf({ period: 'MONTH', from: '2026-01-15', to: today });
      expect(months.slice(0, 2)).toMatchObject([
        { from: '2026-01-15', to: '2026-01-31', runtimeSeconds: 59, gpuSeconds: 118, jobs: 0 },
        { from: '2026-02-01', to: '2026-02-28', runtimeSeconds: 216_071, jobs: 0 },
      ]);
      const days = await rowsOf({ period: 'DAY', from: '2026-02-01', to: '2026-02-28' });
      expect(days.map(({ from, runtimeSeconds }) => [from, runtimeSeconds])).toEqual([
        ['2026-02-01', 61],
        ['2026-02-10', 43_200],
        ['2026-02-11', 86_410],
        ['2026-02-12', 86_400],
      ]);
      const users = await rowsOf({ byUser: true, from: '2026-02-11', to: '2026-02-11' });
      expect(users.map(({ user, runtimeSeconds, cost }) => [user, runtimeSeconds, cost])).toEqual(
        expect.arrayContaining([
          [{ username: 'grace' }, 86_400, '23.712'],
          [{ username: 'hugo' }, 10, '0.0027'],
        ]),
      );
    });

    test('pages are exact, and running jobs count until now', async () => {
      const found: string[] = [];
      let after: string | null = null;
      for (;;) {
        const asked: object = { period: 'DAY', first: 2, after };
        const { usage } = (await ask(grace, asked)).data.namespace;
        found.push(...usage.nodes.map(({ from }: { from: string }) => from));
        if (!usage.pageInfo.hasNextPage) break;
        after = usage.pageInfo.endCursor;
      }
      expect(found).toEqual([...new Set(found)].sort());
      const [before] = await rowsOf();
      await submit(grace, {
        namespace: 'grace',
        repo: 'grace/code',
        name: 'running',
        command: 'sleep 600',
      });
      await until(grace, 'grace', 'running', 'RUNNING');
      await app.pool.query(
        `update job_attempts set started_at = now() - interval '100 s'
         where job_id = (select id from jobs where name = 'running')`,
      );
      const [during] = await rowsOf();
      const extra = Number(during?.runtimeSeconds) - Number(before?.runtimeSeconds);
      expect(extra).toBeGreaterThanOrEqual(100);
      await cancel(grace, 'grace', 'running');
      const { runtimeSeconds } = await job(grace, 'grace', 'running');
      const [afterwards] = await rowsOf();
      expect(Number(afterwards?.runtimeSeconds) - Number(before?.runtimeSeconds)).toBe(
        runtimeSeconds,
      );
      expect(Number(afterwards?.jobs) - Number(before?.jobs)).toBe(1);
    });

    test('members see the total, admins the usage by user, and others nothing', async () => {
      const code = async (client: Client, args: object = {}) =>
        (await ask(client, args)).errors?.[0]?.extensions.code;
      expect(await code(hugo)).toBeUndefined();
      expect(await code(hugo, { byUser: true })).toBe('PERMISSION_DENIED');
      expect(await code(ada)).toBe('PERMISSION_DENIED');
      expect(await code(await grace.withToken({ scopes: ['REPO_READ'] }))).toBe(
        'PERMISSION_DENIED',
      );
      const { repository } = await grace.gql(
        '{ repository(namespace: "grace", name: "code") { id } }',
      );
      const narrow = await grace.withToken({ repositories: [repository.id] });
      expect(await code(narrow)).toBe('PERMISSION_DENIED');
    });

    test.each([
      ['to', { from: '2026-02-01', to: '2026-01-31' }],
      ['to', { from: '2025-01-01', to: '2026-01-02' }],
      ['to', { from: '2026-01-01', to: '2026-02-01', period: 'DAY', byUser: true }],
      ['first', { first: 101 }],
      [undefined, { from: '2026-02-30' }],
      [undefined, { from: '2026-2-3' }],
      [undefined, { from: '0000-01-01' }],
      ['after', { after: 'nonsense' }],
    ])('an invalid %s is refused (%#)', async (field, args) => {
      const { errors } = await ask(grace, args);
      expect(errors?.[0]?.extensions).toMatchObject({
        code: 'INVALID_REQUEST',
        ...(field && { field }),
      });
    });

    test('usage agrees with the jobs and with a count of all attempts, and outlives the jobs', async () => {
      const ledger = async () =>
        (
          await app.pool.query(
            `select namespace_id, day::text, user_id, seconds, gpu_seconds, price_seconds, jobs
             from usage_days where seconds > 0 or jobs > 0 order by 1, 2, 3`,
          )
        ).rows;
      // A cancelled job may still have an open attempt that ends later.
      await eventually(async () => {
        const { rows } = await app.pool.query(
          `select from job_attempts a join jobs j on j.id = a.job_id
           where a.ended_at is null and j.completed_at is not null`,
        );
        expect(rows).toEqual([]);
      });
      const kept = await ledger();
      const { rows: sums } = await app.pool.query(
        `select (select sum(runtime_seconds) from jobs where namespace_id = $1) as jobs,
           (select sum(seconds) from usage_days where namespace_id = $1) as days`,
        [namespaceId],
      );
      expect(sums[0].days).toBe(sums[0].jobs);

      const client = await app.pool.connect();
      try {
        await client.query('begin');
        await client.query('create temp table was on commit drop as select * from usage_days');
        await client.query('delete from usage_days');
        await client.query(RECOUNTED);
        const differing = await client.query(
          `select * from (select * from was where namespace_id = $1) was
           full join (select * from usage_days where namespace_id = $1) made
             using (namespace_id, day, user_id, seconds, gpu_seconds, price_seconds, jobs)
           where was.namespace_id is null or made.namespace_id is null`,
          [namespaceId],
        );
        expect(differing.rows).toEqual([]);
      } finally {
        await client.query('rollback');
        client.release();
      }
      await remove(grace, 'grace', 'days-long');
      expect(await ledger()).toEqual(kept);
    });
  });

  test('injected variables, and those that cannot be overridden', async () => {
    await run('env', 'exit 0', {
      env: variables({ MINE: '1', JOB_ID: 'forged' }),
      secrets: variables({ HIDDEN: 'abc' }),
      outputPath: 'out',
      gpu: 'NONE',
      cpu: 4,
      memoryGb: 16,
    });
    const { id, commitSha } = await reaches('env', 'SUCCEEDED');
    expect(runner.started.at(-1)?.env).toEqual({
      MINE: '1',
      HIDDEN: 'abc',
      JOB_ID: id,
      JOB_NAME: 'env',
      JOB_NAMESPACE: 'ada',
      JOB_ATTEMPT: '1',
      JOB_COMMIT_SHA: commitSha,
      JOB_OUTPUT_PATH: 'out',
      GPU_COUNT: '0',
      CPU_CORES: '4',
      MEMORY_GB: '16',
      CI: 'true',
    });
  });
});

describe('the queue', () => {
  test('is first come, first served within a namespace, and fair between namespaces', async () => {
    const runner = fakeRunner();
    await using app = await startApp({ config: { jobSlots: 1 }, overrides: { runner } });
    const [ada, bob] = [await withRepo(app, 'ada'), await withRepo(app, 'bob')];
    const put = (client: Client, owner: string, name: string, command = 'exit 0') =>
      submit(client, { namespace: owner, repo: `${owner}/code`, name, command });
    await put(ada, 'ada', 'first', 'sleep 600');
    await until(ada, 'ada', 'first', 'RUNNING');
    for (const name of ['a1', 'a2', 'a3', 'a4']) await put(ada, 'ada', name);
    for (const name of ['b1', 'b2']) await put(bob, 'bob', name);
    await cancel(ada, 'ada', 'first');
    await until(ada, 'ada', 'a4', 'SUCCEEDED');
    const order = runner.started.map(({ env }) => env.JOB_NAME);
    expect(order).toEqual(['first', 'b1', 'a1', 'b2', 'a2', 'a3', 'a4']);
  });

  test('a job that needs all GPUs is not starved by jobs that need one', async () => {
    const runner = fakeRunner({ gpus: { T4: 2 } });
    await using app = await startApp({ overrides: { runner } });
    const ada = await withRepo(app, 'ada');
    const put = (name: string, gpuCount: number, command: string) =>
      submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, gpu: 'T4', gpuCount });
    await put('one', 1, 'sleep 600');
    await until(ada, 'ada', 'one', 'RUNNING');
    await put('both', 2, 'exit 0');
    await put('more', 4, 'exit 0');
    await put('small', 1, 'exit 0');
    await cancel(ada, 'ada', 'one');
    await until(ada, 'ada', 'small', 'SUCCEEDED');
    expect(runner.started.map(({ env }) => env.JOB_NAME)).toEqual(['one', 'both', 'small']);
    expect((await job(ada, 'ada', 'more')).status).toBe('QUEUED');
  });

  test('a restarted server resumes the running jobs under the same attempts', async () => {
    const runner = fakeRunner();
    await using app = await startApp({ overrides: { runner } });
    const ada = await withRepo(app, 'ada');
    await submit(ada, {
      namespace: 'ada',
      repo: 'ada/code',
      name: 'j',
      command: 'echo a; hold; echo b',
    });
    await eventually(async () => expect(await lines(ada, 'ada', 'j')).toEqual(['a']));
    await app.restart();
    runner.release();
    await until(ada, 'ada', 'j', 'SUCCEEDED');
    expect(await lines(ada, 'ada', 'j')).toEqual(['a', 'b']);
    expect(runner.started).toHaveLength(1);
  });
});

describe('jobs as processes', () => {
  let app: TestApp;
  let ada: Client;
  let dir: string;
  let runner: ProcessRunner;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'loam-jobs-'));
    runner = await openProcessRunner({ dir });
    app = await startApp({ overrides: { runner } });
    ada = await withRepo(app, 'ada');
  });
  afterAll(async () => {
    await app[Symbol.asyncDispose]();
    await runner[Symbol.asyncDispose]();
    await rm(dir, { recursive: true, maxRetries: 5 });
  });
  const run = (name: string, command: string, more: object = {}) =>
    submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...more });
  const download = (url: string, headers: Record<string, string> = {}, who = app.anonymous) =>
    fetch(url, {
      headers: who.authorization ? { authorization: who.authorization, ...headers } : headers,
    });

  test('a job runs in a checkout of the pinned commit, and its secrets are masked', async () => {
    const { commitSha } = await run(
      'code',
      'git rev-parse HEAD; git status --short; echo $A-$S; echo $S',
      {
        env: variables({ A: 'x' }),
        secrets: variables({ S: 'top(secret' }),
      },
    );
    await until(ada, 'ada', 'code', 'SUCCEEDED');
    expect(await lines(ada, 'ada', 'code')).toEqual([commitSha, 'x-***', '***']);
    const { rows } = await app.app.services.pool.query(
      'select secrets from jobs where secrets is not null',
    );
    expect(rows[0].secrets.toString('latin1')).not.toContain('top(secret');
  });

  test('the last lines of a cancelled job are kept', async () => {
    await run('polite', 'trap "echo bye; exit 9" TERM; echo up; while :; do sleep 0.05; done');
    await eventually(async () => expect(await lines(ada, 'ada', 'polite')).toEqual(['up']));
    await cancel(ada, 'ada', 'polite');
    await eventually(async () => {
      expect((await lines(ada, 'ada', 'polite')).filter((l) => l !== 'Terminated')).toEqual([
        'up',
        'bye',
      ]);
      expect(await job(ada, 'ada', 'polite')).toMatchObject({ status: 'CANCELLED', exitCode: 9 });
    });
  });

  test('artifacts: as an archive, file by file, by link, by credential, and in ranges', async () => {
    const random = 'head -c 300000 /dev/urandom > out/deep/b.bin';
    await run(
      'made',
      `mkdir -p out/deep; echo alpha > out/a.txt; ${random}; ln -s /etc/passwd out/link; mkfifo out/fifo; sha256sum < out/deep/b.bin; exit 3`,
      {
        outputPath: 'out',
      },
    );
    const { id, artifacts } = await until(ada, 'ada', 'made', 'FAILED');
    const [sum, note] = await lines(ada, 'ada', 'made');
    expect(note).toMatch(
      /^2 entries were left out of the artifacts: links to paths outside, devices, FIFOs/,
    );
    expect(artifacts).toMatchObject({ path: 'out', fileCount: 2 });

    const whole = Buffer.from(await (await download(artifacts.downloadUrl)).arrayBuffer());
    expect(whole.length).toBe(artifacts.sizeBytes);
    const file = join(dir, 'made.tar.gz');
    await writeFile(file, whole);
    expect(execFileSync('tar', ['-tzf', file], { encoding: 'utf8' })).toBe('a.txt\ndeep/b.bin\n');
    execFileSync('tar', ['-xzf', file, '-C', dir]);
    expect(
      execFileSync('sha256sum', { input: readFileSync(join(dir, 'deep/b.bin')), encoding: 'utf8' }),
    ).toBe(`${sum}\n`);

    const part = await download(artifacts.downloadUrl, { range: 'bytes=10-19' });
    expect([part.status, Buffer.from(await part.arrayBuffer())]).toEqual([
      206,
      whole.subarray(10, 20),
    ]);
    const written = new Date(part.headers.get('last-modified') ?? '').getTime();
    const conditions = [
      [{ 'if-unmodified-since': new Date(written).toUTCString() }, 200],
      [{ 'if-unmodified-since': new Date(written - 1_000).toUTCString() }, 412],
      [{ 'if-range': new Date(written).toUTCString(), range: 'bytes=10-19' }, 206],
      [{ 'if-range': new Date(written - 1_000).toUTCString(), range: 'bytes=10-19' }, 200],
      [{ 'if-range': part.headers.get('etag') ?? '', range: 'bytes=10-19' }, 206],
      [{ 'if-match': '"other"' }, 412],
    ] as const;
    for (const [headers, status] of conditions)
      expect((await download(artifacts.downloadUrl, headers)).status, JSON.stringify(headers)).toBe(
        status,
      );
    const beyond = await download(artifacts.downloadUrl, { range: 'bytes=99999999-' });
    expect([beyond.status, beyond.headers.get('content-type')]).toEqual([
      416,
      expect.stringMatching(/^application\/json/),
    ]);
    const bare = artifacts.downloadUrl.split('?')[0];
    const bob = await app.user('bob');
    const statuses = [ada, bob, app.anonymous].map(
      async (who) => (await download(bare, {}, who)).status,
    );
    expect(await Promise.all(statuses)).toEqual([200, 403, 401]);
    expect((await download(`${artifacts.downloadUrl}x`)).status).toBe(401);

    const { nodes: entries } = (
      await ada.gql(
        '{ job(namespace: "ada", name: "made") { artifacts { files { nodes { path sizeBytes downloadUrl } } } } }',
      )
    ).job.artifacts.files;
    expect(entries).toMatchObject([
      { path: 'a.txt', sizeBytes: 6 },
      { path: 'deep/b.bin', sizeBytes: 300_000 },
    ]);
    const page = (args: string) =>
      ada.graphql(
        `{ job(namespace: "ada", name: "made") { artifacts { files(${args}) {
           totalCount nodes { path } pageInfo { hasNextPage endCursor } } } } }`,
      );
    const { files } = (await page('first: 1')).data.job.artifacts;
    expect(files).toMatchObject({ totalCount: 2, nodes: [{ path: 'a.txt' }] });
    const next = await page(`first: 1, after: "${files.pageInfo.endCursor}"`);
    expect(next.data.job.artifacts.files).toMatchObject({
      nodes: [{ path: 'deep/b.bin' }],
      pageInfo: { hasNextPage: false },
    });
    for (const args of ['first: 101', 'after: "none"'])
      await expectRefusal(page(args), 'INVALID_REQUEST');
    expect(await (await download(entries[0].downloadUrl)).text()).toBe('alpha\n');
    const one = Buffer.from(await (await download(entries[1].downloadUrl)).arrayBuffer());
    expect(one.equals(readFileSync(join(dir, 'deep/b.bin')))).toBe(true);
    const rest = await download(entries[1].downloadUrl, { range: 'bytes=299990-' });
    expect([rest.status, rest.headers.get('content-range')]).toEqual([
      206,
      'bytes 299990-299999/300000',
    ]);
    expect(Buffer.from(await rest.arrayBuffer())).toEqual(one.subarray(299_990));
    const middle = await download(entries[0].downloadUrl, { range: 'bytes=1-2' });
    expect(await middle.text()).toBe('lp');

    const { namespace } = await ada.gql('{ namespace(name: "ada") { id } }');
    const folderOf = (jobId: string) =>
      join(app.config.dataDir, 'storage/artifacts', namespace.id, jobId);
    // HEAD must not read the archive, which may be large.
    const [attempt = ''] = readdirSync(folderOf(id));
    const archive = join(folderOf(id), attempt, 'artifacts.tar.gz');
    await rename(archive, `${archive}.away`);
    const head = await fetch(entries[1].downloadUrl, { method: 'HEAD' });
    expect([head.status, head.headers.get('content-length')]).toEqual([200, `${one.length}`]);
    await rename(`${archive}.away`, archive);

    // The job is deleted and its artifacts are kept, until their deletion is requested too.
    await remove(ada, 'ada', 'made');
    expect((await download(artifacts.downloadUrl)).status).toBe(200);
    await run('made', 'echo x > out', { outputPath: '/work/out' });
    const again = await until(ada, 'ada', 'made', 'SUCCEEDED');
    expect(again.artifacts.fileCount).toBe(1);
    expect(existsSync(folderOf(again.id))).toBe(true);
    await remove(ada, 'ada', 'made', true);
    expect((await download(again.artifacts.downloadUrl)).status).toBe(404);
    expect(existsSync(folderOf(again.id))).toBe(false);
    expect(existsSync(folderOf(id))).toBe(true);
  });

  test('artifacts with any name: not UTF-8, dots, long, deep', async () => {
    const long = 'n'.repeat(200);
    const deep = Array(30).fill('d'.repeat(20)).join('/');
    // The names in the syntax of `printf %b`, with octal bytes, and as shown.
    const names = {
      'caf\\0351': 'caf\uFFFD',
      'caf\\0352': 'caf\uFFFD (2)',
      'caf\\0303\\0251': 'caf\u00E9',
      '..x': '..x',
      '...': '...',
      '-n': '-n',
      'two words': 'two words',
      [long]: long,
      [`${deep}/f\\0377`]: `${deep}/f\uFFFD`,
    };
    const files = Object.keys(names).map((name) => `mk '${name}'`);
    const command = `mk() { f="$(printf '%b' "out/$1")"; mkdir -p "$(dirname "$f")"; printf '%s' "$1" > "$f"; }
      mkdir out; ${files.join('; ')}; ln -s x out/link; mkfifo out/fifo`;
    await run('names', command, {
      outputPath: 'out',
    });
    const { artifacts } = await until(ada, 'ada', 'names', 'SUCCEEDED');
    expect(artifacts.fileCount).toBe(files.length);
    expect((await lines(ada, 'ada', 'names')).at(-1)).toMatch(/^1 entry was left out/);

    const file = join(dir, 'names.tar.gz');
    const whole = await (await download(artifacts.downloadUrl)).arrayBuffer();
    await writeFile(file, Buffer.from(whole));
    const into = await mkdtemp(join(dir, 'names-'));
    execFileSync('tar', ['-xzf', file, '-C', into]);
    const inTar = readdirSync(into, { recursive: true, encoding: 'buffer' } as never);
    const bytes = (inTar as unknown as Buffer[]).map((name) => name.toString('latin1'));
    for (const name of ['caf\xE9', 'caf\xEA', 'caf\xC3\xA9', '..x', '...', '-n', long])
      expect(bytes).toContain(name);

    const { nodes } = (
      await ada.gql(
        '{ job(namespace: "ada", name: "names") { artifacts { files { nodes { path downloadUrl } } } } }',
      )
    ).job.artifacts.files;
    expect(nodes.map(({ path }: { path: string }) => path).sort()).toEqual(
      Object.values(names).sort(),
    );
    const contents = await Promise.all(
      nodes.map(async ({ downloadUrl }: { downloadUrl: string }) =>
        (await download(downloadUrl)).text(),
      ),
    );
    expect(contents.sort()).toEqual(Object.keys(names).sort());
  });

  test('a log of a hundred thousand lines: its tail, and the lines after a time', async () => {
    await run('chatty', 'seq 100000; sleep 0.3; echo last');
    await until(ada, 'ada', 'chatty', 'SUCCEEDED');
    const read = async (args: string) =>
      (
        await ada.gql(
          `{ job(namespace: "ada", name: "chatty") { logs(${args}) { hasMore lines { message timestamp } } } }`,
        )
      ).job.logs;
    const tail = await read('tail: 3');
    expect(tail.hasMore).toBe(true);
    expect(tail.lines.map((l: { message: string }) => l.message)).toEqual([
      '99999',
      '100000',
      'last',
    ]);
    const since = await read(`since: "${tail.lines[1].timestamp}", tail: 5`);
    expect(since).toMatchObject({ hasMore: false, lines: [{ message: 'last' }] });
  });
});
