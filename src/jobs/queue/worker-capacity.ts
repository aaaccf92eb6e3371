/** The machines that workers advertise to each other through the database, and the jobs that a machine can run. */

import type pg from 'pg';
import { listClusters, type Machine, type Runner, usesWorkerSlots } from '../../runners/runner.ts';
import { PHASES } from '../record/state.ts';
import { type FullVolumes, NO_FULL_VOLUMES } from '../volumes/usage.ts';
import { type JobVolume, readVolumes } from '../volumes/volumes.ts';

/** A worker is dead when its last heartbeat is older than this. A live worker writes a heartbeat every ten seconds. */
export const WORKER_SILENCE_S = 60;

type GpuRequest = { gpu: string; gpuCount: number };

type HardwareRequest = GpuRequest & {
  cpu: number;
  memoryGb: number;
  region: string;
  image: string | null;
  volumes: unknown;
};

/**
 * An advertised machine. `away`: a placeholder without resources for container engines that do not answer, or a cluster that
 * takes no jobs now. `unavailableReason`: why a cluster takes none.
 */
export type WorkerCapacity = Machine & { away?: boolean; unavailableReason?: string };

const UNAVAILABLE_ENGINE: WorkerCapacity = {
  id: 'away',
  cpus: 0,
  memoryBytes: 0,
  gpus: {},
  away: true,
  withImage: true,
  withoutImage: false,
};

/** It cannot run a job now, with an image or without. */
const SILENT_CLUSTER = { ...UNAVAILABLE_ENGINE, withImage: false };

/** Lists the machines on which a worker runs jobs now. Without slots it runs jobs on clusters and joined machines only. */
export function listUsableMachines(
  { machines }: Pick<Runner, 'machines'>,
  slots: number,
): readonly Machine[] {
  return slots > 0 ? machines : machines.filter((machine) => !usesWorkerSlots(machine));
}

/**
 * Lists the machines that a worker advertises. While its engine is unavailable, the worker still advertises that it runs
 * images; otherwise its peers would fail jobs that name an image.
 */
export function listAdvertisedMachines(
  runner: Pick<Runner, 'machines' | 'clusters' | 'hasUnavailableEngine'>,
  slots: number,
): WorkerCapacity[] {
  const silentClusters = listClusters(runner).flatMap(({ unavailableReason, ...cluster }) =>
    unavailableReason === undefined ? [] : { ...SILENT_CLUSTER, ...cluster, unavailableReason },
  );
  const machines = [...listUsableMachines(runner, slots), ...silentClusters];
  const isEngineExpected = slots > 0 || listClusters(runner).length > 0;
  return runner.hasUnavailableEngine && isEngineExpected
    ? [...machines, UNAVAILABLE_ENGINE]
    : machines;
}

type WorkerRow = { id: string; runner: string; machines: WorkerCapacity[]; alive: boolean };

/** Reads all workers, including dead workers until maintenance removes them after a week. */
async function readWorkers({ pool }: { pool: pg.Pool }): Promise<WorkerRow[]> {
  const { rows } = await pool.query<WorkerRow>(
    `select id, runner, machines, heartbeat_at > now() - make_interval(secs => $1) as alive
     from workers`,
    [WORKER_SILENCE_S],
  );
  return rows;
}

/** Reads the machines of all workers, also of those that are dead. */
export async function readMachines(services: { pool: pg.Pool }): Promise<WorkerCapacity[]> {
  return (await readWorkers(services)).flatMap(({ machines }) => machines);
}

/** Reads the workers that are alive. */
export async function readLiveWorkers(services: {
  pool: pg.Pool;
}): Promise<Pick<WorkerRow, 'id' | 'machines'>[]> {
  return (await readWorkers(services)).filter(({ alive }) => alive);
}

/**
 * Reads the machines of all workers that are alive.
 * @param namespaceId also those that run jobs of this namespace only
 */
export async function readLiveMachines(
  services: { pool: pg.Pool },
  namespaceId?: string,
): Promise<WorkerCapacity[]> {
  return (await readLiveWorkers(services)).flatMap(({ machines }) =>
    machines.filter((machine) => servesNamespace(machine, { namespaceId })),
  );
}

/**
 * Reads the machines of the other workers that are alive.
 * @param awaitSilent whether dead workers are expected to return: if they run images, their engine counts as unavailable
 */
export async function readPeerMachines(
  services: { pool: pg.Pool },
  workerId: string,
  awaitSilent: boolean,
): Promise<WorkerCapacity[]> {
  const peers = (await readWorkers(services)).filter(({ id }) => id !== workerId);
  return peers.flatMap(({ alive, machines }) => {
    if (alive) return machines;
    return awaitSilent && runsImages(machines) ? [UNAVAILABLE_ENGINE] : [];
  });
}

/** Whether any of the machines runs jobs that name an image, now or when its engine answers again. */
export function runsImages(machines: readonly WorkerCapacity[]): boolean {
  return machines.some(({ withImage = true }) => withImage);
}

/** What a job needs of a machine in addition to hardware. `volumes`: the column of the job, which `readVolumes` reads. */
export type JobDemands = { image?: string | null; volumes?: unknown };

/**
 * Whether the machine runs jobs with an image, or without one, as this job needs, and has its volumes. Free capacity does not
 * matter.
 */
export function canRun(
  { withImage = true, withoutImage = true, volumes = [] }: WorkerCapacity,
  { image = null, volumes: wanted = [] }: JobDemands,
): boolean {
  const runsKind = image === null ? withoutImage : withImage;
  return runsKind && readVolumes({ volumes: wanted }).every(({ name }) => volumes.includes(name));
}

/** Whether the machine has the GPUs, free or in use. */
export function hasGpus({ gpus }: Pick<Machine, 'gpus'>, { gpu, gpuCount }: GpuRequest): boolean {
  return gpu === 'none' || (gpus[gpu] ?? 0) >= gpuCount;
}

/** Whether the machine runs jobs of the region. */
export function servesRegion(
  { regions }: Pick<Machine, 'regions'>,
  { region }: { region: string },
): boolean {
  return regions === undefined || regions.includes(region);
}

/** Whether the machine runs jobs of the namespace; undefined: of any namespace. */
export function servesNamespace(
  machine: Pick<Machine, 'namespaceId'>,
  { namespaceId }: { namespaceId?: string | undefined },
): boolean {
  return machine.namespaceId === undefined || machine.namespaceId === namespaceId;
}

/** Whether the machine can run the job when enough of it is free. */
export function isSuitable(
  machine: WorkerCapacity,
  job: GpuRequest & { region: string } & JobDemands,
): boolean {
  return (
    !machine.away && servesRegion(machine, job) && hasGpus(machine, job) && canRun(machine, job)
  );
}

/** For example `a T4 in us-east-1`, or `an H100-80GB in us-east-1`. */
function describeGpus({ gpu, gpuCount, region }: GpuRequest & { region: string }): string {
  // As the first letter is spoken.
  const article = /^[AEFHILMNORSX]/.test(gpu) ? 'an' : 'a';
  return `${gpuCount > 1 ? `${gpuCount} ×` : article} ${gpu} in ${region}`;
}

/** Part of the `progress` of a job whose requested resources no worker has. */
const NOT_OFFERED = 'no worker offers it';

/**
 * Describes the resources that a job waits for, and why no live worker has them; null if a worker has them.
 * @param full volumes to which no job may write
 */
export function describeNeed(
  job: HardwareRequest,
  machines: readonly WorkerCapacity[],
  full: FullVolumes = NO_FULL_VOLUMES,
): { waitsFor: string; missing: string | null } {
  // Where all machines serve all regions, the region does not matter.
  const hasRegions = machines.some(({ regions }) => regions !== undefined);
  const waitsFor = describeRequest(job, hasRegions);
  const volumes = readVolumes(job);
  if (machines.some((machine) => isSuitable(machine, job)))
    return { waitsFor, missing: describeFull(volumes, full) };
  const inRegion = machines.filter((machine) => servesRegion(machine, job));
  // It may have what the job needs, which is unknown while it takes no jobs.
  const silent = inRegion.find(({ unavailableReason }) => unavailableReason !== undefined);
  const without = machines.filter((machine) => isSuitable(machine, { ...job, volumes: [] }));
  if (without.length > 0 && !silent)
    return { waitsFor, missing: describeMissingVolumes(volumes, without) };
  const notOffered = silent
    ? `${NOT_OFFERED}, and "${silent.id}" takes no jobs now: ${silent.unavailableReason}`
    : NOT_OFFERED;
  const withGpus = inRegion.filter((machine) => !machine.away && hasGpus(machine, job));
  const imageServer = 'a server that runs container images';
  if (job.image !== null && withGpus.length > 0) {
    if (!runsImages(machines))
      return { waitsFor: imageServer, missing: 'no worker has a container engine' };
    if (job.gpu !== 'none' || !runsImages(inRegion))
      return { waitsFor: `${waitsFor} on ${imageServer}`, missing: notOffered };
  }
  if (job.gpu === 'none' && runsImages(inRegion) && !silent)
    return { waitsFor: imageServer, missing: 'no container engine answers' };
  return { waitsFor, missing: notOffered };
}

function describeFull(volumes: readonly JobVolume[], full: FullVolumes): string | null {
  const found = volumes.find(({ name, readOnly }) => !readOnly && full.has(name));
  return found ? `the volume ${found.name} is full: ${full.get(found.name)}` : null;
}

/** @param machines those that have all that the job needs, except its volumes */
function describeMissingVolumes(
  volumes: readonly JobVolume[],
  machines: readonly WorkerCapacity[],
): string {
  const names = [...new Set(volumes.map(({ name }) => name))];
  const nowhere = names.filter(
    (name) => !machines.some(({ volumes = [] }) => volumes.includes(name)),
  );
  const missing = nowhere.length > 0 ? nowhere : names;
  return `no machine has the volume${missing.length > 1 ? 's' : ''} ${missing.join(' and ')}`;
}

function describeRequest(job: HardwareRequest, hasRegions: boolean): string {
  if (job.gpu !== 'none') return describeGpus(job);
  const size = `${job.cpu} vCPUs and ${job.memoryGb} GB`;
  return hasRegions ? `${size} in ${job.region}` : size;
}

/** Describes what a new job waits for, and whether any worker has it, as its first `progress`. */
export async function describeWait(
  services: { pool: pg.Pool },
  request: GpuRequest & { region: string; namespaceId: string },
): Promise<string> {
  if (request.gpu === 'none') return PHASES.waiting;
  const waiting = `waiting for ${describeGpus(request)}`;
  const machines = await readLiveMachines(services, request.namespaceId);
  return machines.some((machine) => servesRegion(machine, request) && hasGpus(machine, request))
    ? waiting
    : `${waiting}: ${NOT_OFFERED}`;
}
