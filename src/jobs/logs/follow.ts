/** Follows a journal: yields the existing entries, then new entries as they are stored, then the end. */
import type pg from 'pg';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { type Coalesced, coalesce } from '../../platform/database/coalesce.ts';
import { retryWhileUnavailable } from '../../platform/database/outage.ts';
import type { Bus } from '../../platform/events/bus.ts';
import {
  decodePage,
  type JournalEntry,
  PAGE_BYTES,
  PAGE_ENTRIES,
  type StoredPage,
} from '../record/journal-pages.ts';
import { isOver } from '../record/state.ts';

type FollowStep =
  | { kind: 'entries'; entries: readonly JournalEntry[] }
  /** There has been no new entry for a while. */
  | { kind: 'idle' }
  | { kind: 'end'; status: JobStatus; exitCode: number | null };

/** Bytes of JSON after which a read takes no further page. It limits the memory that a slow reader uses. */
const READ_BYTES = 2 * PAGE_BYTES;

/**
 * Yields the entries after the number `after`, then new entries, then the end. A log has ended when the job has finished and
 * its last attempt has ended (a cancelled job may print until its processes are killed), or when the job is deleted. While
 * the database is unavailable, the follower waits, and then continues at its position.
 *
 * The status, the entries and the next number are read in one statement. The end is only yielded after every entry below that
 * number, so no entry can follow it.
 */
export async function* followJournal(
  { pool, bus }: { pool: pg.Pool; bus: Bus },
  jobId: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<FollowStep> {
  let cursor = after;
  // Reported for a job that is deleted before the first read.
  let lastState: { status: JobStatus; exitCode: number | null } = {
    status: 'cancelled',
    exitCode: null,
  };
  for await (const reason of bus.wakes(`job:${jobId}`, signal)) {
    let hasMore = true;
    while (hasMore && !signal.aborted) {
      const read = await retryWhileUnavailable(
        () => readNextEntriesOnce(pool, jobId, cursor),
        signal,
      );
      if (read) lastState = { status: read.status, exitCode: read.exitCode };
      if (read && read.entries.length > 0) yield { kind: 'entries', entries: read.entries };
      cursor = Math.max(cursor, read?.lastSeq ?? 0);
      hasMore = read !== null && cursor + 1 < read.nextSeq;
      if (!hasMore && (!read || (isOver(read.status) && !read.hasOpenAttempt))) {
        yield { kind: 'end', ...lastState };
        return;
      }
    }
    if (reason === 'idle') yield { kind: 'idle' };
  }
}

type NextEntries = {
  entries: readonly JournalEntry[];
  /** All numbers up to this one have been read. */
  lastSeq: number;
  /** The number that the next new entry will get. */
  nextSeq: number;
  status: JobStatus;
  exitCode: number | null;
  /** An open attempt may still print lines. */
  hasOpenAttempt: boolean;
};

/** All followers of a job are woken at the same time. Those at the same position share one read. */
const reads = new WeakMap<pg.Pool, Coalesced<NextEntries | null>>();

function readNextEntriesOnce(
  pool: pg.Pool,
  jobId: string,
  after: number,
): Promise<NextEntries | null> {
  const shared = reads.getOrInsertComputed(pool, () => coalesce());
  return shared(`${jobId} ${after}`, () => readNextEntries(pool, jobId, after));
}

/** Reads the next entries and the state of the job in one statement; null if the job does not exist. */
async function readNextEntries(
  pool: pg.Pool,
  jobId: string,
  after: number,
): Promise<NextEntries | null> {
  const { rows } = await pool.query<NextEntriesRow>({
    name: 'loam-follow-journal',
    text: `
      select next_seq, status::text, exit_code, exists (
          select from job_attempts where job_id = $1 and ended_at is null
        ) as has_open_attempt, page.first_seq, page.last_seq, page.bytes, page.compressed, page.data
      from jobs left join (
        select *, sum(bytes) over (order by first_seq) - bytes as bytes_before
        from journal_pages
        where job_id = $1 and last_seq > $2
          and first_seq > $2 - ${PAGE_ENTRIES} and first_seq <= $2 + ${PAGE_ENTRIES}
      ) page on bytes_before < $3
      where id = $1 order by first_seq`,
    values: [jobId, after, READ_BYTES],
  });
  const [row] = rows;
  if (!row) return null;
  const pages = rows.filter((page) => page.data !== null);
  const entries = (await Promise.all(pages.map(decodePage))).flat();
  const nextSeq = Number(row.next_seq);
  return {
    entries: entries.filter(({ seq }) => seq > after),
    lastSeq: Number(pages.at(-1)?.last_seq ?? Math.min(after + PAGE_ENTRIES, nextSeq - 1)),
    nextSeq,
    status: row.status,
    exitCode: row.exit_code,
    hasOpenAttempt: row.has_open_attempt,
  };
}

type NextEntriesRow = StoredPage & {
  next_seq: string;
  last_seq: string;
  status: JobStatus;
  exit_code: number | null;
  has_open_attempt: boolean;
};
