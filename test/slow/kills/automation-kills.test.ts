/**
 * Kills servers and the worker at random times while clients push commits with a file of jobs, and a schedule comes due again
 * and again. A push that was cut off is repeated until it is acknowledged. Afterwards each commit has exactly one run, all
 * runs have ended with each job once, commit statuses agree with the jobs, and each time of the schedule started one run.
 *
 * `LOAM_TEST_KILLS=40 LOAM_TEST_PUSHES=300 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/automation-kills.test.ts`
 */
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { remote, Workspace } from '../../support/git.ts';
import { AGAIN_MS, postUntilAnswered } from '../../support/kills/caller.ts';
import { killAtRandom, mulberry32 } from '../../support/kills/killer.ts';
import { type Servers, startServers } from '../../support/many-servers.ts';
import { needs } from '../../support/needs.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 4);
const PUSHES = Number(process.env.LOAM_TEST_PUSHES ?? 16);
/** Determines the victims and the times; the load is not reproducible. */
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
const REPOSITORIES = 2;
/** To each repository: one pushes to `main`, the others to new branches. */
const PUSHERS = 2;
/** A trigger that a killed server had claimed is free again after 15 s, later after 30 s; then its jobs run. */
const SETTLED_MS = 180_000;

type Pushed = { repository: string; sha: string; succeeds: boolean };

/** The minute of the second schedule differs for each push, so the file of the last push can be told from the others. */
const fileOf = (n: number, succeeds: boolean) => `jobs:
  first: { on: { push: true }, command: "exit ${succeeds ? 0 : 3}" }
  second: { needs: [first], command: "true" }
  yearly: { on: { schedule: [{ cron: "${YEARLY}" }] }, command: "true" }
  daily: { on: { schedule: [{ cron: "${cronOf(n)}" }] }, command: "true" }
`;
const cronOf = (n: number) => `${n % 60} ${Math.floor(n / 60) % 24} 29 2 *`;

test(`each push has one run, and each time of a schedule, through ${KILLS} kills`, {
  timeout: 300_000 + KILLS * 20_000,
}, async (ctx) => {
  needs(ctx, 'haproxy', 'ceph', 'bubblewrap');
  // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const env = { LOAM_JOB_NETWORK: 'host' };
  const loam = cleanup.use(await startServers({ serve: 2, work: 1, env }));
  const load = await startPushes(loam, cleanup, ctx.signal);
  const schedule = await startSchedule(loam, load.repositories[0] ?? '', ctx.signal);
  const kills: Record<string, number> = {};
  const victims = loam.servers.map(({ name, kill, start }) => ({
    name,
    kill: async () => {
      await kill();
      kills[name] = (kills[name] ?? 0) + 1;
    },
    start,
  }));
  // The kills are spread over the pushes.
  const pace = (kill: number) =>
    eventually(
      () => expect(load.pushed.length).toBeGreaterThanOrEqual(((kill - 1) * PUSHES) / KILLS),
      SETTLED_MS,
    );
  await killAtRandom(victims, { kills: KILLS, seed: SEED, signal: ctx.signal, pace });
  await load.ended;
  const ticks = await schedule.finish();
  await settle(loam);

  const runs = await listRuns(loam);
  const ofPushes = runs.filter(({ trigger }) => trigger === 'push');
  const ofSchedule = runs.filter(({ trigger }) => trigger === 'schedule');
  console.log({
    kills,
    pushes: load.pushed.length,
    'cut off': load.cutOff(),
    'runs of pushes': ofPushes.length,
    ticks,
    'runs of the schedule': ofSchedule.length,
    jobs: runs.flatMap(({ jobs }) => jobs).length,
  });
  expect(ofPushes.map(keyOf).sort()).toEqual(load.pushed.map(keyOf).sort());
  const succeeding = new Set(load.pushed.filter(({ succeeds }) => succeeds).map(keyOf));
  for (const run of ofPushes)
    expect(run).toMatchObject(succeeding.has(keyOf(run)) ? SUCCEEDED : FAILED);
  expect(ofSchedule).toHaveLength(ticks);
  for (const run of ofSchedule)
    expect(run).toMatchObject({ status: 'succeeded', jobs: ['yearly succeeded'] });
  expect(await listUnsuccessfulCommits(loam)).toEqual([]);
  await checkJobs(loam);
  expect(await listCrons(loam)).toEqual(load.crons());
});

const SUCCEEDED = {
  status: 'succeeded',
  jobs: ['first succeeded', 'second succeeded'],
  states: ['first success', 'second success'],
};
/** A job that was not needed has no status. */
const FAILED = {
  status: 'failed',
  jobs: ['first failed', 'second cancelled'],
  states: ['first failure'],
};

const keyOf = ({ repository, sha }: { repository: string; sha: string }) => `${repository} ${sha}`;

/** The schedule that comes due. */
const YEARLY = '0 0 1 1 *';
const WHERE = `repository_id = $1 and cron = '${YEARLY}'`;

/** Pushes `PUSHES` commits; `ended` resolves when all are acknowledged. */
async function startPushes(loam: Servers, cleanup: AsyncDisposableStack, signal: AbortSignal) {
  const { admin } = loam;
  const random = mulberry32(SEED);
  const workspace = cleanup.use(await Workspace.open());
  const pushed: Pushed[] = [];
  /** The schedules of each repository. */
  const crons = new Map<string, string[]>();
  const repositories: string[] = [];
  let [started, cutOff] = [0, 0];

  async function push(repository: string, name: string, pusher: number): Promise<void> {
    const folder = `${name}-${pusher}`;
    const url = remote(admin, `admin/${name}`);
    const n = started++;
    const succeeds = random() < 0.8;
    const sha = await workspace.commit(folder, { '.loam/jobs.yml': fileOf(n, succeeds) });
    const branch = pusher === 0 ? 'main' : `pusher-${pusher}-${n}`;
    for (;;) {
      const { code } = await workspace.try(folder, 'push', '-q', url, `HEAD:refs/heads/${branch}`);
      if (code === 0) break;
      cutOff++;
      await delay(AGAIN_MS, undefined, { signal });
    }
    pushed.push({ repository, sha, succeeds });
    if (pusher === 0) crons.set(repository, [YEARLY, cronOf(n)].sort());
  }

  const first: Promise<void>[] = [];
  const pushers: (() => Promise<void>)[] = [];
  for (let i = 0; i < REPOSITORIES; i++) {
    const name = `repo${i}`;
    const json = { name, auto_init: false };
    const { id } = await postUntilAnswered(admin, '/auth/v1/repository/admin', json);
    repositories.push(id);
    for (let pusher = 0; pusher < PUSHERS; pusher++) {
      await workspace.git('.', 'init', '-q', '-b', 'main', `${name}-${pusher}`);
      pushers.push(async () => {
        while (started < PUSHES && !signal.aborted) await push(id, name, pusher);
      });
    }
    first.push(push(id, name, 0));
  }
  // The default branch and its schedules exist before anything is killed.
  await Promise.all(first);
  const ended = Promise.all(pushers.map((run) => run()));
  // The test handles the error later.
  ended.catch(() => {});
  return {
    repositories,
    pushed,
    ended,
    cutOff: () => cutOff,
    crons: () => Object.fromEntries(crons),
  };
}

/**
 * Makes the yearly schedule of the repository due again and again, by its next time in the database, because the shortest
 * interval is minutes.
 */
async function startSchedule({ pool }: Servers, repository: string, signal: AbortSignal) {
  const finishing = new AbortController();
  let ticks = 0;
  const working = (async () => {
    do {
      await eventually(async () => {
        const { rowCount } = await pool.query(
          `update schedules set next_at = now() - interval '1 minute' where ${WHERE}`,
          [repository],
        );
        expect(rowCount).toBe(1);
      });
      ticks++;
      await eventually(async () => {
        const { rows } = await pool.query(
          `select from schedules where ${WHERE} and next_at > now()`,
          [repository],
        );
        expect(rows).toHaveLength(1);
      }, SETTLED_MS);
    } while (!finishing.signal.aborted && !signal.aborted);
  })();
  // `finish` handles the error; before that nothing does.
  working.catch(() => {});
  return {
    /** @returns how often the schedule came due */
    async finish() {
      finishing.abort();
      await working;
      return ticks;
    },
  };
}

/** Waits until nothing is left to do. */
async function settle({ pool, servers }: Servers): Promise<void> {
  const settled = eventually(async () => {
    const { rows } = await pool.query(
      `select (select count(*)::int from run_triggers) as triggers,
         (select count(*)::int from job_changes) as changes,
         (select count(*)::int from runs where completed_at is null) as runs,
         (select count(*)::int from jobs where completed_at is null) as jobs`,
    );
    expect(rows).toEqual([{ triggers: 0, changes: 0, runs: 0, jobs: 0 }]);
  }, SETTLED_MS);
  await settled.catch(async (error) => {
    const { rows } = await pool.query('select *, due_at - now() as due from run_triggers');
    console.log(rows);
    for (const { name, said } of servers) console.log(`${name}: ${said().slice(-20_000)}`);
    throw error;
  });
}

type RunSeen = {
  repository: string;
  sha: string;
  trigger: string;
  status: string;
  /** Name in the file and status of each job. */
  jobs: string[];
  /** Context and state of each commit status. */
  states: string[];
};

async function listRuns({ pool }: Servers): Promise<RunSeen[]> {
  const { rows } = await pool.query<RunSeen>(
    `select repository_id as repository, sha, trigger, status,
       array(select run_job || ' ' || status from jobs where run_id = r.id order by 1) as jobs,
       array(select context || ' ' || state from commit_statuses where run_id = r.id order by 1) as states
     from runs r order by id`,
  );
  return rows;
}

/** Commits whose status of the scheduled job is not that of a run that succeeded. */
async function listUnsuccessfulCommits({ pool }: Servers): Promise<object[]> {
  const { rows } = await pool.query(
    `select distinct r.sha, s.state from runs r
       left join commit_statuses s on (s.repository_id, s.sha, s.context) = (r.repository_id, r.sha, 'yearly')
     where r.trigger = 'schedule' and s.state is distinct from 'success'`,
  );
  return rows;
}

/** No job of a run ran twice, and there are no other jobs. */
async function checkJobs({ pool }: Servers): Promise<void> {
  const { rows } = await pool.query(
    `select name, status, run_id, (select count(*)::int from job_attempts where job_id = jobs.id) as attempts
     from jobs
     where run_id is null or (select count(*) from job_attempts where job_id = jobs.id) <>
       case status when 'cancelled' then 0 else 1 end`,
  );
  expect(rows).toEqual([]);
}

async function listCrons({ pool }: Servers): Promise<Record<string, string[]>> {
  const { rows } = await pool.query<{ id: string; crons: string[] }>(
    `select repository_id as id, array_agg(cron order by cron collate "C") as crons from schedules group by 1`,
  );
  return Object.fromEntries(rows.map(({ id, crons }) => [id, crons]));
}
