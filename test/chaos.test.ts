/**
 * `npm run chaos`: servers, workers, PostgreSQL and the container engine are killed at random while jobs of several kinds
 * run as processes and in containers. Prints what was lost, what happened twice, and what was left behind.
 *
 * `LOAM_TEST_CHAOS=200 LOAM_TEST_SEED=7 npx vitest run test/chaos.test.ts`
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { jobOf, KINDS, type Kind, linesOf, tellingsOf } from './chaos/jobs.ts';
import { BUSYBOX } from './docker.ts';
import { eventually } from './harness.ts';
import { AGAIN_MS, type JobSeen, openCaller, startWitness } from './kills/caller.ts';
import { killAtRandom, type Victim } from './kills/killer.ts';
import { filesLeft, processesLeft } from './kills/left-over.ts';
import { type OneServer, type Servers, startServers } from './many-servers.ts';
import { needs } from './needs.ts';
import { type OwnEngine, startOwnEngine } from './own-engine.ts';

const KILLS = Number(process.env.LOAM_TEST_CHAOS ?? 20);
/** Of the victims and the times; the load goes by chance. */
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
/** Callers of each kind of runner; each has one job at a time. */
const CALLERS = 3;
/** For what servers finish on their own when the load has ended. */
const SETTLED_MS = 30_000;

type Ran = JobSeen & { kind: Kind };

test(`nothing is lost, doubled or orphaned after ${KILLS} kills of all that jobs depend on`, {
  timeout: 180_000 + KILLS * 15_000,
}, async (ctx) => {
  needs(ctx, 'haproxy', 'ceph', 'bubblewrap', 'docker', 'root');
  // Not `await using`: when its time is up a test is abandoned in the middle, with all that it holds.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const engine = cleanup.use(await startOwnEngine({ liveRestore: true, sharesNetwork: true }));
  const env = {
    LOAM_RUNNER: 'auto',
    DOCKER_HOST: engine.config.host,
    // Jobs tell a witness of themselves that no server knows.
    LOAM_JOB_NETWORK: 'host',
  };
  const loam = cleanup.use(await startServers({ serve: 2, work: 2, env }));
  const witness = await startWitness(cleanup);
  const load = await startJobs(loam, witness.port, witness.said, ctx.signal);
  await killAtRandom([...loam.servers.map(restarted), ...dependencies(loam, engine)], {
    ...{ kills: KILLS, seed: SEED, signal: ctx.signal },
  });
  await load.finish();
  console.log(load.counts, `${load.ran.length} jobs`);

  expect(load.faults).toEqual([]);
  expect(diedIn(loam)).toEqual([]);
  const { lost, doubled } = await compare(loam, load.ran, witness.said);
  let orphans: string[] = [];
  await eventually(async () => {
    orphans = await orphansOf(loam, engine);
    if (orphans.length > 0) throw new Error(orphans.join('\n'));
  }, SETTLED_MS).catch(() => {});
  console.log(`${lost.length} lost, ${doubled.length} doubled, ${orphans.length} orphans`);
  if (lost.length + doubled.length + orphans.length > 0)
    for (const { name, said } of loam.servers) console.log(`${name}: ${said().slice(-20_000)}`);
  expect({ lost, doubled, orphans }).toEqual({ lost: [], doubled: [], orphans: [] });
});

/** As whoever keeps services running does it: a start while the database is away fails, and is repeated. */
function restarted({ name, kill, start }: OneServer): Victim {
  return { name, kill, start: () => eventually(start, 60_000) };
}

/** Servers that ended although nobody killed them, with what they said last. */
function diedIn({ servers }: Servers): string[] {
  return servers
    .filter((server) => server.hasDied())
    .map(({ name, said }) => `${name}: ${said().slice(-4_000)}`);
}

/** What servers stand on. The database comes back by itself; the start waits until it answers. */
function dependencies(loam: Servers, engine: OwnEngine): Victim[] {
  const database = {
    name: 'PostgreSQL',
    kill: () => loam.killDatabase(),
    start: () => eventually(async () => void (await loam.pool.query('select 1')), 60_000),
  };
  return [database, { name: 'dockerd', kill: () => engine.kill('SIGKILL'), start: engine.start }];
}

/** Callers that submit one job after the other and follow each to its end. */
async function startJobs(
  loam: Servers,
  port: number,
  said: readonly string[],
  signal: AbortSignal,
) {
  const { faults, counts, ask, submit, followToItsEnd } = openCaller(loam, signal);
  const { status, text } = await loam.admin.post('/auth/v1/repository/admin', { name: 'code' });
  if (status !== 201) throw new Error(`${status} ${text}`);
  const finishing = new AbortController();
  const ran: Ran[] = [];

  async function run(caller: number, image: string | null): Promise<void> {
    for (let i = caller; !finishing.signal.aborted && !signal.aborted; i++) {
      const kind = KINDS[i % KINDS.length] as Kind;
      const name = `${kind.name}-${image ? 'image' : 'process'}-${caller}-${i}`;
      await submit(jobOf(kind, name, image, port));
      const seen: Ran = { name, kind, lines: [] };
      ran.push(seen);
      const cancelling = kind.cancelled ? cancel(name) : undefined;
      await Promise.all([followToItsEnd(seen), cancelling]);
    }
  }

  /** When it has told of its beginning. */
  async function cancel(name: string): Promise<void> {
    while (!said.includes(`begin ${name} 1`) && !signal.aborted) await delay(AGAIN_MS);
    for (let tries = 0; !signal.aborted; tries++) {
      const answer = await ask('POST', `/auth/v1/seed/admin/jobs/${name}/cancel`);
      if (answer?.status === 200 || (tries > 0 && answer?.status === 409)) return;
      if (answer) faults.push(`cancelling ${name} was answered ${answer.status} ${answer.text}`);
      await delay(AGAIN_MS);
    }
  }

  const working = Promise.all(
    Array.from({ length: CALLERS }, (_, at) => [run(at, null), run(at, BUSYBOX)]).flat(),
  );
  // Heard by `finish`, and before that by nobody.
  working.catch(() => {});
  return {
    ...{ ran, faults, counts },
    /** Begins nothing more, and waits for the end of all that was begun. */
    async finish() {
      finishing.abort();
      await working;
    },
  };
}

/** Of each job what is missing of its lines, its end and its tellings, and what is there more than once. */
async function compare(
  { pool }: Servers,
  ran: readonly Ran[],
  said: readonly string[],
): Promise<{ lost: string[]; doubled: string[] }> {
  const { rows } = await pool.query<{ name: string; status: string; attempts: number }>(
    `select name, status, (select count(*)::int from job_attempts where job_id = jobs.id) as attempts,
       artifact_files as files from jobs`,
  );
  const stored = new Map(rows.map((row) => [row.name, row]));
  const lost: string[] = [];
  const doubled: string[] = [];
  const match = (what: string, seen: readonly string[], expected: readonly string[]) => {
    const found = new Set(seen);
    const missing = expected.filter((one) => !found.has(one));
    if (missing.length > 0) lost.push(`${what}: ${missing.length}, as ${missing[0]}`);
    if (seen.length > found.size) doubled.push(`${what}: ${seen.length - found.size}`);
    const known = new Set(expected);
    const other = seen.filter((one) => !known.has(one));
    if (other.length > 0) doubled.push(`${what}: not its own: ${other[0]}`);
  };
  for (const { name, kind, lines, end } of ran) {
    match(`lines of ${name}`, lines, linesOf(kind, name));
    const told = said.filter((line) => line.split(' ')[1] === name);
    match(`tellings of ${name}`, told, tellingsOf(kind, name));
    const row = stored.get(name);
    if (JSON.stringify(end) !== JSON.stringify(kind.end) || row?.status !== kind.end.status)
      lost.push(`the end of ${name}: ${JSON.stringify(end)}, ${row?.status}`);
    if ((row?.attempts ?? 0) > kind.attempts) doubled.push(`attempts of ${name}: ${row?.attempts}`);
  }
  if (rows.length !== ran.length) lost.push(`${rows.length} of ${ran.length} jobs are stored`);
  return { lost, doubled };
}

/** Containers, networks, folders and processes of attempts that are over. */
async function orphansOf(loam: Servers, { docker }: OwnEngine): Promise<string[]> {
  const containers = await docker('ps', '--all', '--format', 'container {{.Names}}');
  const networks = await docker(
    'network',
    'ls',
    '--filter',
    'type=custom',
    '--format',
    'network {{.Name}}',
  );
  const folders: string[] = [];
  for (const { dataDir } of loam.working)
    for (const name of await readdir(join(dataDir, 'containers')).catch(() => []))
      if (name.startsWith('att_')) folders.push(`folder ${name}`);
  return [
    ...`${containers}\n${networks}`.split('\n').filter((line) => line !== ''),
    ...folders,
    ...(await filesLeft(loam)),
    ...processesLeft(loam),
  ];
}
