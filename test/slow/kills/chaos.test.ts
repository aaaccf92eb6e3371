/**
 * `npm run chaos`: randomly kills servers, workers, PostgreSQL, the container engine, shims of containers and shims of
 * processes, while jobs run as processes and in containers, with and without repositories, volumes and firewall rules.
 * Prints what was lost, duplicated or left behind.
 *
 * `LOAM_TEST_CHAOS=200 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/chaos.test.ts`
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { listDescendants } from '../../../src/runners/supervisor/proc.ts';
import { compareWithExpected, type Ran } from '../../support/chaos/compare.ts';
import {
  CONTAINERS,
  FILE,
  jobInput,
  KINDS,
  type Kind,
  makeImageWithVolume,
  type Place,
  PROCESS,
  REPOSITORY,
} from '../../support/chaos/jobs.ts';
import {
  ENGINE,
  type KilledAttempts,
  partVictim,
  wholeWorkerVictim,
} from '../../support/chaos/victims.ts';
import { startFarWitness } from '../../support/chaos/witness.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { AGAIN_MS, openCaller, type Witness } from '../../support/kills/caller.ts';
import { killAtRandom, type Victim } from '../../support/kills/killer.ts';
import { findLeftoverFiles, findLeftoverProcesses } from '../../support/kills/leftovers.ts';
import { type OneServer, type Servers, startServers } from '../../support/many-servers.ts';
import { needs } from '../../support/needs.ts';
import { type OwnEngine, startOwnEngine } from '../../support/own-engine.ts';
import { listProcessesNaming } from '../../support/processes.ts';

const KILLS = Number(process.env.LOAM_TEST_CHAOS ?? 10);
/** Determines the victims and the times; the load is not reproducible. */
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
/** Callers for each kind of runner; each has one job at a time. */
const CALLERS = 3;
/** Time for the servers to finish their work after the load has ended. */
const SETTLED_MS = 60_000;

test(`nothing is lost, doubled or orphaned after ${KILLS} kills of all that jobs depend on`, {
  timeout: 300_000 + KILLS * 15_000,
}, async (ctx) => {
  needs(ctx, 'haproxy', 'ceph', 'bubblewrap', 'slirp4netns', 'docker', 'root');
  // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const engine = cleanup.use(await startOwnEngine({ liveRestore: true, sharesNetwork: true }));
  await makeImageWithVolume(engine);
  const env = { LOAM_RUNNER: 'auto', DOCKER_HOST: engine.config.host };
  // The other worker has the default network: the internet, with firewall rules.
  const envOf = { 'work-1': { LOAM_JOB_NETWORK: 'host' } };
  const loam = cleanup.use(await startServers({ serve: 2, work: 2, env, envOf }));
  // Jobs report to a witness, independently of all servers.
  const witness = await startFarWitness(engine, cleanup);
  const load = await startJobs(loam, witness, ctx.signal);
  const hit: KilledAttempts = { containerShim: [], processShim: [] };
  const kills: Record<string, number> = {};
  const victims = [
    ...loam.servers.map(restartedBySupervisor),
    ...dependencies(loam, engine),
    ...loam.working.flatMap((one) => [
      ...[partVictim('containerShim', one, hit), partVictim('processShim', one, hit)],
      wholeWorkerVictim(one, restartedBySupervisor(one).start, hit),
    ]),
  ].map((victim) => counted(victim, kills));
  await killAtRandom(victims, { kills: KILLS, seed: SEED, signal: ctx.signal });
  await load.finish();
  console.log(load.counts, kills);

  expect(load.faults).toEqual([]);
  expect(diedIn(loam)).toEqual([]);
  const { lost, doubled } = await compareWithExpected(loam, {
    ran: load.ran,
    said: witness.said,
    hit,
  });
  let orphans: string[] = [];
  await eventually(async () => {
    orphans = await findOrphans(loam, engine);
    if (orphans.length > 0) throw new Error(orphans.join('\n'));
  }, SETTLED_MS).catch(() => {});
  console.log(
    `${lost.length} lost, ${doubled.length} doubled, ${orphans.length} orphans`,
    `after ${KILLS} kills of ${JSON.stringify(kills)} under ${load.ran.length} jobs`,
  );
  if (lost.length + doubled.length + orphans.length > 0)
    for (const { name, said } of loam.servers) console.log(`${name}: ${said().slice(-20_000)}`);
  expect({ lost, doubled, orphans }).toEqual({ lost: [], doubled: [], orphans: [] });
});

/** Like a service manager: a start without a database fails, and is retried. */
function restartedBySupervisor({ name, kill, start }: OneServer): Victim {
  return { name, kill, start: () => eventually(start, 60_000) };
}

/** Counts kills by the kind of victim: the name without its number. */
function counted(victim: Victim, kills: Record<string, number>): Victim {
  const kind = victim.name.replace(/-\d+$/, '');
  return {
    ...victim,
    async kill() {
      await victim.kill();
      kills[kind] = (kills[kind] ?? 0) + 1;
    },
  };
}

/** Servers that ended although nobody killed them, with their last output. */
function diedIn({ servers }: Servers): string[] {
  return servers
    .filter((server) => server.hasDied())
    .map(({ name, said }) => `${name}: ${said().slice(-4_000)}`);
}

/** The database and the engine. The database restarts by itself; the start waits until it answers. */
function dependencies(loam: Servers, engine: OwnEngine): Victim[] {
  const database = {
    name: 'PostgreSQL',
    kill: () => loam.killDatabase(),
    start: () => eventually(async () => void (await loam.pool.query('select 1')), 60_000),
  };
  return [database, { name: ENGINE, kill: () => engine.kill('SIGKILL'), start: engine.start }];
}

/** Callers that submit one job after the other and follow each to its end. */
async function startJobs(loam: Servers, witness: Witness & { host: string }, signal: AbortSignal) {
  const { said } = witness;
  const { faults, counts, ask, submit, followToItsEnd } = openCaller(loam, signal);
  await makeRepository(loam);
  const finishing = new AbortController();
  const ran: Ran[] = [];

  async function run(caller: number, places: readonly Place[]): Promise<void> {
    for (let i = caller; !finishing.signal.aborted && !signal.aborted; i++) {
      const kind = KINDS[i % KINDS.length] as Kind;
      // Each kind of job runs in each place.
      const place = places[(i + Math.floor(i / KINDS.length)) % places.length] as Place;
      const name = `${kind.name}-${place.name}-${caller}-${i}`;
      await submit(jobInput(kind, name, place, witness));
      const seen: Ran = { name, kind, lines: [] };
      ran.push(seen);
      const cancelling = kind.cancelled ? cancel(name) : undefined;
      await Promise.all([followToItsEnd(seen), cancelling]);
    }
  }

  /** Cancels a job after it has reported its start. */
  async function cancel(name: string): Promise<void> {
    const isBegun = () => said.some((line) => line.startsWith(`begin ${name} `));
    while (!isBegun() && !signal.aborted) await delay(AGAIN_MS);
    for (let tries = 0; !signal.aborted; tries++) {
      const answer = await ask('POST', `/auth/v1/seed/admin/jobs/${name}/cancel`);
      if (answer?.status === 200 || (tries > 0 && answer?.status === 409)) return;
      if (answer) faults.push(`cancelling ${name} was answered ${answer.status} ${answer.text}`);
      await delay(AGAIN_MS);
    }
  }

  const working = Promise.all(
    Array.from({ length: CALLERS }, (_, at) => [run(at, [PROCESS]), run(at, CONTAINERS)]).flat(),
  );
  // `finish` handles the error; before that nothing does.
  working.catch(() => {});
  return {
    ran,
    faults,
    counts,
    /** Starts no more jobs, and waits for the end of all that were started. */
    async finish() {
      finishing.abort();
      await working;
    },
  };
}

async function makeRepository({ admin }: Servers): Promise<void> {
  const [owner, name] = REPOSITORY.split('/');
  const { status, text } = await admin.post(`/auth/v1/repository/${owner}`, { name });
  if (status !== 201) throw new Error(`${status} ${text}`);
  await using workspace = await Workspace.open();
  await workspace.clone(admin, REPOSITORY, 'clone');
  await workspace.commit('clone', FILE);
  await workspace.git('clone', 'push', '-q', 'origin', 'HEAD');
}

/** The network that all jobs share, created once if containers cannot query the nameserver themselves. */
const LASTING = 'network loam';

/** Containers, networks, volumes, folders and processes of ended attempts. */
async function findOrphans(loam: Servers, { docker, config }: OwnEngine): Promise<string[]> {
  const containers = await docker('ps', '--all', '--format', 'container {{.Names}}');
  const networks = await docker(
    'network',
    'ls',
    '--filter',
    'type=custom',
    '--format',
    'network {{.Name}}',
  );
  const volumes = await docker('volume', 'ls', '--format', 'volume {{.Name}}');
  const folders: string[] = [];
  for (const { dataDir } of loam.working)
    for (const runner of ['containers', 'attempts'])
      for (const folder of ['', '.trash'])
        for (const name of await readdir(join(dataDir, runner, folder)).catch(() => []))
          if (folder || name.startsWith('att_'))
            folders.push(`folder ${join(runner, folder, name)}`);
  return [
    ...`${containers}\n${networks}\n${volumes}`
      .split('\n')
      .filter((line) => line !== '' && line !== LASTING),
    ...folders,
    ...(await findLeftoverFiles(loam)),
    ...findLeftoverProcesses(loam),
    ...findForgottenContainers(config.configFolder),
  ];
}

/**
 * Processes of containers that their engine no longer knows, by the supervisor of each. A supervisor without children
 * may remain from an engine that was killed while it removed a container: this is a limitation of the engine.
 */
function findForgottenContainers(folder: string): string[] {
  return listProcessesNaming(`-address ${folder}/`)
    .filter(({ pid }) => listDescendants(pid).length > 0)
    .map(({ line }) => line);
}
