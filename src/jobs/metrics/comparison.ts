/** The metrics of many jobs side by side: a column of values for each metric. */
import type pg from 'pg';
import { invalid } from '../../base/errors.ts';
import { decodePage } from './series.ts';

/** Metrics whose values one request can read. */
export const MAX_COLUMNS = 50;
/** Metrics whose values are read if none are named. */
export const DEFAULT_COLUMNS = 20;
/** Bytes of pages that are in memory at the same time. */
const GROUP_BYTES = 4 * 2 ** 20;
/**
 * Bytes of pages that a comparison reads. Beyond it, the values of a running job are those of its last compaction. Reading more would
 * take seconds, and a thousand busy jobs have gigabytes.
 */
const MAX_PAGE_BYTES = 64 * 2 ** 20;

/** The number of compared jobs that have the metric. */
export type MetricName = { name: string; jobs: number };

/** A value for each job, in the order of the jobs; null: the job does not have the metric, or all its points are NaN (min, max). */
export type MetricColumn = {
  name: string;
  last: (number | null)[];
  min: (number | null)[];
  max: (number | null)[];
};

type Summary = { last: number; min: number | null; max: number | null };

/** The metrics of some jobs. The points that are not in summaries yet are read once, for all fields of a response. */
export class ComparedMetrics {
  readonly #pool: pg.Pool;
  readonly #jobIds: readonly string[];
  #open: Promise<Map<string, Map<string, Summary>>> | undefined;
  #names: Promise<MetricName[]> | undefined;

  constructor(pool: pg.Pool, jobIds: readonly string[]) {
    this.#pool = pool;
    this.#jobIds = jobIds;
  }

  /** The metrics that any of the jobs has, those of most jobs first. */
  names(): Promise<MetricName[]> {
    this.#names ??= this.#readNames();
    return this.#names;
  }

  /**
   * Reads the values of metrics.
   * @param names null: those of most jobs
   * @throws AppError 400
   */
  async columns(names: readonly string[] | null): Promise<MetricColumn[]> {
    if (names && names.length > MAX_COLUMNS)
      throw invalid('names', `must not have more than ${MAX_COLUMNS} entries`);
    const wanted = names ?? (await this.names()).slice(0, DEFAULT_COLUMNS).map(({ name }) => name);
    const columns = new Map(wanted.map((name) => [name, this.#emptyColumn(name)]));
    // Before the summaries: a compaction in between then moves no point out of sight.
    const open = await this.#readOpen();
    const { rows } = await this.#pool.query<SummaryRow>({
      name: 'loam-compared-metrics',
      text: `
        select (job.at - 1)::int, m.name, m.last, m.min, m.max
        from unnest($1::text[]) with ordinality job (id, at)
        join job_metrics m on m.job_id = job.id and m.name = any ($2)`,
      values: [this.#jobIds, [...columns.keys()]],
      rowMode: 'array',
    } as pg.QueryConfig);
    for (const [at, name, last, min, max] of rows)
      setRow(columns.get(name) as MetricColumn, at, { last, min, max });
    for (const [at, id] of this.#jobIds.entries())
      for (const [name, summary] of open.get(id) ?? []) {
        const column = columns.get(name);
        if (column) setRow(column, at, summary);
      }
    return [...columns.values()];
  }

  #emptyColumn(name: string): MetricColumn {
    const empty = () => this.#jobIds.map(() => null);
    return { name, last: empty(), min: empty(), max: empty() };
  }

  async #readNames(): Promise<MetricName[]> {
    const open = await this.#readOpen();
    const ids = this.#jobIds.filter((id) => !open.has(id));
    const { rows } = await this.#pool.query<MetricName>({
      name: 'loam-compared-metric-names',
      text: 'select name, count(*)::int as jobs from job_metrics where job_id = any ($1) group by name',
      values: [ids],
    });
    const counts = new Map(rows.map(({ name, jobs }) => [name, jobs]));
    const { rows: others } = await this.#pool.query<{ id: string; names: string[] }>({
      name: 'loam-compared-metric-names-of-jobs',
      text: 'select job_id as id, array_agg(name) as names from job_metrics where job_id = any ($1) group by job_id',
      values: [[...open.keys()]],
    });
    const stored = new Map(others.map(({ id, names }) => [id, names]));
    for (const [id, summaries] of open)
      for (const name of new Set([...(stored.get(id) ?? []), ...summaries.keys()]))
        counts.set(name, (counts.get(name) ?? 0) + 1);
    return [...counts]
      .map(([name, jobs]) => ({ name, jobs }))
      .sort((a, b) => b.jobs - a.jobs || (a.name < b.name ? -1 : 1));
  }

  /** Summaries of the points in pages, by job and metric. */
  #readOpen(): Promise<Map<string, Map<string, Summary>>> {
    this.#open ??= readOpenSummaries(this.#pool, this.#jobIds);
    return this.#open;
  }
}

type SummaryRow = [at: number, name: string, last: number, min: number | null, max: number | null];

/** Adds values that were printed after those of the column. */
function setRow(column: MetricColumn, at: number, { last, min, max }: Summary): void {
  column.last[at] = last;
  column.min[at] = lowest(column.min[at] ?? null, min);
  column.max[at] = highest(column.max[at] ?? null, max);
}

async function readOpenSummaries(
  pool: pg.Pool,
  jobIds: readonly string[],
): Promise<Map<string, Map<string, Summary>>> {
  const { rows: sizes } = await pool.query<{ id: string; bytes: string }>({
    name: 'loam-metric-page-sizes',
    text: `
      select job_id as id, sum(octet_length(data)) as bytes
      from metric_pages where job_id = any ($1) group by job_id`,
    values: [jobIds],
  });
  const found = new Map<string, Map<string, Summary>>();
  let group: string[] = [];
  let groupBytes = 0;
  let total = 0;
  const readGroup = async () => {
    const { rows } = await pool.query<{ id: string; data: Buffer }>({
      name: 'loam-compared-metric-pages',
      text: 'select job_id as id, data from metric_pages where job_id = any ($1) order by job_id, id',
      values: [group],
    });
    for (const { id, data } of rows)
      addPage(
        found.getOrInsertComputed(id, () => new Map()),
        data,
      );
    group = [];
    groupBytes = 0;
  };
  for (const { id, bytes } of sizes) {
    total += Number(bytes);
    if (total > MAX_PAGE_BYTES) break;
    group.push(id);
    groupBytes += Number(bytes);
    if (groupBytes >= GROUP_BYTES) await readGroup();
  }
  if (group.length > 0) await readGroup();
  return found;
}

function addPage(summaries: Map<string, Summary>, data: Buffer): void {
  for (const { name, series } of decodePage(data)) {
    let { min = null, max = null } = summaries.get(name) ?? {};
    for (const value of series.values) {
      if (Number.isNaN(value)) continue;
      min = lowest(min, value);
      max = highest(max, value);
    }
    summaries.set(name, { last: series.values.at(-1) as number, min, max });
  }
}

function lowest(a: number | null, b: number | null): number | null {
  return a === null || (b !== null && b < a) ? b : a;
}

function highest(a: number | null, b: number | null): number | null {
  return a === null || (b !== null && b > a) ? b : a;
}

/** Parts of names of metrics of which a lower value is better. */
const LOWER_IS_BETTER = /loss|error|perplexity|latency|duration|runtime/;
const LOWER_WORDS = new Set(
  'err cer cost fid mae mape mse nll ppl rmse seconds time wer'.split(' '),
);

/** Guesses from the name of a metric whether a lower value is better: `val/loss`, but not `accuracy`. */
export function isLowerBetter(name: string): boolean {
  const text = name.toLowerCase();
  return LOWER_IS_BETTER.test(text) || text.split(/[^a-z]+/).some((word) => LOWER_WORDS.has(word));
}
