/** Types of list pages: offset pages for REST, and cursor pages for GraphQL. */
import { invalid } from '../../base/errors.ts';

export type OffsetPageRequest = { page: number; perPage: number };
export type OffsetPage<T> = OffsetPageRequest & { nodes: T[]; total: number };

const MAX_PER_PAGE = 100;
/** Keeps OFFSET within a bigint. No list has more pages. */
const MAX_PAGE = 2 ** 31 - 1;

/** @throws AppError 400 for `page` or `perPage` */
export function toOffset({ page, perPage }: OffsetPageRequest): { skip: number; take: number } {
  if (page < 1 || page > MAX_PAGE) throw invalid('page', `must be from 1 to ${MAX_PAGE}`);
  if (perPage < 1 || perPage > MAX_PER_PAGE)
    throw invalid('perPage', `must be from 1 to ${MAX_PER_PAGE}`);
  return { skip: (page - 1) * perPage, take: perPage };
}

/** Request for a cursor page: maximum number of items, and the cursor after which it begins. */
export type CursorPageRequest = { first: number; after?: string | null };

/** A list item with its cursor, which few clients request. */
export type PageItem<T> = { readonly cursor: string; readonly node: T };

/** A page of a list, in its order. */
export type CursorPage<T> = {
  items: PageItem<T>[];
  hasNextPage: boolean;
  /** Total of the whole list; counted only when called. */
  totalCount(): number | Promise<number>;
};

/** An item that creates its cursor on access. Objects with a getter of their own take ten times as long to create. */
export class LazyItem<T> implements PageItem<T> {
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

/** Replaces the node of an item and keeps the cursor. */
export function replaceNode<T>(item: PageItem<unknown>, node: T): PageItem<T> {
  return new LazyItem(node, () => item.cursor);
}

/** Maximum of `first`. */
export const MAX_FIRST = 100;

/** @throws AppError 400 for `first`, because a silently shortened page would look like the whole list */
export function checkFirst(first: number, max = MAX_FIRST): number {
  if (first < 1 || first > max) throw invalid('first', `must be from 1 to ${max}`);
  return first;
}

/** The 400 for an `after` that is not a cursor of the list. */
export function invalidCursor() {
  return invalid('after', 'is not a cursor of this list');
}

/** Returns a page of a list that is completely in memory. @throws AppError 400 */
export function paginateList<T>(
  list: readonly T[],
  { first, after }: CursorPageRequest,
  cursorOf: (item: T) => string,
): CursorPage<T> {
  const count = checkFirst(first);
  const start = after == null ? 0 : list.findIndex((item) => cursorOf(item) === after) + 1;
  if (after != null && start === 0) throw invalidCursor();
  return {
    items: list.slice(start, start + count).map((node) => ({ cursor: cursorOf(node), node })),
    hasNextPage: start + count < list.length,
    totalCount: () => list.length,
  };
}

/** Orders nodes by the given ids, with null for missing nodes, as `loadMany` of a GraphQL node requires. */
export function orderByIds<T extends { id: string }>(ids: readonly string[], found: readonly T[]) {
  const byId = new Map(found.map((node) => [node.id, node]));
  return ids.map((id) => byId.get(id) ?? null);
}
