/** Metrics that jobs print: parsing, storage, limits and reads. */
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';
import { appendLines } from '../../src/jobs/logs/append.ts';
import { decideCheck } from '../../src/jobs/metrics/checks.ts';
import { compactMetrics } from '../../src/jobs/metrics/compaction.ts';
import { parseMetricLine } from '../../src/jobs/metrics/parse.ts';
import { readSeries } from '../../src/jobs/metrics/read.ts';
import {
  compressSeries,
  decodePage,
  decompressSeries,
  downsample,
  encodePage,
  type Series,
} from '../../src/jobs/metrics/series.ts';
import { readMetrics } from '../../src/jobs/metrics/summaries.ts';
import type { LogCursor } from '../../src/runners/runner.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { lines, remove, submit, submitRaw, until, variables } from '../support/submit.ts';
import { viaYoga } from '../support/subscribe.ts';

const UNHURRIED = { perMinute: 1_000_000, perSecond: 1_000_000 };
const runner = fakeRunner();
let app: TestApp;
let ada: Client;
let bea: Client;

beforeAll(async () => {
  app = await startApp({
    overrides: { runner },
    config: {
      rateLimits: {
        ...PLAN_LIMITS,
        free: { ...PLAN_LIMITS.free, ...UNHURRIED, metricPoints: 5 },
        team: { ...PLAN_LIMITS.team, ...UNHURRIED, storageBytes: 100_000 },
        unlimited: { ...PLAN_LIMITS.unlimited, ...UNHURRIED },
      },
    },
  });
  ada = await app.user('ada', 'unlimited');
  bea = await app.user('bea', 'free');
  await ada.repository('ada/code');
  await bea.repository('bea/code');
});
afterAll(() => app[Symbol.asyncDispose]());

const READ = `query ($namespace: String!, $name: String!, $names: [String!]) {
  job(namespace: $namespace, name: $name) { id metricsUrl metrics(names: $names) {
    name points min max last lastStep lastAt series { attempt steps times values } } } }`;
const read = async (client: Client, namespace: string, name: string, names?: string[]) =>
  (await client.gql(READ, { namespace, name, names })).job;

async function run(name: string, printed: readonly string[], more: object = {}) {
  const command = `${printed.map((line) => `echo ${line}`).join('; ')}; exit 0`;
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...more });
  await until(ada, 'ada', name, 'SUCCEEDED');
  return read(ada, 'ada', name);
}

test('lines of metrics are parsed, and lines with mistakes are not', () => {
  const parse = (text: string) => {
    const line = parseMetricLine(`::metric::${text}`);
    return line && { step: line.step, ...Object.fromEntries(line.values) };
  };
  expect(parse('loss=0.215 accuracy=0.91 step=215')).toEqual({
    loss: 0.215,
    accuracy: 0.91,
    step: 215,
  });
  expect(parse('  a=1\tb=-2.  ')).toEqual({ a: 1, b: -2, step: null });
  expect(parse('step=0 train/loss.mean-1=+.5e-3')).toEqual({
    'train/loss.mean-1': 0.0005,
    step: 0,
  });
  expect(parse('a=nan b=NaN c=inf d=-inf e=+Infinity f=-Infinity g=1e999')).toEqual({
    ...{ a: Number.NaN, b: Number.NaN, c: Infinity, d: -Infinity, e: Infinity },
    ...{ f: -Infinity, g: Infinity, step: null },
  });
  for (const mistake of [
    ...[
      '',
      'step=1',
      'loss',
      'loss=',
      '=1',
      'loss=1,2',
      'loss=0x1',
      'loss=one',
      'loss = 1',
      '1st=1',
    ],
    ...['a=1 a=2', 'a=1 step=-1', 'a=1 step=1.5', 'a=1 step=nan', 'a=1 step=1 step=2', 'a=1 b'],
    ...[
      'a=1 step=9007199254740992',
      `${'n'.repeat(101)}=1`,
      'ä=1',
      'a=1__0',
      `a=${'1'.repeat(65)}`,
    ],
  ])
    expect(parse(mistake), mistake).toBeNull();
  expect(parseMetricLine('::metric:: a=1')).not.toBeNull();
  expect(parseMetricLine(' ::metric::a=1')).toBeNull();
  const began = performance.now();
  for (const part of ['1', ' ', 'a', '=', '.', 'a=1 ', 'a=', '-'])
    parseMetricLine(`::metric::${part.repeat(65_536 / part.length)}x`);
  expect(performance.now() - began).toBeLessThan(500);
});

const anySeries = fc
  .array(
    fc.tuple(
      fc.maxSafeNat(),
      fc.integer({ min: 0, max: 4e12 }),
      fc.oneof(fc.double(), fc.constant(Number.NaN)),
    ),
    { minLength: 1, maxLength: 300 },
  )
  .map(
    (points): Series => ({
      steps: points.map(([step]) => step),
      times: points.map(([, time]) => time),
      values: points.map(([, , value]) => value),
    }),
  );

test('points are stored exactly', async () => {
  await fc.assert(
    fc.asyncProperty(anySeries, anySeries, async (a, b) => {
      const data = await compressSeries(a);
      expect(await decompressSeries(data, a.steps.length)).toEqual(a);
      const page = encodePage([
        { name: 'a', series: a },
        { name: 'b/c', series: b },
      ]);
      expect(decodePage(page)).toEqual([
        { name: 'a', series: a },
        { name: 'b/c', series: b },
      ]);
      expect(decodePage(page, (name) => name === 'b/c')).toEqual([{ name: 'b/c', series: b }]);
    }),
    { numRuns: 50 },
  );
});

test('downsampling keeps the ends, peaks, lows and gaps', () => {
  fc.assert(
    fc.property(anySeries, fc.integer({ min: 10, max: 100 }), (series, maxPoints) => {
      // Twice, as a chart of overviews is.
      const reduced = downsample(downsample(series, 2 * maxPoints), maxPoints);
      const { values, steps } = reduced;
      expect(values.length).toBeLessThanOrEqual(Math.max(maxPoints, 0));
      expect([values[0], steps[0]]).toEqual([series.values[0], series.steps[0]]);
      expect([values.at(-1), steps.at(-1)]).toEqual([series.values.at(-1), series.steps.at(-1)]);
      const extremes = (all: number[]) => {
        const numbers = all.filter((value) => !Number.isNaN(value));
        return [Math.min(...numbers), Math.max(...numbers), numbers.length < all.length];
      };
      expect(extremes(values)).toEqual(extremes(series.values));
    }),
  );
  const spike: Series = { steps: [], times: [], values: [] };
  for (let step = 0; step < 100_000; step++) {
    spike.steps.push(step);
    spike.times.push(step);
    spike.values.push(step === 54_321 ? 9 : 0);
  }
  const at = downsample(spike, 1_000).values.indexOf(9);
  expect(downsample(spike, 1_000).steps[at]).toBe(54_321);
});

test('metrics are stored with their steps and are not in the log', async () => {
  const job = await run('trained', [
    'epoch 1',
    '::metric::loss=0.5 accuracy=nan',
    '::metric::loss=0.25 step=10',
    '::metric::loss=inf',
    '::metric::loss=0.1 step=3',
    '::metric::loss=oops',
    '::progress::nearly done',
    '::metric::loss=0.75',
  ]);
  expect(await lines(ada, 'ada', 'trained')).toEqual(['epoch 1', '::metric::loss=oops']);
  const times = [expect.any(Number), ...Array(4).fill(expect.any(Number))];
  expect(job.metrics).toEqual([
    {
      ...{ name: 'accuracy', points: 1, min: null, max: null, last: 'NaN', lastStep: 0 },
      lastAt: expect.any(String),
      series: [{ attempt: 1, steps: [0], times: [expect.any(Number)], values: ['NaN'] }],
    },
    {
      ...{ name: 'loss', points: 5, min: 0.1, max: 'Infinity', last: 0.75, lastStep: 4 },
      lastAt: expect.any(String),
      series: [
        { attempt: 1, steps: [0, 10, 11, 3, 4], times, values: [0.5, 0.25, 'Infinity', 0.1, 0.75] },
      ],
    },
  ]);
  const [only] = (await read(ada, 'ada', 'trained', ['loss', 'none'])).metrics;
  expect(only.name).toBe('loss');
  const { text, headers } = await app.anonymous.get(`${job.metricsUrl}&name=accuracy`);
  expect(headers.get('content-type')).toBe('text/csv; charset=utf-8');
  expect(text).toBe(`name,attempt,step,time,value\naccuracy,1,0,${job.metrics[0].lastAt},NaN\n`);
  const all = (await app.anonymous.get(job.metricsUrl)).text.trimEnd().split('\n');
  expect(all).toHaveLength(7);
  expect((await app.anonymous.get(job.metricsUrl.replace('metrics.csv', 'log.txt'))).status).toBe(
    401,
  );
  expect((await app.anonymous.get(`${job.metricsUrl}&name=a&name=b`)).status).toBe(400);
  expect((await app.anonymous.get(`${job.metricsUrl}&name=%00`)).status).toBe(400);
});

test('secrets in names are masked, so that the line stays in the log', async () => {
  const secrets = variables({ TOKEN: 'hunter2hunter2' });
  const job = await run('masked', ['::metric::hunter2hunter2=1', '::metric::ok=1'], { secrets });
  expect(job.metrics.map(({ name }: { name: string }) => name)).toEqual(['ok']);
  expect((await lines(ada, 'ada', 'masked')).join()).not.toContain('hunter2');
});

test('each attempt has its own series and counts its steps from 0', async () => {
  const command = 'echo ::metric::a=1; echo ::metric::a=2; exit 1';
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'retried', command, retries: 1 });
  await until(ada, 'ada', 'retried', 'FAILED');
  const [metric] = (await read(ada, 'ada', 'retried')).metrics;
  expect(metric.points).toBe(4);
  expect(metric.series).toMatchObject([
    { attempt: 1, steps: [0, 1], values: [1, 2] },
    { attempt: 2, steps: [0, 1], values: [1, 2] },
  ]);
});

test('points are counted as storage, and deleted with the job', async () => {
  const stored = async () =>
    Number(
      (await app.app.services.db.namespace.findUniqueOrThrow({ where: { name: 'ada' } }))
        .storageBytes,
    );
  const before = await stored();
  const { id } = await run('counted', ['::metric::a=1 b=2', '::metric::a=3']);
  await eventually(async () => expect((await stored()) - before).toBe(3 * 24));
  await remove(ada, 'ada', 'counted');
  expect(await stored()).toBe(before);
  for (const table of ['metric_pages', 'metric_chunks', 'job_metrics']) {
    const { rows } = await app.pool.query(`select from ${table} where job_id = $1`, [id]);
    expect(rows, table).toEqual([]);
  }
});

test('a job stores no more points than its plan allows, and says so once', async () => {
  const printed = Array.from({ length: 9 }, (_, at) => `echo ::metric::a=${at}`).join('; ');
  const command = `${printed}; echo end; exit 1`;
  await submit(bea, { namespace: 'bea', repo: 'bea/code', name: 'full', command, retries: 1 });
  await until(bea, 'bea', 'full', 'FAILED');
  const [metric] = (await read(bea, 'bea', 'full')).metrics;
  expect(metric.series[0].values).toEqual([0, 1, 2, 3, 4]);
  expect(metric.points).toBe(5);
  const log = await lines(bea, 'bea', 'full');
  expect(log.toSorted()).toEqual([
    'The metrics end here: the free plan allows 5 points of metrics per job. Further points of the job are not kept.',
    'end',
    'end',
  ]);
});

test('a job has at most 200 names, and 1,000 points a second on average', async () => {
  const names = Array.from({ length: 201 }, (_, at) => `n${at}=1`).join(' ');
  const job = await run('many', [`::metric::${names}`, `::metric::${names}`]);
  expect(job.metrics).toHaveLength(200);
  expect(await lines(ada, 'ada', 'many')).toEqual([
    'The job has 200 metrics, which is the limit. Points of other names are not kept.',
  ]);
  const row = Array.from({ length: 100 }, (_, at) => `n${at}=1`).join(' ');
  await run('fast', Array<string>(150).fill(`::metric::${row}`));
  const { metricPoints } = await app.app.services.db.job.findFirstOrThrow({
    where: { name: 'fast' },
  });
  expect(Number(metricPoints)).toBeGreaterThanOrEqual(10_000);
  expect(Number(metricPoints)).toBeLessThan(15_000);
  expect(await lines(ada, 'ada', 'fast')).toEqual([
    'The job reports more than 1,000 points of metrics per second. Points above this rate are not kept.',
  ]);
});

/** Appends batches of points to an attempt that no worker supervises. */
async function openJob(name: string) {
  const { services } = app.app;
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name, command: 'hold' });
  await until(ada, 'ada', name, 'RUNNING');
  const job = await services.db.job.findFirstOrThrow({ where: { name } });
  let from: LogCursor | null = null;
  return {
    id: job.id,
    async append(sections: { name: string; series: Series }[]) {
      const to = { batch: Number(from?.batch ?? 0) + 1 };
      const points = sections.reduce((sum, { series }) => sum + series.steps.length, 0);
      const batch = {
        jobId: job.id,
        attemptId: String(job.attemptId),
        lines: [],
        newestTime: null,
      };
      const metrics = { points, data: encodePage(sections) };
      const stored = await appendLines(services, { ...batch, from, to, metrics });
      from = to;
      return stored;
    },
    async repeat() {
      const batch = {
        jobId: job.id,
        attemptId: String(job.attemptId),
        lines: [],
        newestTime: null,
      };
      const metrics = { points: 1, data: encodePage([{ name: 'a', series: ramp(0, 1) }]) };
      return appendLines(services, { ...batch, from: null, to: { batch: 1 }, metrics });
    },
  };
}

const START = 1_800_000_000_000;
const ramp = (from: number, count: number): Series => ({
  steps: Array.from({ length: count }, (_, at) => from + at),
  times: Array.from({ length: count }, (_, at) => START + from + at),
  values: Array.from({ length: count }, (_, at) => from + at),
});

const COMPARE = `query ($jobs: [JobSelectionInput!]!, $names: [String!]) { compareJobs(jobs: $jobs) {
  jobs { name namespace status matrixValues { key value } labels { key value } runtimeSeconds totalCost artifactFiles }
  isTruncated missing metricNames { name jobs isLowerBetter } metrics(names: $names) { name last min max } } }`;
const compare = async (client: Client, jobs: object[], names?: string[]) =>
  (await client.gql(COMPARE, { jobs, names })).compareJobs;

test('jobs of several namespaces are compared by their metrics', async () => {
  await run('x-1', ['::metric::loss=0.5 step=7', '::metric::loss=0.75 acc=nan step=3'], {
    labels: [{ key: 'kind', value: 'a' }],
  });
  await run('x-2', ['::metric::loss=-inf acc=0.5', '::metric::acc=inf']);
  await run('x-3', []);
  await submit(bea, { namespace: 'bea', repo: 'bea/code', name: 'hers', command: 'exit 0' });
  const all = await compare(ada, [
    { namespace: 'ada', filter: { namePrefix: 'x-' } },
    { namespace: 'ADA', names: ['x-2', 'gone'] },
    { namespace: 'bea', names: ['hers', 'other'] },
    { namespace: 'nowhere', names: ['any'] },
  ]);
  expect(all.jobs.map(({ name }: { name: string }) => name)).toEqual(['x-1', 'x-2', 'x-3']);
  expect(all.jobs[0]).toMatchObject({
    ...{ namespace: 'ada', status: 'SUCCEEDED', labels: [{ key: 'kind', value: 'a' }] },
    ...{ matrixValues: [], artifactFiles: null },
  });
  expect(all.missing).toEqual(['ADA/gone', 'bea/hers', 'bea/other', 'nowhere/any']);
  expect(all.metricNames).toEqual([
    { name: 'acc', jobs: 2, isLowerBetter: false },
    { name: 'loss', jobs: 2, isLowerBetter: true },
  ]);
  expect(all.metrics).toEqual([
    {
      name: 'acc',
      last: ['NaN', 'Infinity', null],
      min: [null, 0.5, null],
      max: [null, 'Infinity', null],
    },
    {
      name: 'loss',
      last: [0.75, '-Infinity', null],
      min: [0.5, '-Infinity', null],
      max: [0.75, '-Infinity', null],
    },
  ]);
  const [none] = (await compare(ada, [{ namespace: 'ada', names: ['x-1'] }], ['<b>'])).metrics;
  expect(none).toEqual({ name: '<b>', last: [null], min: [null], max: [null] });
  const narrow = await ada.withToken({ repositories: [await ada.repository('ada/other')] });
  const hidden = await compare(narrow, [{ namespace: 'ada', names: ['x-1'] }]);
  expect([hidden.jobs, hidden.missing]).toEqual([[], ['ada/x-1']]);
  for (const [jobs, names, message] of [
    [[{ namespace: 'bea', filter: {} }], [], /not a member/],
    [[{ namespace: 'ada' }], [], /filter or names is required/],
    [[{ namespace: 'ada', names: ['a b'] }], [], /names/],
    [[{ namespace: 'ada', names: Array(1_001).fill('a') }], [], /1000/],
    [Array(21).fill({ namespace: 'ada', names: ['x-1'] }), [], /20 entries/],
    [[{ namespace: 'ada', names: ['x-1'] }], Array(51).fill('a'), /50 entries/],
  ] as const)
    await expect(compare(ada, [...jobs], [...names])).rejects.toThrow(message);
  // The jobs are read whatever fields are selected.
  const one = 'compareJobs(jobs: [{ namespace: "ada", filter: {} }]) { missing }';
  const { errors } = await ada.graphql(
    `{ ${[1, 2, 3, 4, 5].map((n) => `a${n}: ${one}`).join(' ')} }`,
  );
  expect(errors?.[0]?.extensions).toMatchObject({ code: 'LIMIT_EXCEEDED', limit: 'cost' });
});

test('differences are those of two jobs', async () => {
  const read = async (client: Client, names: string[]) => {
    const { compareJobs } = await client.gql(
      'query ($jobs: [JobSelectionInput!]!) { compareJobs(jobs: $jobs) { jobs { name } differences { name values } } }',
      { jobs: [{ namespace: 'ada', names }] },
    );
    return compareJobs.differences;
  };
  expect(await read(ada, ['x-1', 'x-3'])).toEqual([
    { name: 'Command', values: [expect.stringContaining('acc=nan'), '; exit 0'] },
    { name: 'Label kind', values: ['a', null] },
  ]);
  for (const names of [['x-1'], ['x-1', 'x-2', 'x-3']])
    await expect(read(ada, names)).rejects.toThrow(/must be two jobs/);
});

test('points of running jobs count in a comparison, before and after compaction', async () => {
  const job = await openJob('busy');
  const read = async () => (await compare(ada, [{ namespace: 'ada', names: ['busy'] }])).metrics;
  await job.append([{ name: 'a', series: ramp(5, 2) }]);
  expect(await read()).toEqual([{ name: 'a', last: [6], min: [5], max: [6] }]);
  await compactMetrics(app.app.services, job.id);
  await job.append([
    { name: 'a', series: ramp(2, 1) },
    { name: 'b', series: ramp(1, 1) },
  ]);
  expect(await read()).toEqual([
    { name: 'a', last: [2], min: [2], max: [6] },
    { name: 'b', last: [1], min: [1], max: [1] },
  ]);
  runner.release();
  await until(ada, 'ada', 'busy', 'SUCCEEDED');
});

test('of many jobs the newest 1,000 are compared, also with 200 metrics each', async () => {
  await app.pool.query(`
    insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
      timeout_minutes, retries, cost_per_hour, created_at)
    select 'job_' || lpad(n::text, 26, '0'), s.id, 'wide-' || n, 'succeeded', 'true', 'none', 1, 8, 32, 10, 'us-east-1',
      60, 0, 0.288, now() + n * interval '1 s'
    from generate_series(1, 1001) n, namespaces s where s.name = 'ada'`);
  await app.pool.query(`
    insert into job_metrics (job_id, name, points, min, max, last, last_step, last_time, last_attempt)
    select 'job_' || lpad(n::text, 26, '0'), 'm' || lpad(m::text, 3, '0'), 1, n, n, n, 0, now(), 1
    from generate_series(1, 1001) n, generate_series(1, 200) m`);
  const wide = await compare(ada, [{ namespace: 'ada', filter: { namePrefix: 'wide-' } }]);
  expect(wide.isTruncated).toBe(true);
  expect(wide.jobs).toHaveLength(1_000);
  expect(wide.jobs[0].name).toBe('wide-2');
  expect(wide.metricNames).toHaveLength(200);
  expect(wide.metrics).toHaveLength(20);
  expect(wide.metrics[0].last.slice(0, 3)).toEqual([2, 3, 4]);
  await app.pool.query("delete from jobs where name like 'wide-%'");
});

test('compaction keeps all points in order, in few chunks', async () => {
  const { services } = app.app;
  const job = await openJob('compacted');
  let [a, b] = [0, 0];
  const sizes = [1, 7, 300, 1, 1, 2_000, 5_000, 3, 50];
  for (let batch = 0; batch < 200; batch++) {
    const size = sizes[batch % sizes.length] as number;
    await job.append([
      { name: 'a', series: ramp(a, size) },
      ...(batch % 3 === 0 ? [{ name: 'b', series: ramp(b, 1) }] : []),
    ]);
    a += size;
    if (batch % 3 === 0) b++;
  }
  // A batch that another worker has stored is not stored again.
  expect(await job.repeat()).toBeNull();
  const check = async () => {
    const metrics = await readMetrics(services.pool, job.id);
    expect(
      metrics.map(({ name, points, min, max, last }) => [name, points, min, max, last]),
    ).toEqual([
      ['a', a, 0, a - 1, a - 1],
      ['b', b, 0, b - 1, b - 1],
    ]);
    const { metricsUrl } = await read(ada, 'ada', 'compacted');
    const csv = (await app.anonymous.get(metricsUrl)).text.trimEnd().split('\n').slice(1);
    const steps = (name: string) =>
      csv.filter((line) => line.startsWith(`${name},`)).map((line) => Number(line.split(',')[2]));
    expect(steps('a')).toEqual(ramp(0, a).steps);
    expect(steps('b')).toEqual(ramp(0, b).steps);
    for (const metric of metrics) {
      const [found] = await readSeries(services, metric, { maxPoints: 1_000 });
      expect(found?.series.values[0]).toBe(0);
      expect(found?.series.values.at(-1)).toBe(metric.points - 1);
      const near = { maxPoints: 100, fromStep: metric.points - 10, toStep: metric.points };
      const [end] = await readSeries(services, metric, near);
      expect(end?.series).toEqual(ramp(metric.points - 10, 10));
    }
    return metrics;
  };
  expect(a).toBeGreaterThan(150_000);
  expect((await check()).some(({ open }) => open.length > 0)).toBe(true);
  await compactMetrics(services, job.id);
  expect((await check()).every(({ open }) => open.length === 0)).toBe(true);
  const chunks = await services.db.metricChunk.groupBy({
    by: ['name'],
    where: { jobId: job.id },
    _count: true,
    orderBy: { name: 'asc' },
  });
  expect(chunks.map(({ _count }) => _count)[0]).toBeLessThan(a / 4_096 + 8);
  expect(chunks.map(({ _count }) => _count)[1]).toBeLessThan(8);
  for (const bad of [
    { maxPoints: 9 },
    { maxPoints: 10_001 },
    { maxPoints: 10, fromStep: -1 },
    { maxPoints: 10, fromStep: 2, toStep: 1 },
  ]) {
    const [metric] = await readMetrics(services.pool, job.id);
    await expect(readSeries(services, metric as never, bad)).rejects.toThrow(/must/);
  }
  runner.release();
});

test('a subscription tells the number of points until the job has ended', async () => {
  const printing = 'echo ::metric::a=1; hold; echo ::metric::a=2 b=2; exit 0';
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'live', command: printing });
  await until(ada, 'ada', 'live', 'RUNNING');
  const metricsOf = async () => (await read(ada, 'ada', 'live')).metrics;
  await eventually(async () => expect(await metricsOf()).toHaveLength(1));
  const subscription = viaYoga(
    ada,
    'subscription { jobMetrics(namespace: "ada", name: "live") { points } }',
  );
  const found: number[] = [];
  for await (const { data } of subscription) {
    found.push(data.jobMetrics.points);
    if (found.length === 1) runner.release();
  }
  expect(found[0]).toBe(1);
  expect(found.at(-1)).toBe(3);
});

const CHECKS = `query ($name: String!) { job(namespace: "ada", name: $name) { exitCode progress checks {
  metric min max regressPercent better baselineJob passed value message baseline { job } } } }`;

async function checkedJob(name: string, command: string, checks: object[], more: object = {}) {
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, checks, ...more });
  return eventually(async () => {
    const { job } = await ada.gql(CHECKS, { name });
    expect(job.exitCode).not.toBeNull();
    return job;
  });
}

test('a job whose command succeeds fails if a check does not pass', async () => {
  const checks = [
    { metric: 'accuracy', min: 0.9 },
    { metric: 'loss', max: 0.5 },
  ];
  const low = 'echo ::metric::accuracy=0.95 loss=0.4; echo ::metric::accuracy=0.87; exit 0';
  const failed = await checkedJob('check-low', low, checks, { retries: 2 });
  const message = 'accuracy is 0.87, and at least 0.9 is required';
  expect(failed).toMatchObject({ exitCode: 125, progress: `failed: ${message}` });
  expect(failed.checks).toMatchObject([
    { metric: 'accuracy', min: 0.9, max: null, passed: false, value: 0.87, message },
    { passed: true, value: 0.4, message: 'loss is 0.4: at most 0.5', baseline: null },
  ]);
  expect((await lines(ada, 'ada', 'check-low')).at(-1)).toBe(`A check has failed: ${message}`);
  expect(await until(ada, 'ada', 'check-low', 'FAILED')).toMatchObject({
    retryCount: 0,
    attempts: { nodes: [{ exitCode: 0 }] },
  });

  const fine = 'echo ::metric::accuracy=0.9 loss=-inf; exit 0';
  const passed = await checkedJob('check-fine', fine, checks);
  expect([passed.exitCode, passed.checks.map((one: { passed: boolean }) => one.passed)]).toEqual([
    0,
    [true, true],
  ]);
  const broken = await checkedJob('check-broken', 'echo ::metric::accuracy=1; exit 3', checks);
  expect([broken.exitCode, broken.checks[0]]).toMatchObject([3, { passed: null, message: null }]);

  const { rerunJob } = await ada.gql(
    'mutation { rerunJob(input: { namespace: "ada", name: "check-low" }) { job { name checks { metric min max } } } }',
  );
  expect(rerunJob.job.checks).toEqual([
    { metric: 'accuracy', min: 0.9, max: null },
    { metric: 'loss', min: null, max: 0.5 },
  ]);
  await until(ada, 'ada', rerunJob.job.name, 'FAILED');
});

test('a metric that the successful attempt has not printed fails its check, and so does NaN', async () => {
  const nothing = await checkedJob('check-nothing', 'exit 0', [{ metric: 'f1', min: 0 }]);
  expect(nothing.checks).toMatchObject([
    { passed: false, value: null, message: 'f1 was not printed, and at least 0 is required' },
  ]);
  const nan = await checkedJob('check-nan', 'echo ::metric::f1=nan; exit 0', [
    { metric: 'f1', max: 1e308 },
  ]);
  expect(nan.checks).toMatchObject([
    { passed: false, value: 'NaN', message: 'f1 is not a number, and at most 1e+308 is required' },
  ]);
  const first = { min: null, max: null, regress: null, metric: 'f1' };
  const regress = { percent: 2, better: 'higher', job: 'train' } as const;
  expect(decideCheck({ ...first, regress }, undefined, null)).toMatchObject({
    passed: false,
    message: 'f1 was not printed, and a number is required',
  });
});

test('a value may be so many percent worse than the baseline', () => {
  const decide = (percent: number, better: 'higher' | 'lower', base: number, value: number) =>
    decideCheck(
      { metric: 'm', min: null, max: null, regress: { percent, better, job: 'train' } },
      value,
      { job: 'train-1', commitSha: 'abcdef0123456789', value: base },
    );
  expect(decide(2, 'higher', 0.9, 0.85)).toMatchObject({
    passed: false,
    message: 'm is 0.85, and at least 0.882 (2% below the 0.9 of train-1, abcdef0123) is required',
  });
  expect(decide(2, 'lower', 0.5, 0.6).message).toBe(
    'm is 0.6, and at most 0.51 (2% above the 0.5 of train-1, abcdef0123) is required',
  );
  expect(decide(0, 'higher', 0.9, 0.9).message).toBe(
    'm is 0.9: at least 0.9 (the 0.9 of train-1, abcdef0123)',
  );
  for (const [percent, better, base, value, passed] of [
    [2, 'higher', 0.9, 0.882, true],
    [2, 'lower', 0.5, 0.51, true],
    [2, 'lower', 0.5, 0.511, false],
    // 0.5346000000000001 and 0.21209999999999998 with rounding errors.
    [1, 'higher', 0.54, 0.5346, true],
    [1, 'lower', 0.21, 0.2121, true],
    [0, 'higher', 0.1234567890128, 0.1234567890128, true],
    // Below zero, a worse value is farther from the baseline, too.
    [10, 'higher', -10, -11, true],
    [10, 'higher', -10, -11.1, false],
    [10, 'lower', -10, -9, true],
    [0, 'higher', 0, -0.001, false],
    [1000, 'lower', 1.7e308, 1.7e308, true],
    [2, 'higher', 0.9, Infinity, true],
    [2, 'higher', 0.9, -Infinity, false],
    [2, 'higher', 0.9, Number.NaN, false],
  ] as const)
    expect([percent, better, base, value, decide(percent, better, base, value).passed]).toEqual([
      percent,
      better,
      base,
      value,
      passed,
    ]);
});

test('the baseline is what the successful attempt of the last success has printed', async () => {
  /** Makes a job that has succeeded one of a run of the default branch. */
  const insertRun = (number: number, name: string, sha: string, rerunOf: number | null = null) =>
    app.pool.query(
      `with run as (
        insert into runs (id, repository_id, number, trigger, status, ref, sha, title, job_names, actor, rerun_of_id)
        select 'run_' || $1, id, $1::int, 'push', 'succeeded', 'refs/heads/' || default_branch, $3, 't', '{train}', 'ada',
          'run_' || $4
        from repositories where name = 'code' and namespace_id = (select id from namespaces where name = 'ada') returning id)
      update jobs set run_id = run.id, run_job = 'train' from run where name = $2`,
      [`${number}`, name, sha, rerunOf && `${rerunOf}`],
    );
  await run('early', ['::metric::m=1']);
  await run('late', ['::metric::m=10']);
  await run('again', ['::metric::m=1']);
  await insertRun(1, 'early', 'aaaa');
  await insertRun(2, 'late', 'bbbb');
  await insertRun(3, 'again', 'aaaa', 1);
  const regress = [{ metric: 'm', regressPercent: 5, baselineJob: 'train' }];
  const worse = await checkedJob('against-1', 'echo ::metric::m=1; exit 0', regress);
  expect(worse).toMatchObject({ exitCode: 125, checks: [{ baseline: { job: 'late' } }] });
  // As if a failed attempt had printed the metric.
  await app.pool.query(`update job_attempts set number = 2
    where job_id = (select id from jobs where name = 'late')`);
  const other = await checkedJob('against-2', 'echo ::metric::m=1; exit 0', regress);
  expect(other).toMatchObject({ exitCode: 0, checks: [{ baseline: { job: 'again' } }] });
});

test('checks with mistakes are refused', async () => {
  const refusal = async (checks: object[], more: object = { repo: 'ada/code' }) => {
    const input = { namespace: 'ada', name: 'refused', command: 'true', checks, ...more };
    const { errors } = await submitRaw(ada, input);
    return errors?.[0]?.message ?? 'accepted';
  };
  for (const [checks, message] of [
    [[{ metric: 'm' }], /^checks: \[0\] must have a minimum/],
    [
      [
        { metric: 'm', min: 1 },
        { metric: 'm', min: 2, max: 1 },
      ],
      /^checks: \[1\]\.min must not be/,
    ],
    [[{ metric: '<b>m</b>', min: 1 }], /^checks: \[0\]\.metric must be 1 to 100 letters/],
    [[{ metric: 'step', min: 1 }], /^checks: \[0\]\.metric/],
    [[{ metric: 'm', min: 1, better: 'LOWER' }], /^checks: \[0\]\.better can only/],
    [[{ metric: 'm', regressPercent: -5, baselineJob: 'a' }], /must be from 0 to 1000/],
    [[{ metric: 'm', regressPercent: 5 }], /^checks: \[0\]\.baselineJob must be/],
    [[{ metric: 'm', regressPercent: 5, baselineJob: '../a' }], /baselineJob must be/],
    [Array(10_000).fill({ metric: 'm', min: 1 }), /^checks: must not have more than 20 entries/],
  ] as const)
    expect(await refusal([...checks])).toMatch(message);
  const regress = { metric: 'm', regressPercent: 5, baselineJob: 'a' };
  expect(await refusal([regress], { image: 'debian:12' })).toMatch(/can only be given with repo/);
  const { errors } = await ada.graphql(
    'mutation { createJob(input: { namespace: "ada", name: "n", command: "true", gpu: NONE, repo: "ada/code", checks: [{ metric: "m", min: 1e999 }] }) { job { id } } }',
  );
  expect(errors?.[0]?.message).toBe('checks: [0].min must be a number');
});
