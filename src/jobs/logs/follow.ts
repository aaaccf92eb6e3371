/** Follows a journal: the existing entries, then new ones, then the end. */
import type pg from 'pg';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { type Coalesced, coalesce } from '../../platform/database/coalesce.ts';
import { retryWhileUnavailable } from '../../platform/database/outage.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { isOver } from '../state.ts';
import { decodePage, type Entry, PAGE_BYTES, PAGE_ENTRIES, type StoredPage } from './pages.ts';

type FollowStep =
  | { kind: 'entries'; entries: readonly Entry[] }
  /** No entry for a while. */
  | { kind: 'idle' }
  | { kind: 'end'; status: JobStatus; exitCode: number | null };

/** Bytes of pages in one read, beyond the first page: the memory that a slow reader can use. */
const STEP_BYTES = 2 * PAGE_BYTES;

/**
 * Yields the entries after `after`, then new ones, and finally the end: when the job is over and its last attempt has ended
 * (a cancelled job may print until its processes are killed), or when the job is deleted. If the database is unavailable, it
 * waits and then continues at its position.
 *
 * The status is read in the same statement as the entries and the next number. The end is only yielded after every entry
 * below that number.
 */
export async function* followJournal(
  { pool, bus }: { pool: pg.Pool; bus: Bus },
  jobId: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<FollowStep> {
  let cursor = after;
  let last: { status: JobStatus; exitCode: number | null } = {
    status: 'cancelled',
    exitCode: null,
  };
  for await (const why of bus.wakes(`job:${jobId}`, signal)) {
    let hasMore = true;
    while (hasMore && !signal.aborted) {
      const step = await retryWhileUnavailable(() => readSharedStep(pool, jobId, cursor), signal);
      if (step) last = { status: step.status, exitCode: step.exitCode };
      if (step && step.entries.length > 0) yield { kind: 'entries', entries: step.entries };
      cursor = Math.max(cursor, step?.reached ?? 0);
      hasMore = step !== null && cursor + 1 < step.next;
      if (!hasMore && (!step || (isOver(step.status) && !step.printing))) {
        yield { kind: 'end', ...last };
        return;
      }
    }
    if (why === 'idle') yield { kind: 'idle' };
  }
}

type Step = {
  entries: readonly Entry[];
  /** The last number that was read. */
  reached: number;
  /** The number of the next entry. */
  next: number;
  status: JobStatus;
  exitCode: number | null;
  /** Whether an attempt is open, so that more lines may come. */
  printing: boolean;
};

/** Followers of a job at the same position are woken together and share one read. */
const reads = new WeakMap<pg.Pool, Coalesced<Step | null>>();

function readSharedStep(pool: pg.Pool, jobId: string, after: number): Promise<Step | null> {
  const shared = reads.get(pool) ?? coalesce<Step | null>();
  reads.set(pool, shared);
  return shared(`${jobId} ${after}`, () => readStep(pool, jobId, after));
}

/** Reads the next entries and the state of the job in one statement; null if the job does not exist. */
async function readStep(pool: pg.Pool, jobId: string, after: number): Promise<Step | null> {
  const { rows } = await pool.query<StepRow>({
    name: 'loam-follow-journal',
    text: `
      select next_seq, status::text, exit_code, exists (
          select from job_attempts where job_id = $1 and ended_at is null
        ) as printing, page.first_seq, page.last_seq, page.bytes, page.compressed, page.data
      from jobs left join (
        select *, sum(bytes) over (order by first_seq) - bytes as bytes_before
        from journal_pages
        where job_id = $1 and last_seq > $2
          and first_seq > $2 - ${PAGE_ENTRIES} and first_seq <= $2 + ${PAGE_ENTRIES}
      ) page on bytes_before < $3
      where id = $1 order by first_seq`,
    values: [jobId, after, STEP_BYTES],
  });
  const [row] = rows;
  if (!row) return null;
  const pages = rows.filter((page) => page.data !== null);
  const entries = (await Promise.all(pages.map(decodePage))).flat();
  const next = Number(row.next_seq);
  return {
    entries: entries.filter(({ seq }) => seq > after),
    reached: Number(pages.at(-1)?.last_seq ?? Math.min(after + PAGE_ENTRIES, next - 1)),
    next,
    status: row.status,
    exitCode: row.exit_code,
    printing: row.printing,
  };
}

type StepRow = StoredPage & {
  next_seq: string;
  last_seq: string;
  status: JobStatus;
  exit_code: number | null;
  printing: boolean;
};
