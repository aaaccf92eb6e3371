/** What the workers of all servers offer, for jobs that wait for it. */
import type { Services } from '../services.ts';
import type { Machine } from './runners/runner.ts';
import { PHASES } from './state.ts';

/** A worker whose heartbeat is older counts as dead. There is one every ten seconds. */
export const WORKER_SILENCE_S = 60;

type GpuWish = { gpu: string; gpuCount: number };

/** The machines of workers that are alive. @param but the id of a worker whose own are left out */
export async function machinesOffered(
  { pool }: Pick<Services, 'pool'>,
  but: string | null = null,
): Promise<Machine[]> {
  const { rows } = await pool.query<{ machines: Machine[] }>(
    `select machines from workers
     where heartbeat_at > now() - make_interval(secs => $1) and id is distinct from $2`,
    [WORKER_SILENCE_S, but],
  );
  return rows.flatMap(({ machines }) => machines);
}

/** Whether the machine has the GPUs, free or not. */
export function hasGpus({ gpus }: Pick<Machine, 'gpus'>, { gpu, gpuCount }: GpuWish): boolean {
  return gpu === 'none' || (gpus[gpu] ?? 0) >= gpuCount;
}

/** As `a T4 in us-east-1`. */
export function gpusInWords({ gpu, gpuCount, region }: GpuWish & { region: string }): string {
  return `${gpuCount > 1 ? `${gpuCount} ×` : 'a'} ${gpu} in ${region}`;
}

/** What is said of a job for which no worker has the GPUs. */
export function notOffered(waiting: string): string {
  return `${waiting}: no worker offers it`;
}

/** What a new job's `progress` says: what it waits for, and whether any worker has it. */
export async function poolWaitsFor(
  services: Pick<Services, 'pool'>,
  wish: GpuWish & { region: string },
): Promise<string> {
  if (wish.gpu === 'none') return PHASES.waiting;
  const waiting = `waiting for ${gpusInWords(wish)}`;
  const machines = await machinesOffered(services);
  return machines.some((machine) => hasGpus(machine, wish)) ? waiting : notOffered(waiting);
}
