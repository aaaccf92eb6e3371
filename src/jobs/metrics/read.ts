/** Reads points: reduced for charts, or all of them as CSV. */
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import type pg from 'pg';
import { invalid } from '../../base/errors.ts';
import {
  appendSteps,
  decodeSeries,
  decompressSeries,
  downsample,
  emptySeries,
  type Series,
  sliceSeries,
} from './series.ts';
import { type AttemptSeries, type Metric, readMetrics } from './summaries.ts';

const MIN_POINTS = 10;
export const MAX_POINTS = 10_000;
/** Above this number, charts are drawn from the overviews of the chunks. So a read never blocks the main thread for long. */
const MAX_DECODED_POINTS = 65_536;

/** Chunks after which a read lets other requests continue. */
const YIELD_AFTER = 128;

export type SeriesQuery = { maxPoints: number; fromStep?: number | null; toStep?: number | null };

/**
 * Reads the points of a metric for a chart, for each attempt in order. The attempts share `maxPoints` by their number of points.
 * @throws AppError 400
 */
export async function readSeries(
  { pool }: { pool: pg.Pool },
  metric: Metric,
  { maxPoints, fromStep, toStep }: SeriesQuery,
): Promise<AttemptSeries[]> {
  if (maxPoints < MIN_POINTS || maxPoints > MAX_POINTS)
    throw invalid('maxPoints', `must be from ${MIN_POINTS} to ${MAX_POINTS}`);
  const from = fromStep ?? 0;
  const to = toStep ?? Number.MAX_SAFE_INTEGER;
  if (from < 0) throw invalid('fromStep', 'must be 0 or more');
  if (to < from) throw invalid('toStep', 'must not be less than fromStep');
  const attempts = new Map<number, Series>();
  let count = 0;
  for await (const { attempt, series } of readChunks(pool, metric, from, to)) {
    appendSteps(attempts.getOrInsertComputed(attempt, emptySeries), series, { from, to });
    // A metric can have thousands of overviews.
    if (++count % YIELD_AFTER === 0) await yieldToEventLoop();
  }
  for (const { attempt, series } of metric.open)
    appendSteps(attempts.getOrInsertComputed(attempt, emptySeries), series, { from, to });
  const found = [...attempts].filter(([, { steps }]) => steps.length > 0);
  const total = found.reduce((sum, [, { steps }]) => sum + steps.length, 0);
  return found.map(([attempt, series]) => {
    const share = Math.ceil((maxPoints * series.steps.length) / total);
    return { attempt, series: downsample(series, Math.max(MIN_POINTS, share)) };
  });
}

type ChunkRow = {
  attempt: number;
  first: string;
  points: number;
  data: Buffer;
  is_overview: boolean;
};

/** Reads the chunks with steps of a range: their points, or their overviews if they have many points. */
async function* readChunks(
  pool: pg.Pool,
  { jobId, name, stored }: Metric,
  from: number,
  to: number,
): AsyncGenerator<AttemptSeries> {
  if (stored === 0) return;
  const { rows } = await pool.query<ChunkRow>({
    name: 'loam-metric-chunks',
    // Chunks that were added after the summary was read have points that are in its pages, too.
    text: `
      select first, attempt, points, is_overview,
        case when is_overview then overview else data end as data
      from (
        select *, sum(points) over () > ${MAX_DECODED_POINTS} as is_overview from metric_chunks
        where job_id = $1 and name = $2 and first < $3 and max_step >= $4 and min_step <= $5
      ) chunk
      order by first`,
    values: [jobId, name, stored, from, to],
  });
  for (const { attempt, first, points, data, is_overview } of rows) {
    const series = is_overview
      ? decodeSeries(data)
      : sliceSeries(await decompressSeries(data, points), 0, stored - Number(first));
    yield { attempt, series };
  }
}

const CSV_HEAD = 'name,attempt,step,time,value\n';

/**
 * Streams all points of a job, or of one metric, as CSV, without the points that are stored after this call. It reads one chunk
 * at a time. Names need no quotes.
 */
export async function* streamCsv(
  { pool }: { pool: pg.Pool },
  jobId: string,
  name: string | null,
): AsyncGenerator<string> {
  yield CSV_HEAD;
  for (const metric of await readMetrics(pool, jobId, name === null ? null : [name])) {
    for (let next = 0; next < metric.stored; ) {
      const { rows } = await pool.query<ChunkRow>({
        name: 'loam-metric-chunk',
        // Not the chunk that begins at `next`: it may have been merged with the one before since the last read.
        text: `
          select attempt, first, points, data from metric_chunks
          where job_id = $1 and name = $2 and first <= $3 order by first desc limit 1`,
        values: [jobId, metric.name, next],
      });
      const [chunk] = rows;
      // The job was deleted.
      if (!chunk) return;
      const first = Number(chunk.first);
      const series = await decompressSeries(chunk.data, chunk.points);
      const end = Math.min(first + chunk.points, metric.stored);
      yield toCsv(metric.name, chunk.attempt, sliceSeries(series, next - first, end - first));
      next = end;
    }
    for (const { attempt, series } of metric.open) yield toCsv(metric.name, attempt, series);
  }
}

function toCsv(name: string, attempt: number, { steps, times, values }: Series): string {
  let text = '';
  for (let index = 0; index < steps.length; index++) {
    const time = new Date(times[index] as number).toISOString();
    text += `${name},${attempt},${steps[index]},${time},${values[index]}\n`;
  }
  return text;
}
