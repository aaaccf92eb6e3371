/**
 * Pages of the stored events of a namespace, starting with the oldest or the newest event.
 *
 * Like subscriptions, pages omit events before which an open transaction may still write another event. So a client that
 * has read the newest page can subscribe after its newest event and misses nothing.
 */

import { Prisma } from '../../../prisma/generated/client.ts';
import type { Db } from '../database/client.ts';
import { type CursorPageRequest, checkFirst, invalidCursor } from '../database/paging.ts';
import { type Cursor, cursorAfter, cursorTooOld, findCursor } from './cursor.ts';
import type { OutboxEvent } from './pages.ts';

export type FeedOrder = 'asc' | 'desc';

type Selection = {
  namespaceId: string;
  types: readonly string[];
  /** Only events of these repositories and of jobs that run them; null: of all repositories. */
  repositories: readonly string[] | null;
};

export type FeedPage<T> = {
  items: { cursor: string; node: T }[];
  hasNextPage: boolean;
  /** The cursor after which the next page begins; null on an empty page that is the last one. */
  endCursor: string | null;
};

/**
 * Maximum number of events that are scanned for a page. If few of them match the selection, the page is short or empty, and
 * the next page continues after the last scanned event.
 */
const MAX_SCANNED = 1_000;

/** @throws AppError 400 if `first` is out of range, the cursor is invalid, or the events after it were removed */
export async function readFeedPage(
  services: { db: Db },
  { namespaceId, types, repositories }: Selection,
  { first, after, order }: CursorPageRequest & { order: FeedOrder },
): Promise<FeedPage<OutboxEvent>> {
  const take = checkFirst(first) + 1;
  const start = await resolveStart(services, after ?? null, order);
  if (!start) return { items: [], hasNextPage: false, endCursor: null };
  const { sql } = Prisma;
  const direction = order === 'asc' ? sql`asc` : sql`desc`;
  const beyond =
    start === 'newest'
      ? sql`true`
      : sql`(xid, seq) ${order === 'asc' ? sql`>` : sql`<`} (${start.xid}::text::xid8, ${start.seq}::bigint)`;
  const scan = (columns: Prisma.Sql) => sql`
    select ${columns} from events
    where namespace_id = ${namespaceId} and ${beyond} and xid < (select event_horizon())
    order by xid ${direction}, seq ${direction}`;
  const visible = repositories
    ? sql`case when starts_with(type, 'job.') then data ->> 'repositoryId' else subject end = any (${repositories})`
    : sql`true`;
  // One statement: between two statements, new events could change which event is the last scanned.
  const resultRows = await services.db.$queryRaw<Row[]>`
    with page as materialized (
      select * from (${scan(sql`*`)} limit ${MAX_SCANNED}) looked_at
      where type = any (${types}) and ${visible}
      order by xid ${direction}, seq ${direction} limit ${take}
    )
    select page.seq, id, type, namespace_id as "namespaceId", subject, data, timestamp, (
      select seq from (${scan(sql`seq`)} offset ${MAX_SCANNED - 1} limit 1) last
      where (select count(*) from page) < ${take}
    ) as "lastScanned"
    from (values (1)) as one left join page on true
    order by xid ${direction}, seq ${direction}`;
  const rows = resultRows.filter((row): row is Row & { seq: bigint } => row.seq !== null);
  const items = rows.slice(0, first).map(({ lastScanned: _, ...row }) => ({
    cursor: String(row.seq),
    node: { ...row, seq: Number(row.seq) },
  }));
  const lastScanned = resultRows[0]?.lastScanned ?? null;
  return {
    items,
    hasNextPage: rows.length === take || lastScanned !== null,
    endCursor: lastScanned === null ? (items.at(-1)?.cursor ?? null) : String(lastScanned),
  };
}

/** `lastScanned`: the last scanned event, if the scan ended before the page was full; otherwise null. */
type Row = Omit<OutboxEvent, 'seq'> & { seq: bigint | null; lastScanned: bigint | null };

/** @returns null if there are no events beyond the cursor @throws AppError 400 */
async function resolveStart(
  services: { db: Db },
  after: string | null,
  order: FeedOrder,
): Promise<Cursor | 'newest' | null> {
  if (after === null) return order === 'desc' ? 'newest' : cursorAfter(services, 0);
  if (!/^\d{1,15}$/.test(after)) throw invalidCursor();
  const start = await findCursor(services, Number(after));
  if (start === null) throw invalidCursor();
  if (start !== 'removed') return start;
  if (order === 'asc') throw cursorTooOld();
  return null;
}
