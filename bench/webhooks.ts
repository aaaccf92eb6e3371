/**
 * `npm run bench:webhooks [events]`: events of 100 namespaces with one webhook each, from their commit to a receiver behind TLS
 * on this machine. Measures deliveries per second under a backlog; and, at 200 events/s, the milliseconds from commit to first
 * attempt at 80 endpoints, in turns beside 20 healthy endpoints and beside 20 that refuse connections or hang. The peer is
 * undici alone, which posts the same bodies to the same receiver, 10 at once.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { Pool } from 'undici';
import { newId } from '../src/base/ids.ts';
import { startServer } from '../test/support/process.ts';
import { makeAuthority } from '../test/support/webhook-receiver.ts';
import type { Arrival } from './receiver.ts';
import { TOKEN } from './repository.ts';

/** Enough events that JIT compilation is a small part of the time. */
const EVENTS = Number(process.argv[2] ?? 60_000);
const WEBHOOKS = 100;
/** Additional broken endpoints, which replace as many healthy ones in some runs. */
const DEAD = 20;
const PER_SECOND = 200;
const SECONDS = 10;
const ROUNDS = 3;
/** A job as in its events. */
const JOB = {
  id: 'job_01jqwertyuiopasdfghjklzxcv',
  name: 'train',
  namespace: 'org-1',
  status: 'succeeded',
  repo: 'org-1/code',
  branch: 'main',
  commit_sha: 'a'.repeat(40),
  image: null,
  exit_code: 0,
  command: 'python train.py --epochs 3 --learning-rate 0.0003 --batch 64',
  gpu: 'A100-80GB',
  gpu_count: 1,
  cpu: 8,
  memory_gb: 64,
  disk_gb: 100,
  region: 'us-east',
  retries: 0,
  timeout_minutes: 60,
  retry_count: 0,
  output_path: null,
  cost_per_hour: '2.50',
  total_cost: '1.25',
  runtime_seconds: 1_800,
  progress: 'step 3000/3000',
  artifacts: null,
  created_at: '2026-01-01T00:00:00Z',
  completed_at: '2026-01-01T00:30:00Z',
};
/** Linux counts CPU time in hundredths of a second. */
const TICKS = 100;

await using cleanup = new AsyncDisposableStack();
const folder = await mkdtemp(join(tmpdir(), 'loam-bench-'));
cleanup.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
const authority = cleanup.use(await makeAuthority());
const { cert, key } = await authority.certify('IP:127.0.0.1');
const files = [join(folder, 'cert.pem'), join(folder, 'key.pem')];
await Promise.all([cert, key].map((text, i) => writeFile(files[i] ?? '', text)));
const receiver = fork(join(import.meta.dirname, 'receiver.ts'), files);
cleanup.defer(() => void receiver.disconnect());
const [port] = (await once(receiver, 'message')) as [number];
let arrivals: Arrival[] = [];
receiver.on('message', (some: Arrival[]) => {
  arrivals.push(...some.filter(({ path }) => path !== '/bare'));
});

const server = cleanup.use(
  await startServer({
    LOAM_DATA_DIR: join(folder, 'data'),
    LOAM_ADMIN_TOKEN: TOKEN,
    LOAM_RATE_LIMITS: 'off',
    LOAM_WEBHOOK_ALLOW: '127.0.0.0/8',
    LOAM_WEBHOOK_CA: authority.file,
  }),
);
const database = { host: join(folder, 'data/postgres/run'), user: 'loam', database: 'loam' };
const pool = new pg.Pool({ ...database, max: 4 });
cleanup.defer(() => pool.end());

/** Each in its own namespace, as webhooks of unrelated users. */
const namespaces: string[] = [];
for (let i = 0; i < WEBHOOKS + DEAD; i++) {
  const query = `mutation { createOrganization(input: { name: "org-${i}", plan: UNLIMITED }) { namespace { id } } }`;
  await post('/graphql', { query });
  const { id } = await post('/auth/v1/seed/webhooks', {
    name: 'bench',
    url: i < WEBHOOKS ? `https://127.0.0.1:${port}/${i}` : deadEnd(i),
    secret: 'whsec_dHdlbnR5LWZvdXIgYnl0ZXMgb3IgbW9yZQ==',
    event_types: ['job.completed'],
    namespaces: [`org-${i}`],
  });
  const { rows } = await pool.query(
    'select namespace_id as id from webhook_namespaces where webhook_id = $1',
    [id],
  );
  namespaces.push(rows[0].id);
}

// Warm-up: the first connections, query plans and JIT compilation do not count.
await burst(2_000);

const bare = await posts(EVENTS / 2);
const before = await cpuSeconds();
const resident = await residentMb();
await writeFile(`/proc/${server.child.pid}/clear_refs`, '5');
const seconds = await burst(EVENTS);
const peak = await residentMb('VmHWM');
const cpu = (await cpuSeconds()).map((after, i) => after - (before[i] ?? 0));
const bareAgain = await posts(EVENTS / 2);
const floor = (bare + bareAgain) / 2;
const rate = EVENTS / seconds;
const perDelivery = cpu.map((each) => ((each / EVENTS) * 1e6).toFixed(0));
console.log(
  `${EVENTS} events, one delivery each, to ${WEBHOOKS} endpoints
  sent        ${seconds.toFixed(1)} s, ${rate.toFixed(0)} a second; µs of CPU a delivery: the server ${perDelivery[0]}, PostgreSQL ${perDelivery[2]}, the receiver ${perDelivery[1]}
  resident    ${resident} MB of the server before, ${peak} MB at most meanwhile
  undici      ${floor.toFixed(0)} a second (${bare.toFixed(0)} before, ${bareAgain.toFixed(0)} after)
  ratio       ${(rate / floor).toFixed(2)} × undici alone`,
);

const observed = namespaces.slice(0, WEBHOOKS - DEAD);
// One extra run that does not count, because the burst leaves background work in the database.
await moderate(observed);
const beside = {
  well: namespaces.slice(0, WEBHOOKS),
  dead: [...observed, ...namespaces.slice(WEBHOOKS)],
};
const taken = { well: [] as number[], dead: [] as number[] };
for (let round = 0; round < ROUNDS; round++)
  for (const others of ['well', 'dead'] as const)
    taken[others].push(...(await moderate(beside[others])));
console.log(`${PER_SECOND} events a second for ${SECONDS} s, ${ROUNDS} times in turns, from commit to first attempt of ${observed.length} endpoints
  beside ${DEAD} that are well     ${shown(taken.well)}
  beside ${DEAD} dead or hanging   ${shown(taken.dead)}
  ratio of p99             ${(percentile(taken.dead, 99) / percentile(taken.well, 99)).toFixed(2)}`);

/** Every second one refuses connections; the others accept the request and never respond. */
function deadEnd(i: number): string {
  return i % 2 ? 'https://127.0.0.1:9/' : `https://127.0.0.1:${port}/hang`;
}

/** Commits events as fast as possible, and waits until all have arrived. @returns seconds */
async function burst(total: number): Promise<number> {
  arrivals = [];
  const start = performance.now();
  for (let i = 0; i < total; i += 250)
    await publish(Array.from({ length: 250 }, (_, j) => namespaces[(i + j) % WEBHOOKS] ?? ''));
  while (arrivals.length < total) await delay(5);
  const last = Math.max(...arrivals.slice(-1_000).map(({ at }) => at));
  const seconds = (last - performance.timeOrigin - start) / 1_000;
  await settled();
  return seconds;
}

/** @returns the milliseconds from commit to arrival at the observed endpoints */
async function moderate(among: readonly string[]): Promise<number[]> {
  arrivals = [];
  const start = performance.now();
  const writing: Promise<void>[] = [];
  for (let i = 0; i < PER_SECOND * SECONDS; i++) {
    await delay(Math.max(0, start + (i * 1_000) / PER_SECOND - performance.now()));
    writing.push(publish([among[i % among.length] ?? '']));
  }
  await Promise.all(writing);
  await delay(1_000);
  const isObserved = (path: string) => Number(path.slice(1)) < WEBHOOKS - DEAD;
  return arrivals.flatMap(({ path, at, event }) => (isObserved(path) ? [at - event] : []));
}

/** Inserts events in one transaction, with the data of a job. */
async function publish(namespaceIds: readonly string[]): Promise<void> {
  await pool.query({
    name: 'publish',
    text: `
      with written as (
        insert into events (id, type, namespace_id, subject, data, timestamp)
        select id, 'job.succeeded', namespace_id, 'job_bench', $3::jsonb, clock_timestamp()
        from unnest($1::text[], $2::text[]) as event (id, namespace_id)
      ) select pg_notify('loam', 'events')`,
    values: [namespaceIds.map(() => newId('evt')), namespaceIds, JSON.stringify({ job: JOB })],
  });
}

/** Waits until all deliveries are recorded. */
async function settled(): Promise<void> {
  for (;;) {
    const { rows } = await pool.query(
      `select 1 from webhook_queues where due_at is not null and due_at < now() + interval '1 second' limit 1`,
    );
    if (rows.length === 0) return;
    await delay(20);
  }
}

/** undici alone, with the same bodies. @returns requests per second */
async function posts(total: number): Promise<number> {
  const client = new Pool(`https://127.0.0.1:${port}`, {
    connections: 10,
    connect: { ca: authority.pem },
  });
  const body = JSON.stringify({
    id: newId('evt'),
    type: 'job.completed',
    timestamp: new Date(),
    namespace: 'org-1',
    data: JOB,
  });
  const start = performance.now();
  let left = total;
  await Promise.all(
    Array.from({ length: 10 }, async () => {
      while (left-- > 0) {
        const headers = { 'content-type': 'application/json', 'webhook-id': 'evt_bare' };
        const answer = await client.request({ method: 'POST', path: '/bare', headers, body });
        await answer.body.dump();
      }
    }),
  );
  const seconds = (performance.now() - start) / 1_000;
  await client.close();
  return total / seconds;
}

/** The CPU time of the server, of the receiver, and of all PostgreSQL processes. */
async function cpuSeconds(): Promise<number[]> {
  const [postmaster = ''] = (
    await readFile(join(folder, 'data/postgres/cluster/postmaster.pid'), 'utf8')
  ).split('\n');
  const parents = new Map<number, { parent: string; seconds: number }>();
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const stat = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => '');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const seconds = (Number(fields[11]) + Number(fields[12])) / TICKS;
    parents.set(Number(name), { parent: fields[1] ?? '', seconds });
  }
  const of = (pid: number | undefined) => parents.get(pid ?? 0)?.seconds ?? 0;
  const backends = [...parents.values()].filter(({ parent }) => parent === postmaster);
  const database = backends.reduce((sum, { seconds }) => sum + seconds, 0);
  return [of(server.child.pid), of(receiver.pid), database];
}

/** The memory of the server in MB. `VmHWM` is the maximum since the last reset, which writing 5 to `clear_refs` does. */
async function residentMb(field: 'VmRSS' | 'VmHWM' = 'VmRSS'): Promise<number> {
  const status = await readFile(`/proc/${server.child.pid}/status`, 'utf8');
  return Math.round(Number(new RegExp(`${field}:\\s+(\\d+)`).exec(status)?.[1]) / 1_024);
}

function percentile(values: readonly number[], of: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor((sorted.length * of) / 100))] ?? 0;
}

function shown(values: readonly number[]): string {
  const [p50, p99, max] = [50, 99, 100].map((of) => percentile(values, of).toFixed(0));
  return `p50 ${p50} ms, p99 ${p99} ms, max ${max} ms of ${values.length}`;
}

async function post(path: string, body: object): Promise<{ id: string }> {
  const response = await fetch(server.base + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  const json = await response.json();
  if (!response.ok || json.errors) throw new Error(JSON.stringify(json));
  return json;
}
