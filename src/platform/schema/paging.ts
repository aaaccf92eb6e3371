/** GraphQL types of pages: connections for GraphQL clients, and numbered pages for REST. */
import type { GraphQLResolveInfo } from 'graphql';
import type { CursorPage, CursorPageRequest, OffsetPage } from '../database/paging.ts';
import { MAX_FIRST } from '../database/paging.ts';
import { builder, SortOrder } from './builder.ts';
import type { Context } from './context.ts';
import { selectForNodes } from './select.ts';

/** Arguments of every connection. There is no backward paging, because each list can be sorted from either end. */
export const cursorPageArgs = builder.args((t) => ({
  first: t.int({
    required: true,
    defaultValue: 20,
    description: `How many entries: 1 to ${MAX_FIRST}. More is refused.`,
  }),
  after: t.string({
    description: 'The cursor after which the page begins; left out: the beginning of the list.',
  }),
}));

/** Cost, in fields, of a git process, which histories and lists of refs need. */
export const GIT_PROCESS_COST = 50;

/**
 * Cost of a connection: the cost of reading the page, and the selected fields of each item.
 * @param own cost of reading the page
 */
export function pageCost(own = 1) {
  return ({ first }: { first: number }) => ({
    field: own,
    multiplier: Math.min(Math.max(first, 1), MAX_FIRST),
  });
}

/** Defines `{name}Connection` and `{name}Edge` for the type `node`. */
export function defineConnectionType<Node extends ConnectionNode>(name: string, node: Node) {
  return builder.connectionObject(
    {
      type: node,
      name: `${name}Connection`,
      description: 'A page of a list.',
      // The number of items is already counted in the field with the argument `first`.
      edgesField: { complexity: { field: 1, multiplier: 1 } },
      fields: (t) => ({
        totalCount: t.int({
          description: 'The number of entries in the whole list.',
          resolve: (page) => (page as unknown as { totalCount(): number }).totalCount(),
        }),
      }),
    },
    { name: `${name}Edge`, description: 'An entry of a list, with its cursor.' },
  );
}
type ConnectionNode = Parameters<typeof builder.connectionObject>[0]['type'];

/** Converts a page to a Relay connection. `hasPreviousPage` is true for every page but the first. */
export function toConnection<T>(
  { items, hasNextPage, totalCount }: CursorPage<T>,
  { after }: { after?: string | null },
) {
  return {
    edges: items,
    pageInfo: {
      hasNextPage,
      hasPreviousPage: after != null,
      get startCursor() {
        return items[0]?.cursor ?? null;
      },
      get endCursor() {
        return items.at(-1)?.cursor ?? null;
      },
    },
    totalCount,
    // Pothos expects its own row types. The rows were read with the columns that these types need.
  } as never;
}

/** Arguments of every numbered page. */
export const offsetPageArgs = builder.args((t) => ({
  page: t.int({
    required: true,
    defaultValue: 1,
    description: 'The number of the page, from 1. A page after the last one is empty.',
  }),
  perPage: t.int({
    required: true,
    defaultValue: 20,
    description: 'How many entries a page has: 1 to 100.',
  }),
}));

/** Direction of a list whose sort column is an argument. */
export const orderArg = {
  type: SortOrder,
  required: true,
  defaultValue: 'desc',
  description: 'Whether the smallest or the largest comes first.',
} as const;

type ListOptions<Type, Args, Request extends CursorPageRequest, Select> = {
  type: Type;
  args: Args;
  description: string;
  /** Reads a page for the user or namespace with this id. */
  slice(context: Context, id: string, args: Request, select: Select): Promise<CursorPage<unknown>>;
};

/** Options of a user or namespace field that is a connection of rows. */
export function connectionField<Type, Args, Request extends CursorPageRequest, Select>({
  slice,
  ...options
}: ListOptions<Type, Args, Request, Select>) {
  return {
    ...options,
    nullable: true,
    complexity: pageCost(),
    select: { id: true },
    resolve: async (
      { id }: { id: string },
      args: Request,
      context: Context,
      info: GraphQLResolveInfo,
    ) => toConnection(await slice(context, id, args, selectForNodes(context, info)), args),
  } as const;
}

/** Cost of a numbered page, like `pageCost`. */
export function numberedPageCost(own = 1) {
  return ({ perPage }: { perPage: number }) => pageCost(own)({ first: perPage });
}

type PageFields<T> = PothosSchemaTypes.ObjectFieldBuilder<
  typeof builder.$inferSchemaTypes,
  OffsetPage<T>
>;

const Pagination = builder.objectRef<OffsetPage<unknown>>('Pagination').implement({
  description: 'The position of a numbered page in its list: only for REST.',
  fields: (t) => ({ ...paginationFields(t) }),
});

function paginationFields<T>(t: PageFields<T>) {
  return {
    page: t.exposeInt('page', { description: 'The number of this page, from 1.' }),
    perPage: t.exposeInt('perPage', { description: 'How many entries a page has.' }),
    total: t.exposeInt('total', { description: 'The number of entries on all pages.' }),
    totalPages: t.int({
      description: 'The number of pages.',
      resolve: ({ total, perPage }) => Math.ceil(total / perPage),
    }),
  };
}

/** Defines the page type `{name}` whose `nodes` have the type `node`. */
export function definePageType<T>(
  name: string,
  node: Parameters<typeof builder.objectRef<T>>[0] | object,
) {
  return builder.objectRef<OffsetPage<T>>(name).implement({
    description: 'A page by number: only for REST. In GraphQL the same list is a connection.',
    fields: (t) => ({
      nodes: t.field({
        type: [node] as never,
        description: 'The entries of the page.',
        complexity: { field: 1, multiplier: 1 },
        resolve: (page) => page.nodes as never,
      }),
      ...paginationFields(t),
      pagination: t.field({
        type: Pagination,
        description: '`page`, `perPage`, `total` and `totalPages` in one object, as REST has them.',
        resolve: (page) => page,
      }),
    }),
  });
}
