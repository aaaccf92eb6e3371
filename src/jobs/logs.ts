/**
 * The journal of a job: its log lines and its status changes, in one order under one sequence, so that one
 * number tells a follower where it stands. The sequence is counted on in the job's row, whose lock is held
 * until the commit, so entries become visible in the order of their numbers and none appears behind a reader.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus, JournalKind } from '../../prisma/generated/enums.ts';
import { invalid } from '../errors.ts';
import { untilAnswered } from '../outage.ts';
import type { Services } from '../services.ts';
import type { LogCursor } from './runner.ts';
import { isOver } from './state.ts';

export type Entry = { seq: number; kind: JournalKind; timestamp: Date; message: string };
export type Line = { timestamp: Date; message: string };

/** Spec section 8. */
const MAX_TAIL = 10_000;
const DEFAULT_TAIL = 100;

type Append = {
  jobId: string;
  attemptId: string;
  lines: readonly Line[];
  /** How far the runner's log was stored before, and is with these lines. */
  from: LogCursor | null;
  to: LogCursor;
  /** What the program said of its progress, if it did. */
  progress?: string;
};

/**
 * Stores lines and how far they reach in one statement, which is one transaction: after a crash the runner is
 * asked again from the stored cursor, and no line is lost or doubled. A batch goes as two arrays, so that a
 * hundred thousand lines a second are a few dozen statements.
 * @returns whether it was stored; not, when the job is deleted or another worker has stored that part.
 */
export async function appendLines(
  { pool }: Pick<Services, 'pool'>,
  { jobId, attemptId, lines, from, to, progress }: Append,
): Promise<boolean> {
  const { rowCount } = await pool.query({
    name: 'loam-append-lines',
    // The job is locked before the attempt, as everywhere.
    text: `
      with numbered as (
        update jobs set next_seq = next_seq + $3, progress = coalesce($8, progress),
          progress_said = progress_said or $8 is not null
        where id = $1
        returning id, next_seq - $3 as first
      ), moved as (
        update job_attempts set log_cursor = $5
        from numbered
        where job_attempts.id = $2 and job_id = numbered.id
          and log_cursor is not distinct from $4::jsonb
        returning job_id
      ), stored as (
        insert into journal (job_id, seq, kind, timestamp, message)
        select job_id, first + position - 1, 'log', to_timestamp(ms / 1000), message
        from numbered join moved on job_id = id,
          unnest($6::float8[], $7::text[]) with ordinality as line (ms, message, position)
      )
      select pg_notify('loam', 'job:' || job_id) from moved`,
    values: [
      jobId,
      attemptId,
      lines.length,
      from,
      to,
      lines.map(({ timestamp }) => timestamp.getTime()),
      lines.map(({ message }) => message),
      progress ?? null,
    ],
  });
  return rowCount === 1;
}

export type LogQuery = { tail?: number | null; since?: Date | null };
export type LogPage = { lines: Entry[]; hasMore: boolean };

/**
 * The last `tail` of the lines written after `since`, in order. `hasMore`: older ones were left out.
 * @throws AppError 400
 */
export async function readLog(
  { db }: Pick<Services, 'db'>,
  jobId: string,
  { tail, since }: LogQuery,
): Promise<LogPage> {
  const count = checkTail(tail);
  const job = await db.job.findUnique({ where: { id: jobId }, select: { nextSeq: true } });
  const end = Number(job?.nextSeq ?? 1n);
  const first = since ? await firstAfter(db, jobId, since) : 1;
  // Almost every entry is a line, so the last few more than `count` entries hold them all.
  for (let reach = count + 1 + MARGIN; ; reach *= 4) {
    const from = Math.max(first, end - reach);
    const rows = await entriesBetween(db, jobId, from, end);
    const found = rows.filter(({ kind }) => kind === 'log');
    if (found.length > count || from === first)
      return { lines: found.slice(-count), hasMore: found.length > count };
  }
}

/** Status changes that may stand between lines before a second look is needed. */
const MARGIN = 20;

/** How many lines; 100 when nothing is said. @throws AppError 400 */
export function checkTail(tail: number | null | undefined): number {
  const count = tail ?? DEFAULT_TAIL;
  if (count < 1 || count > MAX_TAIL) throw invalid('tail', `must be from 1 to ${MAX_TAIL}`);
  return count;
}

type Row = Omit<Entry, 'seq'> & { seq: bigint };

/**
 * The number of the first line after a moment: by bisection, because lines are written in the order of time.
 * So a log of ten million lines is asked 24 times instead of being read to its beginning, and needs no
 * second index, which every line would pay for.
 */
async function firstAfter(db: Services['db'], jobId: string, since: Date): Promise<number> {
  const [row] = await db.$queryRaw<{ first: bigint | null }[]>`
    with recursive search (low, high) as (
      select 1::bigint, next_seq from jobs where id = ${jobId}
      union all
      select case when early then middle + 1 else low end, case when early then high else middle end
      from (
        select low, high, (low + high) / 2 as middle, coalesce((
          select timestamp <= ${since} from journal
          where job_id = ${jobId} and kind = 'log' and seq >= (low + high) / 2
          order by seq limit 1
        ), false) as early
        from search where low < high
      ) step
    )
    select min(high) as first from search`;
  return Number(row?.first ?? 1n);
}

/** Where a stream begins that shows `lines` first: before them, or at the end when there are none. */
export async function startOf(
  { db }: Pick<Services, 'db'>,
  jobId: string,
  lines: readonly Entry[],
): Promise<number> {
  if (lines[0]) return lines[0].seq - 1;
  const job = await db.job.findUnique({ where: { id: jobId }, select: { nextSeq: true } });
  return Number(job?.nextSeq ?? 1n) - 1;
}

export type Followed =
  | { kind: 'entries'; entries: Entry[] }
  /** Nothing happened for a while. */
  | { kind: 'idle' }
  | { kind: 'end'; status: JobStatus; exitCode: number | null };

/** Entries read at once: what a slow reader can make us hold. A line is at most 64 KiB. */
const PAGE = 256;

/**
 * The entries after `after`, then those that come, and at last the end: when the job is over and its last
 * attempt has printed its last line (a cancelled job prints while it dies). A job that is deleted ends too.
 * While the database is away it waits, and goes on where it stood.
 *
 * Which comes first matters: the state is read together with the number of the next entry, and the end counts
 * only when every entry below that number was told.
 */
export async function* followJournal(
  { db, bus }: Pick<Services, 'db' | 'bus'>,
  jobId: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<Followed> {
  let cursor = after;
  let last: { status: JobStatus; exitCode: number | null } = {
    status: 'cancelled',
    exitCode: null,
  };
  for await (const why of bus.wakes(`job:${jobId}`, signal)) {
    let more = true;
    while (more && !signal.aborted) {
      const find = () => db.job.findUnique({ where: { id: jobId }, select: FOLLOWED });
      const job = await untilAnswered(find, signal);
      if (job) last = { status: job.status, exitCode: job.exitCode };
      const end = Number(job?.nextSeq ?? 0n);
      const to = Math.min(cursor + 1 + PAGE, end);
      const read = () => entriesBetween(db, jobId, cursor + 1, to);
      const entries = to > cursor + 1 ? await untilAnswered(read, signal) : [];
      cursor = Math.max(cursor, to - 1);
      if (entries.length > 0) yield { kind: 'entries', entries };
      more = cursor + 1 < end;
      if (!more && (!job || (isOver(job.status) && job.attempts.length === 0))) {
        yield { kind: 'end', ...last };
        return;
      }
    }
    if (why === 'idle') yield { kind: 'idle' };
  }
}

const FOLLOWED = {
  nextSeq: true,
  status: true,
  exitCode: true,
  attempts: { where: { endedAt: null }, select: { id: true }, take: 1 },
} as const satisfies Prisma.JobSelect;

/**
 * From one number to before another. Never "the next N after": while statistics lag behind a growing log,
 * PostgreSQL takes it for short and sorts all of it (measured: 0.8 s for the last ten of a million lines).
 */
async function entriesBetween(
  db: Services['db'],
  jobId: string,
  from: number,
  before: number,
): Promise<Entry[]> {
  const rows = await db.$queryRaw<Row[]>`
    select seq, kind::text as kind, timestamp, message from journal
    where job_id = ${jobId} and seq >= ${from}::bigint and seq < ${before}::bigint order by seq`;
  return rows.map(({ seq, ...row }) => ({ seq: Number(seq), ...row }));
}
