/** The capacity that workers advertise to each other through the database: their machines and what those can run. */

import type pg from 'pg';
import type { Machine, Runner } from '../runners/runner.ts';
import { PHASES } from './state.ts';

/** A worker whose last heartbeat is older counts as dead. Heartbeats are written every ten seconds. */
export const WORKER_SILENCE_S = 60;

type GpuRequest = { gpu: string; gpuCount: number };

/** An advertised machine. `away`: a placeholder for container engines that do not answer; it has no resources now. */
export type WorkerCapacity = Machine & { away?: boolean };

const AWAY_ENGINE: WorkerCapacity = {
  ...{ id: 'away', cpus: 0, memoryBytes: 0, gpus: {}, away: true },
  ...{ withImage: true, withoutImage: false },
};

/** What a worker advertises. While its engine is away it still claims to run images; otherwise peers would fail such jobs. */
export function capacityOf({
  machines,
  hasUnavailableEngine,
}: Pick<Runner, 'machines' | 'hasUnavailableEngine'>): WorkerCapacity[] {
  return hasUnavailableEngine ? [...machines, AWAY_ENGINE] : [...machines];
}

type Row = { id: string; runner: string; machines: WorkerCapacity[]; alive: boolean };

/** Reads all workers, including those that died within the last week (`removeGoneWorkers`). */
async function readWorkers({ pool }: { pool: pg.Pool }): Promise<Row[]> {
  const { rows } = await pool.query<Row>(
    `select id, runner, machines, heartbeat_at > now() - make_interval(secs => $1) as alive
     from workers`,
    [WORKER_SILENCE_S],
  );
  // Workers of earlier versions do not say whether their machines run images.
  const withDefaults = (runner: string) => (machine: WorkerCapacity) => ({
    ...{ withImage: runner !== 'process' },
    ...machine,
  });
  return rows.map((row) => ({ ...row, machines: row.machines.map(withDefaults(row.runner)) }));
}

/** Reads the machines of all workers that are alive. */
export async function readLiveMachines(services: { pool: pg.Pool }): Promise<WorkerCapacity[]> {
  return (await readWorkers(services)).flatMap(({ alive, machines }) => (alive ? machines : []));
}

/**
 * Reads the machines of the other workers that are alive.
 * @param awaitSilent whether silent workers are expected to return: if they run images, their engine counts as away
 */
export async function readPeerMachines(
  services: { pool: pg.Pool },
  workerId: string,
  awaitSilent: boolean,
): Promise<WorkerCapacity[]> {
  const peers = (await readWorkers(services)).filter(({ id }) => id !== workerId);
  return peers.flatMap(({ alive, machines }) => {
    if (alive) return machines;
    return awaitSilent && runsImages(machines) ? [AWAY_ENGINE] : [];
  });
}

/** Whether any of the machines runs jobs that name an image, now or when its engine answers again. */
export function runsImages(machines: readonly WorkerCapacity[]): boolean {
  return machines.some(({ withImage = true }) => withImage);
}

/** Whether the machine runs jobs of this kind, with or without an image, regardless of its free capacity. */
export function canRun(
  { withImage = true, withoutImage = true }: WorkerCapacity,
  { image = null }: { image?: string | null },
): boolean {
  return image === null ? withoutImage : withImage;
}

/** Whether the machine has the GPUs, free or not. */
export function hasGpus({ gpus }: Pick<Machine, 'gpus'>, { gpu, gpuCount }: GpuRequest): boolean {
  return gpu === 'none' || (gpus[gpu] ?? 0) >= gpuCount;
}

/** For example `a T4 in us-east-1`. */
export function describeGpus({ gpu, gpuCount, region }: GpuRequest & { region: string }): string {
  return `${gpuCount > 1 ? `${gpuCount} ×` : 'a'} ${gpu} in ${region}`;
}

/** The note on a job whose request no worker can satisfy. */
export const NOT_OFFERED = 'no worker offers it';

/** The `progress` of a new job: what it waits for, and whether any worker has it. */
export async function describeWait(
  services: { pool: pg.Pool },
  request: GpuRequest & { region: string },
): Promise<string> {
  if (request.gpu === 'none') return PHASES.waiting;
  const waiting = `waiting for ${describeGpus(request)}`;
  const machines = await readLiveMachines(services);
  return machines.some((machine) => hasGpus(machine, request))
    ? waiting
    : `${waiting}: ${NOT_OFFERED}`;
}
