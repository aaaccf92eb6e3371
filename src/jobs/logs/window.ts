/** Reads a range of a journal by number or time, forwards or backwards, for views of long logs. */

import type pg from 'pg';
import { invalid } from '../../base/errors.ts';
import { MicrosecondDate, toMicroseconds } from '../../platform/database/times.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import { decodePage, type JournalEntry } from '../record/journal-pages.ts';
import { readAllowedPages, type SeqRange } from './pages.ts';
import { firstSeqAfter } from './read.ts';

export type WindowQuery = {
  /** Number of entries to read forwards: after the number `after`, from the time `at` on, or from the beginning. */
  first?: number | null;
  after?: number | null;
  at?: Date | null;
  /** Number of entries to read backwards: before the number `before`, or from the end. */
  last?: number | null;
  before?: number | null;
};

type LogWindow = {
  entries: JournalEntry[];
  hasOlder: boolean;
  hasNewer: boolean;
  /** The number of the newest entry of the log. */
  lastSeq: number;
};

/** More entries would block other requests for longer than a log view can wait. */
const MAX_ENTRIES = 1_000;
const DEFAULT_ENTRIES = 100;

/**
 * Reads a window of the log. Lines and status changes are numbered without gaps, so a range of numbers gives the number of
 * entries. If the read allowance is too small, the far end of the window is left out.
 * @throws AppError 400, 503
 */
export async function readWindow(
  { pool }: { pool: pg.Pool },
  jobId: string,
  query: WindowQuery,
  allowance: Allowance,
): Promise<LogWindow> {
  const { isForwards, count } = checkQuery(query);
  const { after, at, before } = query;
  // `at` is inclusive and `firstSeqAfter` is not, so it gets the time one microsecond before.
  const from = at
    ? await firstSeqAfter(pool, jobId, new MicrosecondDate(toMicroseconds(at) - 1))
    : (after ?? 0) + 1;
  const range: SeqRange = isForwards
    ? { from, order: 'asc', count }
    : { from: before ?? null, order: 'desc', count };
  const { low, high, next, pages } = await readAllowedPages(pool, jobId, range, allowance);
  const oldestFirst = isForwards ? pages : pages.toReversed();
  const entries = (await Promise.all(oldestFirst.map(decodePage)))
    .flat()
    .filter(({ seq }) => seq >= low && seq <= high);
  const oldest = entries[0]?.seq ?? (isForwards ? low : Math.min(high + 1, next));
  const newest = entries.at(-1)?.seq ?? oldest - 1;
  return {
    entries,
    hasOlder: oldest > 1 && next > 1,
    hasNewer: newest < next - 1,
    lastSeq: next - 1,
  };
}

function checkQuery({ first, after, at, last, before }: WindowQuery) {
  if (first != null && last != null) throw invalid('last', 'cannot be given with first');
  const isForwards = last == null && (first != null || after != null || at != null);
  if (isForwards && before != null) throw invalid('before', 'can only be given with last');
  if (!isForwards && after != null) throw invalid('after', 'can only be given with first');
  if (!isForwards && at != null) throw invalid('at', 'can only be given with first');
  if (after != null && at != null) throw invalid('at', 'cannot be given with after');
  for (const [field, value] of Object.entries({ after, before }))
    if (value != null && value < 0) throw invalid(field, 'must be 0 or the seq of an entry');
  const count = (isForwards ? first : last) ?? DEFAULT_ENTRIES;
  if (count < 1 || count > MAX_ENTRIES)
    throw invalid(isForwards ? 'first' : 'last', `must be from 1 to ${MAX_ENTRIES}`);
  return { isForwards, count };
}
