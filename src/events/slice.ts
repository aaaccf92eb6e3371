/**
 * Pages of the events of a namespace that are kept, from either end.
 *
 * Only events are shown that no open transaction can come before, as subscribers get them; so whoever has read the
 * newest page follows on from its first event and misses nothing.
 */
import { Prisma } from '../../prisma/generated/client.ts';
import { checkFirst, noCursor, type SliceRequest } from '../database/paging.ts';
import type { Services } from '../services.ts';
import type { OutboxEvent } from './pages.ts';
import { type Place, placeAfter, placeOfEvent, tooOld } from './place.ts';

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
  services: Pick<Services, 'db'>,
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
  const rows = await services.db.$queryRaw<(Omit<OutboxEvent, 'seq'> & { seq: bigint })[]>`
    select seq, id, type, namespace_id as "namespaceId", subject, data, timestamp
    from (${looked(sql`*`)} limit ${LOOKED_AT}) looked_at
    where type = any (${types}) and ${visible}
    order by xid ${direction}, seq ${direction} limit ${take}`;
  const items = rows.slice(0, first).map((row) => ({
    cursor: String(row.seq),
    node: { ...row, seq: Number(row.seq) },
  }));
  if (rows.length === take)
    return { items, hasNextPage: true, endCursor: items.at(-1)?.cursor ?? null };
  const [last] = await services.db.$queryRaw<{ seq: bigint }[]>`
    ${looked(sql`seq`)} offset ${LOOKED_AT - 1} limit 1`;
  const endCursor = last ? String(last.seq) : (items.at(-1)?.cursor ?? null);
  return { items, hasNextPage: last !== undefined, endCursor };
}

/** Null: nothing is left beyond the cursor. @throws AppError 400 */
async function begin(
  services: Pick<Services, 'db'>,
  after: string | null,
  order: Order,
): Promise<Place | 'newest' | null> {
  if (after === null) return order === 'desc' ? 'newest' : placeAfter(services, 0);
  if (!/^\d{1,15}$/.test(after)) throw noCursor();
  const place = await placeOfEvent(services, Number(after));
  if (place === null) throw noCursor();
  if (place !== 'removed') return place;
  if (order === 'asc') throw tooOld();
  return null;
}
