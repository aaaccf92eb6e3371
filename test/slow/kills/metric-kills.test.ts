/** Kills of the server while a job prints metrics: each point is stored once and in order. */
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { needs } from '../../support/needs.ts';

const POINTS = 9_000;
const KILLS = 3;

test('each point of a metric is stored once', { timeout: 300_000 }, async (ctx) => {
  needs(ctx, 'bubblewrap');
  const server = await startKillableServer(ctx);
  const { admin } = server;
  await admin.post('/auth/v1/repository/admin', { name: 'code' });
  // Slow enough for all kills, and below the limit on points a second. Other lines are stored with the points.
  const step = 'echo "::metric::a=$i b=$((2*i))"; [ $((i % 100)) = 0 ] && sleep 0.2 && echo $i';
  const command = `i=0; while [ $i -lt ${POINTS} ]; do ${step}; i=$((i+1)); done; exit 0`;
  await admin.gql(
    'mutation ($input: CreateJobInput!) { createJob(input: $input) { job { id } } }',
    {
      input: { namespace: 'admin', name: 'printing', repo: 'admin/code', gpu: 'NONE', command },
    },
  );
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
  const read = async () =>
    (
      await admin.gql(
        '{ job(namespace: "admin", name: "printing") { status metricsUrl metrics { name points } } }',
      )
    ).job;
  await eventually(async () => expect((await read()).status).toBe('SUCCEEDED'), 120_000);
  const { metrics, metricsUrl } = await read();
  expect(metrics).toEqual([
    { name: 'a', points: POINTS },
    { name: 'b', points: POINTS },
  ]);
  const csv = (await admin.get(metricsUrl)).text.trimEnd().split('\n').slice(1);
  const found = csv.map((line) => {
    const [name, attempt, at, , value] = line.split(',');
    return `${name} ${attempt} ${at} ${value}`;
  });
  const all = Array.from({ length: POINTS }, (_, at) => at);
  expect(found).toEqual([
    ...all.map((at) => `a 1 ${at} ${at}`),
    ...all.map((at) => `b 1 ${at} ${2 * at}`),
  ]);
});
