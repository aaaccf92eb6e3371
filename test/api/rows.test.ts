/** Rows that are read with hand-written SQL equal the rows that Prisma reads. */
import { PrismaPg } from '@prisma/adapter-pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PrismaClient } from '../../prisma/generated/client.ts';
import { jobRowReader } from '../../src/jobs/record/payload.ts';
import { runtimeColumns } from '../../src/jobs/record/runtime.ts';
import { collaboratorColumns, repositoryRows } from '../../src/repositories/rows.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp, type TestApp } from '../support/harness.ts';
import { submit } from '../support/submit.ts';

let app: TestApp;
let prisma: PrismaClient;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
  prisma = new PrismaClient({ adapter: new PrismaPg(app.pool) });
  await app.admin.gql(
    'mutation { createRepository(input: {namespace: "admin", name: "one"}) { repository { id } } }',
  );
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
  const byHand = await statement?.read(app.pool, ['one']);
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
  const statement = jobRowReader.statement(select, {}, 'order by r.id');
  const byHand = await statement?.read(app.pool, []);
  const byPrisma = await prisma.job.findMany({ select, orderBy: { id: 'asc' } });
  expect(plain(byHand)).toEqual(byPrisma);
  expect(byPrisma.map(({ attempts }) => attempts.length)).toEqual([0, 1]);
});

test('unsupported selections are left to Prisma', () => {
  for (const select of [
    { namespace: true },
    { namespace: { select: { members: true } } },
    { jobs: { select: { id: true } } },
    { namespace: { select: { name: true }, where: { name: 'x' } } },
    { nothing: true },
  ])
    expect(repositoryRows.statement(select, {}, ''), JSON.stringify(select)).toBeNull();
  expect(jobRowReader.statement({ attempts: { select: { startedAt: true } } }, {}, '')).toBeNull();
  expect(jobRowReader.statement({ secrets: true }, {}, '')).toBeNull();
});

/** Removes the mark that shows how a row was read. */
function plain(rows: object[] | undefined): object[] | undefined {
  return rows?.map((row) => Object.fromEntries(Object.entries(row)));
}
