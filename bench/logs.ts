/**
 * `npm run bench:logs [lines]`: a job prints a million lines of about 100 bytes. Measures how fast they are stored, the storage
 * that they take, and how fast they are read, against the same lines as rows of a table in the same database (a key and an
 * index, batches of 2,000) and as a synced file. Then the time from the request that creates a job until a client that follows
 * it from the start has all lines, as a process and as a container, against `docker run -d` and `docker logs -f`, alternating.
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { open, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { DOCKER } from '../test/support/docker.ts';
import { createJob, IMAGE, type JobSource } from './jobs.ts';
import { cpuSecondsOf } from './process.ts';
import { median, openBench, TOKEN } from './repository.ts';

const LINES = Number(process.argv[2] ?? 1_000_000);
const MB = 1_000_000;
/** Rounds of all sides alternate, because the speed of a machine varies within minutes. */
const TURNS = 3;
/** Lines as of a training run: a counter, a few changing numbers, and constant words. */
const PRINT = `awk 'BEGIN { srand(7); for (i = 0; i < ${LINES}; i++) printf "[worker %d] epoch 3 step %d/${LINES} loss=%.6f grad_norm=%.4f lr=3.0e-04 tokens/s=%d\\n", i % 8, i, rand() * 3, rand(), 40000 + rand() * 9000 }'`;

const engine = { ...process.env, DOCKER_HOST: DOCKER.host };
const hasEngine = (() => {
  try {
    execFileSync('docker', ['image', 'inspect', IMAGE], { env: engine, stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
})();

await using bench = await openBench(
  hasEngine ? { LOAM_RUNNER: 'auto', DOCKER_HOST: DOCKER.host } : {},
);
const { server, graphql, folder } = bench;
await graphql(
  'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
);
await using cleanup = new AsyncDisposableStack();

const file = join(folder, 'lines.txt');
const asFile = await timed(async () => {
  const out = await open(file, 'w');
  const child = spawn('/bin/sh', ['-c', PRINT], { stdio: ['ignore', out.fd, 'inherit'] });
  await once(child, 'exit');
  await out.sync();
  await out.close();
});
const text = (await stat(file)).size;

const pool = new pg.Pool({
  host: join(folder, 'data/postgres/run'),
  user: 'loam',
  database: 'loam',
  max: 1,
});
cleanup.defer(() => pool.end());

const before = await sizeOf("like 'journal%'");
const cpuBefore = await cpuSecondsOf(server.child.pid as number);
const stored = await timed(async () => {
  await graphql(
    `mutation { createJob(input: {namespace: "admin", name: "chatty", repo: "admin/code", gpu: NONE, command: ${JSON.stringify(PRINT)}}) { job { id } } }`,
  );
  for (;;) {
    const { job } = await graphql('{ job(namespace: "admin", name: "chatty") { status } }');
    if (job.status === 'SUCCEEDED') return;
    if (!['QUEUED', 'RUNNING'].includes(job.status)) throw new Error(`the job is ${job.status}`);
    await delay(50);
  }
});
const cpu = (await cpuSecondsOf(server.child.pid as number)) - cpuBefore;
const kept = (await sizeOf("like 'journal%'")) - before;

const asRows = await timed(insertRows);
const rows = await sizeOf("= 'bench_rows'");

const rate = (seconds: number) => `${Math.round(LINES / seconds).toLocaleString('en')} lines/s`;
console.log(`${LINES.toLocaleString('en')} lines, ${(text / MB).toFixed(0)} MB of text
  a job       ${stored.toFixed(1)} s, ${rate(stored)}, ${((cpu / LINES) * 1e6).toFixed(1)} µs of the server's CPU a line
              ${(kept / text).toFixed(2)} bytes in the database a byte of log
  as rows     ${asRows.toFixed(1)} s, ${rate(asRows)}, ${(rows / text).toFixed(2)} bytes a byte
  as a file   ${asFile.toFixed(1)} s, ${rate(asFile)}
  ratio       ${(stored / asRows).toFixed(2)} × the time of rows, ${(kept / rows).toFixed(2)} × their bytes; ${(stored / asFile).toFixed(1)} × the time of a file`);

const path = `${server.base}/admin/job/chatty/logs`;
const first = await read('?tail=10000');
const middle = first.lines[5_000]?.timestamp ?? '';
for (const [what, query] of [
  ['tail=100', '?tail=100'],
  ['tail=10000', '?tail=10000'],
  ['since', `?tail=100&since=${encodeURIComponent(middle)}`],
] as const) {
  const times = [];
  for (let i = 0; i < 20; i++) times.push(await timed(() => read(query)));
  times.sort((a, b) => a - b);
  console.log(`  ${what.padEnd(11)} median ${((times[10] ?? 0) * 1000).toFixed(1)} ms`);
}
let followed = 0;
const following = await timed(async () => {
  const response = await fetch(`${path}?stream=true`, {
    headers: { authorization: `Bearer ${TOKEN}`, 'last-event-id': '0' },
  });
  for await (const chunk of response.body ?? [])
    for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, at + 1)) followed++;
});
console.log(
  `  followed    ${following.toFixed(1)} s, ${rate(following)} (${followed} rows of text)`,
);
const deleting = await timed(() =>
  graphql('mutation { deleteJob(input: {namespace: "admin", name: "chatty"}) { id } }'),
);
console.log(`  deleted     ${(deleting * 1000).toFixed(0)} ms`);

console.log(`from its creation until a follower has all lines, median of ${TURNS}`);
const [processes, containers, theirs]: [number[], number[], number[]] = [[], [], []];
for (let turn = 1; turn <= TURNS; turn++) {
  processes.push(await follow(`process-${turn}`, { repo: 'admin/code' }));
  if (!hasEngine) continue;
  containers.push(await follow(`container-${turn}`, { image: IMAGE }));
  theirs.push(await followByDocker());
}
tellTurns('a process', processes);
if (!hasEngine)
  console.log(`  NOT MEASURED: containers. No engine with ${IMAGE} at ${DOCKER.host}`);
else {
  tellTurns('a container', containers);
  tellTurns('docker logs', theirs);
  const ratio = (median(containers) / median(theirs)).toFixed(2);
  console.log(`  a container takes ${ratio} × what docker logs does`);
}

function tellTurns(what: string, seconds: readonly number[]): void {
  const middle = median(seconds);
  const all = seconds.map((one) => one.toFixed(1)).join(', ');
  console.log(`  ${what.padEnd(11)} ${middle.toFixed(1)} s, ${rate(middle)} (${all})`);
}

/** @returns seconds of `docker run -d` and `docker logs -f` */
async function followByDocker(): Promise<number> {
  let id = '';
  const seconds = await timed(async () => {
    const args = ['run', '-d', '--log-driver', 'json-file', IMAGE, '/bin/sh', '-c', PRINT];
    id = execFileSync('docker', args, { env: engine }).toString().trim();
    const child = spawn('docker', ['logs', '-f', id], {
      env: engine,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const lines = await countLines(child.stdout);
    if (lines !== LINES) throw new Error(`docker logs had ${lines} lines`);
  });
  execFileSync('docker', ['rm', '-f', id], { env: engine });
  return seconds;
}

/** @returns seconds */
async function follow(name: string, source: JobSource): Promise<number> {
  const seconds = await timed(async () => {
    await createJob(server.base, { ...source, name, command: PRINT });
    const response = await fetch(`${server.base}/admin/job/${name}/logs?stream=true`, {
      headers: { authorization: `Bearer ${TOKEN}`, 'last-event-id': '0' },
    });
    if (!response.body) throw new Error(`it was answered ${response.status}`);
    const lines = await countLines(response.body, 'event: log');
    if (lines !== LINES) throw new Error(`${name} had ${lines} lines`);
  });
  // The next run does not wait for the removal of this container.
  await graphql(`mutation { deleteJob(input: {namespace: "admin", name: "${name}"}) { id } }`);
  return seconds;
}

/** The names that begin with `start`. */
async function countLines(chunks: AsyncIterable<Uint8Array>, start = ''): Promise<number> {
  let [count, begun] = [0, ''];
  for await (const chunk of chunks) {
    const text =
      begun + Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length).toString('latin1');
    let from = 0;
    for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', from)) {
      if (text.startsWith(start, from)) count++;
      from = at + 1;
    }
    begun = text.slice(from);
  }
  return count;
}

async function insertRows(): Promise<void> {
  await pool.query(
    'create table bench_rows (job text, seq bigint, at timestamptz, message text, primary key (job, seq))',
  );
  const lines = (await readFile(file, 'utf8')).trimEnd().split('\n');
  for (let from = 0; from < lines.length; from += 2_000) {
    await pool.query({
      name: 'rows',
      text: `insert into bench_rows select 'job_01jqwertyuiopasdfghjklzxcv', $1 + n, to_timestamp(ms / 1000), message
        from unnest($2::float8[], $3::text[]) with ordinality as line (ms, message, n)`,
      values: [
        from,
        lines.slice(from, from + 2_000).map(() => Date.now()),
        lines.slice(from, from + 2_000),
      ],
    });
  }
}

async function sizeOf(name: string): Promise<number> {
  const { rows } = await pool.query(
    `select coalesce(sum(pg_total_relation_size(oid)), 0) as size from pg_class where relkind = 'r' and relname ${name}`,
  );
  return Number(rows[0].size);
}

async function read(query: string): Promise<{ lines: { timestamp: string }[] }> {
  const response = await fetch(path + query, { headers: { authorization: `Bearer ${TOKEN}` } });
  if (!response.ok) throw new Error(`${response.status}`);
  return (await response.json()) as { lines: { timestamp: string }[] };
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return (performance.now() - start) / 1_000;
}
