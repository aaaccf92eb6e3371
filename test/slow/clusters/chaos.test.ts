/**
 * `npm run chaos:clusters` and `npm run chaos:machines`: randomly kills Loam, its network to the nodes, and every part of a
 * cluster or of joined machines, while jobs run there. Prints what was lost, doubled or left behind.
 *
 * `LOAM_TEST_CHAOS=60 LOAM_TEST_JOBS=150 LOAM_TEST_SEED=7 npx vitest run test/slow/clusters/chaos.test.ts`
 */
import { readdirSync, readFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { ChaosCluster, Kill } from '../../support/cluster-chaos/cluster.ts';
import { compare } from '../../support/cluster-chaos/compare.ts';
import { openKubernetesChaos } from '../../support/cluster-chaos/kubernetes.ts';
import { startLoad } from '../../support/cluster-chaos/load.ts';
import { openMachinesChaos } from '../../support/cluster-chaos/machines.ts';
import { startChaosServer } from '../../support/cluster-chaos/server.ts';
import { openSlurmChaos } from '../../support/cluster-chaos/slurm.ts';
import { eventually } from '../../support/eventually.ts';
import { startWitness } from '../../support/kills/caller.ts';
import { killAtRandom, type Victim } from '../../support/kills/killer.ts';
import { type Need, needs } from '../../support/needs.ts';

const KILLS = Number(process.env.LOAM_TEST_CHAOS ?? 6);
const JOBS = Number(process.env.LOAM_TEST_JOBS ?? 18);
/** Determines the victims and the times; the load is not reproducible. */
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
/** A lease and its margin may pass before the last attempts are over. */
const SETTLED_MS = 180_000;

type Cluster = { open(): Promise<ChaosCluster>; needed: Need[] };
const CLUSTERS: Record<string, Cluster> = {
  slurm: { open: openSlurmChaos, needed: ['slurm'] },
  kubernetes: { open: openKubernetesChaos, needed: ['kubernetes'] },
  machines: { open: openMachinesChaos, needed: ['netns', 'bubblewrap', 'docker'] },
};

test.for(Object.entries(CLUSTERS))(
  `nothing is lost, doubled or orphaned on %s after ${KILLS} kills`,
  { timeout: 600_000 + KILLS * 20_000 },
  async ([engine, { open, needed }], ctx) => {
    needs(ctx, ...needed);
    // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
    const cleanup = new AsyncDisposableStack();
    ctx.onTestFinished(() => cleanup.disposeAsync());
    console.log(`LOAM_TEST_SEED=${SEED}`);
    const cluster = cleanup.use(await open());
    const { hostAddress: host, env, fieldsOf, say } = cluster;
    const witness = { host, ...(await startWitness(cleanup, host, { answers: true })) };
    const loam = cleanup.use(await startChaosServer({ env, hostAddress: host }));
    await cluster.join?.(loam);
    const { admin, pool } = loam;
    const load = await startLoad({ admin, jobs: JOBS, fieldsOf, say, witness, signal: ctx.signal });
    const kills: Kill[] = [];
    const victims = [...loam.victims, ...cluster.victims].map((victim) => recorded(victim, kills));
    await killAtRandom(victims, {
      kills: KILLS,
      seed: SEED,
      signal: ctx.signal,
      // From the first jobs to the last.
      pace: (kill) => load.untilEnded(((kill - 1) / KILLS) * (JOBS - 5)),
    });
    await load.finish();
    // A cancelled job has ended before its attempt has.
    await eventually(async () => {
      const { rows } = await pool.query('select id from job_attempts where ended_at is null');
      if (rows.length > 0) throw new Error(`${rows.length} attempts have not ended`);
    }, SETTLED_MS).catch((error) => load.faults.push(`${error}`));

    const { lost, doubled, losses } = await compare({
      pool,
      admin,
      ran: load.ran,
      said: witness.said,
      isExplained: (loss) => cluster.isExplained(loss, kills),
      countTears: (attempt) => cluster.countTears?.(attempt) ?? 0,
    });
    let orphans: string[] = [];
    await eventually(async () => {
      orphans = await findOrphans(cluster, loam.dataDir);
      if (orphans.length > 0) throw new Error(orphans.join('\n'));
    }, SETTLED_MS).catch(() => {});
    const counts = Object.groupBy(kills, ({ name }) => name.replace(/^n\d+x\d|^node-\d/, 'node'));
    console.log(
      `${engine}: ${lost.length} lost, ${doubled.length} doubled, ${orphans.length} orphans`,
      `after ${kills.length} kills under ${load.ran.length} jobs;`,
      `${losses.begun} attempts ended with their node, ${losses.waiting} before they began`,
      Object.fromEntries(Object.entries(counts).map(([name, all = []]) => [name, all.length])),
    );
    const { faults } = load;
    if (lost.length + doubled.length + orphans.length + faults.length > 0)
      console.log(loam.said().slice(-30_000));
    expect({ lost, doubled, orphans, faults }, `with LOAM_TEST_SEED=${SEED}`).toEqual({
      lost: [],
      doubled: [],
      orphans: [],
      faults: [],
    });
  },
);

function recorded(victim: Victim, kills: Kill[]): Victim {
  let last: Kill;
  return {
    ...victim,
    async kill() {
      last = { name: victim.name, from: Date.now(), to: Number.POSITIVE_INFINITY };
      kills.push(last);
      await victim.kill();
    },
    async start() {
      await victim.start();
      last.to = Date.now();
    },
  };
}

/** What is left of ended attempts in the engine, on the nodes, in the data folder and among the processes. */
async function findOrphans(cluster: ChaosCluster, dataDir: string): Promise<string[]> {
  const dir = join(dataDir, cluster.folder);
  const folders = (await readdir(dir)).filter((name) => !name.startsWith('.'));
  const trash = await readdir(join(dir, '.trash'));
  return [
    ...(await cluster.listLeftovers()),
    ...[...folders, ...trash].map((name) => `folder ${name}`),
    ...listJobProcesses(),
  ];
}

/** Processes of any node with the environment of a job, all of which run on this machine. */
function listJobProcesses(): string[] {
  return readdirSync('/proc').flatMap((pid) => {
    try {
      const [name] =
        /\bJOB_NAME=\w+-\d+\0/.exec(readFileSync(`/proc/${pid}/environ`, 'latin1')) ?? [];
      const command = readFileSync(`/proc/${pid}/cmdline`, 'latin1').replaceAll('\0', ' ');
      return name ? [`process ${pid} of ${name}: ${command}`] : [];
    } catch {
      return [];
    }
  });
}
