/**
 * The resource usage of an attempt over time, for charts: one row of arrays with at most `MAX_POINTS` points. A point covers one
 * or more samples: it has the time of the last sample, the mean percentages, and the peaks of memory and disk. When the row is
 * full, pairs of points are merged, and each point then covers twice as many samples. So a job of a week has as many points as
 * a job of an hour.
 */

import type pg from 'pg';
import type { Usage } from '../../runners/runner.ts';

/** As many as a chart can show. With a sample every 5 s, pairs of points are merged for the first time after 40 minutes. */
export const MAX_POINTS = 480;

type Point = Usage & { time: Date; gpuPercent: number };

export type UsageHistoryWriter = {
  add(sample: Point): Promise<void>;
  /** Stores the samples of the incomplete point. */
  end(): Promise<void>;
};

/** Opens the history of an attempt for its worker, and continues after the stored points. */
export async function openUsageHistory(
  pool: pg.Pool,
  attemptId: string,
): Promise<UsageHistoryWriter> {
  const stored = await readRow(pool, attemptId);
  let samplesPerPoint = stored?.samples_per_point ?? 1;
  let count = stored?.times.length ?? 0;
  /** Samples of the incomplete point, which are lost if the server is killed. */
  let pending: Point[] = [];

  async function flush(): Promise<void> {
    const point = mergePoints(pending);
    // Cleared even if the write fails and the samples are lost, so that the next point does not cover more samples.
    pending = [];
    await appendPoint(pool, attemptId, point);
    count++;
    if (count >= MAX_POINTS) await mergePairs();
  }

  async function mergePairs(): Promise<void> {
    const row = await readRow(pool, attemptId);
    if (!row) return;
    const points = toPoints(row);
    const merged: Point[] = [];
    for (let index = 0; index < points.length; index += 2)
      merged.push(mergePoints(points.slice(index, index + 2)));
    await pool.query({
      name: 'loam-thin-usage',
      text: `
        update attempt_usage set samples_per_point = 2 * samples_per_point,
          times = $2, gpu_percent = $3, cpu_percent = $4, memory_bytes = $5, disk_bytes = $6
        where attempt_id = $1`,
      values: [attemptId, ...toColumns(merged)],
    });
    samplesPerPoint *= 2;
    count = merged.length;
  }

  // The row is full if the previous server was killed before it merged the points.
  if (count >= MAX_POINTS) await mergePairs();
  return {
    async add(sample) {
      pending.push(sample);
      if (pending.length >= samplesPerPoint) await flush();
    },
    async end() {
      if (pending.length > 0) await flush();
    },
  };
}

/** Appends a point. Does nothing if the attempt was deleted with its job. */
async function appendPoint(pool: pg.Pool, attemptId: string, point: Point): Promise<void> {
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
    values: [attemptId, ...toColumns([point])],
  });
}

type StoredUsageRow = {
  samples_per_point: number;
  times: Date[];
  gpu_percent: number[];
  cpu_percent: number[];
  memory_bytes: string[];
  disk_bytes: string[];
};

const COLUMNS = 'samples_per_point, times, gpu_percent, cpu_percent, memory_bytes, disk_bytes';

async function readRow(pool: pg.Pool, attemptId: string): Promise<StoredUsageRow | undefined> {
  const { rows } = await pool.query<StoredUsageRow>({
    name: 'loam-usage-of-attempt',
    text: `select ${COLUMNS} from attempt_usage where attempt_id = $1`,
    values: [attemptId],
  });
  return rows[0];
}

function toPoints(row: StoredUsageRow): Point[] {
  // All arrays of a row have the same length.
  return row.times.map((time, index) => ({
    time,
    gpuPercent: row.gpu_percent[index] as number,
    cpuPercent: row.cpu_percent[index] as number,
    memoryBytes: Number(row.memory_bytes[index]),
    diskBytes: Number(row.disk_bytes[index]),
  }));
}

function toColumns(points: readonly Point[]): unknown[] {
  return [
    points.map(({ time }) => time),
    points.map(({ gpuPercent }) => clampPercent(gpuPercent)),
    points.map(({ cpuPercent }) => clampPercent(cpuPercent)),
    points.map(({ memoryBytes }) => Math.round(memoryBytes)),
    points.map(({ diskBytes }) => Math.round(diskBytes)),
  ];
}

/** Rounds to an integer from 0 to 100. */
export function clampPercent(value = 0): number {
  return Math.min(100, Math.max(0, Math.round(value)));
}

/** Merges samples, or points. Points count equally, although the last point before a restart may cover fewer samples. */
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

export type AttemptUsagePoint = Point & { attempt: number };

/**
 * Reads the points of an attempt, by default of the last attempt of the job. The oldest point is first.
 * @param since only points after this time
 */
export async function readUsagePoints(
  { pool }: { pool: pg.Pool },
  jobId: string,
  { attempt, since }: { attempt?: number | null; since?: Date | null },
): Promise<AttemptUsagePoint[]> {
  const { rows } = await pool.query<StoredUsageRow & { number: number }>({
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
  return toPoints(row)
    .filter(({ time }) => !since || time > since)
    .map((point) => ({ ...point, attempt: row.number }));
}
