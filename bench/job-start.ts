/**
 * `npm run bench:job-start`: from the request that creates a job to the first line of its log at a client that
 * follows it, against a bare `spawn` of the same command by this process, in one run.
 *
 * The job's way: authentication, validation, the commit, one transaction, NOTIFY, the claim, a checkout, the
 * shim, the sandbox, the shell; and back through the shim's log, the journal, NOTIFY and the stream.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const JOBS = 30;
const WARM_UP = 3;
const COMMAND = 'echo first line';
const TOKEN = 'loam_pat_benchmark_of_jobs';

await using cleanup = new AsyncDisposableStack();
const dataDir = await mkdtemp(join(tmpdir(), 'loam-bench-'));
cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
const base = await startLoam();
const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
await gql(
  'mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) { repository { id } } }',
  {
    namespace: 'admin',
    name: 'code',
  },
);

const samples = { job: [] as number[], spawn: [] as number[] };
for (let i = -WARM_UP; i < JOBS; i++) {
  const job = await timed(() => firstLineOfJob(`job${i + WARM_UP}`));
  const bare = await timed(firstLineOfSpawn);
  if (i < 0) continue;
  samples.job.push(job);
  samples.spawn.push(bare);
}
const [job, bare] = [median(samples.job), median(samples.spawn)];
const all = [...samples.job].sort((a, b) => a - b);
console.log(`create → first line, ${JOBS} jobs one after the other, ${availableParallelism()} cores
  job     median ${job.toFixed(0)} ms   (fastest ${all[0]?.toFixed(0)}, slowest ${all.at(-1)?.toFixed(0)})
  spawn   median ${bare.toFixed(1)} ms
  ratio   ${(job / bare).toFixed(1)}   (${(job - bare).toFixed(0)} ms more)`);

async function firstLineOfJob(name: string): Promise<void> {
  await gql('mutation ($input: CreateJobInput!) { createJob(input: $input) { job { id } } }', {
    namespace: 'admin',
    name,
    repo: 'admin/code',
    command: COMMAND,
    gpu: 'NONE',
  });
  const response = await fetch(`${base}/graphql`, {
    method: 'POST',
    headers: { ...headers, accept: 'text/event-stream' },
    body: JSON.stringify({
      query: `subscription { jobLog(namespace: "admin", name: "${name}") { ... on LogLine { message } } }`,
    }),
  });
  let text = '';
  for await (const chunk of response.body ?? []) {
    text += Buffer.from(chunk).toString();
    if (text.includes('first line')) return;
  }
  throw new Error(`no line came: ${text}`);
}

async function firstLineOfSpawn(): Promise<void> {
  const child = spawn('/bin/sh', ['-c', COMMAND], { stdio: ['ignore', 'pipe', 'ignore'] });
  await once(child.stdout, 'data');
}

async function timed(work: () => Promise<void>): Promise<number> {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}

async function gql(query: string, input: object): Promise<void> {
  const body = JSON.stringify({ query, variables: { input } });
  const response = await fetch(`${base}/graphql`, { method: 'POST', headers, body });
  const { errors } = (await response.json()) as { errors?: unknown };
  if (errors) throw new Error(JSON.stringify(errors));
}

async function startLoam(): Promise<string> {
  const server = spawn(process.execPath, ['src/main.ts'], {
    cwd: join(import.meta.dirname, '..'),
    env: {
      PATH: process.env.PATH,
      PORT: '0',
      LOAM_DATA_DIR: dataDir,
      LOAM_ADMIN_TOKEN: TOKEN,
      LOAM_RATE_LIMITS: 'off',
      LOAM_LOG_LEVEL: 'warn',
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(server, 'exit');
  cleanup.defer(async () => {
    server.kill('SIGTERM');
    await ended;
  });
  for await (const line of createInterface(server.stdout)) {
    const address = /^Loam is ready at (\S+)/.exec(line)?.[1];
    if (address) return address;
  }
  throw new Error('the server ended before it was ready');
}
