/** What the workers of all servers offer, for jobs that wait for it. */

import type pg from 'pg';
import type { Machine, Runner } from '../runners/runner.ts';
import { PHASES } from './state.ts';

/** A worker whose heartbeat is older counts as dead. There is one every ten seconds. */
export const WORKER_SILENCE_S = 60;

type GpuRequest = { gpu: string; gpuCount: number };

/** A machine, as its worker tells the others. `away`: it stands for engines that do not answer, and has nothing now. */
export type WorkerCapacity = Machine & { away?: boolean };

const AWAY_ENGINE: WorkerCapacity = {
  ...{ id: 'away', cpus: 0, memoryBytes: 0, gpus: {}, away: true },
  ...{ withImage: true, withoutImage: false },
};

/** What a worker tells the others: that it runs images also while its engine is away, or they would fail what waits for it. */
export function capacityOf({
  machines,
  engineAway,
}: Pick<Runner, 'machines' | 'engineAway'>): WorkerCapacity[] {
  return engineAway ? [...machines, AWAY_ENGINE] : [...machines];
}

type Row = { id: string; runner: string; machines: WorkerCapacity[]; alive: boolean };

/** Of workers that were alive within a week (`worker/queue.ts`). */
async function readWorkers({ pool }: { pool: pg.Pool }): Promise<Row[]> {
  const { rows } = await pool.query<Row>(
    `select id, runner, machines, heartbeat_at > now() - make_interval(secs => $1) as alive
     from workers`,
    [WORKER_SILENCE_S],
  );
  // Those of earlier versions do not say what their machines run.
  const whole = (runner: string) => (offer: WorkerCapacity) => ({
    ...{ withImage: runner !== 'process' },
    ...offer,
  });
  return rows.map((row) => ({ ...row, machines: row.machines.map(whole(row.runner)) }));
}

/** The machines of workers that are alive. */
export async function readLiveMachines(services: { pool: pg.Pool }): Promise<WorkerCapacity[]> {
  return (await readWorkers(services)).flatMap(({ alive, machines }) => (alive ? machines : []));
}

/**
 * The machines of the other workers that are alive.
 * @param awaitSilent those that are silent are taken to come back: what they run images with is away
 */
export async function readPeerMachines(
  services: { pool: pg.Pool },
  workerId: string,
  awaitSilent: boolean,
): Promise<WorkerCapacity[]> {
  const others = (await readWorkers(services)).filter(({ id }) => id !== workerId);
  return others.flatMap(({ alive, machines }) => {
    if (alive) return machines;
    return awaitSilent && runsImages(machines) ? [AWAY_ENGINE] : [];
  });
}

/** Whether jobs that name images run on any of them, at once or when an engine is back. */
export function runsImages(offers: readonly WorkerCapacity[]): boolean {
  return offers.some(({ withImage = true }) => withImage);
}

/** Whether the machine runs jobs that name an image, or such that name none, whatever is free. */
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

/** As `a T4 in us-east-1`. */
export function describeGpus({ gpu, gpuCount, region }: GpuRequest & { region: string }): string {
  return `${gpuCount > 1 ? `${gpuCount} ×` : 'a'} ${gpu} in ${region}`;
}

/** What is said of a job for which no worker has what it asks for. */
export const NOT_OFFERED = 'no worker offers it';

/** What a new job's `progress` says: what it waits for, and whether any worker has it. */
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
