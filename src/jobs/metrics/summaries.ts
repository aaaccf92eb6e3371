/** Reads what a job has reported: a summary of each metric, and the points that are not in chunks yet. */
import type pg from 'pg';
import { decodePage, type Series } from './series.ts';

type MetricSummary = {
  name: string;
  points: number;
  /** Of all points that are numbers; null if none is. */
  min: number | null;
  max: number | null;
  /** Of the point that was printed last. */
  last: number;
  lastStep: number;
  lastAt: Date;
  lastAttempt: number;
};

/** Consecutive points of one attempt. */
export type AttemptSeries = { attempt: number; series: Series };

export type Metric = MetricSummary & {
  jobId: string;
  /** The number of points in chunks. All later points are in `open`. */
  stored: number;
  open: AttemptSeries[];
};

/** A metric (a row of `job_metrics`), or a page with points of several metrics. */
type Row = {
  name: string | null;
  points: string;
  min: number | null;
  max: number | null;
  last: number;
  last_step: string;
  last_time: Date;
  attempt: number;
  data: Buffer;
};

/**
 * Reads the metrics of a job, sorted by name. One statement, so that compaction moves no point in between.
 * @param names only these; null: all
 */
export async function readMetrics(
  client: pg.Pool | pg.PoolClient,
  jobId: string,
  names: readonly string[] | null = null,
): Promise<Metric[]> {
  const { rows } = await client.query<Row>({
    name: 'loam-metrics',
    text: `
      select * from (
        select null::bigint as id, name, points, min, max, last, last_step, last_time,
          last_attempt as attempt, null::bytea as data
        from job_metrics where job_id = $1 and ($2::text[] is null or name = any ($2))
        union all
        select id, null, null, null, null, null, null, null, attempt, data
        from metric_pages where job_id = $1
      ) entry order by id nulls first`,
    values: [jobId, names],
  });
  const wanted = names && new Set(names);
  const metrics = new Map<string, Metric>();
  for (const row of rows) {
    if (row.name !== null) {
      metrics.set(row.name, toMetric(jobId, row.name, row));
      continue;
    }
    for (const { name, series } of decodePage(row.data, (one) => wanted?.has(one) ?? true)) {
      const { attempt } = row;
      const before = metrics.get(name);
      const summary = addToSummary(before, { name, attempt, series });
      const open = before?.open ?? [];
      open.push({ attempt, series });
      metrics.set(name, { ...summary, jobId, stored: before?.stored ?? 0, open });
    }
  }
  return [...metrics.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

function toMetric(jobId: string, name: string, row: Row): Metric {
  const points = Number(row.points);
  return {
    jobId,
    name,
    points,
    min: row.min,
    max: row.max,
    last: row.last,
    lastStep: Number(row.last_step),
    lastAt: row.last_time,
    lastAttempt: row.attempt,
    stored: points,
    open: [],
  };
}

/** @param series at least one point */
function addToSummary(
  before: MetricSummary | undefined,
  { name, attempt, series }: { name: string; attempt: number; series: Series },
): MetricSummary {
  const { steps, times, values } = series;
  let { min = null, max = null } = before ?? {};
  for (const value of values) {
    if (Number.isNaN(value)) continue;
    if (min === null || value < min) min = value;
    if (max === null || value > max) max = value;
  }
  const end = values.length - 1;
  return {
    name,
    points: (before?.points ?? 0) + values.length,
    min,
    max,
    last: values[end] as number,
    lastStep: steps[end] as number,
    lastAt: new Date(times[end] as number),
    lastAttempt: attempt,
  };
}
