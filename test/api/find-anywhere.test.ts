/** Search by name: what each viewer finds, and in which order. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { submit } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let eve: Client;
let ours: string;

const SEARCH = `query ($text: String!, $first: Int!) { search(text: $text, first: $first) {
  __typename ... on Namespace { name kind } ... on Repository { fullName description }
  ... on Job { namespace name status } } }`;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
  ada = await app.user('ada');
  eve = await app.user('eve');
  await app.organization('vision-lab', { ada: 'WRITE' });
  await ada.repository('ada/Vision', { visibility: 'PRIVATE' });
  ours = await app.admin.repository('vision-lab/old-vision_tools', { visibility: 'PRIVATE' });
  await eve.repository('eve/vision-secret', { visibility: 'PRIVATE' });
  await eve.repository('eve/vision-open', { visibility: 'PUBLIC' });
  await eve.repository('eve/vision-inner', { visibility: 'INTERNAL' });
  for (const [client, namespace, name] of [
    [ada, 'ada', 'vision-1'],
    [ada, 'ada', 'Train_vision'],
    [ada, 'vision-lab', 'retrain-supervision'],
    [eve, 'eve', 'vision-hers'],
  ] as const)
    await submit(client, { namespace, name, command: 'true', image: 'x' });
});
afterAll(() => app[Symbol.asyncDispose]());

type Found = { __typename: string; name?: string; namespace?: string; fullName?: string };

async function found(client: Client, text: string, first = 100): Promise<string[]> {
  const { search } = await client.gql(SEARCH, { text, first });
  return search.map(({ __typename, fullName, namespace, name }: Found) =>
    [__typename[0], fullName ?? (namespace ? `${namespace}/${name}` : name)].join(' '),
  );
}

test('the best match of each kind comes first, and hidden objects are not found', async () => {
  expect(await found(ada, 'vision')).toEqual([
    'R ada/Vision',
    'N vision-lab',
    'R eve/vision-inner',
    'R eve/vision-open',
    'J ada/vision-1',
    'R vision-lab/old-vision_tools',
    'J ada/Train_vision',
    'J vision-lab/retrain-supervision',
  ]);
  expect(await found(ada, ' VISION ', 2)).toEqual(['R ada/Vision', 'N vision-lab']);
  expect(await found(eve, 'vision')).toEqual([
    'N vision-lab',
    'R eve/vision-inner',
    'R eve/vision-open',
    'R eve/vision-secret',
    'J eve/vision-hers',
  ]);
});

test('words of a name match in any order, and members find parts of the namespace', async () => {
  expect(await found(ada, 'tools old')).toEqual(['R vision-lab/old-vision_tools']);
  expect(await found(ada, 'super tr')).toEqual(['J vision-lab/retrain-supervision']);
  expect(await found(ada, 'lab')).toEqual(['N vision-lab']);
  expect(await found(eve, 'lab')).toEqual([]);
  // The beginning of a name, with its case.
  expect(await found(ada, 'Train')).toEqual([
    'J ada/Train_vision',
    'J vision-lab/retrain-supervision',
  ]);
});

test('a path is searched in its namespace only', async () => {
  expect(await found(ada, 'vision-lab/')).toEqual([
    'R vision-lab/old-vision_tools',
    'J vision-lab/retrain-supervision',
  ]);
  expect(await found(ada, 'Vision-Lab/old')).toEqual(['R vision-lab/old-vision_tools']);
  expect(await found(ada, 'eve/')).toEqual(['R eve/vision-inner', 'R eve/vision-open']);
  // The operator finds everything in the namespace of the path.
  expect(await found(app.admin, 'eve/vision-')).toEqual([
    'R eve/vision-inner',
    'R eve/vision-open',
    'R eve/vision-secret',
    'J eve/vision-hers',
  ]);
  expect(await found(ada, 'nobody/x')).toEqual([]);
  expect(await found(ada, 'a/b/c')).toEqual([]);
});

test('wildcards of SQL match only themselves', async () => {
  for (const text of ['%', '_', 'old_vision', '\\', 'visio%', "'", '\0', 'ü'])
    expect(await found(ada, text), text).toEqual(
      // These names contain an underscore.
      text === '_' ? ['R vision-lab/old-vision_tools', 'J ada/Train_vision'] : [],
    );
});

test('a limited credential finds only objects that it may see', async () => {
  const jobs = await ada.withToken({ scopes: ['JOB_READ'], namespaces: ['ada'] });
  expect((await found(jobs, 'vision')).filter((it) => !it.includes('eve'))).toEqual([
    'J ada/vision-1',
    'J ada/Train_vision',
  ]);
  const one = await ada.withToken({ repositories: [ours] });
  expect((await found(one, 'vision')).filter((it) => !it.includes('eve'))).toEqual([
    'N vision-lab',
    'R vision-lab/old-vision_tools',
  ]);
});

test('invalid arguments and anonymous requests are refused', async () => {
  const refused = async (client: Client, text: string, first: number) => {
    const { data, errors } = await client.graphql(SEARCH, { text, first });
    expect(data.search).toBeNull();
    return errors?.[0]?.extensions;
  };
  expect(await refused(ada, 'x'.repeat(201), 5)).toMatchObject({ field: 'text' });
  expect(await refused(ada, 'x', 0)).toMatchObject({ field: 'first' });
  expect(await refused(ada, 'x', 101)).toMatchObject({ field: 'first' });
  expect(await refused(app.anonymous, 'x', 5)).toMatchObject({ code: 'AUTHENTICATION_FAILED' });
  expect(await found(ada, '  ')).toEqual([]);
});

test('the beginning of a name is found among many rows, recent and old', async () => {
  await app.pool.query(`
    insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
        timeout_minutes, retries, cost_per_hour, created_at)
      select 'job_' || lpad(i::text, 26, '0'), (select id from namespaces where name = 'ada'), 'many-' || i, 'succeeded',
        'true', 'none', 1, 2, 2, 2, 'us-east-1', 1, 0, 1, now() + i * interval '1 second'
      from generate_series(1, 6000) i`);
  expect(await found(ada, 'many-5', 100)).toHaveLength(100);
  expect(await found(ada, 'vision-1')).toEqual(['J ada/vision-1']);
  expect(await found(ada, 'y-5999')).toEqual(['J ada/many-5999']);
});
