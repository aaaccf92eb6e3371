/**
 * `npm run bench:job-start [pairs] [network]`: the time from the request that creates a job to the first log line at a client
 * that follows it. A process job is compared with a `spawn` of the same command in this process; a container job with create,
 * start and first line of the same image by dockerode, on the same kind of network. Both sides alternate. Each run starts after
 * the previous one has ended and was removed, and the first runs do not count.
 *
 * The path of a job: authentication, validation, resolving the commit, one transaction, NOTIFY, the claim, a checkout or
 * container, the sandbox, the shell; then back through the log, the journal, NOTIFY and the stream.
 *
 * `network`: `internet`, `none` or `host`, as LOAM_JOB_NETWORK. For `internet` dockerode's containers are on a bridge.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { availableParallelism } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import Docker from 'dockerode';
import { DOCKER } from '../test/support/docker.ts';
import { createJob, firstLine, IMAGE, type JobSource } from './jobs.ts';
import { median, openBench, time } from './repository.ts';

const PAIRS = Number(process.argv[2] ?? 40);
const NETWORK = process.argv[3] ?? 'internet';
/** The JIT-compiled code of the server settles after about a hundred jobs. A few are enough for the container engine. */
const WARM_UP = { process: 100, container: 10 };
/** Pause between an end and the next start. */
const REST_MS = 250;
const COMMAND = 'echo first line';
/** The moments that are measured, in order. */
const PHASES = ['created', 'running', 'printed', 'arrived'];

const socketPath = new URL(DOCKER.host).pathname;
const docker = new Docker({ socketPath });
const noEngine = await docker
  .getImage(IMAGE)
  .inspect()
  .then(
    () => null,
    (error: Error) => error.message,
  );
let removing: Promise<unknown> = Promise.resolve();
await using bench = await openBench({
  LOAM_JOB_NETWORK: NETWORK,
  LOAM_RUNNER: noEngine ? 'process' : 'auto',
  ...(!noEngine && { DOCKER_HOST: DOCKER.host }),
});
await bench.graphql(
  'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
);

console.log(
  `create → first line at a follower, ${PAIRS} pairs, network ${NETWORK}, ${availableParallelism()} cores`,
);
const processes = await pairs('process', { repo: 'admin/code' }, firstLineOfSpawn);
report('a process', processes, 'spawn of the same command');
if (noEngine) console.log(`NOT MEASURED: containers. ${socketPath}: ${noEngine}`);
else {
  const containers = await pairs('container', { image: IMAGE }, firstLineOfContainer);
  report('a container', containers, "dockerode's own");
}

/** The figures of each pair. `moments` are those of the job: the request, and those in `PHASES`. */
type Samples = { job: number[]; bare: number[]; moments: number[][] };

/** `bare` alternates with jobs, so that other load of the machine affects both. */
async function pairs(
  prefix: keyof typeof WARM_UP,
  source: JobSource,
  bare: () => Promise<void>,
): Promise<Samples> {
  const samples: Samples = { job: [], bare: [], moments: [] };
  const warmUp = WARM_UP[prefix];
  for (let i = -warmUp; i < PAIRS; i++) {
    const name = `${prefix}${i + warmUp}`;
    const moments = [Date.now()];
    let ended: Promise<void> | undefined;
    const job = await time(async () => {
      await createJob(bench.server.base, { ...source, name, command: COMMAND });
      moments.push(Date.now());
      const line = await firstLine(bench.server.base, name);
      moments.push(line.running, line.printed, line.arrived);
      ended = line.ended;
    });
    // So that the next start does not include the end and the removal of this job.
    await ended;
    await delay(REST_MS);
    const floor = await time(bare);
    await removing;
    if (i < 0) continue;
    samples.job.push(job);
    samples.bare.push(floor);
    samples.moments.push(moments);
  }
  return samples;
}

function report(what: string, { job, bare, moments }: Samples, floor: string): void {
  const [ours, theirs] = [median(job), median(bare)];
  const p90 = job.toSorted((a, b) => a - b)[Math.floor(job.length * 0.9)] ?? 0;
  const phases = PHASES.map((name, i) => {
    const times = moments.map((each) => (each[i + 1] ?? 0) - (each[i] ?? 0));
    return `${median(times)} ${name}`;
  });
  console.log(`  ${what}: median ${ours.toFixed(1)} ms (p90 ${p90.toFixed(0)}), ${floor} ${theirs.toFixed(1)} ms
    ratio ${(ours / theirs).toFixed(2)}, ${(ours - theirs).toFixed(1)} ms more; ms until ${phases.join(', ')}`);
}

async function firstLineOfSpawn(): Promise<void> {
  const child = spawn('/bin/sh', ['-c', COMMAND], { stdio: ['ignore', 'pipe', 'ignore'] });
  await once(child.stdout, 'data');
}

async function firstLineOfContainer(): Promise<void> {
  const container = await docker.createContainer({
    Image: IMAGE,
    Entrypoint: ['/bin/sh', '-c', COMMAND],
    Cmd: [],
    HostConfig: { NetworkMode: NETWORK === 'internet' ? 'bridge' : NETWORK },
  });
  try {
    await container.start();
    const log = await container.logs({ follow: true, stdout: true, stderr: true });
    await once(log, 'data');
    (log as unknown as { destroy(): void }).destroy();
  } finally {
    removing = container.remove({ force: true });
  }
}
