/**
 * Where the jobs that wait stand: what each waits for, its place in line, and when it may start.
 *
 * Nothing of this is stored. It is computed when somebody asks, from what is read at most every two seconds for each
 * pool and for each line, however many ask and however many jobs they ask for: the lines with their counts, and the
 * ids of the first thousand jobs of a line. Between two reads it is as old as that.
 *
 * A place is in the order of turns as if no job ended meanwhile (`worker/claim.ts` has the order), over all regions of a
 * GPU model, as workers serve them all. An estimate is that from the recent past: as many jobs of the pool run as now,
 * each for as long as those did that ended last.
 */
import type { Pool } from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import {
  readLiveMachines,
  describeGpus,
  hasGpus,
  NOT_OFFERED,
  canRun,
  runsImages,
  type WorkerCapacity,
} from './worker-capacity.ts';

export const positionColumns = {
  id: true,
  namespaceId: true,
  status: true,
  attemptId: true,
  availableAt: true,
  progress: true,
  gpu: true,
  gpuCount: true,
  image: true,
  cpu: true,
  memoryGb: true,
  region: true,
} as const satisfies Prisma.JobSelect;
type JobRow = Prisma.JobGetPayload<{ select: typeof positionColumns }>;

export type QueuePosition = {
  /** What it asks for, in words. */
  waitsFor: string;
  /** Why no worker that is alive has it, in words; null: one has. */
  missing: string | null;
  /** From 1; null when it stands behind more than are looked at. */
  position: number | null;
  /** Null when nothing of the recent past tells. */
  estimatedStart: Date | null;
};

export type QueuePositions = {
  /** Null for a job that does not wait, or is to be tried again later. */
  of(job: JobRow): Promise<QueuePosition | null>;
  /** What `progress` says of a job: its place while it waits, else what is stored. */
  progressOf(job: JobRow): Promise<string>;
};

const FRESH_MS = 2_000;
/** The recent past changes slowly. */
const RATE_FRESH_MS = 10_000;
/** Of a line. */
const MAX_IDS = 1_000;
/** Of a pool. */
const MAX_LINES = 5_000;
/** What is kept of lines that nobody asks for any more. */
const MAX_CACHED_KEYS = 1_000;

type QueueLine = { namespaceId: string; waiting: number; held: number };
/** `seconds`: how long those that ended last were held. `running`: how many are held now. */
type RecentRate = { seconds: number | null; running: number };

export function openQueuePositions({ pool }: { pool: Pool }): QueuePositions {
  const lines = kept(FRESH_MS, (gpu: string) => readLines(pool, gpu));
  const ids = kept(FRESH_MS, (line: string) => readIds(pool, line.split(' ')));
  const past = kept(RATE_FRESH_MS, (gpu: string) => readRecentRate(pool, gpu));
  const machines = kept(FRESH_MS, () => readLiveMachines({ pool }));

  async function of(job: JobRow): Promise<QueuePosition | null> {
    const { gpu, region, namespaceId } = job;
    if (job.status !== 'queued' || job.attemptId !== null || job.availableAt > new Date())
      return null;
    const { waitsFor, missing } = findUnmetNeed(job, await machines(''));
    const [all, first] = await Promise.all([lines(gpu), ids(`${gpu} ${region} ${namespaceId}`)]);
    const position = positionOf(job, all, first);
    const none = { waitsFor, missing, position, estimatedStart: null };
    if (missing !== null || position === null) return none;
    const { seconds, running } = await past(gpu);
    if (seconds === null || running === 0) return none;
    const wait = (position * seconds) / running;
    return { ...none, estimatedStart: new Date(Date.now() + wait * 1000) };
  }

  return {
    of,
    async progressOf(job) {
      const place = await of(job);
      return place ? describePosition(place) : job.progress;
    },
  };
}

/** Reads at most once in `ms` for each key, for all who ask. */
function kept<T>(ms: number, read: (key: string) => Promise<T>): (key: string) => Promise<T> {
  const values = new Map<string, { value: Promise<T>; until: number }>();
  return (key) => {
    const now = performance.now();
    const found = values.get(key);
    if (found && found.until > now) return found.value;
    if (values.size >= MAX_CACHED_KEYS) values.clear();
    const value = read(key);
    values.set(key, { value, until: now + ms });
    // One that failed is read again.
    value.catch(() => values.delete(key));
    return value;
  };
}

function positionOf(
  { id, namespaceId }: JobRow,
  lines: readonly QueueLine[],
  first: readonly string[],
): number | null {
  // A job that came after they were read is behind them all.
  let ahead = first.findIndex((other) => other >= id);
  if (ahead < 0) ahead = first.length;
  if (ahead >= MAX_IDS) return null;
  const mine = lines.findIndex((line) => line.namespaceId === namespaceId);
  if (mine < 0 && lines.length >= MAX_LINES) return null;
  const held = (lines[mine]?.held ?? 0) + ahead;
  return lines.reduce((position, line, turn) => {
    if (line.namespaceId === namespaceId) return position;
    // So many of theirs come before ours, until they hold as many as we do then.
    const theirs = held - line.held + (mine < 0 || turn < mine ? 1 : 0);
    return position + Math.max(0, Math.min(line.waiting, theirs));
  }, ahead + 1);
}

/** As `waiting for 8 vCPUs and 32 GB: 3rd in line, about 4 minutes`. */
function describePosition({ waitsFor, missing, position, estimatedStart }: QueuePosition): string {
  const what = `waiting for ${waitsFor}`;
  if (missing !== null) return `${what}: ${missing}`;
  if (position === null) return `${what}: behind more than ${MAX_IDS} others`;
  const place = `${what}: ${ordinal(position)} in line`;
  return estimatedStart ? `${place}, ${describeDuration(+estimatedStart - Date.now())}` : place;
}

/** What a job waits for, and why no worker that is alive has that; null: one has. */
function findUnmetNeed(
  job: JobRow,
  offers: readonly WorkerCapacity[],
): { waitsFor: string; missing: string | null } {
  const waitsFor = describeRequest(job);
  const there = offers.filter((offer) => !offer.away && hasGpus(offer, job));
  if (there.some((offer) => canRun(offer, job))) return { waitsFor, missing: null };
  const onImages = 'a server that runs container images';
  if (job.image !== null && there.length > 0) {
    if (!runsImages(offers))
      return { waitsFor: onImages, missing: 'no worker has a container engine' };
    if (job.gpu !== 'none') return { waitsFor: `${waitsFor} on ${onImages}`, missing: NOT_OFFERED };
  }
  if (job.gpu === 'none' && runsImages(offers))
    return { waitsFor: onImages, missing: 'no container engine answers' };
  return { waitsFor, missing: NOT_OFFERED };
}

function describeRequest(job: JobRow): string {
  return job.gpu === 'none' ? `${job.cpu} vCPUs and ${job.memoryGb} GB` : describeGpus(job);
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

/** The namespaces that wait in a pool, in the order of their turns. */
async function readLines(pool: Pool, gpu: string): Promise<QueueLine[]> {
  const { rows } = await pool.query<QueueLine>(
    `select namespace_id as "namespaceId", waiting, held from queue_lines
     where gpu = $1 and open order by held, served_at, namespace_id, line_served_at, region limit $2`,
    [gpu, MAX_LINES],
  );
  const found = new Map<string, QueueLine>();
  for (const row of rows) {
    const other = found.get(row.namespaceId);
    if (other) other.waiting += row.waiting;
    else found.set(row.namespaceId, row);
  }
  return [...found.values()];
}

async function readIds(pool: Pool, [gpu, region, namespaceId]: string[]): Promise<string[]> {
  const { rows } = await pool.query<{ id: string }>(
    `select id from jobs where gpu = $1 and region = $2 and namespace_id = $3
       and status = 'queued' and attempt_id is null order by id limit ${MAX_IDS}`,
    [gpu, region, namespaceId],
  );
  return rows.map(({ id }) => id);
}

/** Of the last 500 attempts of all pools: a walk of the newest ids. */
async function readRecentRate(pool: Pool, gpu: string): Promise<RecentRate> {
  const { rows } = await pool.query<RecentRate>(
    `select avg(extract(epoch from ended_at - a.created_at)) filter (where ended_at is not null)::float8
         as seconds,
       count(*) filter (where ended_at is null)::int as running
     from (select job_id, created_at, ended_at from job_attempts order by id desc limit 500) a
     join jobs j on j.id = a.job_id where j.gpu = $1 and a.created_at > now() - interval '7 days'`,
    [gpu],
  );
  return rows[0] ?? { seconds: null, running: 0 };
}
