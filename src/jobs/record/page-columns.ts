/** Passes any number of pages to an SQL statement with a fixed number of parameters. */
import type { Page } from './journal-pages.ts';

/** The columns of `journal_pages` except the id of the job. */
export const PAGE_COLUMNS =
  'first_seq, last_seq, lines, bytes, until, open, compressed, data' as const;

/**
 * Returns a query with a row for each page. From `$firstParameter` on, its parameters are the values of `toPageParameters`. The
 * column `seq_offset` is the number of entries in the pages before; `until_us` is in microseconds.
 */
export function pageRowsSql(firstParameter: number): string {
  const types = ['int', 'int', 'int', 'int', 'float8', 'bool', 'bool', 'int', 'int'];
  const arrays = types.map((type, index) => `$${firstParameter + index}::${type}[]`).join(', ');
  return `
    select seq_offset, entries, lines, bytes, until_us, open, compressed,
      substring($${firstParameter + types.length}::bytea from data_at + 1 for data_bytes) as data
    from unnest(${arrays})
      as page (seq_offset, entries, lines, bytes, until_us, open, compressed, data_at, data_bytes)`;
}

/** Returns an array for each column; all data is one value, because the driver would send an array of bytea as text. */
export function toPageParameters(pages: readonly Page[]): unknown[] {
  const column = <K extends keyof Page>(name: K) => pages.map((page) => page[name]);
  const sizes = pages.map(({ data }) => data.length);
  return [
    runningSum(column('entries')),
    column('entries'),
    column('lines'),
    column('bytes'),
    runningMax(column('newestLineTime')),
    column('isOpen'),
    column('isCompressed'),
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
