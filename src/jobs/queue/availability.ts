/**
 * How much of the hardware is free, how many jobs wait for it, and an estimate of the wait. The estimate assumes that as many jobs
 * of the GPU model run as now, each as long as recent jobs. It ignores CPU and memory of jobs with a GPU.
 */
import type pg from 'pg';
import { NO_GPU } from '../../base/hardware.ts';
import { countWaitingJobs } from './overview.ts';
import {
  isSuitable,
  readLiveWorkers,
  servesNamespace,
  type WorkerCapacity,
} from './worker-capacity.ts';

type FreeCapacity = WorkerCapacity & {
  cpusFree: number;
  gpusFree: Readonly<Record<string, number>>;
};

/** `seconds`: the mean duration of recent attempts. `running`: how many attempts are open. */
export type RecentRate = { seconds: number | null; running: number };

export type Availability = {
  /** The machines of live workers. */
  machines: readonly FreeCapacity[];
  /** The pools with waiting jobs. */
  waiting: readonly { gpu: string; region: string; jobs: number }[];
  rates: ReadonlyMap<string, RecentRate>;
};

type UsedCapacity = { worker_id: string; machine: string; gpu: string; gpus: number; cpus: number };

const USED_CAPACITY = `
  select a.worker_id, a.machine, j.gpu, sum(j.gpu_count)::int as gpus, coalesce(sum(a.cpus), 0)::int as cpus
  from job_attempts a join jobs j on j.id = a.job_id where a.ended_at is null group by 1, 2, 3`;

export async function readAvailability(
  { pool }: { pool: pg.Pool },
  rates: ReadonlyMap<string, RecentRate>,
): Promise<Availability> {
  const [workers, waiting, { rows: used }] = await Promise.all([
    readLiveWorkers({ pool }),
    countWaitingJobs({ pool }),
    pool.query<UsedCapacity>(USED_CAPACITY),
  ]);
  const machines = workers.flatMap(({ id, machines }) =>
    machines.map((machine) => {
      const here = used.filter((one) => one.worker_id === id && one.machine === machine.id);
      const gpusFree = Object.entries(machine.gpus).map(([model, count]) => {
        const taken = here.find(({ gpu }) => gpu === model)?.gpus ?? 0;
        return [model, Math.max(0, count - taken)];
      });
      const cpusFree = machine.cpus - here.reduce((sum, { cpus }) => sum + cpus, 0);
      return { ...machine, cpusFree, gpusFree: Object.fromEntries(gpusFree) };
    }),
  );
  return { machines, waiting, rates };
}

/** Without the machines of other namespaces; undefined: without those of any namespace. */
export function ofNamespace(availability: Availability, namespaceId?: string): Availability {
  const machines = availability.machines.filter((one) => servesNamespace(one, { namespaceId }));
  return { ...availability, machines };
}

/** Reads the rates of all GPU models from the last 500 attempts, which a scan of the newest ids finds quickly. */
export async function readRecentRates(pool: pg.Pool): Promise<Map<string, RecentRate>> {
  const { rows } = await pool.query<RecentRate & { gpu: string }>(
    `select j.gpu, avg(extract(epoch from ended_at - a.created_at)) filter (where ended_at is not null)::float8
         as seconds,
       count(*) filter (where ended_at is null)::int as running
     from (select job_id, created_at, ended_at from job_attempts order by id desc limit 500) a
     join jobs j on j.id = a.job_id where a.created_at > now() - interval '7 days' group by j.gpu`,
  );
  return new Map(rows.map(({ gpu, ...rate }) => [gpu, rate]));
}

type WaitRequest = {
  gpu: string;
  gpuCount: number;
  cpu: number;
  image?: string | null;
  volumes?: unknown;
  /** Null: any. */
  region: string | null;
};

/** @returns seconds until a new job would start; null if no machine has what it needs, and without a rate */
export function estimateWait(
  { machines, waiting, rates }: Availability,
  request: WaitRequest,
): number | null {
  const { gpu, region } = request;
  const suitable = machines.filter((machine) =>
    region === null
      ? isSuitable({ ...machine, regions: undefined }, { ...request, region: '' })
      : isSuitable(machine, { ...request, region }),
  );
  if (suitable.length === 0) return null;
  const ahead = countWaiting({ waiting }, request);
  if (ahead === 0 && suitable.some((machine) => hasRoom(machine, request))) return 0;
  return waitAt(ahead + 1, rates.get(gpu));
}

function hasRoom(machine: FreeCapacity, { gpu, gpuCount, cpu }: WaitRequest): boolean {
  return gpu === NO_GPU
    ? machine.cpusFree >= Math.min(cpu, machine.cpus)
    : (machine.gpusFree[gpu] ?? 0) >= gpuCount;
}

/** @returns seconds until the job at this position starts; null without a rate */
export function waitAt(position: number, rate: RecentRate | undefined): number | null {
  if (!rate || rate.seconds === null || rate.running === 0) return null;
  return (position * rate.seconds) / rate.running;
}

/** Counts the jobs that wait for a GPU model in a region, or in all regions if that is null. */
export function countWaiting(
  { waiting }: Pick<Availability, 'waiting'>,
  { gpu, region }: { gpu: string; region: string | null },
): number {
  return waiting
    .filter((pool) => pool.gpu === gpu && (region === null || pool.region === region))
    .reduce((sum, { jobs }) => sum + jobs, 0);
}

/** All GPUs of a model on the machines, and those that are free. */
export function countGpus(
  { machines }: Pick<Availability, 'machines'>,
  gpu: string,
): { free: number; total: number } {
  return machines.reduce(
    ({ free, total }, machine) => ({
      free: free + (machine.gpusFree[gpu] ?? 0),
      total: total + (machine.gpus[gpu] ?? 0),
    }),
    { free: 0, total: 0 },
  );
}
