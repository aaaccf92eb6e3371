/** Rows that are read by compiled SQL equal the rows that Prisma reads, for each field of the schema. */
import { PrismaPg } from '@prisma/adapter-pg';
import {
  type FieldNode,
  type GraphQLField,
  type GraphQLInputType,
  type GraphQLObjectType,
  getNamedType,
  isCompositeType,
  isEnumType,
  isInputObjectType,
  isListType,
  isNonNullType,
  isObjectType,
  type OperationDefinitionNode,
  parse,
} from 'graphql';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PrismaClient } from '../../prisma/generated/client.ts';
import { schema } from '../../src/api/graphql/schema.ts';
import { namespaceRows } from '../../src/identity/accounts.ts';
import { jobRows } from '../../src/jobs/record/job-rows.ts';
import { runtimeColumns } from '../../src/jobs/record/runtime.ts';
import { selectForField } from '../../src/platform/schema/select.ts';
import { collaboratorColumns, repositoryRows } from '../../src/repositories/rows.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp, type TestApp } from '../support/harness.ts';
import { submit } from '../support/submit.ts';

let app: TestApp;
let prisma: PrismaClient;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
  prisma = new PrismaClient({ adapter: new PrismaPg(app.pool) });
  await app.admin.repository('admin/one');
  await submit(app.admin, { namespace: 'admin', name: 'waits', command: 'true', image: 'x' });
  await submit(app.admin, { namespace: 'admin', name: 'runs', command: 'true', image: 'x' });
  await app.pool.query(`
    update repositories set size_bytes = 9007199254740993;
    insert into job_attempts (id, job_id, number, runner, worker_id, started_at, ended_at)
      select 'att_' || number, id, number, 'fake', 'nobody', now(), case when number = 1 then now() end
        from jobs, generate_series(1, 2) number where name = 'runs'`);
});
afterAll(() => app[Symbol.asyncDispose]());

const SCALARS = {
  id: true,
  visibility: true,
  sizeBytes: true,
  language: true,
  secretScanning: true,
  tagCount: true,
  createdAt: true,
  pushedAt: true,
} as const;

test('a repository with its owner and the number of collaborators', async () => {
  const { namespace } = collaboratorColumns;
  const select = { ...SCALARS, namespace: { select: { name: true, ...namespace.select } } };
  const statement = repositoryRows.statement(select, {}, 'where r.name = $1');
  const byHand = await statement.read(app.pool, ['one']);
  const byPrisma = await prisma.repository.findMany({ where: { name: 'one' }, select });
  expect(plain(byHand)).toEqual(byPrisma);
  expect(byPrisma).toMatchObject([{ sizeBytes: 9007199254740993n }]);
});

test('a job with its price, its owner and the running attempt', async () => {
  const select = {
    id: true,
    costPerHour: true,
    env: true,
    exitCode: true,
    startedAt: true,
    nextSeq: true,
    ...runtimeColumns,
    namespace: { select: { name: true } },
  } as const;
  const statement = jobRows.statement(select, {}, 'order by r.id');
  const byHand = await statement.read(app.pool, []);
  const byPrisma = await prisma.job.findMany({ select, orderBy: { id: 'asc' } });
  expect(plain(byHand)).toEqual(byPrisma);
  expect(byPrisma.map(({ attempts }) => attempts.length)).toEqual([0, 1]);
});

test.each([
  ['Job', jobRows, 'job'],
  ['Repository', repositoryRows, 'repository'],
  ['Namespace', namespaceRows, 'namespace'],
] as const)('every field of %s that the schema can select', async (typeName, rows, delegate) => {
  const type = schema.getType(typeName) as GraphQLObjectType;
  const fields = Object.values(type.getFields());
  for (const some of [...fields.map((field) => [field]), fields]) {
    const select = selectOfFields(type, some);
    const byHand = await rows.statement(select, {}, 'order by r.id').read(app.pool, []);
    const model = prisma[delegate] as unknown as { findMany(query: object): Promise<object[]> };
    const byPrisma = await model.findMany({ select, orderBy: { id: 'asc' } });
    expect(plain(byHand), some.map(({ name }) => name).join()).toEqual(byPrisma);
    expect(byPrisma).not.toEqual([]);
  }
});

test('statements with other additional columns are other statements', async () => {
  const read = async (columns: object) =>
    (await namespaceRows.statement({ id: true }, columns, 'order by r.id').read(app.pool, []))[0];
  expect(await read({})).not.toHaveProperty('name');
  expect(await read({ name: true })).toHaveProperty('name');
});

test('forms of a select that would be compiled to a wrong statement are refused', async () => {
  const { namespace } = collaboratorColumns;
  const withMembers = (range: object) => ({
    namespace: { select: { ...namespace.select, members: { select: { role: true }, ...range } } },
  });
  const read = (range: object) =>
    repositoryRows
      .statement(withMembers(range), {}, `where r.name = 'one'`)
      .read(app.pool, []) as Promise<unknown[]>;
  expect(await read({ where: { role: { in: [] } } })).toMatchObject([
    { namespace: { members: [] } },
  ]);
  for (const range of [
    { where: { role: { not: 'read' } } },
    { where: { role: 'read' } },
    { where: { role: { in: ['read'], not: 'admin' } } },
    { orderBy: { role: { sort: 'asc', nulls: 'last' } } },
    { orderBy: [{ role: 'asc' }] },
  ])
    expect(() => read(range), JSON.stringify(range)).toThrow('cannot be selected');
});

test('a new job is returned with the rows that were inserted with it', async () => {
  const { createJob } = await app.admin.gql(
    `mutation ($input: CreateJobInput!) { createJob(input: $input) { job { labels { key value } needs { name } } } }`,
    {
      input: {
        ...{ namespace: 'admin', name: 'labelled', command: 'true', image: 'x', gpu: 'NONE' },
        labels: [{ key: 'team', value: 'a' }],
        needs: [{ job: 'waits' }],
      },
    },
  );
  expect(createJob.job).toEqual({
    labels: [{ key: 'team', value: 'a' }],
    needs: [{ name: 'waits' }],
  });
});

/** The `select` of an operation that selects these fields of the type, and all fields of the rows below them. */
function selectOfFields(type: GraphQLObjectType, fields: AnyField[]): object {
  const document = parse(`{ field { ${fields.map((field) => textOf(field, 3)).join(' ')} } }`);
  const [operation] = document.definitions as [OperationDefinitionNode];
  const fieldNodes = operation.selectionSet.selections as FieldNode[];
  const path = { key: 'field', prev: undefined, typename: 'Query' };
  const parentType = schema.getQueryType();
  return selectForField(
    {} as never,
    {
      ...{ schema, operation, fieldNodes, fieldName: 'field', parentType, returnType: type, path },
      ...{ fragments: {}, variableValues: {}, rootValue: undefined },
    } as never,
  );
}

type AnyField = GraphQLField<unknown, unknown>;

/** A field in an operation, with all its arguments; a row below it with all of its fields, to this depth. */
function textOf({ name, args, type }: AnyField, depth: number): string {
  const given = args.map((arg) => `${arg.name}: ${exampleOf(arg.type)}`).join(', ');
  const below = getNamedType(type);
  const isRow = isObjectType(below) && depth > 0 && ROW_TYPES.includes(below.name);
  const fields = isRow ? Object.values(below.getFields()) : [];
  const text = fields.map((field) => textOf(field, depth - 1)).join(' ');
  return `${name}${given && `(${given})`}${isCompositeType(below) ? ` { __typename ${text} }` : ''}`;
}

const ROW_TYPES = ['Namespace', 'Repository', 'User'];

function exampleOf(type: GraphQLInputType): string {
  if (isNonNullType(type)) return exampleOf(type.ofType);
  if (isListType(type)) return `[${exampleOf(type.ofType)}]`;
  if (isEnumType(type)) return type.getValues()[0]?.name ?? '';
  if (isInputObjectType(type)) return '{}';
  const values: Record<string, string> = { Int: '1', Boolean: 'true' };
  return values[type.name] ?? '"2026-01-01T00:00:00Z"';
}

/** Removes the mark that shows how a row was read. */
function plain(rows: object[] | undefined): object[] | undefined {
  return rows?.map((row) => Object.fromEntries(Object.entries(row)));
}
