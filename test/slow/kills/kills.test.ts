/**
 * Randomly kills and restarts servers while callers push, clone, read, run jobs and follow logs, and webhook endpoints fail
 * at random. No acknowledged change is lost, none is duplicated, each event is delivered, and nothing is left behind.
 *
 * `LOAM_TEST_KILLS=60 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/kills.test.ts`
 */
import { expect, test } from 'vitest';
import type { EventType } from '../../../src/platform/events/outbox.ts';
import { WEBHOOK_TYPE_OF_EVENT } from '../../../src/webhooks/event-types.ts';
import { eventually } from '../../support/eventually.ts';
import { remote, Workspace } from '../../support/git.ts';
import { startFailingEndpoints } from '../../support/kills/failing-endpoints.ts';
import { killAtRandom } from '../../support/kills/killer.ts';
import {
  findGitErrors,
  findLeftoverFiles,
  findLeftoverProcesses,
  listRepositories,
  listStoredKeys,
} from '../../support/kills/leftovers.ts';
import { type Load, startLoad } from '../../support/kills/load.ts';
import { type Servers, startServers } from '../../support/many-servers.ts';
import { needs } from '../../support/needs.ts';
import { makeAuthority, startReceiver } from '../../support/webhook-receiver.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 8);
/** Determines the victims and the times; the load is not reproducible. */
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
/** Time for the servers to finish their work after the load has ended. */
const SETTLED_MS = 60_000;

test(`nothing is lost, duplicated or left behind after ${KILLS} kills`, {
  timeout: 300_000 + KILLS * 15_000,
}, async (ctx) => {
  needs(ctx, 'haproxy', 'ceph', 'bubblewrap');
  // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const authority = cleanup.use(await makeAuthority());
  const receiver = cleanup.use(await startReceiver(authority));
  const env = {
    // The host's network: jobs report to a witness, independently of all servers.
    LOAM_JOB_NETWORK: 'host',
    LOAM_WEBHOOK_CA: authority.file,
  };
  const loam = cleanup.use(await startServers({ serve: 3, work: 2, env }));
  const told = await startFailingEndpoints(loam, receiver, cleanup);
  const load = await startLoad(loam, cleanup, ctx.signal);
  await killAtRandom(loam.servers, { kills: KILLS, seed: SEED, signal: ctx.signal });
  await load.finish();
  console.log(load.counts);

  expect(load.faults).toEqual([]);
  await checkJobs(loam, load);
  await checkPushes(loam, load);
  await told.check(await checkEvents(loam, load));
  await checkLeftOver(loam, load);
});

/** Every job ran once to its end, and its log follower received every line once. */
async function checkJobs({ pool }: Servers, { jobs, said }: Load): Promise<void> {
  for (const { name, lines, end } of jobs) {
    const expected = lines.map((_, at) => `${name} ${at + 1}`);
    expect([name, lines]).toEqual([name, expected]);
    expect([name, lines.length, end]).toEqual([name, 40, { status: 'succeeded', exit_code: 0 }]);
  }
  expect(said.toSorted()).toEqual(
    jobs.flatMap(({ name }) => [`begin ${name} 1`, `end ${name} 1`]).sort(),
  );
  const { rows } = await pool.query(
    `select name, status, retry_count, (select count(*)::int from job_attempts where job_id = jobs.id) as attempts
     from jobs order by name`,
  );
  expect(rows).toEqual(
    jobs
      .map(({ name }) => ({ name, status: 'succeeded', retry_count: 0, attempts: 1 }))
      .sort((a, b) => (a.name < b.name ? -1 : 1)),
  );
}

/** Every push is on every server, and has one event. */
async function checkPushes(loam: Servers, { pushed, heard }: Load): Promise<void> {
  await using workspace = await Workspace.open();
  for (const server of loam.serving) {
    for (const { repository, ref, shas } of pushed) {
      const url = remote(loam.at(server), `admin/${repository}`);
      const line = await workspace.git('.', 'ls-remote', url, ref);
      expect([repository, ref, line.split('\t')[0]]).toEqual([repository, ref, shas.at(-1) ?? '']);
    }
  }
  const tips = pushed.flatMap(({ shas }) => shas).sort();
  const { rows } = await loam.pool.query<{ after: string }>(
    `select r ->> 'after' as after from events, jsonb_array_elements(data -> 'push' -> 'refs') r
     where type = 'repository.pushed'`,
  );
  expect(rows.map(({ after }) => after).sort(), 'events of pushes').toEqual(tips);
  expect(heard.flatMap(({ after }) => after ?? []).sort(), 'pushes heard of').toEqual(tips);
  expect(await findGitErrors(loam)).toEqual([]);
  expect(await listRepositories(loam)).toHaveLength(new Set(pushed.map((p) => p.repository)).size);
}

/** The feed's subscriber has every event once, in order. @returns the ids of the events that webhooks receive */
async function checkEvents({ pool }: Servers, { heard }: Load): Promise<string[]> {
  const { rows } = await pool.query<{ id: string; type: EventType }>(
    'select id, type from events order by xid, seq',
  );
  expect(heard.map(({ id }) => id)).toEqual(rows.map(({ id }) => id));
  return rows.flatMap(({ id, type }) => (WEBHOOK_TYPE_OF_EVENT[type] ? [id] : []));
}

async function checkLeftOver(loam: Servers, { jobs }: Load): Promise<void> {
  const settled = <T>(check: () => T | Promise<T>) => eventually(check, SETTLED_MS);
  await settled(async () => expect(await findLeftoverFiles(loam)).toEqual([]));
  await settled(() => expect(findLeftoverProcesses(loam)).toEqual([]));
  await settled(async () => {
    const { rows } = await loam.pool.query(
      `select (select count(*)::int from job_attempts where ended_at is null) as attempts,
         (select count(*)::int from workers) as workers,
         (select count(*)::int from idempotent_requests where status is null) as requests`,
    );
    expect(rows).toEqual([{ attempts: 0, workers: loam.working.length, requests: 0 }]);
  });
  const { keys, uploads } = await listStoredKeys(loam);
  expect(keys).toHaveLength(2 * jobs.length);
  expect(uploads).toEqual([]);
}
