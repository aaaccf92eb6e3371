/** Summaries and test reports: what a job leaves for people, and what a hostile one leaves. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createMask } from '../../src/jobs/logs/mask.ts';
import { NotJUnit, parseJUnit, type TestCase } from '../../src/jobs/reports/junit.ts';
import { encodePages, hasKey, orderTests, packKeys } from '../../src/jobs/reports/pages.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { lines, remove, submit, submitRaw, until } from '../support/submit.ts';

const cleanup = new AsyncDisposableStack();
/** Its jobs are processes. */
let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = cleanup.use(await startApp({ config: { runner: 'process' } }));
  ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
});
afterAll(() => cleanup.disposeAsync());

const PASSWORD = 'hunter2hunter2';
const base = { namespace: 'ada', repo: 'ada/code' };
const REPORT = `query ($name: String!) { job(namespace: "ada", name: $name) {
  id summary hasSummary testReport { attempt total passed failed skipped files durationMs problems
    tests { status name className suite durationMs message details output } } } }`;

async function shown(name: string) {
  return (await ada.gql(REPORT, { name })).job;
}

async function storedBytes(): Promise<number> {
  const sql = "select storage_bytes::float8 as bytes from namespaces where name = 'ada'";
  return (await app.pool.query(sql)).rows[0].bytes;
}

const XML = `<testsuites><testsuite name="api">
  <testcase classname="a.test" name="adds" time="0.25"/>
  <testcase classname="a.test" name="divides" time="NaN"><failure message="1 is not 2 hunter2hunter2">at &lt;a&gt;
    <![CDATA[line 3]]></failure><system-out>printed</system-out></testcase>
  <testcase classname="a.test" name="waits" time="1,000.5"><skipped message="later"/></testcase>
</testsuite></testsuites>`;

test('a job leaves a summary and the results of its tests, whatever its exit code', async () => {
  const before = await storedBytes();
  await submit(ada, {
    ...base,
    name: 'results',
    command: `printf '# Done\\nhunter2hunter2 \\0 \\377\\n<script>alert(1)</script>\\n' > "$JOB_SUMMARY"
      mkdir -p reports/deep; printf '%s' "$XML" > reports/a.xml; echo '<html/>' > reports/deep/b.xml; ln -s a.xml reports/c.xml
      exit 3`,
    env: [{ name: 'XML', value: XML }],
    secrets: [{ name: 'PASSWORD', value: PASSWORD }],
    testReports: ['reports/**.xml', './reports/a.xml', 'missing/*.xml'],
  });
  await until(ada, 'ada', 'results', 'FAILED');
  const job = await shown('results');
  expect(job.summary).toBe('# Done\n*** \uFFFD \uFFFD\n<script>alert(1)</script>\n');
  expect(job.hasSummary).toBe(true);
  expect(job.testReport).toMatchObject({
    ...{ attempt: 1, total: 3, passed: 1, failed: 1, skipped: 1, files: 1, durationMs: 1_000_750 },
    problems: [
      'reports/c.xml was not read: it is no file of the job, or larger than 4 MiB',
      'reports/deep/b.xml cannot be read: it begins with <html> instead of <testsuites> or <testsuite>',
      'missing/*.xml was not read: nothing exists at this path',
    ],
  });
  expect(job.testReport.tests).toEqual([
    {
      ...{ status: 'FAILED', name: 'divides', className: 'a.test', suite: 'api', durationMs: null },
      ...{ message: '1 is not 2 ***', details: 'at <a>\n    line 3', output: 'printed' },
    },
    expect.objectContaining({ status: 'SKIPPED', name: 'waits', message: 'later' }),
    expect.objectContaining({ status: 'PASSED', name: 'adds', durationMs: 250, output: null }),
  ]);
  expect(await storedBytes()).toBeGreaterThan(before);
  expect((await remove(ada, 'ada', 'results')).errors).toBeUndefined();
  const count = `select (select count(*) from job_summaries) + (select count(*) from test_reports)
    + (select count(*) from test_pages) as rows`;
  expect(Number((await app.pool.query(count)).rows[0].rows)).toBe(0);
  expect(await storedBytes()).toBe(before);
});

test('only a file of at most 1 MiB is a summary', async () => {
  const refused =
    'The summary was not stored: JOB_SUMMARY must be a file of at most 1 MiB, and no link.';
  const commands = {
    link: 'ln -s /etc/passwd "$JOB_SUMMARY"',
    inside: 'echo hi > x; ln -s "$PWD/x" "$JOB_SUMMARY"',
    huge: 'truncate -s 10G "$JOB_SUMMARY"',
    fifo: 'mkfifo "$JOB_SUMMARY"',
  };
  const quiet = {
    folder: 'mkdir "$JOB_SUMMARY"',
    gone: 'rm -r "$(dirname "$JOB_SUMMARY")"; ln -s / "$(dirname "$JOB_SUMMARY")"',
    empty: ': > "$JOB_SUMMARY"',
    none: 'true',
  };
  const all = Object.entries({ ...commands, ...quiet });
  for (const [name, command] of all) await submit(ada, { ...base, name, command });
  for (const [name] of all) {
    await until(ada, 'ada', name, 'SUCCEEDED');
    expect(await shown(name), name).toMatchObject({ summary: null, hasSummary: false });
    expect(await lines(ada, 'ada', name), name).toEqual(name in commands ? [refused] : []);
  }
});

test('a retry that passes is flaky on its commit, and the reports of attempts are kept apart', async () => {
  const xml = (inside: string) =>
    `<testsuite name="s"><testcase name="t">${inside}</testcase></testsuite>`;
  await submit(ada, {
    ...base,
    name: 'flaky',
    retries: 1,
    command: `[ $JOB_ATTEMPT = 2 ] && printf '%s' "$PASSED" > r.xml || { printf '%s' "$FAILED" > r.xml; echo one > "$JOB_SUMMARY"; exit 1; }`,
    env: [
      { name: 'PASSED', value: xml('') },
      { name: 'FAILED', value: xml('<error/>') },
    ],
    testReports: ['r.xml'],
  });
  await until(ada, 'ada', 'flaky', 'SUCCEEDED');
  expect(await shown('flaky')).toMatchObject({
    summary: 'one\n',
    testReport: { attempt: 2, passed: 1, failed: 0, problems: [] },
  });
  const { repository } = await ada.gql(`{ repository(namespace: "ada", name: "code") { testHistory {
    branch reports tests { name suite isFlaky results { status attempt job } } } } }`);
  expect(repository.testHistory).toEqual({
    ...{ branch: 'main', reports: 2 },
    tests: [
      {
        ...{ name: 't', suite: 's', isFlaky: true },
        results: [
          { status: 'PASSED', attempt: 2, job: 'flaky' },
          { status: 'FAILED', attempt: 1, job: 'flaky' },
        ],
      },
    ],
  });
});

test('paths of reports are checked', async () => {
  const refuse = async (testReports: string[], problem: RegExp) => {
    const answer = submitRaw(ada, { ...base, name: 'bad', command: 'true', testReports });
    const { errors } = await answer;
    expect(errors?.[0]?.message).toMatch(problem);
    await expectRefusal(answer, 'INVALID_REQUEST', 'testReports');
  };
  await refuse(['/etc/passwd'], /^testReports: \[0\] must be relative/);
  await refuse(['a', '../x'], /^testReports: \[1\] must not contain "\.\."/);
  await refuse(['*/*/*/*/*/*/*/*/*'], /more than 8 wildcards/);
  await refuse(Array(11).fill('a'), /more than 10 entries/);
});

async function parse(text: string): Promise<TestCase[]> {
  const found: TestCase[] = [];
  const mask = await createMask({ PASSWORD });
  await parseJUnit(Buffer.from(text), mask, (one) => found.push(one) < 20_000);
  return found;
}

test('hostile files end with a reason, and hold this thread for moments only', async () => {
  const bombs: Record<string, string> = {
    laughs: `<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><testsuite><testcase name="&b;"/></testsuite>`,
    entity: '<testsuite><testcase name="&b;"/></testsuite>',
    deep: `<testsuite>${'<a>'.repeat(1_000_000)}`,
    open: '<testsuite><testcase name="x">',
    attribute: `<testsuite name="${'x'.repeat(15_000_000)}`,
    attributes: `<testsuite ${Array.from({ length: 100_000 }, (_, i) => `a${i}="1"`).join(' ')}/>`,
    text: 'no xml at all',
    empty: '',
    nul: '<testsuite><testcase name="\0"/></testsuite>',
  };
  for (const [name, text] of Object.entries(bombs))
    await expect(parse(text), name).rejects.toThrow(NotJUnit);
  const [big] = await parse(
    `<testsuite><testcase name="${'n'.repeat(1e6)}" time="-1"><failure>${'d'.repeat(1e6)}</failure><system-out>${'o'.repeat(1e6)}</system-out><system-err>end</system-err></testcase></testsuite>`,
  );
  expect(big).toMatchObject({ status: 'failed', durationMs: null });
  expect([big?.name.length, big?.details?.length, big?.output?.length]).toEqual([
    500, 16_000, 8_000,
  ]);
  expect(big?.output).toMatch(/o\nend$/);
  const outputs = '<system-out>line</system-out>'.repeat(50_000);
  const [loud] = await parse(
    `<testsuite><testcase name="x"><error/>${outputs}</testcase></testsuite>`,
  );
  expect(loud?.output).toHaveLength(8_000);
  const many = `<testsuite>${'<testcase name="t"/>'.repeat(30_000)}</testsuite>`;
  expect(await parse(many)).toHaveLength(20_000);
  const found: TestCase[] = [];
  const cutOff = Buffer.from('<testsuite><testcase name="complete"/><testcase name="cut');
  await expect(
    parseJUnit(cutOff, await createMask({}), (one) => found.push(one) > 0),
  ).rejects.toThrow(NotJUnit);
  expect(found.map(({ name }) => name)).toEqual(['complete']);
});

test('pages are bounded, and keys are found', async () => {
  const one = (await parse('<testsuite><testcase name="t"/></testsuite>'))[0] as TestCase;
  const tests = orderTests([one, { ...one, status: 'failed', details: 'x'.repeat(16_000) }]);
  expect(tests.map(({ status }) => status)).toEqual(['failed', 'passed']);
  const pages = await Array.fromAsync(encodePages(Array(1_000).fill(tests[0])));
  expect(pages.length).toBeGreaterThan(50);
  const keys = [5n, 2n ** 63n, 1n];
  const packed = packKeys(keys);
  expect(keys.every((key) => hasKey(packed, key))).toBe(true);
  expect(hasKey(packed, 4n)).toBe(false);
});

test('texts of tests that are cut show no part of a secret', async () => {
  const [cut] = await parse(`<testsuite name="${'s'.repeat(495)}${PASSWORD}">
    <testcase name="${'n'.repeat(495)}${PASSWORD}">
      <failure message="${'m'.repeat(1_990)}${PASSWORD}">${'d'.repeat(15_990)}${PASSWORD}</failure>
      <system-out>${PASSWORD}${'o'.repeat(7_990)}</system-out></testcase></testsuite>`);
  expect(cut).toMatchObject({ status: 'failed', name: expect.stringMatching(/^n+\**…$/) });
  expect(JSON.stringify(cut)).not.toMatch(/hun|er2/);
});

test('an answer has at most 16 MiB of summaries, tests and outputs', async () => {
  await submit(ada, {
    ...base,
    name: 'long-0',
    command: `head -c 1000000 /dev/zero | tr '\\0' s > "$JOB_SUMMARY"
      awk 'BEGIN { printf "<testsuite>"; for (i = 0; i < 250; i++) {
        printf "<testcase name=\\"t\\"><error>"; for (j = 0; j < 1500; j++) printf "eeeeeeeeee"
        printf "</error></testcase>" } printf "</testsuite>" }' > r.xml`,
    testReports: ['r.xml'],
  });
  await until(ada, 'ada', 'long-0', 'SUCCEEDED');
  const outputs = JSON.stringify([{ name: 'A', value: 'o'.repeat(60_000) }]);
  await app.pool.query(
    `insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
       timeout_minutes, retries, cost_per_hour, outputs)
     select 'job_' || lpad(n::text, 26, '0'), s.id, 'long-' || n, 'succeeded', 'true', 'none', 1, 8, 32, 10, 'us-east-1',
       60, 0, 0.288, $1
     from generate_series(1, 99) n, namespaces s where s.name = 'ada'`,
    [outputs],
  );
  const read = async (field: string, count: number) => {
    const aliases = Array.from({ length: count }, (_, n) => `a${n}: ${field}`);
    return (await ada.graphql(`{ ${aliases.join(' ')} }`)).errors?.[0]?.message;
  };
  const all = 'namespace(name: "ada") { jobs(first: 100, filter: { namePrefix: "long-" })';
  for (const [field, fits, tooMany] of [
    [`${all} { nodes { summary } } }`, 10, 20],
    [`${all} { nodes { outputs { value } } } }`, 2, 3],
    ['job(namespace: "ada", name: "long-0") { testReport { tests(first: 250) { name } } }', 3, 5],
  ] as const) {
    expect(await read(field, fits), field).toBeUndefined();
    const message = 'The response is too large; request less at once';
    expect(await read(field, tooMany), field).toBe(message);
  }
});
