/**
 * `npm run bench:job-throughput [jobs]`: trivial jobs per second with 1, 4 and 8 in flight, as processes and as containers,
 * against as many loops of bubblewrap and of `docker run`, and against a Slurm array on one node; 40 sequential jobs for each
 * in flight. The CPU time is that of the whole machine, so it includes all work for a job; nothing else may run meanwhile.
 *
 * Ours are measured from the first request that creates a job until the last job has ended. Each has a checkout, a log and
 * events, which the peers do not have. A Slurm job counts as ended when its command has run.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { DOCKER } from '../test/support/docker.ts';
import { createJob, IMAGE, type JobSource } from './jobs.ts';
import { median, openBench, time } from './repository.ts';
import { openSlurm } from './slurm.ts';

/** Sequential jobs for each in flight. For containers, which take 0.1 s or more, the total. */
const JOBS = Number(process.argv[2] ?? 40);
const IN_FLIGHT = [1, 4, 8];
const WARM_UP = 4;
/** The CPU time of our jobs falls by a fifth during the first 1,000, while the server's code is JIT-compiled. */
const WARM_UP_OURS = 1_200;
/** In each round of ours: the shims have ended since the last one, and the code of new shims is compiled again. */
const WARM_UP_SHIMS = 400;
/** The speed of the machine varies by a fifth within minutes, so rounds of Loam and Slurm alternate. */
const ROUNDS = 3;
const COMMAND = 'true';
/** The sandbox of a job, without its limits and its network. */
const BUBBLEWRAP = [
  ...['--ro-bind', '/usr', '/usr', '--symlink', 'usr/bin', '/bin', '--symlink', 'usr/lib', '/lib'],
  ...['--symlink', 'usr/lib64', '/lib64', '--proc', '/proc', '--dev', '/dev', '--tmpfs', '/tmp'],
  ...['--unshare-all', '--die-with-parent', '--new-session', '--clearenv', '--', '/bin/sh', '-c'],
];
const TICK_MS = 10;

let names = 0;
const env = { PATH: process.env.PATH, DOCKER_HOST: DOCKER.host };
const hasEngine = await ends('docker', ['image', 'inspect', IMAGE]);
console.log(
  `${JOBS} jobs in turn that do nothing, ${availableParallelism()} cores: a second, and ms of all CPUs for each`,
);
for (const inFlight of IN_FLIGHT) {
  await using bench = await openBench({
    LOAM_JOB_SLOTS: String(inFlight),
    LOAM_RUNNER: hasEngine ? 'auto' : 'process',
    ...(hasEngine && { DOCKER_HOST: DOCKER.host }),
  });
  await bench.graphql(
    'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
  );
  console.log(`${inFlight} in flight`);
  const processes = (jobs: number) => runJobs(bench, { repo: 'admin/code' }, jobs);
  await processes(WARM_UP_OURS);
  const jobs = JOBS * inFlight;
  const ratios: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const ours = await measured('processes', jobs, processes, WARM_UP_SHIMS);
    // Slurm runs only during its rounds, because it polls its node even when idle.
    const slurm = await openSlurm(join(bench.folder, `slurm-${round}`));
    if (typeof slurm === 'string') {
      console.log(`  NOT MEASURED: Slurm. ${slurm}`);
      break;
    }
    const theirs = await measured('Slurm', jobs, (count) => slurm.run(COMMAND, count, inFlight));
    await slurm[Symbol.asyncDispose]();
    ratios.push(ours / theirs);
  }
  if (ratios.length > 0)
    console.log(
      `    processes have ${median(ratios).toFixed(1)} × Slurm's, the median of ${ROUNDS}`,
    );
  await measured('bwrap', jobs, (count) =>
    loops(inFlight, count, 'bwrap', [...BUBBLEWRAP, COMMAND]),
  );
  if (!hasEngine) {
    console.log(`  NOT MEASURED: containers. No engine with ${IMAGE} answers at ${DOCKER.host}`);
    continue;
  }
  await measured('containers', JOBS, (count) => runJobs(bench, { image: IMAGE }, count));
  const run = ['run', '--rm', IMAGE, COMMAND];
  await measured('docker run', JOBS, (count) => loops(inFlight, count, 'docker', run));
}

/** Prints and returns jobs per second. */
async function measured(
  what: string,
  jobs: number,
  work: (count: number) => Promise<void>,
  warmUp = WARM_UP,
): Promise<number> {
  await work(warmUp);
  const before = await busyMs();
  const ms = await time(() => work(jobs));
  const cpu = ((await busyMs()) - before) / jobs;
  const rate = (jobs / ms) * 1_000;
  console.log(
    `  ${what.padEnd(11)} ${rate.toFixed(1).padStart(6)} a second ${cpu.toFixed(0).padStart(5)} ms`,
  );
  return rate;
}

/** Queues all jobs at once. The worker has one slot for each job in flight. */
async function runJobs(
  { server, folder }: Awaited<ReturnType<typeof openBench>>,
  source: JobSource,
  jobs: number,
): Promise<void> {
  const pool = new pg.Pool({
    host: join(folder, 'data/postgres/run'),
    user: 'loam',
    database: 'loam',
    max: 1,
  });
  try {
    for (let i = 0; i < jobs; i++)
      await createJob(server.base, { ...source, name: `job${names++}`, command: COMMAND });
    for (;;) {
      // Reads the database, because a request to the server would add to the load.
      const { rows } = await pool.query(
        `select count(*) filter (where completed_at is null)::int as open,
           count(*) filter (where status not in ('queued', 'running', 'succeeded'))::int as failed
         from jobs`,
      );
      if (rows[0].failed > 0) throw new Error(`${rows[0].failed} jobs have failed`);
      if (rows[0].open === 0) return;
      await delay(20);
    }
  } finally {
    await pool.end();
  }
}

/** Runs `count` loops, which share the runs. */
async function loops(count: number, runs: number, program: string, args: string[]): Promise<void> {
  let left = runs;
  const loop = async () => {
    while (left-- > 0) if (!(await ends(program, args))) throw new Error(`${program} has failed`);
  };
  await Promise.all(Array.from({ length: count }, loop));
}

async function ends(program: string, args: string[]): Promise<boolean> {
  const child = spawn(program, args, { env, stdio: 'ignore' });
  const [code] = await once(child, 'exit').catch(() => [1]);
  return code === 0;
}

/** The CPU time of all processes of the machine, including kernel time. */
async function busyMs(): Promise<number> {
  const [all = ''] = (await readFile('/proc/stat', 'utf8')).split('\n');
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0] = all
    .trim()
    .split(/\s+/)
    .slice(1)
    .map(Number);
  return (user + nice + system + irq + softirq) * TICK_MS;
}
