/**
 * Computes the queue position of waiting jobs on request, from reads that are cached for two seconds, so that the load does not
 * grow with the number of requests. A position follows the claim order (`claim.ts`) over all regions of a GPU model, as
 * if no running job ended. The estimated start assumes that as many jobs of the GPU model run as now, each as long as recent
 * jobs.
 */
import type { Decimal } from 'decimal.js';
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Config } from '../../base/config/config.ts';
import { costPerHour, NO_GPU } from '../../base/hardware.ts';
import { NO_FULL_VOLUMES, readFullVolumes } from '../volumes/usage.ts';
import { readVolumes } from '../volumes/volumes.ts';
import {
  type Availability,
  estimateWait,
  ofNamespace,
  readAvailability,
  readRecentRates,
  waitAt,
} from './availability.ts';
import { offerOf } from './offer.ts';
import { describeNeed, readLiveMachines } from './worker-capacity.ts';

export const positionColumns = {
  id: true,
  namespaceId: true,
  status: true,
  attemptId: true,
  blocked: true,
  availableAt: true,
  progress: true,
  gpu: true,
  gpuCount: true,
  image: true,
  volumes: true,
  cpu: true,
  memoryGb: true,
  diskGb: true,
  region: true,
} as const satisfies Prisma.JobSelect;
type JobRow = Prisma.JobGetPayload<{ select: typeof positionColumns }>;

export type QueuePosition = {
  /** The requested resources, in words. */
  waitsFor: string;
  /** Why no live worker has these resources, in words; null if a worker has them. */
  missing: string | null;
  /** From 1; null if the job is behind more jobs than are read (`MAX_IDS`). */
  position: number | null;
  /** Null if there is no recent or no running job from which to estimate it. */
  estimatedStart: Date | null;
};

/** Another GPU model or region in which the job would start earlier. */
export type SoonerStart = {
  gpu: string;
  region: string;
  estimatedStart: Date;
  costPerHour: Decimal;
};

export type QueuePositions = {
  /** Of the machines that run jobs of every namespace. @param namespaceId also of those that run jobs of this one only */
  readAvailability(namespaceId?: string): Promise<Availability>;
  /** @returns the earliest starts first, and at most `MAX_SOONER`; none for a job that does not wait in the queue */
  findSooner(job: JobRow): Promise<SoonerStart[]>;
  /** @returns null for a job that does not wait in the queue: it is blocked, or is delayed before a retry */
  findPosition(job: JobRow): Promise<QueuePosition | null>;
  /** Returns the `progress` of a job: its queue position while it waits, otherwise the stored text. */
  progressOf(job: JobRow): Promise<string>;
};

const CACHE_MS = 2_000;
/** Longer, because the rate changes slowly. */
const RATE_CACHE_MS = 10_000;
/** Maximum number of job ids that are read of a namespace and pool. */
const MAX_IDS = 1_000;
/** Maximum number of rows of `queue_lines` that are read for a GPU model. */
const MAX_NAMESPACE_QUEUES = 5_000;
const MAX_SOONER = 3;
/** An earlier start by less than this is not worth a change of the job. */
const SOONER_S = 60;
/** A cache with this many keys is cleared. */
const MAX_CACHED_KEYS = 1_000;

/** The waiting jobs and open attempts of a namespace, for one GPU model. */
type NamespaceBacklog = { namespaceId: string; waiting: number; held: number };

export function createQueuePositions({
  pool,
  config,
}: {
  pool: pg.Pool;
  config: Pick<Config, 'hardware' | 'volumes'>;
}): QueuePositions {
  const backlogsOf = cacheTtl(CACHE_MS, (gpu: string) => readBacklogs(pool, gpu));
  const firstIdsOf = cacheTtl(CACHE_MS, (key: string) => readIds(pool, key.split(' ')));
  const rates = cacheTtl(RATE_CACHE_MS, () => readRecentRates(pool));
  const availability = cacheTtl(CACHE_MS, async () => readAvailability({ pool }, await rates('')));
  const fullVolumes = cacheTtl(CACHE_MS, () => readFullVolumes({ pool, config }));
  const liveMachines = cacheTtl(CACHE_MS, (namespaceId: string) =>
    readLiveMachines({ pool }, namespaceId),
  );

  async function findPosition(job: JobRow): Promise<QueuePosition | null> {
    const { gpu, region, namespaceId } = job;
    const isDelayed = job.blocked || job.availableAt > new Date();
    if (job.status !== 'queued' || job.attemptId !== null || isDelayed) return null;
    const full = readVolumes(job).length > 0 ? await fullVolumes('') : NO_FULL_VOLUMES;
    const { waitsFor, missing } = describeNeed(job, await liveMachines(namespaceId), full);
    const [backlogs, firstIds] = await Promise.all([
      backlogsOf(gpu),
      firstIdsOf(`${gpu} ${region} ${namespaceId}`),
    ]);
    const position = computePosition(job, backlogs, firstIds);
    const unestimated = { waitsFor, missing, position, estimatedStart: null };
    if (missing !== null || position === null) return unestimated;
    const waitSeconds = waitAt(position, (await rates('')).get(gpu));
    if (waitSeconds === null) return unestimated;
    return { ...unestimated, estimatedStart: new Date(Date.now() + waitSeconds * 1000) };
  }

  async function findSooner(job: JobRow): Promise<SoonerStart[]> {
    const position = await findPosition(job);
    if (!position) return [];
    const now = Date.now();
    const ownWait = position.estimatedStart ? (+position.estimatedStart - now) / 1_000 : Infinity;
    const found = ofNamespace(await availability(''), job.namespaceId);
    const offer = offerOf({ config }, found.machines);
    const models =
      job.gpu === NO_GPU
        ? [NO_GPU]
        : offer.gpus.flatMap(({ name, counts }) => (counts.includes(job.gpuCount) ? name : []));
    // Where all machines serve all regions, another region changes nothing.
    const served = new Set([job.region, ...found.machines.flatMap(({ regions = [] }) => regions)]);
    const regions = offer.regions.filter((region) => served.has(region));
    const starts = models.flatMap((gpu) =>
      regions.flatMap((region) => {
        if (gpu === job.gpu && region === job.region) return [];
        const request = { ...job, gpu, region };
        const wait = estimateWait(found, request);
        if (wait === null || wait + SOONER_S > ownWait) return [];
        const estimatedStart = new Date(now + wait * 1_000);
        return { gpu, region, estimatedStart, costPerHour: costPerHour(request, offer) };
      }),
    );
    const sorted = starts.sort(
      (a, b) => +a.estimatedStart - +b.estimatedStart || a.costPerHour.cmp(b.costPerHour),
    );
    return sorted.slice(0, MAX_SOONER);
  }

  return {
    readAvailability: async (namespaceId) => ofNamespace(await availability(''), namespaceId),
    findSooner,
    findPosition,
    async progressOf(job) {
      const position = await findPosition(job);
      return position ? describePosition(position) : job.progress;
    },
  };
}

/** Caches the reads of each key for `ms`; concurrent callers share one read. */
function cacheTtl<T>(ms: number, read: (key: string) => Promise<T>): (key: string) => Promise<T> {
  const values = new Map<string, { value: Promise<T>; until: number }>();
  return (key) => {
    const now = performance.now();
    const found = values.get(key);
    if (found && found.until > now) return found.value;
    if (values.size >= MAX_CACHED_KEYS) values.clear();
    const value = read(key);
    values.set(key, { value, until: now + ms });
    // A failed read is not cached.
    value.catch(() => values.delete(key));
    return value;
  };
}

function computePosition(
  { id, namespaceId }: JobRow,
  backlogs: readonly NamespaceBacklog[],
  firstIds: readonly string[],
): number | null {
  // A job that was created after the read is behind all jobs that were read.
  let ahead = firstIds.findIndex((other) => other >= id);
  if (ahead < 0) ahead = firstIds.length;
  if (ahead >= MAX_IDS) return null;
  const ownRank = backlogs.findIndex((backlog) => backlog.namespaceId === namespaceId);
  if (ownRank < 0 && backlogs.length >= MAX_NAMESPACE_QUEUES) return null;
  // The open attempts of this namespace when the job is next.
  const held = (backlogs[ownRank]?.held ?? 0) + ahead;
  return backlogs.reduce((position, backlog, rank) => {
    if (backlog.namespaceId === namespaceId) return position;
    // Another namespace is served first until it has as many open attempts.
    const jobsBefore = held - backlog.held + (ownRank < 0 || rank < ownRank ? 1 : 0);
    return position + Math.max(0, Math.min(backlog.waiting, jobsBefore));
  }, ahead + 1);
}

/** For example `waiting for 8 vCPUs and 32 GB: 3rd in line, about 4 minutes`. */
function describePosition({ waitsFor, missing, position, estimatedStart }: QueuePosition): string {
  const waiting = `waiting for ${waitsFor}`;
  if (missing !== null) return `${waiting}: ${missing}`;
  if (position === null) return `${waiting}: behind more than ${MAX_IDS} jobs`;
  const ranked = `${waiting}: ${ordinal(position)} in line`;
  return estimatedStart ? `${ranked}, ${describeDuration(+estimatedStart - Date.now())}` : ranked;
}

function ordinal(n: number): string {
  const teen = n % 100 >= 11 && n % 100 <= 13;
  return `${n}${(!teen && ['th', 'st', 'nd', 'rd'][n % 10]) || 'th'}`;
}

function describeDuration(ms: number): string {
  const minutes = Math.round(ms / 60_000);
  if (minutes < 1) return 'less than a minute';
  if (minutes < 90) return `about ${minutes === 1 ? 'a minute' : `${minutes} minutes`}`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `about ${hours} hours` : `about ${Math.round(hours / 24)} days`;
}

/** Reads the namespaces that wait for a GPU model, in queue order. */
async function readBacklogs(pool: pg.Pool, gpu: string): Promise<NamespaceBacklog[]> {
  const { rows } = await pool.query<NamespaceBacklog>(
    `select namespace_id as "namespaceId", waiting, held from queue_lines
     where gpu = $1 and open order by held, served_at, namespace_id, line_served_at, region limit $2`,
    [gpu, MAX_NAMESPACE_QUEUES],
  );
  const found = new Map<string, NamespaceBacklog>();
  for (const row of rows) {
    const other = found.get(row.namespaceId);
    if (other) other.waiting += row.waiting;
    else found.set(row.namespaceId, row);
  }
  return [...found.values()];
}

async function readIds(pool: pg.Pool, [gpu, region, namespaceId]: string[]): Promise<string[]> {
  const { rows } = await pool.query<{ id: string }>(
    `select id from jobs where gpu = $1 and region = $2 and namespace_id = $3
       and status = 'queued' and not blocked and attempt_id is null order by id limit ${MAX_IDS}`,
    [gpu, region, namespaceId],
  );
  return rows.map(({ id }) => id);
}
