/**
 * Kills of the server and of its worker while jobs print metrics: each point is stored once and in order.
 *
 * `LOAM_TEST_JOBS=50 LOAM_TEST_KILLS=10 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/metric-kills.test.ts`
 */
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { Client } from '../../support/harness.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { killAtRandom } from '../../support/kills/killer.ts';
import { startServers } from '../../support/many-servers.ts';
import { needs } from '../../support/needs.ts';
import { lines, submit, until } from '../../support/submit.ts';

const POINTS = 9_000;
const KILLS = 3;
const JOBS = Number(process.env.LOAM_TEST_JOBS ?? 6);
const RANDOM_KILLS = Number(process.env.LOAM_TEST_KILLS ?? 4);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
const NAMES = Array.from({ length: 20 }, (_, at) => `m${at + 10}`);
/** Steps of each job, ten a second. Each has a point of every metric, and a line of the log. */
const STEPS = 200;

test('each point of a metric is stored once', { timeout: 300_000 }, async (ctx) => {
  needs(ctx, 'bubblewrap');
  const server = await startKillableServer(ctx);
  const { admin } = server;
  await admin.post('/auth/v1/repository/admin', { name: 'code' });
  // Slow enough for all kills, and below the limit on points a second. Other lines are stored with the points.
  const step = 'echo "::metric::a=$i b=$((2*i))"; [ $((i % 100)) = 0 ] && sleep 0.2 && echo $i';
  const command = `i=0; while [ $i -lt ${POINTS} ]; do ${step}; i=$((i+1)); done; exit 0`;
  await submit(admin, { namespace: 'admin', name: 'printing', repo: 'admin/code', command });
  const points = async () => {
    const { rows } = await server.pool.query('select metric_points from jobs');
    return Number(rows[0].metric_points);
  };
  for (let kill = 1; kill <= KILLS; kill++) {
    const reached = (2 * POINTS * kill) / (KILLS + 2);
    await eventually(async () => expect(await points()).toBeGreaterThan(reached), 60_000);
    await server.kill();
    await server.start();
  }
  await until(admin, 'admin', 'printing', 'SUCCEEDED');
  const all = Array.from({ length: POINTS }, (_, at) => at);
  expect(await readPoints(admin, 'printing')).toEqual([
    ...all.map((at) => `a 1 ${at} ${at}`),
    ...all.map((at) => `b 1 ${at} ${2 * at}`),
  ]);
});

test(`${JOBS} jobs with ${NAMES.length} metrics each, through ${RANDOM_KILLS} kills`, {
  timeout: 300_000 + (JOBS + RANDOM_KILLS) * 20_000,
}, async (ctx) => {
  needs(ctx, 'haproxy', 'ceph', 'bubblewrap');
  console.log(`LOAM_TEST_SEED=${SEED}`);
  // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  const env = { LOAM_JOB_SLOTS: `${JOBS}` };
  const loam = cleanup.use(await startServers({ serve: 1, work: 1, env }));
  const { admin, pool } = loam;
  await admin.post('/auth/v1/repository/admin', { name: 'code' });
  const values = NAMES.map((name, at) => `${name}=$((i * ${at + 1}))`).join(' ');
  const step = `echo "::metric::${values} step=$i"; echo "line $i"; sleep 0.1`;
  const command = `for i in $(seq ${STEPS}); do ${step}; done`;
  const names = Array.from({ length: JOBS }, (_, at) => `printing-${at}`);
  for (const name of names)
    await submit(admin, { namespace: 'admin', name, repo: 'admin/code', cpu: 2, command });
  const stored = async () =>
    Number((await pool.query('select sum(metric_points) as n from jobs')).rows[0].n);
  // The kills are spread over the points.
  const pace = (kill: number) =>
    eventually(
      async () =>
        expect(await stored()).toBeGreaterThanOrEqual(
          ((kill - 1) * JOBS * STEPS * NAMES.length) / (RANDOM_KILLS + 1),
        ),
      120_000,
    );
  await killAtRandom(loam.servers, { kills: RANDOM_KILLS, seed: SEED, signal: ctx.signal, pace });
  const steps = Array.from({ length: STEPS }, (_, at) => at + 1);
  for (const name of names) {
    await until(admin, 'admin', name, 'SUCCEEDED');
    expect(await lines(admin, 'admin', name)).toEqual(steps.map((step) => `line ${step}`));
    expect(await readPoints(admin, name), name).toEqual(
      NAMES.flatMap((metric, at) => steps.map((step) => `${metric} 1 ${step} ${step * (at + 1)}`)),
    );
  }
});

/** @returns name, attempt, step and value of each point, by name */
async function readPoints(admin: Client, name: string): Promise<string[]> {
  const { job } = await admin.gql(`{ job(namespace: "admin", name: "${name}") { metricsUrl } }`);
  const csv = (await admin.get(new URL(job.metricsUrl).pathname + new URL(job.metricsUrl).search))
    .text;
  return csv
    .trimEnd()
    .split('\n')
    .slice(1)
    .map((line) => {
      const [metric, attempt, at, , value] = line.split(',');
      return `${metric} ${attempt} ${at} ${value}`;
    });
}
