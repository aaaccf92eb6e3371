/** Lists over all namespaces of a user, as on the home page. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { submit } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let eve: Client;
let ours: string;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
  ada = await app.user('ada');
  eve = await app.user('eve');
  for (const name of ['acme', 'beta']) await app.organization(name, { ada: 'READ' });
  await app.organization('other', { eve: 'READ' });
  for (let i = 0; i < 4; i++) {
    await submit(ada, { namespace: 'ada', name: `own-${i}`, command: 'true', image: 'x' });
    for (const namespace of ['acme', 'beta', 'other'])
      await submit(app.admin, {
        namespace,
        name: `${namespace[0]}_${i}`,
        command: 'true',
        image: 'x',
        labels: i === 2 ? [{ key: 'team', value: namespace }] : [],
      });
  }
  await submit(eve, { namespace: 'eve', name: 'hers', command: 'true', image: 'x' });
  await ada.repository('ada/mine');
  ours = await app.admin.repository('acme/ours');
  await app.admin.repository('beta/theirs');
  await app.admin.repository('other/secret');
  // A public repository of another user, which the lists do not contain.
  await eve.repository('eve/shown', { visibility: 'PUBLIC' });
  // Jobs with the same times in several namespaces, and jobs without times.
  await app.pool.query(`
    update jobs set status = 'failed', started_at = '2026-01-01', completed_at = '2026-01-02'
      where name like '%0';
    update jobs set status = 'succeeded', started_at = '2026-01-03', completed_at = '2026-01-02'
      where name like '%1'`);
});
afterAll(() => app[Symbol.asyncDispose]());

const JOBS = `query ($first: Int!, $after: String, $sort: JobSort!, $order: SortOrder!, $status: JobStatus, $filter: JobFilter) {
  viewer { jobs(first: $first, after: $after, sort: $sort, order: $order, status: $status, filter: $filter) {
    totalCount pageInfo { hasNextPage endCursor } nodes { id name namespace status } } } }`;

type Row = { id: string; name: string; namespace: string };

async function pages(client: Client, args: object, first: number): Promise<Row[]> {
  const all: Row[] = [];
  let after: string | null = null;
  for (;;) {
    const { viewer } = await client.gql(JOBS, {
      sort: 'CREATED_AT',
      order: 'DESC',
      first,
      after,
      ...args,
    });
    all.push(...viewer.jobs.nodes);
    expect(viewer.jobs.nodes.length).toBeLessThanOrEqual(first);
    if (!viewer.jobs.pageInfo.hasNextPage) {
      expect(viewer.jobs.totalCount).toBe(all.length);
      return all;
    }
    after = viewer.jobs.pageInfo.endCursor;
  }
}

describe('jobs', () => {
  test.each(
    ['CREATED_AT', 'STARTED_AT', 'COMPLETED_AT', 'NAME'].flatMap((sort) =>
      ['ASC', 'DESC'].map((order) => [sort, order]),
    ),
  )('of all own namespaces and of no other, by %s %s, page by page', async (sort, order) => {
    const column = sort?.toLowerCase();
    const { rows } = await app.pool.query(
      `select j.id from jobs j join namespaces n on n.id = j.namespace_id
       where n.name in ('ada', 'acme', 'beta') order by j.${column} ${order} nulls last, j.id ${order}`,
    );
    expect(rows).toHaveLength(12);
    for (const first of [1, 5, 12, 100])
      expect((await pages(ada, { sort, order }, first)).map(({ id }) => id)).toEqual(
        rows.map(({ id }) => id),
      );
  });

  test('by one status and by several, in order of creation', async () => {
    const failed = await pages(ada, { status: 'FAILED' }, 2);
    expect(failed.map(({ name }) => name)).toEqual(['b_0', 'a_0', 'own-0']);
    const over = await pages(ada, { filter: { statuses: ['FAILED', 'SUCCEEDED'] } }, 2);
    expect(over.map(({ name }) => name)).toEqual(['b_1', 'a_1', 'own-1', 'b_0', 'a_0', 'own-0']);
    const both = { status: 'FAILED', filter: { statuses: ['FAILED', 'QUEUED'] } };
    expect(await pages(ada, both, 5)).toHaveLength(3);
    expect(await pages(ada, { status: 'RUNNING', filter: { statuses: ['FAILED'] } }, 5)).toEqual(
      [],
    );
    expect(await pages(ada, { filter: { statuses: [] } }, 5)).toEqual([]);
  });

  test('by the other filters', async () => {
    const names = async (filter: object) => (await pages(ada, { filter }, 2)).map((it) => it.name);
    expect(await names({ namePrefix: 'own-' })).toEqual(['own-3', 'own-2', 'own-1', 'own-0']);
    expect(await names({ namePrefix: 'a_' })).toEqual(['a_3', 'a_2', 'a_1', 'a_0']);
    expect(await names({ labels: [{ key: 'team' }] })).toEqual(['b_2', 'a_2']);
    expect(await names({ labels: [{ key: 'team', values: ['beta', 'other'] }] })).toEqual(['b_2']);
    expect(await names({ creator: 'ada', statuses: ['QUEUED'] })).toEqual(['own-3', 'own-2']);
    expect(await names({ image: 'y' })).toEqual([]);
    expect(await names({ gpus: ['NONE', 'T4'], namePrefix: 'a_3' })).toEqual(['a_3']);
    await app.pool.query(`update jobs set gpu = 'T4' where name in ('a_3', 'own-0')`);
    expect(await names({ gpus: ['T4', 'L4'] })).toEqual(['a_3', 'own-0']);
    expect(await names({ gpus: ['T4'], statuses: ['FAILED', 'RUNNING'] })).toEqual(['own-0']);
    expect(await names({ gpus: ['L4'] })).toEqual([]);
    const byName = await pages(ada, { filter: { gpus: ['T4'] }, sort: 'NAME', order: 'DESC' }, 1);
    expect(byName.map(({ name }) => name)).toEqual(['own-0', 'a_3']);
  });

  test('invalid arguments are refused by name', async () => {
    const refused = async (args: object) => {
      const all = { first: 5, sort: 'CREATED_AT', order: 'DESC', ...args };
      return (await ada.graphql(JOBS, all)).errors?.[0]?.extensions;
    };
    expect(await refused({ first: 0 })).toMatchObject({ field: 'first' });
    expect(await refused({ first: 101 })).toMatchObject({ field: 'first' });
    expect(await refused({ after: 'x' })).toMatchObject({ field: 'after' });
    expect(await refused({ filter: { namePrefix: '%' } })).toMatchObject({ field: 'namePrefix' });
    expect(await refused({ filter: { creator: 'nobody' } })).toMatchObject({ code: 'NOT_FOUND' });
    const { viewer } = await ada.gql(JOBS, { first: 1, sort: 'NAME', order: 'ASC' });
    const cursor = viewer.jobs.pageInfo.endCursor;
    expect(await refused({ after: cursor })).toMatchObject({ field: 'after' });
  });

  test('the operator is not a member of all namespaces', async () => {
    const found = await pages(app.admin, {}, 100);
    expect(new Set(found.map(({ namespace }) => namespace))).toEqual(
      new Set(['acme', 'beta', 'other']),
    );
  });

  test('a limited credential lists only jobs that it may see', async () => {
    expect(await pages(await ada.withToken({ scopes: ['REPO_READ'] }), {}, 10)).toEqual([]);
    const narrowed = await pages(await ada.withToken({ namespaces: ['acme'] }), {}, 10);
    expect(narrowed.map(({ name }) => name)).toEqual(['a_3', 'a_2', 'a_1', 'a_0']);
    const toRepository = await ada.withToken({ repositories: [ours] });
    expect(await pages(toRepository, {}, 10)).toEqual([]);
  });
});

const LISTS = '{ jobs { nodes { name } } repositories { nodes { name } }';

test("another user's jobs are refused, also to the operator, and anonymous requests have none", async () => {
  const { viewer } = await ada.gql('{ viewer { id } }');
  for (const client of [eve, app.admin]) {
    const { data, errors } = await client.graphql(
      `query ($id: ID!) { node(id: $id) { ... on User ${LISTS} } } }`,
      { id: viewer.id },
    );
    expect(data.node).toEqual({ jobs: null, repositories: null });
    expect(errors?.map(({ extensions }) => extensions.code)).toEqual([
      'PERMISSION_DENIED',
      'PERMISSION_DENIED',
    ]);
  }
  expect(await app.anonymous.gql(`{ viewer ${LISTS} } }`)).toEqual({ viewer: null });
});

test('repositories: the last changed first, page by page, without those of other namespaces', async () => {
  await app.pool.query(
    `update repositories set updated_at = '2030-01-01' where name in ('ours', 'theirs')`,
  );
  const names: string[] = [];
  let after: string | null = null;
  do {
    const { viewer } = await ada.gql(
      `query ($after: String) { viewer { repositories(first: 1, after: $after) {
         totalCount nodes { fullName } pageInfo { endCursor hasNextPage } } } }`,
      { after },
    );
    expect(viewer.repositories.totalCount).toBe(3);
    names.push(...viewer.repositories.nodes.map((it: { fullName: string }) => it.fullName));
    after = viewer.repositories.pageInfo.hasNextPage
      ? viewer.repositories.pageInfo.endCursor
      : null;
  } while (after);
  expect(names).toEqual(['beta/theirs', 'acme/ours', 'ada/mine']);
  const { viewer } = await ada.gql(
    '{ viewer { repositories(sort: NAME, order: ASC, visibility: PUBLIC) { nodes { name } } } }',
  );
  expect(viewer.repositories.nodes).toEqual([]);
});
