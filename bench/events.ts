/**
 * `npm run bench:events [subscribers] [events]`: 5,000 clients follow the events of a namespace, each on its own connection.
 * Measures the time from the commit of an event until all clients have it, and the server's memory per client, against a
 * server that only writes the same bytes to as many open responses.
 *
 * The clients run in this process, so both figures include their time.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { cpuSecondsOf, residentOf } from './process.ts';
import { openBench, TOKEN } from './repository.ts';

const SUBSCRIBERS = Number(process.argv[2] ?? 5_000);
const EVENTS = Number(process.argv[3] ?? 40);
/** Connections that are opened concurrently. */
const OPENING = 50;
const WARMING = 5;
/** Between two events, so that each is measured alone. */
const PAUSE_MS = 200;
const KB = 1_000;

const BODY = JSON.stringify({
  query:
    'subscription { events(namespaces: ["admin"]) { id cursor type timestamp namespace subject payload } }',
});

/** `others`: the duration of a request that is sent at the same time as events. */
type Figures = {
  ms: number[];
  others: number[];
  bytesEach: number;
  cpuMs: number;
  message: string;
};

await using bench = await openBench();
await using cleanup = new AsyncDisposableStack();
const pool = new pg.Pool({
  host: join(bench.folder, 'data/postgres/run'),
  user: 'loam',
  database: 'loam',
  max: 1,
});
cleanup.defer(() => pool.end());
await bench.create('code');
await bench.graphql(
  'mutation { createJob(input: {namespace: "admin", name: "train", image: "none", gpu: NONE, command: "exit 0"}) { job { id } } }',
);
const { rows } = await pool.query(
  `select namespace_id, subject, data from events where type = 'job.queued' limit 1`,
);
const [{ namespace_id: namespaceId, subject, data }] = rows;
const write = `
  with written as (
    insert into events (id, type, namespace_id, subject, data) values ($1, 'job.queued', $2, $3, $4)
  )
  select pg_notify('loam', 'event:' || $2 || ':' || $3)`;
let count = 0;
const loam = await measure({
  pid: bench.server.child.pid as number,
  idle: `${bench.server.base}/livez`,
  url: `${bench.server.base}/graphql`,
  publish: () => pool.query(write, [`evt_bench_${count++}`, namespaceId, subject, data]),
});

const child = spawn(process.execPath, [join(import.meta.dirname, 'bare-events.ts')], {
  stdio: ['ignore', 'pipe', 'inherit'],
});
cleanup.defer(() => void child.kill('SIGKILL'));
const [port] = await once(child.stdout, 'data');
const url = `http://127.0.0.1:${String(port).trim()}/`;
const bare = await measure({
  pid: child.pid as number,
  idle: url,
  url,
  publish: () => fetch(url, { method: 'POST', body: loam.message }),
});

const at = (ms: readonly number[], share: number) =>
  ms.toSorted((a, b) => a - b)[Math.floor((ms.length - 1) * share)] ?? Number.NaN;
const line = (what: string, { ms, others, bytesEach, cpuMs }: Figures) =>
  console.log(
    `  ${what.padEnd(8)} p50 ${at(ms, 0.5).toFixed(0)} ms, p99 ${at(ms, 0.99).toFixed(0)} ms, other requests p99 ${at(others, 0.99).toFixed(0)} ms, ` +
      `${(bytesEach / KB).toFixed(0)} kB and ${((1_000 * cpuMs) / SUBSCRIBERS).toFixed(0)} µs of CPU an event each`,
  );
console.log(
  `${SUBSCRIBERS.toLocaleString('en')} subscribers, ${EVENTS} events of ${loam.message.length} bytes`,
);
line('loam', loam);
line('by hand', bare);
console.log(
  `  ratio    p99 ${(at(loam.ms, 0.99) / at(bare.ms, 0.99)).toFixed(1)} ×, ${(loam.bytesEach / bare.bytesEach).toFixed(1)} × the memory, ${(loam.cpuMs / bare.cpuMs).toFixed(1)} × the CPU`,
);

/** Opens the streams, and publishes each event after all clients have the previous one. */
async function measure(target: {
  pid: number;
  idle: string;
  url: string;
  publish(): Promise<unknown>;
}): Promise<Figures> {
  const agent = new Agent({ maxSockets: Number.POSITIVE_INFINITY });
  const clients: ClientRequest[] = [];
  const ms: number[] = [];
  const others: number[] = [];
  let began = 0;
  let message = '';
  let missing = 0;
  let all = Promise.withResolvers<void>();
  const came = (text: string) => {
    ms.push(performance.now() - began);
    message ||= text;
    if (--missing === 0) all.resolve();
  };
  const before = await residentOf(target.pid);
  let asked = 0;
  const opening = Array.from({ length: OPENING }, async () => {
    while (asked++ < SUBSCRIBERS) clients.push(await open(target.url, agent, came));
  });
  await Promise.all(opening);
  // The streams have read their cursors, and the memory used for opening them is freed.
  await delay(3_000);
  const bytesEach = ((await residentOf(target.pid)) - before) / clients.length;
  const one = async () => {
    missing = clients.length;
    all = Promise.withResolvers<void>();
    began = performance.now();
    await target.publish();
    while (missing > 0) {
      const asked = performance.now();
      await (await fetch(target.idle)).text();
      others.push(performance.now() - asked);
      await Promise.race([all.promise, delay(5)]);
    }
    await delay(PAUSE_MS);
  };
  for (let n = 0; n < WARMING; n++) await one();
  ms.length = 0;
  others.length = 0;
  const cpu = await cpuSecondsOf(target.pid);
  for (let n = 0; n < EVENTS; n++) await one();
  const cpuMs = (((await cpuSecondsOf(target.pid)) - cpu) * 1_000) / EVENTS;
  for (const client of clients) client.destroy();
  agent.destroy();
  return { ms, others, bytesEach, cpuMs, message };
}

/** Opens a stream; resolves when its headers have arrived. Calls `came` for each event. */
async function open(
  url: string,
  agent: Agent,
  came: (message: string) => void,
): Promise<ClientRequest> {
  const client = request(url, {
    agent,
    method: 'POST',
    headers: {
      accept: 'text/event-stream',
      'content-type': 'application/json',
      authorization: `Bearer ${TOKEN}`,
    },
  });
  client.end(BODY);
  const [answer] = (await once(client, 'response')) as [IncomingMessage];
  if (answer.statusCode !== 200) throw new Error(`it was answered ${answer.statusCode}`);
  client.on('error', () => {});
  let text = '';
  answer.on('error', () => {});
  answer.on('data', (chunk: Buffer) => {
    text += chunk.toString();
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const message = text.slice(0, end + 2);
      text = text.slice(end + 2);
      // All other chunks are heartbeat comments.
      if (message.startsWith('event: next')) came(message);
    }
  });
  return client;
}
