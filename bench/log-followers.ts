/**
 * `npm run bench:log-followers [followers] [lines/s] [seconds]`: a job prints lines at an even rate, each with the time when it
 * was printed, while many clients follow its log, each on its own connection. Measures the time from printing a line until each
 * client has it, against a server that only writes the same bytes to as many open responses ten times per second; also the CPU
 * and memory of the server, and the duration of other requests meanwhile.
 *
 * The clients run in this process, so both figures include their time. Of lines that arrive together, the first printed one
 * counts.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Agent, type ClientRequest, get, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { cpuSecondsOf, residentOf } from './process.ts';
import { openBench, TOKEN } from './repository.ts';

const FOLLOWERS = Number(process.argv[2] ?? 1_000);
const RATE = Number(process.argv[3] ?? 100);
const SECONDS = Number(process.argv[4] ?? 20);
/** Connections that are opened concurrently. */
const OPENING = 50;
const WARMING_MS = 5_000;
const MB = 1_000_000;
/** The beginning of each line, in the job and in the peer. */
const STAMP = /"message":"at (\d+) /;

/** Checks more often than lines are due, so that the rate is even. */
const PRINT = `exec node -e '
  const begun = Date.now();
  let i = 0;
  setInterval(() => {
    for (; begun + i * ${1_000 / RATE} <= Date.now(); i++)
      process.stdout.write("at " + Date.now() + " step " + i + " of the training: loss 0.4173, tokens/s 41873\\n");
  }, 5)'`;

/** `others`: the duration of a request that is sent meanwhile. */
type Figures = { ms: number[]; others: number[]; lines: number; cpu: number; bytes: number };

await using bench = await openBench();
await using cleanup = new AsyncDisposableStack();
await bench.graphql(
  'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
);
await bench.graphql(
  `mutation { createJob(input: {namespace: "admin", name: "chatty", repo: "admin/code", gpu: NONE, command: ${JSON.stringify(PRINT)}}) { job { id } } }`,
);
for (;;) {
  const { job } = await bench.graphql('{ job(namespace: "admin", name: "chatty") { status } }');
  if (job.status === 'RUNNING') break;
  if (job.status !== 'QUEUED') throw new Error(`the job is ${job.status}`);
  await delay(50);
}
const loam = await measure(
  bench.server.child.pid as number,
  `${bench.server.base}/livez`,
  `${bench.server.base}/admin/job/chatty/logs?stream=true&tail=1`,
);
await bench.graphql(
  'mutation { cancelJob(input: {namespace: "admin", name: "chatty"}) { job { id } } }',
);

const child = spawn(process.execPath, [join(import.meta.dirname, 'bare-events.ts')], {
  stdio: ['ignore', 'pipe', 'inherit'],
});
cleanup.defer(() => void child.kill('SIGKILL'));
const [port] = await once(child.stdout, 'data');
const url = `http://127.0.0.1:${String(port).trim()}/`;
let step = 0;
const writing = setInterval(() => {
  const now = Date.now();
  const events = Array.from(
    { length: RATE / 10 },
    () =>
      `id: ${++step}\nevent: log\ndata: {"timestamp":"${new Date(now).toISOString()}","message":"at ${now} step ${step} of the training: loss 0.4173, tokens/s 41873"}\n\n`,
  );
  fetch(url, { method: 'POST', body: events.join('') }).catch(() => {});
}, 100);
const bare = await measure(child.pid as number, url, url);
clearInterval(writing);

console.log(`${FOLLOWERS.toLocaleString('en')} followers of ${RATE} lines a second, ${SECONDS} s`);
show('loam', loam);
show('by hand', bare);
console.log(
  `  ratio    p99 ${(at(loam.ms, 0.99) / at(bare.ms, 0.99)).toFixed(1)} ×, ${(loam.cpu / bare.cpu).toFixed(1)} × the CPU`,
);

function show(what: string, { ms, others, lines, cpu, bytes }: Figures): void {
  console.log(
    `  ${what.padEnd(8)} p50 ${at(ms, 0.5).toFixed(0)} ms, p99 ${at(ms, 0.99).toFixed(0)} ms, most ${at(ms, 1).toFixed(0)} ms, other requests p99 ${at(others, 0.99).toFixed(0)} ms, ` +
      `${lines.toFixed(1)} lines a second each, ${(100 * cpu).toFixed(0)} % of a core, ${(bytes / MB).toFixed(0)} MB`,
  );
}

function at(values: readonly number[], share: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor((values.length - 1) * share)] ?? Number.NaN;
}

async function measure(pid: number, idle: string, path: string): Promise<Figures> {
  const agent = new Agent({ maxSockets: Number.POSITIVE_INFINITY });
  const clients: ClientRequest[] = [];
  const figures: Figures = { ms: [], others: [], lines: 0, cpu: 0, bytes: 0 };
  let asked = 0;
  const opening = Array.from({ length: OPENING }, async () => {
    while (asked++ < FOLLOWERS) clients.push(await open(path, agent, figures));
  });
  await Promise.all(opening);
  await delay(WARMING_MS);
  figures.ms.length = 0;
  figures.lines = 0;
  const cpu = await cpuSecondsOf(pid);
  const begun = performance.now();
  while (performance.now() - begun < SECONDS * 1_000) {
    const asked = performance.now();
    await (await fetch(idle)).text();
    figures.others.push(performance.now() - asked);
    await delay(20);
  }
  const seconds = (performance.now() - begun) / 1_000;
  figures.cpu = ((await cpuSecondsOf(pid)) - cpu) / seconds;
  // Lines arrive and count until the clients disconnect.
  const lines = figures.lines / (FOLLOWERS * seconds);
  const ms = [...figures.ms];
  figures.bytes = await residentOf(pid);
  for (const client of clients) client.destroy();
  agent.destroy();
  return { ...figures, ms, lines };
}

async function open(path: string, agent: Agent, figures: Figures): Promise<ClientRequest> {
  const headers = { accept: 'text/event-stream', authorization: `Bearer ${TOKEN}` };
  const client = get(path, { agent, headers });
  const [answer] = (await once(client, 'response')) as [IncomingMessage];
  if (answer.statusCode !== 200) throw new Error(`it was answered ${answer.statusCode}`);
  client.on('error', () => {});
  answer.on('error', () => {});
  answer.on('data', (chunk: Buffer) => {
    const text = chunk.toString('latin1');
    const printed = STAMP.exec(text)?.[1];
    if (printed) figures.ms.push(Date.now() - Number(printed));
    for (
      let from = text.indexOf('event: log');
      from >= 0;
      from = text.indexOf('event: log', from + 1)
    )
      figures.lines++;
  });
  return client;
}
