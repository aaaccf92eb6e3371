/** Compares servers on the same HTTP request in alternating rounds: requests per second, and CPU time per request. */
import autocannon from 'autocannon';
import { cpuSecondsOf, cpuSecondsOfAll } from './process.ts';

const CONNECTIONS = 8;
/**
 * Warm-up rounds run until two in a row take at least this fraction of the round before, for each server. After a single warm-up
 * round, the first row was measured while the server's code was still being JIT-compiled, at 1.4 times its later CPU time.
 */
const PLATEAU = 0.95;

export type Rival = {
  name: string;
  pid: number;
  url: string;
  method?: 'GET' | 'POST';
  body?: string;
  headers: Record<string, string>;
};
/** CPU milliseconds per request, of the process alone and with PostgreSQL. */
type Sample = { perSecond: number; cpuMs: number; allMs: number };

export type Effort = {
  rounds: number;
  /** The duration of a round of one server. */
  seconds: number;
  maxWarming: number;
  /** The main process of PostgreSQL, whose backends serve all servers in turn. */
  postmaster: number;
};

/** Measures the servers in alternating rounds, and prints the first against each of the others. */
export async function compare(
  title: string,
  rivals: readonly Rival[],
  effort: Effort,
): Promise<void> {
  for (const rival of rivals) await warm(rival, effort);
  const samples = new Map(rivals.map((rival) => [rival, [] as Sample[]]));
  for (let round = 0; round < effort.rounds; round++)
    for (const [rival, taken] of samples) taken.push(await load(rival, effort));
  const figures = [...samples.values()].map(median);
  const [l, ...rest] = figures as [Sample, ...Sample[]];
  console.log(
    `${title}: ${rivals.map(({ name }, i) => `${name} ${shown(figures[i] as Sample)}`).join('; ')}` +
      rest.map((r, i) => ` → ${ratio(l, r)} ${rivals[i + 1]?.name}'s`).join(''),
  );
}

/** @throws Error for a failed response, or one with GraphQL errors */
export async function answerOf({ url, headers, method, body }: Rival): Promise<unknown> {
  const response = await fetch(url, { headers, method, body });
  const answer = (await response.json()) as { errors?: unknown };
  if (!response.ok || answer.errors) throw new Error(`${url}: ${JSON.stringify(answer)}`);
  return answer;
}

function shown({ perSecond, cpuMs, allMs }: Sample): string {
  return `${perSecond.toFixed(0)}/s ${cpuMs.toFixed(3)} ms (${allMs.toFixed(3)})`;
}

function ratio(ours: Sample, theirs: Sample): string {
  const times = (key: keyof Sample) => (ours[key] / theirs[key]).toFixed(2);
  return `throughput ${times('perSecond')}×, CPU ${times('cpuMs')}× (${times('allMs')}×)`;
}

async function warm(rival: Rival, effort: Effort): Promise<void> {
  let before = Number.POSITIVE_INFINITY;
  for (let round = 0, settled = 0; round < effort.maxWarming && settled < 2; round++) {
    const { cpuMs } = await load(rival, effort);
    settled = cpuMs > before * PLATEAU ? settled + 1 : 0;
    before = cpuMs;
  }
}

async function load(
  { url, pid, method = 'GET', body, headers }: Rival,
  { seconds, postmaster }: Effort,
): Promise<Sample> {
  const [server, database] = [await cpuSecondsOf(pid), await cpuSecondsOfAll(postmaster)];
  const result = await autocannon({
    url,
    headers,
    method,
    body,
    connections: CONNECTIONS,
    duration: seconds,
  });
  if (result.non2xx || result.errors)
    throw new Error(`${url}: ${result.non2xx} refused, ${result.errors} failed`);
  const requests = result['2xx'];
  const ofServer = (await cpuSecondsOf(pid)) - server;
  const ofAll = ofServer + (await cpuSecondsOfAll(postmaster)) - database;
  return {
    perSecond: requests / result.duration,
    cpuMs: (1_000 * ofServer) / requests,
    allMs: (1_000 * ofAll) / requests,
  };
}

/** By CPU time, which varies less than throughput. */
function median(samples: Sample[]): Sample {
  const sorted = samples.toSorted((a, b) => a.cpuMs - b.cpuMs);
  return sorted[Math.floor(sorted.length / 2)] as Sample;
}
