/**
 * `npm run bench:machines [pairs] [jobs]`: joined machines against the server's own machine.
 *
 * - From creating a job until its first line is at a client that follows it: on a machine that has joined over loopback, with the
 *   real program, and on the machine of another server. Both alternate, and the first runs do not count.
 * - 32 machines with 8 GPUs each, simulated by requests without commands: the CPU time of the server for each of many jobs, against
 *   a server that runs as many as processes; and the memory of the server for each idle machine.
 */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Agent, setGlobalDispatcher } from 'undici';
import type { AgentReport } from '../src/runners/agent/protocol.ts';
import type { JoinAnswer, MachineFacts, MachineOrders } from '../src/runners/machines/protocol.ts';
import { clientsOf } from '../test/support/harness.ts';
import { joinMachine } from '../test/support/joined-machine.ts';
import { createJob, firstLine } from './jobs.ts';
import { cpuSecondsOf, residentOf } from './process.ts';
import { type Bench, median, openBench, TOKEN, time } from './repository.ts';

const PAIRS = Number(process.argv[2] ?? 40);
const JOBS = Number(process.argv[3] ?? 1_000);
const WARM_UP = 60;
const REST_MS = 250;
const MACHINES = 32;
const IDLE_MACHINES = 2_000;
/** A token lets at most 1,000 join. */
const MACHINES_PER_TOKEN = 500;
/** Each machine has reported some times by then. */
const SETTLE_MS = 60_000;
/** Jobs that are created and have not ended. */
const IN_FLIGHT = 64;

await using remote = await openBench({ LOAM_RUNNER: 'none', LOAM_JOB_NETWORK: 'internet' });
await using local = await openBench({
  LOAM_RUNNER: 'process',
  LOAM_JOB_NETWORK: 'internet',
  LOAM_JOB_SLOTS: String(IN_FLIGHT),
});
for (const bench of [remote, local])
  await bench.graphql(
    'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
  );

async function compareStart(): Promise<void> {
  const loam = clientsOf(remote.server.base, TOKEN);
  const dir = join(remote.folder, 'machine');
  const env = { LOAM_JOB_NETWORK: 'internet' };
  await using _ = await joinMachine(loam, { dir, name: 'box', env });
  const samples = new Map<Bench, number[]>([
    [remote, []],
    [local, []],
  ]);
  for (let i = -WARM_UP; i < PAIRS; i++)
    for (const [bench, taken] of samples) {
      const { base } = bench.server;
      const name = `first-${i + WARM_UP}`;
      let ended: Promise<void> | undefined;
      const ms = await time(async () => {
        await createJob(base, { repo: 'admin/code', name, command: 'echo first line' });
        ended = (await firstLine(base, name)).ended;
      });
      await ended;
      if (i < 0) continue;
      taken.push(ms);
      await delay(REST_MS);
    }
  const [there, here] = [median(samples.get(remote) ?? []), median(samples.get(local) ?? [])];
  console.log(
    `create → first line, ${PAIRS} pairs: on a joined machine ${there.toFixed(0)} ms, on the server's own ${here.toFixed(0)} ms: ` +
      `${(there - here).toFixed(0)} ms more`,
  );
}

async function compareClaims(): Promise<void> {
  // Each machine has a request open, and each attempt some more.
  setGlobalDispatcher(new Agent({ connections: 16 * IN_FLIGHT }));
  const { base } = remote.server;
  const token = await createToken(remote);
  const stopping = new AbortController();
  const machines = await Promise.all(
    Array.from({ length: MACHINES }, (_, i) => simulate(base, token, `m${i}`, stopping.signal)),
  );
  // Both warm up, and then take turns.
  const costs = { joined: [] as number[], own: [] as number[] };
  for (let round = -1; round < 4; round++) {
    const count = JOBS / 4;
    const joined = await cpuOfJobs(remote, count, { gpu: 'T4' });
    const own = await cpuOfJobs(local, count, {});
    if (round < 0) continue;
    costs.joined.push(joined);
    costs.own.push(own);
  }
  const [joined, own] = [median(costs.joined), median(costs.own)];
  console.log(
    `${JOBS} jobs on ${MACHINES} machines with 8 GPUs each: ${joined.toFixed(1)} ms of CPU of the server for each, ` +
      `as processes ${own.toFixed(1)} ms: ${(joined / own).toFixed(2)}×`,
  );
  stopping.abort();
  await Promise.allSettled(machines);
}

/** On a server of its own that has done nothing else. Many machines, because garbage alone varies by some tens of megabytes. */
async function tellMemory(): Promise<void> {
  await using bench = await openBench({ LOAM_RUNNER: 'none' });
  const { child, base } = bench.server;
  const stopping = new AbortController();
  const join = async (from: number, to: number) => {
    let token = '';
    for (let i = from; i < to; i++) {
      if ((i - from) % MACHINES_PER_TOKEN === 0) token = await createToken(bench);
      await simulate(base, token, `m${i}`, stopping.signal);
    }
  };
  // The code of the requests is loaded and compiled by the first ones.
  await join(0, MACHINES);
  await delay(SETTLE_MS);
  const before = await residentOf(child.pid ?? 0);
  await join(MACHINES, MACHINES + IDLE_MACHINES);
  await delay(SETTLE_MS);
  const taken = (await residentOf(child.pid ?? 0)) - before;
  stopping.abort();
  console.log(
    `${IDLE_MACHINES} idle machines: ${(taken / IDLE_MACHINES / 1_000).toFixed(0)} kB of the server for each`,
  );
}

async function createToken({ graphql }: Bench): Promise<string> {
  const { createWorkerToken } = (await graphql(
    'mutation { createWorkerToken(input: {name: "bench"}) { token } }',
  )) as { createWorkerToken: { token: string } };
  return createWorkerToken.token;
}

let names = 0;

/** @returns milliseconds of CPU of the server, without its children, for each job */
async function cpuOfJobs({ server }: Bench, count: number, fields: object): Promise<number> {
  const pid = server.child.pid ?? 0;
  const before = await cpuSecondsOf(pid);
  const run = async () => {
    const name = `job-${names++}`;
    const job = { repo: 'admin/code', command: 'true', cpu: 2, memory_gb: 1, disk_gb: 1 };
    await createJob(server.base, { ...job, name, ...fields });
    await untilEnded(server.base, name);
  };
  let left = count;
  const lane = async () => {
    while (left-- > 0) await run();
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, lane));
  return (((await cpuSecondsOf(pid)) - before) * 1_000) / count;
}

/** The stream of the log of a job ends with the job. */
async function untilEnded(base: string, name: string): Promise<void> {
  const response = await fetch(`${base}/admin/job/${name}/logs?stream=true`, {
    headers: { authorization: `Bearer ${TOKEN}` },
  });
  await response.text();
}

const FACTS: MachineFacts = {
  hostname: 'simulated',
  os: 'linux',
  arch: 'x64',
  node: '24.0.0',
  program: '',
  cpus: 64,
  memoryBytes: 2 ** 39,
  gpus: Array.from({ length: 8 }, (_, index) => ({
    index,
    name: 'Tesla T4',
    uuid: `GPU-${index}`,
    memoryBytes: 2 ** 34,
  })),
  withImage: true,
  withoutImage: true,
  slots: 32,
  notes: [],
};
const LOAD = { cpuPercent: 1, memoryBytes: 2 ** 33, gpuPercent: 0 };

/** Joins, and then reports and answers for attempts as the program does. Resolves when it has joined. */
async function simulate(base: string, token: string, name: string, signal: AbortSignal) {
  const post = async (path: string, authorization: string, body: object, nonce = '') => {
    const response = await fetch(`${base}${path}`, {
      method: 'POST',
      headers: { authorization, 'content-type': 'application/json', 'loam-agent': nonce },
      body: JSON.stringify(body),
      signal,
    });
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return response.json();
  };
  const joined = (await post('/machines/join', '', { token, name, facts: FACTS })) as JoinAnswer;
  const held = new Set<string>();
  let seen = '';
  let sequence = 1;
  const runAttempt = async (id: string, attemptToken: string) => {
    const nonce = randomUUID();
    const authorization = `Bearer ${attemptToken}`;
    const path = `/agents/${id}`;
    const headers = { authorization, 'loam-agent': nonce };
    await post(`${path}/claim`, authorization, { nonce, node: name });
    await (await fetch(`${base}${path}/checkout`, { headers, signal })).arrayBuffer();
    await post(`${path}/begin`, authorization, {}, nonce);
    const at = Date.now();
    const end = { exitCode: 0, timedOut: false, startedAt: at, endedAt: at, unstartable: false };
    const report: AgentReport = { exit: { ...end, logBytes: 0 } };
    await post(`${path}/report`, authorization, report, nonce);
    for (let version = ''; ; ) {
      const query = `seen=${encodeURIComponent(version)}`;
      const response = await fetch(`${base}${path}/control?${query}`, { headers, signal });
      if (!response.ok) return;
      const control = (await response.json()) as { version: string; isDismissed?: true };
      if (control.isDismissed) return;
      version = control.version;
    }
  };
  const report = async () => {
    let changed = new AbortController();
    while (!signal.aborted) {
      changed = new AbortController();
      const attempts = Array.from(held, (id) => ({ id }));
      const response = await fetch(
        `${base}/machines/${joined.id}/poll?attempts=${attempts.length}&instance=${joined.id}`,
        {
          method: 'POST',
          headers: {
            authorization: `Bearer ${joined.secret}`,
            'content-type': 'application/json',
          },
          body: JSON.stringify({ facts: FACTS, load: LOAD, attempts, seen, sequence: sequence++ }),
          signal: AbortSignal.any([signal, changed.signal]),
        },
      ).catch(() => null);
      if (!response?.ok) continue;
      const orders = (await response.json()) as MachineOrders;
      seen = orders.version;
      for (const { id, token: attemptToken } of orders.attempts) {
        if (held.has(id)) continue;
        held.add(id);
        void runAttempt(id, attemptToken)
          .catch((error) => signal.aborted || console.error(error))
          .finally(() => {
            held.delete(id);
            changed.abort();
          });
      }
    }
  };
  void report();
}

await compareStart();
await compareClaims();
await tellMemory();
