/**
 * `npm run bench:rest [--quick] [rows]`: a repository, a list of 20 and a job, over REST and GraphQL, against two peers on the same
 * database in one run: Express and Prisma by hand with the same authentication (`express-prisma.ts`), and `node:http` and
 * `pg` alone without any (`bare-http.ts`). Rounds alternate, so that whatever else the machine does meets all; they begin
 * when the CPU of a request has stopped falling. `rows`: parts of the names of those to be measured.
 *
 * The CPU is that of the server's process, and in brackets with PostgreSQL's, whose processes serve all three in turns.
 */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import autocannon from 'autocannon';
import { cpuSecondsOf, cpuSecondsOfAll } from './process.ts';
import { start } from './script.ts';

/** For CI: fewer and shorter rounds, which say the ratio to a third. */
const [, , ...given] = process.argv;
const IS_QUICK = given.includes('--quick');
/** Parts of the names of rows. */
const PARTS = given.filter((one) => one !== '--quick');
const ROUNDS = IS_QUICK ? 3 : 7;
const SECONDS = IS_QUICK ? 1 : 2;
const CONNECTIONS = 8;
/** Rounds of warming up: until one takes no less than this part of the one before, for each of them. */
const PLATEAU = 0.95;
const MAX_WARMING = IS_QUICK ? 3 : 8;
const TOKEN = 'loam_pat_benchmark_of_rest';

await using cleanup = new AsyncDisposableStack();
const dataDir = await mkdtemp(join(tmpdir(), 'loam-bench-'));
cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));

const loam = await start(cleanup, 'src/main.ts', [], {
  PORT: '0',
  LOAM_DATA_DIR: dataDir,
  LOAM_ADMIN_TOKEN: TOKEN,
  LOAM_RATE_LIMITS: 'off',
  LOAM_LOG_LEVEL: 'warn',
  LOAM_SSH_PORT: 'off',
  LOAM_RUNNER: 'process',
});
const base = /http:\S+/.exec(loam.greeting)?.[0] as string;
const sockets = join(dataDir, 'postgres/run');
const peer = await start(cleanup, 'bench/express-prisma.ts', [sockets]);
const bare = await start(cleanup, 'bench/bare-http.ts', [sockets]);
const [postmaster] = (
  await readFile(join(dataDir, 'postgres/cluster/postmaster.pid'), 'utf8')
).split('\n');

const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
let id = '';
for (let i = 0; i < 25; i++)
  ({ id } = await create(`${base}/auth/v1/repository/admin`, {
    name: `repository-${i}`,
    description: 'One of twenty-five.',
  }));
await create(`${base}/auth/v1/seed/admin/jobs`, {
  name: 'one',
  command: 'true',
  repo: 'admin/repository-0',
  gpu: 'none',
});
for (;;) {
  const job = (await (await fetch(`${base}/admin/job/one`, { headers })).json()) as {
    completed_at?: string;
  };
  if (job.completed_at) break;
  await new Promise((resolve) => setTimeout(resolve, 100));
}

const ITEM =
  'id name namespace fullName description visibility defaultBranch sizeBytes language createdAt updatedAt pushedAt';
const FULL = `${ITEM} contentAddressed branchProtection secretScanning collaboratorCount branchCount tagCount`;
const JOB = `id name namespace status command repo branch image gpu gpuCount cpu memoryGb diskGb region progress exitCode
  costPerHour timeoutMinutes retries retryCount outputPath createdAt startedAt completedAt`;
const ONE = `query ($id: ID!) { repository(namespace: "admin", id: $id) { ${FULL} } }`;
const LIST = `{ namespace(name: "admin") { repositories(first: 20) { totalCount nodes { ${ITEM} } pageInfo { hasNextPage endCursor } } } }`;
const ROWS: { title: string; path: string; query?: string; variables?: object; alike?: boolean }[] =
  [
    { title: 'REST, a repository', path: `/auth/v1/repository/admin/${id}`, alike: true },
    { title: 'REST, a list of 20', path: '/auth/v1/repository/admin', alike: true },
    { title: 'REST, a job', path: '/auth/v1/admin/job/one' },
    {
      title: 'GraphQL, a repository',
      path: `/auth/v1/repository/admin/${id}`,
      query: ONE,
      variables: { id },
    },
    { title: 'GraphQL, a list of 20', path: '/auth/v1/repository/admin', query: LIST },
    {
      title: 'GraphQL, a job',
      path: '/auth/v1/admin/job/one',
      query: `{ job(namespace: "admin", name: "one") { ${JOB} } }`,
    },
  ];

for (const { title, path, query, variables, alike } of ROWS) {
  if (PARTS.length > 0 && !PARTS.some((part) => title.includes(part))) continue;
  const rivals: Rival[] = [
    {
      name: 'loam',
      pid: loam.pid,
      url: query ? `${base}/graphql` : base + path,
      ...(query && { method: 'POST' as const, body: JSON.stringify({ query, variables }) }),
    },
    { name: 'peer', pid: peer.pid, url: `http://127.0.0.1:${peer.greeting}${path}` },
    ...(alike
      ? [{ name: 'bare', pid: bare.pid, url: `http://127.0.0.1:${bare.greeting}${path}` }]
      : []),
  ];
  const [first, ...others] = await Promise.all(rivals.map(answerOf));
  if (alike && !others.every((one) => isDeepStrictEqual(first, one)))
    throw new Error(`they answer differently: ${JSON.stringify([first, ...others])}`);
  for (const rival of rivals) await warm(rival);
  const samples = new Map(rivals.map((rival) => [rival, [] as Sample[]]));
  for (let round = 0; round < ROUNDS; round++)
    for (const [rival, taken] of samples) taken.push(await load(rival));
  const figures = [...samples.values()].map(median);
  const [l, ...rest] = figures as [Sample, ...Sample[]];
  console.log(
    `${title}: ${rivals.map(({ name }, i) => `${name} ${shown(figures[i] as Sample)}`).join('; ')}` +
      rest.map((r, i) => ` → ${ratio(l, r)} ${rivals[i + 1]?.name}'s`).join(''),
  );
}

type Rival = { name: string; pid: number; url: string; method?: 'GET' | 'POST'; body?: string };
/** CPU in milliseconds a request, of the process and with PostgreSQL's. */
type Sample = { perSecond: number; cpuMs: number; allMs: number };

function shown({ perSecond, cpuMs, allMs }: Sample): string {
  return `${perSecond.toFixed(0)}/s ${cpuMs.toFixed(3)} ms (${allMs.toFixed(3)})`;
}

function ratio(ours: Sample, theirs: Sample): string {
  const times = (key: keyof Sample) => (ours[key] / theirs[key]).toFixed(2);
  return `throughput ${times('perSecond')}×, CPU ${times('cpuMs')}× (${times('allMs')}×)`;
}

async function create(url: string, body: object): Promise<{ id: string }> {
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  if (response.status !== 201) throw new Error(await response.text());
  return (await response.json()) as { id: string };
}

async function answerOf({ url, method, body }: Rival): Promise<unknown> {
  const answer = (await (await fetch(url, { headers, method, body })).json()) as {
    errors?: unknown;
  };
  if (answer.errors) throw new Error(JSON.stringify(answer.errors));
  return answer;
}

async function warm(rival: Rival): Promise<void> {
  let before = Number.POSITIVE_INFINITY;
  for (let round = 0; round < MAX_WARMING; round++) {
    const { cpuMs } = await load(rival);
    if (cpuMs > before * PLATEAU) return;
    before = cpuMs;
  }
}

async function load({ url, pid, method = 'GET', body }: Rival): Promise<Sample> {
  const [server, database] = [await cpuSecondsOf(pid), await cpuSecondsOfAll(Number(postmaster))];
  const result = await autocannon({
    url,
    headers,
    method,
    body,
    connections: CONNECTIONS,
    duration: SECONDS,
  });
  if (result.non2xx || result.errors)
    throw new Error(`${url}: ${result.non2xx} refused, ${result.errors} failed`);
  const requests = result['2xx'];
  const ofServer = (await cpuSecondsOf(pid)) - server;
  const ofAll = ofServer + (await cpuSecondsOfAll(Number(postmaster))) - database;
  return {
    perSecond: requests / result.duration,
    cpuMs: (1_000 * ofServer) / requests,
    allMs: (1_000 * ofAll) / requests,
  };
}

/** By CPU, which wanders less than the throughput. */
function median(samples: Sample[]): Sample {
  const sorted = samples.toSorted((a, b) => a.cpuMs - b.cpuMs);
  return sorted[Math.floor(sorted.length / 2)] as Sample;
}
