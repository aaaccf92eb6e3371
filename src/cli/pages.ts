/** Answers of GraphQL: nullable objects, and lists that come in pages. */
import { LoamError } from './sdk/errors.ts';

type Page<Node> = {
  nodes: readonly Node[];
  pageInfo: { hasNextPage: boolean; endCursor: string | null };
};

/** The largest page that the server accepts. */
const PAGE_SIZE = 100;

/** Reads a connection to its end, or up to `limit` nodes. @throws LoamError as `demand` does */
export async function readPages<Node>(
  read: (range: { first: number; after: string | null }) => Promise<Page<Node> | null | undefined>,
  { limit = Number.POSITIVE_INFINITY, what }: { limit?: number | undefined; what: string },
): Promise<Node[]> {
  const nodes: Node[] = [];
  let after: string | null = null;
  do {
    const first = Math.min(limit - nodes.length, PAGE_SIZE);
    const page: Page<Node> = demand(await read({ first, after }), what);
    nodes.push(...page.nodes);
    after = page.pageInfo.hasNextPage ? page.pageInfo.endCursor : null;
  } while (after !== null && nodes.length < limit);
  return nodes;
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
