/** Answers of GraphQL: nullable objects, and lists that come in pages. */
import { LoamError } from './errors.ts';
import type { OptionNames } from './options.ts';

type Page<Node> = {
  nodes: readonly Node[];
  pageInfo: { hasNextPage: boolean; endCursor: string | null };
};

export type ListOptions = {
  /** The largest number of entries; without a limit by default. */
  limit?: number | undefined;
};

export const LIST_OPTIONS: OptionNames<ListOptions> = { limit: true };

/** The largest page that the server accepts. */
const PAGE_SIZE = 100;

/** Yields a list entry by entry, and reads each page when it is reached. @throws LoamError as `demand` does */
export async function* readPages<Node>(
  read: (range: { first: number; after: string | null }) => Promise<Page<Node> | null | undefined>,
  { limit = Number.POSITIVE_INFINITY, what }: ListOptions & { what: string },
): AsyncGenerator<Node> {
  let after: string | null = null;
  let left = limit;
  do {
    const page: Page<Node> = demand(await read({ first: Math.min(left, PAGE_SIZE), after }), what);
    yield* page.nodes;
    left -= page.nodes.length;
    after = page.pageInfo.hasNextPage ? page.pageInfo.endCursor : null;
  } while (after !== null && left > 0);
}

/**
 * @param what the object for people, such as `Repository ada/model`
 * @throws LoamError `not_found` for null, which the server answers for objects that the caller may not see
 */
export function demand<T>(value: T | null | undefined, what: string): T {
  if (value === null || value === undefined)
    throw new LoamError('not_found', `${what} not found`, { status: 404 });
  return value;
}

/** The user of the credential. @throws LoamError `authentication_failed` without one */
export function demandViewer<T>({ viewer }: { viewer: T | null }): T {
  if (viewer === null)
    throw new LoamError('authentication_failed', 'This request needs a token.', { status: 401 });
  return viewer;
}
