/** Passes any number of pages to a statement with a fixed number of parameters. */
import type { Page } from './pages.ts';

/** The columns of `journal_pages` except the id of the job. */
export const PAGE_COLUMNS =
  'first_seq, last_seq, lines, bytes, until, open, compressed, data' as const;

/**
 * A query that returns a row for each page of `toPageColumns`, whose values are the parameters from `$first` on. `start` is
 * the number of entries before the page; `until` is in microseconds.
 */
export function pageRows(first: number): string {
  const types = ['int', 'int', 'int', 'int', 'float8', 'bool', 'bool', 'int', 'int'];
  const arrays = types.map((type, at) => `$${first + at}::${type}[]`).join(', ');
  return `
    select start, entries, lines, bytes, until, open, compressed,
      substring($${first + types.length}::bytea from data_at + 1 for data_bytes) as data
    from unnest(${arrays})
      as page (start, entries, lines, bytes, until, open, compressed, data_at, data_bytes)`;
}

/** One array for each column, but a single value for all data, because the driver would send an array of bytea as text. */
export function toPageColumns(pages: readonly Page[]): unknown[] {
  const column = <K extends keyof Page>(name: K) => pages.map((page) => page[name]);
  const sizes = pages.map(({ data }) => data.length);
  return [
    runningSum(column('entries')),
    column('entries'),
    column('lines'),
    column('bytes'),
    runningMax(column('until')),
    column('open'),
    column('compressed'),
    runningSum(sizes),
    sizes,
    Buffer.concat(column('data')),
  ];
}

function runningSum(sizes: readonly number[]): number[] {
  let sum = 0;
  return sizes.map((size) => {
    sum += size;
    return sum - size;
  });
}

function runningMax(times: readonly (number | null)[]): (number | null)[] {
  let max: number | null = null;
  return times.map((time) => {
    if (time !== null) max = Math.max(max ?? time, time);
    return max;
  });
}
