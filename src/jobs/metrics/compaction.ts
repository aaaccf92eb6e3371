/** Moves the points of a job from its pages, one for each batch of lines, into chunks of one metric. */
import type pg from 'pg';
import { inPoolTransaction } from '../../platform/database/client.ts';
import {
  appendSeries,
  compressSeries,
  decompressSeries,
  downsample,
  emptySeries,
  encodeSeries,
  type Series,
  sliceSeries,
} from './series.ts';
import { type Metric, readMetrics } from './summaries.ts';

/** Number of pages that triggers a compaction. */
export const COMPACT_AT = 64;
const CHUNK_POINTS = 4_096;
/** Points of a chunk's overview: `downsample` of its points. */
const OVERVIEW_POINTS = 128;

type ChunkKey = { name: string; first: number; attempt: number; points: number };
type NewChunk = { name: string; first: number; attempt: number; series: Series };

/** Compacts the metrics of an attempt that has ended, if it has printed any. */
export async function compactEndedMetrics(deps: { pool: pg.Pool }, jobId: string): Promise<void> {
  const { rowCount } = await deps.pool.query({
    name: 'loam-has-metric-pages',
    text: 'select from metric_pages where job_id = $1 limit 1',
    values: [jobId],
  });
  if (rowCount !== 0) await compactMetrics(deps, jobId);
}

/**
 * Moves the points in one transaction, so that readers see each point once. The lock on the job's row blocks appends until the
 * commit. A chunk is merged with smaller ones before it only while it is at least half as large as they are, so a point is
 * rewritten at most six times before its chunk is full.
 */
export async function compactMetrics({ pool }: { pool: pg.Pool }, jobId: string): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    const lock = 'select from jobs where id = $1 for update';
    const { rowCount } = await client.query({
      name: 'loam-lock-metrics',
      text: lock,
      values: [jobId],
    });
    if (rowCount === 0) return;
    const metrics = (await readMetrics(client, jobId)).filter(({ open }) => open.length > 0);
    if (metrics.length === 0) return;
    const partial = await readPartialChunks(client, jobId, metrics);
    const replaced: ChunkKey[] = [];
    const created: NewChunk[] = [];
    for (const metric of metrics) {
      const before = partial.filter(({ name }) => name === metric.name);
      const plan = planChunks(metric, before);
      replaced.push(...plan.replaced);
      created.push(...plan.created);
    }
    await prependReplaced(client, jobId, replaced, created);
    await storeChunks(client, jobId, replaced, created.flatMap(splitChunk));
    await storeSummaries(client, jobId, metrics);
    await client.query({
      name: 'loam-remove-metric-pages',
      text: 'delete from metric_pages where job_id = $1',
      values: [jobId],
    });
  });
}

/** The chunks that are not full, without their points, oldest first. */
async function readPartialChunks(
  client: pg.PoolClient,
  jobId: string,
  metrics: readonly Metric[],
): Promise<ChunkKey[]> {
  const { rows } = await client.query<ChunkKey & { first: string }>({
    name: 'loam-partial-chunks',
    text: `
      select name, first, attempt, points from metric_chunks
      where job_id = $1 and name = any ($2) and points < ${CHUNK_POINTS} order by name, first`,
    values: [jobId, metrics.map(({ name }) => name)],
  });
  return rows.map((row) => ({ ...row, first: Number(row.first) }));
}

/** Groups the open points of a metric by attempt, and finds the last chunks to merge with the first group. */
function planChunks(
  { name, stored, open }: Metric,
  partial: readonly ChunkKey[],
): { replaced: ChunkKey[]; created: NewChunk[] } {
  const created: NewChunk[] = [];
  let end = stored;
  for (const { attempt, series } of open) {
    const last = created.at(-1);
    if (last?.attempt === attempt) appendSeries(last.series, series);
    else {
      const copy = emptySeries();
      appendSeries(copy, series);
      created.push({ name, first: end, attempt, series: copy });
    }
    end += series.steps.length;
  }
  const replaced: ChunkKey[] = [];
  const [first] = created;
  for (const chunk of partial.toReversed()) {
    if (!first || chunk.attempt !== first.attempt) break;
    const size = first.series.steps.length + stored - first.first;
    if (chunk.first + chunk.points !== first.first || chunk.points > 2 * size) break;
    replaced.unshift(chunk);
    first.first = chunk.first;
  }
  return { replaced, created };
}

/** Puts the points of replaced chunks before those of the chunk that replaces them. */
async function prependReplaced(
  client: pg.PoolClient,
  jobId: string,
  replaced: readonly ChunkKey[],
  created: readonly NewChunk[],
): Promise<void> {
  if (replaced.length === 0) return;
  const { rows } = await client.query<{ name: string; points: number; data: Buffer }>({
    name: 'loam-replaced-chunks',
    text: `
      select name, points, data from metric_chunks
      join unnest($2::text[], $3::bigint[]) as replaced (name, first) using (name, first)
      where job_id = $1 order by name, first`,
    values: [jobId, ...toKeyParameters(replaced)],
  });
  const merged = new Map<string, Series>();
  for (const { name, points, data } of rows)
    appendSeries(
      merged.getOrInsertComputed(name, emptySeries),
      await decompressSeries(data, points),
    );
  for (const [name, series] of merged) {
    const chunk = created.find((one) => one.name === name);
    if (!chunk) continue;
    appendSeries(series, chunk.series);
    chunk.series = series;
  }
}

function toKeyParameters(chunks: readonly ChunkKey[]): unknown[] {
  return [chunks.map(({ name }) => name), chunks.map(({ first }) => first)];
}

function splitChunk({ series, first, ...chunk }: NewChunk): NewChunk[] {
  const chunks: NewChunk[] = [];
  for (let from = 0; from < series.steps.length; from += CHUNK_POINTS)
    chunks.push({
      ...chunk,
      first: first + from,
      series: sliceSeries(series, from, from + CHUNK_POINTS),
    });
  return chunks;
}

async function storeChunks(
  client: pg.PoolClient,
  jobId: string,
  replaced: readonly ChunkKey[],
  chunks: readonly NewChunk[],
): Promise<void> {
  if (replaced.length > 0)
    await client.query({
      name: 'loam-remove-chunks',
      text: `
        delete from metric_chunks using unnest($2::text[], $3::bigint[]) as replaced (name, first)
        where job_id = $1 and metric_chunks.name = replaced.name
          and metric_chunks.first = replaced.first`,
      values: [jobId, ...toKeyParameters(replaced)],
    });
  const data = await Promise.all(chunks.map(({ series }) => compressSeries(series)));
  const overviews = chunks.map(({ series }) => encodeSeries(downsample(series, OVERVIEW_POINTS)));
  const column = <T>(of: (chunk: NewChunk) => T) => chunks.map(of);
  await client.query({
    name: 'loam-store-chunks',
    // All contents are one value, because the driver would send an array of bytea as text.
    text: `
      insert into metric_chunks
        (job_id, name, first, attempt, points, min_step, max_step, overview, data)
      select $1, name, first, attempt, points, min_step, max_step,
        substring($9::bytea from overview_at + 1 for data_at - overview_at),
        substring($9::bytea from data_at + 1 for data_end - data_at)
      from unnest($2::text[], $3::bigint[], $4::int[], $5::int[], $6::bigint[], $7::bigint[],
          $8::int[], $10::int[], $11::int[])
        as chunk (name, first, attempt, points, min_step, max_step, overview_at, data_at, data_end)`,
    values: [
      jobId,
      column(({ name }) => name),
      column(({ first }) => first),
      column(({ attempt }) => attempt),
      column(({ series }) => series.steps.length),
      column(({ series }) => series.steps.reduce((a, b) => Math.min(a, b))),
      column(({ series }) => series.steps.reduce((a, b) => Math.max(a, b))),
      ...locateContents(overviews, data),
    ],
  });
}

/** The parameters $8 to $11 of `loam-store-chunks`. */
function locateContents(overviews: readonly Buffer[], data: readonly Buffer[]): unknown[] {
  const starts: number[] = [];
  const middles: number[] = [];
  const ends: number[] = [];
  const contents: Buffer[] = [];
  let at = 0;
  for (const [index, overview] of overviews.entries()) {
    const points = data[index] as Buffer;
    contents.push(overview, points);
    starts.push(at);
    middles.push(at + overview.length);
    at += overview.length + points.length;
    ends.push(at);
  }
  return [starts, Buffer.concat(contents), middles, ends];
}

async function storeSummaries(
  client: pg.PoolClient,
  jobId: string,
  metrics: readonly Metric[],
): Promise<void> {
  const column = <K extends keyof Metric>(key: K) => metrics.map((metric) => metric[key]);
  await client.query({
    name: 'loam-store-metrics',
    text: `
      insert into job_metrics
        (job_id, name, points, min, max, last, last_step, last_time, last_attempt)
      select $1, * from unnest($2::text[], $3::bigint[], $4::float8[], $5::float8[], $6::float8[],
        $7::bigint[], $8::timestamptz[], $9::int[])
      on conflict (job_id, name) do update set points = excluded.points,
        min = excluded.min, max = excluded.max, last = excluded.last,
        last_step = excluded.last_step, last_time = excluded.last_time,
        last_attempt = excluded.last_attempt`,
    values: [
      jobId,
      column('name'),
      column('points'),
      column('min'),
      column('max'),
      column('last'),
      column('lastStep'),
      column('lastAt'),
      column('lastAttempt'),
    ],
  });
}
