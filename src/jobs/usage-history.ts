/**
 * The resource usage of an attempt over time, for charts: one row of arrays with at most `MAX_POINTS` points. When the row is
 * full, pairs of points are merged, and from then on a point covers twice as many samples. So a job of a week has as many
 * points as a job of an hour. A point has the time of its last sample, mean percentages, and the peaks of memory and disk.
 */

import type pg from 'pg';
import type { Usage } from '../runners/runner.ts';

/** More than a chart can show. With a sample every 5 s the row is full after 40 minutes, and then half full. */
export const MAX_POINTS = 480;

type Point = Usage & { time: Date };

type Pool = pg.Pool;

export type UsageHistory = {
  add(point: Point): Promise<void>;
  /** Stores the samples of the incomplete point. */
  end(): Promise<void>;
};

/** Opens the history of an attempt, which only its worker may write, and continues the stored points. */
export async function openUsageHistory(pool: Pool, attemptId: string): Promise<UsageHistory> {
  const stored = await readRow(pool, attemptId);
  let samplesPerPoint = stored?.samples_per_point ?? 1;
  let count = stored?.times.length ?? 0;
  /** Samples of the incomplete point, which are lost if the server is killed. */
  let pending: Point[] = [];

  async function flush(): Promise<void> {
    const point = mergePoints(pending);
    // Cleared even if the write fails, so that the next point does not cover more samples.
    pending = [];
    await appendPoint(pool, attemptId, point);
    count++;
    if (count >= MAX_POINTS) await halve();
  }

  async function halve(): Promise<void> {
    const row = await readRow(pool, attemptId);
    if (!row) return;
    const points = pointsOf(row);
    const halved: Point[] = [];
    for (let at = 0; at < points.length; at += 2)
      halved.push(mergePoints(points.slice(at, at + 2)));
    await pool.query({
      name: 'loam-thin-usage',
      text: `
        update attempt_usage set samples_per_point = 2 * samples_per_point,
          times = $2, gpu_percent = $3, cpu_percent = $4, memory_bytes = $5, disk_bytes = $6
        where attempt_id = $1`,
      values: [attemptId, ...columnsOf(halved)],
    });
    samplesPerPoint *= 2;
    count = halved.length;
  }

  // The previous server was killed before it merged the points.
  if (count >= MAX_POINTS) await halve();
  return {
    async add(point) {
      pending.push(point);
      if (pending.length >= samplesPerPoint) await flush();
    },
    async end() {
      if (pending.length > 0) await flush();
    },
  };
}

/** Appends a point. Does nothing if the attempt was deleted with its job. */
async function appendPoint(pool: Pool, attemptId: string, point: Point): Promise<void> {
  await pool.query({
    name: 'loam-append-usage',
    text: `
      insert into attempt_usage as stored
        (attempt_id, times, gpu_percent, cpu_percent, memory_bytes, disk_bytes)
      select id, $2::timestamptz[], $3::int[], $4::int[], $5::bigint[], $6::bigint[]
      from job_attempts where id = $1
      on conflict (attempt_id) do update set
        times = stored.times || excluded.times,
        gpu_percent = stored.gpu_percent || excluded.gpu_percent,
        cpu_percent = stored.cpu_percent || excluded.cpu_percent,
        memory_bytes = stored.memory_bytes || excluded.memory_bytes,
        disk_bytes = stored.disk_bytes || excluded.disk_bytes`,
    values: [attemptId, ...columnsOf([point])],
  });
}

type Row = {
  samples_per_point: number;
  times: Date[];
  gpu_percent: number[];
  cpu_percent: number[];
  memory_bytes: string[];
  disk_bytes: string[];
};

const COLUMNS = 'samples_per_point, times, gpu_percent, cpu_percent, memory_bytes, disk_bytes';

async function readRow(pool: Pool, attemptId: string): Promise<Row | undefined> {
  const { rows } = await pool.query<Row>({
    name: 'loam-usage-of-attempt',
    text: `select ${COLUMNS} from attempt_usage where attempt_id = $1`,
    values: [attemptId],
  });
  return rows[0];
}

function pointsOf(row: Row): Point[] {
  return row.times.map((time, at) => ({
    time,
    gpuPercent: row.gpu_percent[at] as number,
    cpuPercent: row.cpu_percent[at] as number,
    memoryBytes: Number(row.memory_bytes[at]),
    diskBytes: Number(row.disk_bytes[at]),
  }));
}

function columnsOf(points: readonly Point[]): unknown[] {
  return [
    points.map(({ time }) => time),
    points.map(({ gpuPercent }) => toPercent(gpuPercent)),
    points.map(({ cpuPercent }) => toPercent(cpuPercent)),
    points.map(({ memoryBytes }) => Math.round(memoryBytes)),
    points.map(({ diskBytes }) => Math.round(diskBytes)),
  ];
}

/** Rounds to an integer from 0 to 100. */
export function toPercent(value = 0): number {
  return Math.min(100, Math.max(0, Math.round(value)));
}

/** Merges samples, or points that cover equally many samples. */
function mergePoints(points: readonly Point[]): Point {
  const mean = (key: 'gpuPercent' | 'cpuPercent') =>
    points.reduce((sum, point) => sum + point[key], 0) / points.length;
  return {
    time: points.at(-1)?.time as Date,
    gpuPercent: mean('gpuPercent'),
    cpuPercent: mean('cpuPercent'),
    memoryBytes: Math.max(...points.map(({ memoryBytes }) => memoryBytes)),
    diskBytes: Math.max(...points.map(({ diskBytes }) => diskBytes)),
  };
}

export type UsageSample = Point & { attempt: number };

/** Reads the samples of an attempt, by default the last one of the job, oldest first. @param since only later samples */
export async function usageSamples(
  { pool }: { pool: pg.Pool },
  jobId: string,
  { attempt, since }: { attempt?: number | null; since?: Date | null },
): Promise<UsageSample[]> {
  const { rows } = await pool.query<Row & { number: number }>({
    name: 'loam-usage-of-job',
    text: `
      with attempt as (
        select id, number from job_attempts
        where job_id = $1 and ($2::int is null or number = $2) order by number desc limit 1
      )
      select number, ${COLUMNS} from attempt join attempt_usage on attempt_id = id`,
    values: [jobId, attempt ?? null],
  });
  const [row] = rows;
  if (!row) return [];
  return pointsOf(row)
    .filter(({ time }) => !since || time > since)
    .map((point) => ({ ...point, attempt: row.number }));
}
