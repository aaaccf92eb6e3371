/**
 * Kills the server at random times while clients push commits with a file of jobs. Afterwards each acknowledged push has exactly
 * one run with its jobs, and no other push has more than one.
 *
 * `LOAM_TEST_KILLS=40 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/automation-kills.test.ts`
 */
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { remote, Workspace } from '../../support/git.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { mulberry32 } from '../../support/kills/killer.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 3);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
const PUSHERS = 3;
const MAX_MS = 2_500;

const FILE = `jobs:
  first: { on: { push: true }, command: "true" }
  second: { needs: [first], matrix: { n: [1, 2] }, command: "true" }
`;

test(`each push has one run through ${KILLS} kills`, {
  timeout: 300_000 + KILLS * 60_000,
}, async (ctx) => {
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const random = mulberry32(SEED);
  const server = await startKillableServer(ctx);
  const { admin, pool, cleanup } = server;
  const workspace = cleanup.use(await Workspace.open());
  const names = Array.from({ length: PUSHERS }, (_, i) => `repo${i}`);
  const ids = new Map<string, string>();
  for (const name of names) {
    const { body } = await admin.post('/auth/v1/repository/admin', { name, auto_init: false });
    ids.set(name, body.id);
    await workspace.git('.', 'init', '-q', '-b', 'main', name);
  }
  /** Acknowledged and other pushes: repository and commit. */
  const acknowledged: string[] = [];
  const all: string[] = [];
  let pushes = 0;

  async function pushUntil(name: string, signal: AbortSignal): Promise<void> {
    const url = remote(admin, `admin/${name}`);
    while (!signal.aborted) {
      const n = pushes++;
      const sha = await workspace.commit(name, { '.loam/jobs.yml': `${FILE}# ${n}\n` });
      const push = `${ids.get(name)} ${sha}`;
      all.push(push);
      const { code } = await workspace.try(name, 'push', '-q', url, `HEAD:refs/heads/b${n}`);
      if (code === 0) acknowledged.push(push);
    }
  }

  for (let kill = 1; kill <= KILLS; kill++) {
    const stopping = new AbortController();
    const pushing = Promise.all(names.map((name) => pushUntil(name, stopping.signal)));
    // On a busy machine, the first push of a round takes long.
    const before = acknowledged.length;
    await eventually(() => expect(acknowledged.length).toBeGreaterThan(before));
    await delay(random() * MAX_MS, undefined, { signal: ctx.signal });
    const killed = server.kill();
    stopping.abort();
    await Promise.all([killed, pushing]);
    await server.start();
  }

  // A trigger that the killed server had claimed is free again after some seconds.
  await eventually(async () => {
    const { rows } = await pool.query('select id from run_triggers');
    expect(rows).toEqual([]);
  }, 120_000);
  const { rows } = await pool.query<{ push: string; status: string; jobs: number }>(
    `select repository_id || ' ' || sha as push, status,
       (select count(*)::int from jobs where run_id = runs.id) as jobs
     from runs order by id`,
  );
  const counts = Map.groupBy(rows, ({ push }) => push);
  expect([...counts.values()].filter((runs) => runs.length > 1)).toEqual([]);
  expect(acknowledged.filter((push) => !counts.has(push))).toEqual([]);
  expect([...counts.keys()].filter((push) => !all.includes(push))).toEqual([]);
  expect(rows.filter(({ jobs }) => jobs !== 3)).toEqual([]);
  expect(acknowledged.length).toBeGreaterThan(0);
  console.log({ pushes: all.length, acknowledged: acknowledged.length, runs: rows.length });
});
