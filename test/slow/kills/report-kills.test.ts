/**
 * A server that is killed at random while jobs end that leave a summary, outputs and results of tests:
 *
 * `LOAM_TEST_KILLS=40 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/report-kills.test.ts`
 */
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { mulberry32 } from '../../support/kills/killer.ts';
import { job, lines, remove, submit, until } from '../../support/submit.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 5);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
const TESTS = 3_000;
/** Every tenth test fails. */
const FAILED = TESTS / 10;
const LINES = 20_000;
const OUTPUTS = 90;
/** Longer than a job of this test runs and ends here. */
const LATEST_KILL_MS = 600;

/** Leaves the number of its attempt everywhere, and says which outputs of another job it has. */
const COMMAND = `
echo "got \${BUILD:-nothing} \${V1:-} \${V${OUTPUTS}:-}"
echo "<testsuite>$(seq ${TESTS} | sed "/0$/d; s|.*|<testcase classname='attempt $JOB_ATTEMPT' name='test &'/>|")</testsuite>" > passed.xml
echo "<testsuite>$(seq 10 10 ${TESTS} | sed "s|.*|<testcase classname='attempt $JOB_ATTEMPT' name='test &'><failure>why</failure></testcase>|")</testsuite>" > failed.xml
{ echo "$JOB_NAME $JOB_ATTEMPT"; seq ${LINES}; } > "$JOB_SUMMARY"
{ echo "BUILD=$JOB_NAME-$JOB_ATTEMPT"; seq ${OUTPUTS} | sed 's|.*|V&=value &|'; } > "$JOB_OUTPUTS"
`;

const numbers = (count: number) => Array.from({ length: count }, (_, index) => index + 1);

test(`results of jobs through ${KILLS} kills`, {
  timeout: 120_000 + KILLS * 60_000,
}, async (ctx) => {
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const random = mulberry32(SEED);
  const server = await startKillableServer(ctx, { LOAM_RUNNER: 'process' });
  const { admin, pool } = server;
  await admin.post('/auth/v1/repository/admin', { name: 'code' });
  const storedBytes = async () => {
    const sql = "select storage_bytes::float8 as bytes from namespaces where name = 'admin'";
    return (await pool.query(sql)).rows[0].bytes;
  };
  const bytesBefore = await storedBytes();
  const names: string[] = [];
  for (let kill = 1; kill <= KILLS; kill++) {
    const common = { namespace: 'admin', repo: 'admin/code', testReports: ['*.xml'] };
    const [build, retried, user] = [`build-${kill}`, `retried-${kill}`, `user-${kill}`];
    names.push(build, retried, user);
    await submit(admin, { ...common, name: build, command: COMMAND });
    const command = `${COMMAND} [ $JOB_ATTEMPT = 2 ]`;
    await submit(admin, { ...common, name: retried, command, retries: 1 });
    const needs = [{ job: build }, { job: retried }];
    await submit(admin, { ...common, name: user, command: COMMAND, needs });
    const ending = [build, retried, user][Math.floor(random() * 3)] as string;
    await eventually(async () =>
      expect((await job(admin, 'admin', ending)).status).not.toBe('QUEUED'),
    );
    await delay(random() * LATEST_KILL_MS, undefined, { signal: ctx.signal });
    await server.kill();
    const { rows } = await pool.query(
      `select name, progress, summary.attempt as summary, outputs is not null as outputs,
         (select count(*)::int from test_reports where job_id = jobs.id) as reports
       from jobs left join job_summaries summary on job_id = jobs.id where name = any ($1) order by name`,
      [[build, retried, user]],
    );
    console.log(`${kill}: killed while ${JSON.stringify(rows)}`);
    await server.start();
    for (const name of [build, retried, user]) await until(admin, 'admin', name, 'SUCCEEDED');
    await check(build, [1], 'nothing');
    await check(retried, [1, 2], 'nothing');
    await check(user, [1], `${retried}-2 value 1 value ${OUTPUTS}`);
  }

  async function check(name: string, attempts: number[], got: string): Promise<void> {
    const last = attempts.length;
    const { job: shown } = await admin.gql(
      `query ($name: String!) { job(namespace: "admin", name: $name) {
        summary outputs { name value } attempts { nodes { number } }
        testReport { attempt total failed skipped files problems } } }`,
      { name },
    );
    expect(shown.attempts.nodes.map(({ number }: { number: number }) => number)).toEqual(attempts);
    expect(shown.summary).toBe(`${name} ${last}\n${numbers(LINES).join('\n')}\n`);
    expect(shown.outputs).toEqual([
      { name: 'BUILD', value: `${name}-${last}` },
      ...numbers(OUTPUTS).map((each) => ({ name: `V${each}`, value: `value ${each}` })),
    ]);
    expect(shown.testReport).toEqual({
      ...{ attempt: last, total: TESTS, failed: FAILED, skipped: 0, files: 2, problems: [] },
    });
    const printed = await lines(admin, 'admin', name);
    expect(printed.map((line) => line.trimEnd())).toEqual(attempts.map(() => `got ${got}`));
    const { rows } = await pool.query<{ attempt: number; data: Buffer }>(
      `select attempt, data from test_reports join test_pages using (attempt_id)
       where job_id = (select id from jobs where name = $1) order by attempt, first`,
      [name],
    );
    for (const attempt of attempts) {
      const pages = rows.filter((row) => row.attempt === attempt);
      const unpacked = await Promise.all(pages.map(({ data }) => promisify(gunzip)(data)));
      const tests: { name: string; className: string }[] = unpacked.flatMap((page) =>
        JSON.parse(String(page)),
      );
      expect(new Set(tests.map(({ className }) => className))).toEqual(
        new Set([`attempt ${attempt}`]),
      );
      const order = (all: readonly number[]) => [...all].sort((a, b) => a - b);
      expect(order(tests.map((one) => Number(one.name.slice('test '.length))))).toEqual(
        numbers(TESTS),
      );
    }
  }

  for (const name of names) expect((await remove(admin, 'admin', name)).errors).toBeUndefined();
  await eventually(async () => expect(await storedBytes()).toBe(bytesBefore));
});
