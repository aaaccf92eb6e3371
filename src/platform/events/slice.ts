/**
 * Pages of the events of a namespace that are kept, from either end.
 *
 * Only events are shown that no open transaction can come before, as subscribers get them; so whoever has read the
 * newest page follows on from its first event and misses nothing.
 */

import { Prisma } from '../../../prisma/generated/client.ts';
import type { Db } from '../database/client.ts';
import { checkFirst, noCursor, type SliceRequest } from '../database/paging.ts';
import { type Cursor, cursorAfter, cursorOfEvent, tooOld } from './cursor.ts';
import type { OutboxEvent } from './pages.ts';

export type Order = 'asc' | 'desc';

export type Selection = {
  namespaceId: string;
  types: readonly string[];
  /** Only of these repositories and of jobs that run them; null: of all. */
  repositories: readonly string[] | null;
};

export type Slice<T> = {
  items: { cursor: string; node: T }[];
  hasNextPage: boolean;
  /** After which the next page begins; null on an empty page without a next one. */
  endCursor: string | null;
};

/**
 * Events that are looked at for a page. Of a selection that has fewer among them, the page is short, or empty, and
 * goes on after the last that was looked at: no page costs more, however few of the events it may show.
 */
const LOOKED_AT = 1_000;

/** @throws AppError 400 for `first` out of range, for what is no cursor, and for one whose next events were removed */
export async function readBackOrOn(
  services: { db: Db },
  { namespaceId, types, repositories }: Selection,
  { first, after, order }: SliceRequest & { order: Order },
): Promise<Slice<OutboxEvent>> {
  const take = checkFirst(first) + 1;
  const place = await begin(services, after ?? null, order);
  if (!place) return { items: [], hasNextPage: false, endCursor: null };
  const { sql } = Prisma;
  const direction = order === 'asc' ? sql`asc` : sql`desc`;
  const beyond =
    place === 'newest'
      ? sql`true`
      : sql`(xid, seq) ${order === 'asc' ? sql`>` : sql`<`} (${place.xid}::text::xid8, ${place.seq}::bigint)`;
  const looked = (columns: Prisma.Sql) => sql`
    select ${columns} from events
    where namespace_id = ${namespaceId} and ${beyond} and xid < (select event_horizon())
    order by xid ${direction}, seq ${direction}`;
  const visible = repositories
    ? sql`case when starts_with(type, 'job.') then data ->> 'repositoryId' else subject end = any (${repositories})`
    : sql`true`;
  // In one statement: by the next one more events may be there, and then the last looked at would be another.
  const found = await services.db.$queryRaw<Row[]>`
    with page as materialized (
      select * from (${looked(sql`*`)} limit ${LOOKED_AT}) looked_at
      where type = any (${types}) and ${visible}
      order by xid ${direction}, seq ${direction} limit ${take}
    )
    select page.seq, id, type, namespace_id as "namespaceId", subject, data, timestamp, (
      select seq from (${looked(sql`seq`)} offset ${LOOKED_AT - 1} limit 1) last
      where (select count(*) from page) < ${take}
    ) as "lookedTo"
    from (values (1)) as one left join page on true
    order by xid ${direction}, seq ${direction}`;
  const rows = found.filter((row): row is Row & { seq: bigint } => row.seq !== null);
  const items = rows.slice(0, first).map(({ lookedTo: _, ...row }) => ({
    cursor: String(row.seq),
    node: { ...row, seq: Number(row.seq) },
  }));
  const lookedTo = found[0]?.lookedTo ?? null;
  return {
    items,
    hasNextPage: rows.length === take || lookedTo !== null,
    endCursor: lookedTo === null ? (items.at(-1)?.cursor ?? null) : String(lookedTo),
  };
}

/** `lookedTo`: of a page that is short although there may be more, the last event that was looked at. */
type Row = Omit<OutboxEvent, 'seq'> & { seq: bigint | null; lookedTo: bigint | null };

/** Null: nothing is left beyond the cursor. @throws AppError 400 */
async function begin(
  services: { db: Db },
  after: string | null,
  order: Order,
): Promise<Cursor | 'newest' | null> {
  if (after === null) return order === 'desc' ? 'newest' : cursorAfter(services, 0);
  if (!/^\d{1,15}$/.test(after)) throw noCursor();
  const place = await cursorOfEvent(services, Number(after));
  if (place === null) throw noCursor();
  if (place !== 'removed') return place;
  if (order === 'asc') throw tooOld();
  return null;
}
