/** Pages of lists: by number, as REST has them (spec section 2.5), and after a cursor, as GraphQL has them. */
import { invalid } from '../../base/errors.ts';

export type PageRequest = { page: number; perPage: number };
export type OffsetPage<T> = PageRequest & { nodes: T[]; total: number };

const MAX_PER_PAGE = 100;
/** PostgreSQL's OFFSET is a bigint; beyond this a page is past the end of any list we can hold. */
const MAX_PAGE = 2 ** 31 - 1;

/** @throws AppError 400 naming `page` or `perPage`. */
export function toOffset({ page, perPage }: PageRequest): { skip: number; take: number } {
  if (page < 1 || page > MAX_PAGE) throw invalid('page', `must be from 1 to ${MAX_PAGE}`);
  if (perPage < 1 || perPage > MAX_PER_PAGE)
    throw invalid('perPage', `must be from 1 to ${MAX_PER_PAGE}`);
  return { skip: (page - 1) * perPage, take: perPage };
}

/** What a page of a long list is asked with: how many, after which cursor. */
export type SliceRequest = { first: number; after?: string | null };

/** An entry of a long list. A cursor, which few clients ask for of each, goes on after what it stands beside. */
export type Item<T> = { readonly cursor: string; readonly node: T };

/** A page of a long list, in its order. */
export type Slice<T> = {
  items: Item<T>[];
  hasNextPage: boolean;
  /** Of the whole list; counted only when it is asked for. */
  totalCount(): number | Promise<number>;
};

/** An entry whose cursor is made when it is asked for. A getter of each object's own takes ten times as long to make. */
export class LazyItem<T> implements Item<T> {
  readonly node: T;
  readonly #makeCursor: () => string;

  constructor(node: T, makeCursor: () => string) {
    this.node = node;
    this.#makeCursor = makeCursor;
  }

  get cursor(): string {
    return this.#makeCursor();
  }
}

/** What else is shown in the place of an entry. */
export function inPlaceOf<T>(item: Item<unknown>, node: T): Item<T> {
  return new LazyItem(node, () => item.cursor);
}

/** The largest page of a long list. */
export const MAX_FIRST = 100;

/** @throws AppError 400 naming `first`: a page that was cut in silence would pass for the whole list. */
export function checkFirst(first: number): number {
  if (first < 1 || first > MAX_FIRST) throw invalid('first', `must be from 1 to ${MAX_FIRST}`);
  return first;
}

/** 400 for an `after` that goes with no item. */
export function noCursor() {
  return invalid('after', 'is no cursor of this list');
}

/** A page of a list that is in memory as a whole. @throws AppError 400 */
export function sliceOf<T>(
  list: readonly T[],
  { first, after }: SliceRequest,
  cursorOf: (item: T) => string,
): Slice<T> {
  const count = checkFirst(first);
  const start = after == null ? 0 : list.findIndex((item) => cursorOf(item) === after) + 1;
  if (after != null && start === 0) throw noCursor();
  return {
    items: list.slice(start, start + count).map((node) => ({ cursor: cursorOf(node), node })),
    hasNextPage: start + count < list.length,
    totalCount: () => list.length,
  };
}

/** `loadMany` of a node answers id by id, with null for what is not there. */
export function orderByIds<T extends { id: string }>(ids: readonly string[], found: readonly T[]) {
  const byId = new Map(found.map((node) => [node.id, node]));
  return ids.map((id) => byId.get(id) ?? null);
}
