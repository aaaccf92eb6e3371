/**
 * `npm run bench:clusters [slurm|kubernetes|pending] [pairs] [lines] [pods]`: jobs on a real cluster of two nodes on this machine,
 * started by `test/support/slurm` and `test/support/kube`, against the cluster's own client:
 *
 * - From creating a job until its first line is here, against `sbatch` and a follower of its output file, or `kubectl create` and
 *   `kubectl logs -f` of a pod with the same image. Both sides alternate, and the first runs do not count.
 * - Jobs a second with 16 in flight, against as many loops of `sbatch --wait`, or of `kubectl create`, `wait` and `delete`.
 * - On Kubernetes, a job that prints many lines, against `kubectl logs -f` of the same output, of which the kubelet rotates the
 *   log: the seconds of both, and the lines that are missing.
 *
 * `pending`: thousands of pods that wait in Kubernetes for a node and are then cancelled: memory of the server, and requests to the
 * API server.
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { watch as watchFile } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import pg from 'pg';
import { buildPrograms } from '../src/programs/build.ts';
import { type KubeCluster, openKubeCluster } from '../test/support/kube/kube.ts';
import { KUBE_CACHE } from '../test/support/needs.ts';
import { openSlurmCluster } from '../test/support/slurm/slurm.ts';
import { cancelJob, createJob, firstLine, type JobSource } from './jobs.ts';
import { watch } from './process.ts';
import { type Bench, median, openBench, time } from './repository.ts';

const run = promisify(execFile);
const ENGINES = ['slurm', 'kubernetes', 'pending'].filter(
  (name) => (process.argv[2] ?? name) === name,
);
const PAIRS = Number(process.argv[3] ?? 10);
const LINES = Number(process.argv[4] ?? 1_000_000);
const PODS = Number(process.argv[5] ?? 5_000);
const WARM_UP = 3;
const IN_FLIGHT = 16;
/** Jobs of a throughput run, and runs of each side in turn. */
const JOBS = 48;
const ROUNDS = 2;
const COMMAND = 'echo first line';
/** All jobs are as small as the API accepts, so that the nodes have room for those in flight. */
const SMALL = { cpu: 2, memory_gb: 1, disk_gb: 1 };

/** Requests that only Loam sends while pods wait: the garbage collector of Kubernetes gets pods, and deletes Secrets. */
const OWN_REQUESTS = ['POST pods', 'DELETE pods', 'LIST pods', 'POST secrets', 'LIST events'];

/** One side of a comparison. */
type Peer = {
  name: string;
  /** Runs the command, and settles when its first line is here. `ended` settles when it is over and removed. */
  first(): Promise<{ ended: Promise<unknown> }>;
  /** Runs `true` once, to its end. */
  once(): Promise<unknown>;
};

let names = 0;
const nextName = () => `bench-${names++}`;

await buildPrograms();
if (ENGINES.includes('slurm')) await measureSlurm();
if (ENGINES.includes('kubernetes')) await measureKubernetes();
if (ENGINES.includes('pending')) await measurePending();

async function measureSlurm(): Promise<void> {
  // Room for all jobs in flight: with less, the rate would be that of the slots.
  await using cluster = await openSlurmCluster({ cpus: IN_FLIGHT / 2, memoryMb: 16_000 });
  const { conf = '', dir = '', users = '' } = cluster.config;
  await using bench = await openBench({
    LOAM_RUNNER: 'slurm',
    SLURM_CONF: conf,
    LOAM_SLURM_DIR: dir,
    LOAM_SLURM_USERS: users,
    LOAM_SLURM_NODE: process.execPath,
    LOAM_SLURM_MAX_CPUS: '1',
    LOAM_SLURM_MAX_JOBS: String(IN_FLIGHT),
  });
  await createRepository(bench);
  const sbatch = (args: string[], script: string) => {
    const child = execFile('sbatch', args, { env: { ...process.env, SLURM_CONF: conf } });
    child.stdin?.end(`#!/bin/sh\n${script}\n`);
    return new Promise<void>((resolve, reject) =>
      child.once('exit', (code) => (code === 0 ? resolve() : reject(new Error(`sbatch: ${code}`)))),
    );
  };
  const common = ['--uid=nobody', '--chdir=/', '--cpus-per-task=1', '--mem=200M', '--time=5'];
  await compare(
    'Slurm',
    bench,
    { repo: 'admin/code' },
    {
      name: 'sbatch and a follower of its output',
      async first() {
        const file = join(cluster.shared, `${nextName()}.out`);
        await writeFile(file, '', { mode: 0o666 });
        await run('chown', ['nobody', file]);
        const ended = sbatch([...common, `--output=${file}`, '--wait'], COMMAND);
        ended.catch(() => {});
        const watcher = watchFile(file);
        while (!(await readFile(file, 'utf8')).includes('\n')) await once(watcher, 'change');
        watcher.close();
        return { ended };
      },
      once: () => sbatch([...common, '--output=/dev/null', '--wait'], 'true'),
    },
  );
}

async function measureKubernetes(): Promise<void> {
  await using cluster = await openKubeCluster();
  const { namespace = 'loam-jobs', defaultImage } = cluster.config;
  await using bench = await openBench(environmentOf(cluster, IN_FLIGHT));
  await createRepository(bench);
  const kubectl = join(KUBE_CACHE, 'bin/kubectl');
  /** Creates a pod like that of a job. @returns its name */
  const create = async (command: string) => {
    const name = nextName();
    await cluster.kubectl(
      ...['run', name, `--image=${defaultImage}`, '--restart=Never', '--image-pull-policy=Never'],
      ...['--command', '--', '/bin/sh', '-c', command],
    );
    return name;
  };
  const remove = (name: string) => cluster.kubectl('delete', 'pod', name, '--wait=false');
  /** Follows the log of a pod as soon as its container runs. */
  const follow = async (name: string) => {
    await cluster.kubectl('wait', `pod/${name}`, '--for=condition=Initialized', '--timeout=60s');
    for (;;) {
      const child = spawn(
        kubectl,
        ['--kubeconfig', cluster.adminConfig, '-n', namespace, 'logs', '-f', name],
        { stdio: ['ignore', 'pipe', 'ignore'] },
      );
      const lines = createInterface({ input: child.stdout });
      const first = await Promise.race([
        once(lines, 'line'),
        once(lines, 'close').then(() => null),
      ]);
      if (first) return { lines, child };
      // The container is still being created.
      await delay(20);
    }
  };
  await compare(
    'Kubernetes',
    bench,
    { image: defaultImage },
    {
      name: 'kubectl create and kubectl logs -f',
      async first() {
        const name = await create(COMMAND);
        await follow(name);
        return { ended: remove(name) };
      },
      async once() {
        const name = await create('true');
        while (
          (await cluster.kubectl('get', 'pod', name, '-o', 'jsonpath={.status.phase}')) !==
          'Succeeded'
        )
          await delay(50);
        await remove(name);
      },
    },
  );

  const command = `i=0; while [ $i -lt ${LINES} ]; do i=$((i + 1)); echo "line $i of a job that prints many lines"; done`;
  const name = nextName();
  const ours = await time(async () => {
    await createJob(bench.server.base, { ...SMALL, image: defaultImage, name, command });
    await (await firstLine(bench.server.base, name)).ended;
  });
  const client = await connect(bench);
  const { rows } = await client.query('select log_lines from jobs where name = $1', [name]);
  await client.end();
  let received = 1;
  const theirs = await time(async () => {
    const pod = await create(command);
    const { lines, child } = await follow(pod);
    lines.on('line', () => received++);
    while (
      (await cluster.kubectl('get', 'pod', pod, '-o', 'jsonpath={.status.phase}')) !== 'Succeeded'
    )
      await delay(500);
    // After a rotation the follower is silent for ever.
    await Promise.race([once(child, 'exit'), delay(5_000)]);
    child.kill();
    await remove(pod);
  });
  console.log(
    `Kubernetes, ${LINES} lines: Loam ${(ours / 1_000).toFixed(1)} s, ${LINES - Number(rows[0].log_lines)} lines missing; ` +
      `kubectl logs -f ${(theirs / 1_000).toFixed(1)} s, ${LINES - received} lines missing`,
  );
}

function environmentOf({ config, hostAddress }: KubeCluster, maxJobs: number) {
  const { kubeconfig = '', namespace = 'loam-jobs', defaultImage, agentImage } = config;
  return {
    LOAM_RUNNER: 'kubernetes',
    KUBECONFIG: kubeconfig,
    LOAM_KUBERNETES_NAMESPACE: namespace,
    LOAM_KUBERNETES_DEFAULT_IMAGE: defaultImage,
    LOAM_KUBERNETES_AGENT_IMAGE: agentImage,
    LOAM_KUBERNETES_MAX_CPUS: String(config.maxCpus),
    LOAM_KUBERNETES_MAX_MEMORY_GB: String(config.maxMemoryGb),
    LOAM_KUBERNETES_MAX_JOBS: String(maxJobs),
    HOST: '0.0.0.0',
    LOAM_AGENT_URL: `http://${hostAddress}:3000`,
    PORT: '3000',
  };
}

async function measurePending(): Promise<void> {
  await using cluster = await openKubeCluster({ nodes: 1 });
  await using bench = await openBench({
    ...environmentOf(cluster, PODS),
    // No node has this label.
    LOAM_KUBERNETES_NODE_SELECTOR: 'loam.test/pool=none',
  });
  const { server } = bench;
  const image = cluster.config.defaultImage;
  const names = Array.from({ length: PODS }, nextName);
  const sentBefore = await countRequests(cluster);
  const pending = await watch(server.child.pid ?? 0, async () => {
    for (const name of names)
      await createJob(server.base, { ...SMALL, image, name, command: 'true' });
    await untilCount(bench, "progress like 'waiting for Kubernetes: no node fits%'", PODS);
  });
  const sentPending = await countRequests(cluster);
  const cancelled = await watch(server.child.pid ?? 0, async () => {
    for (const name of names) await cancelJob(server.base, name);
    await untilCount(bench, "status = 'cancelled'", PODS);
    while ((await cluster.kubectl('get', 'pods', '-o', 'name')) !== '') await delay(500);
  });
  const sent = await countRequests(cluster);
  const megabytes = (bytes: number) => (bytes / 2 ** 20).toFixed(0);
  const perJob = (count: number) => (count / PODS).toFixed(2);
  console.log(
    `Kubernetes, ${PODS} pods pending: resident memory ${megabytes(pending.before)} MB, at most ${megabytes(pending.peak)} MB; ` +
      `${pending.seconds.toFixed(0)} s, ${perJob(sentPending - sentBefore)} API requests a job. ` +
      `Cancelled: at most ${megabytes(cancelled.peak)} MB; ${cancelled.seconds.toFixed(0)} s; ${perJob(sent - sentBefore)} API requests a job in all`,
  );
}

async function countRequests(cluster: KubeCluster): Promise<number> {
  const metrics = await cluster.admin('get', '--raw', '/metrics');
  let count = 0;
  for (const [, labels = '', value] of metrics.matchAll(
    /^apiserver_request_total\{(.*)\} (\S+)$/gm,
  )) {
    const label = (name: string) => new RegExp(`\\b${name}="([^"]*)"`).exec(labels)?.[1];
    const isOwn = OWN_REQUESTS.includes(`${label('verb')} ${label('resource')}`);
    if (isOwn && label('subresource') === '') count += Number(value);
  }
  return count;
}

async function createRepository(bench: Bench): Promise<void> {
  await bench.graphql(
    'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
  );
}

async function compare(title: string, bench: Bench, source: JobSource, peer: Peer): Promise<void> {
  const { base } = bench.server;
  const ours: number[] = [];
  const theirs: number[] = [];
  for (let i = -WARM_UP; i < PAIRS; i++) {
    let ended: Promise<unknown> = Promise.resolve();
    const job = await time(async () => {
      const name = nextName();
      await createJob(base, { ...SMALL, ...source, name, command: COMMAND });
      ended = (await firstLine(base, name)).ended;
    });
    await ended;
    const bare = await time(async () => {
      ended = (await peer.first()).ended;
    });
    await ended;
    if (i < 0) continue;
    ours.push(job);
    theirs.push(bare);
  }
  const [a, b] = [median(ours), median(theirs)];
  console.log(
    `${title}, create → first line, ${PAIRS} pairs: ${a.toFixed(0)} ms; ${peer.name} ${b.toFixed(0)} ms: ${(a / b).toFixed(2)}×`,
  );
  for (let round = 0; round < ROUNDS; round++) {
    const loam = await time(() => runJobs(bench, source));
    const bare = await time(() => loops(peer));
    const rate = (ms: number) => ((JOBS / ms) * 1_000).toFixed(2);
    console.log(
      `${title}, ${JOBS} jobs, ${IN_FLIGHT} in flight: ${rate(loam)} a second; ${peer.name} ${rate(bare)}: ${(bare / loam).toFixed(2)}×`,
    );
  }
}

async function runJobs(bench: Bench, source: JobSource): Promise<void> {
  const own = Array.from({ length: JOBS }, nextName);
  for (const name of own)
    await createJob(bench.server.base, { ...SMALL, ...source, name, command: 'true' });
  await untilCount(bench, 'completed_at is null', 0);
}

/** Waits, over one connection, until this many jobs meet the condition: connections would take a tenth of the CPU of the jobs. */
async function untilCount(bench: Bench, condition: string, count: number): Promise<void> {
  const client = await connect(bench);
  const sql = `select count(*)::int as jobs from jobs where ${condition}`;
  try {
    while ((await client.query(sql)).rows[0].jobs !== count) await delay(50);
  } finally {
    await client.end();
  }
}

/** Connects to the database, because requests to the server would add to its load. */
async function connect({ folder }: Bench): Promise<pg.Client> {
  const client = new pg.Client({
    host: join(folder, 'data/postgres/run'),
    user: 'loam',
    database: 'loam',
  });
  await client.connect();
  return client;
}

async function loops(peer: Peer): Promise<void> {
  let left = JOBS;
  const loop = async () => {
    while (left-- > 0) await peer.once();
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, loop));
}
