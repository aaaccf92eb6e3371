/**
 * `npm run bench:rest`: a repository and a list of 20 over REST, against `node:http` and `pg` alone on the
 * same database, in one run. Rounds alternate, so that whatever else the machine does meets both.
 *
 * Two ratios: requests a second as a client sees them, and the server's own CPU time a request, which the
 * load generator beside it does not disturb. Loam's numbers include authentication and authorization.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import autocannon from 'autocannon';
import { cpuSecondsOf } from './process.ts';

const ROUNDS = 5;
const SECONDS = 2;
const CONNECTIONS = 8;
const TOKEN = 'loam_pat_benchmark_of_rest';

await using cleanup = new AsyncDisposableStack();
const dataDir = await mkdtemp(join(tmpdir(), 'loam-bench-'));
cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));

const loam = await start('src/main.ts', [], {
  PORT: '0',
  LOAM_DATA_DIR: dataDir,
  LOAM_ADMIN_TOKEN: TOKEN,
  LOAM_RATE_LIMITS: 'off',
  LOAM_LOG_LEVEL: 'warn',
});
const base = /http:\S+/.exec(loam.greeting)?.[0] as string;
const bare = await start('bench/bare-http.ts', [join(dataDir, 'postgres/run')], {});
const floor = `http://127.0.0.1:${bare.greeting}`;

const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
let id = '';
for (let i = 0; i < 25; i++) {
  const body = JSON.stringify({ name: `repository-${i}`, description: 'One of twenty-five.' });
  const response = await fetch(`${base}/auth/v1/repository/admin`, {
    method: 'POST',
    headers,
    body,
  });
  if (response.status !== 201) throw new Error(await response.text());
  ({ id } = (await response.json()) as { id: string });
}

for (const [title, path] of [
  ['GET one', `/auth/v1/repository/admin/${id}`],
  ['list of 20', '/auth/v1/repository/admin'],
] as const) {
  const [ours, theirs] = await Promise.all(
    [base, floor].map((b) => fetch(b + path, { headers }).then((r) => r.json())),
  );
  if (!isDeepStrictEqual(ours, theirs))
    throw new Error(`the two answer differently: ${JSON.stringify([ours, theirs])}`);
  const samples = { loam: [] as Sample[], bare: [] as Sample[] };
  for (let round = 0; round <= ROUNDS; round++) {
    const ofBare = await load(floor + path, bare.pid);
    const ofLoam = await load(base + path, loam.pid);
    if (round === 0) continue; // warming up
    samples.bare.push(ofBare);
    samples.loam.push(ofLoam);
  }
  const [l, b] = [median(samples.loam), median(samples.bare)];
  console.log(
    `${title}: loam ${l.perSecond.toFixed(0)}/s ${l.cpuMs.toFixed(2)} ms CPU, bare ${b.perSecond.toFixed(0)}/s ${b.cpuMs.toFixed(2)} ms CPU` +
      ` → throughput ${(l.perSecond / b.perSecond).toFixed(2)}×, CPU ${(l.cpuMs / b.cpuMs).toFixed(2)}×`,
  );
}

type Sample = { perSecond: number; cpuMs: number };

async function load(url: string, pid: number): Promise<Sample> {
  const before = await cpuSecondsOf(pid);
  const result = await autocannon({ url, headers, connections: CONNECTIONS, duration: SECONDS });
  if (result.non2xx || result.errors)
    throw new Error(`${url}: ${result.non2xx} refused, ${result.errors} failed`);
  const requests = result['2xx'];
  return {
    perSecond: requests / result.duration,
    cpuMs: (1_000 * ((await cpuSecondsOf(pid)) - before)) / requests,
  };
}

function median(samples: Sample[]): Sample {
  const sorted = samples.toSorted((a, b) => a.perSecond - b.perSecond);
  return sorted[Math.floor(sorted.length / 2)] as Sample;
}

/** Starts a server and waits for its first line. */
async function start(script: string, args: string[], env: Record<string, string>) {
  const child = spawn(process.execPath, [script, ...args], {
    env: { PATH: process.env.PATH, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  cleanup.defer(async () => {
    child.kill('SIGTERM');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  });
  const [chunk] = await once(child.stdout, 'data');
  return { pid: child.pid as number, greeting: String(chunk).trim() };
}
