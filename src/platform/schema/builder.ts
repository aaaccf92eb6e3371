/**
 * The Pothos builder to which each feature's `graphql/` folder adds its types, and the shared scalars.
 *
 * The internal values of enums are those of REST, so the domain, the database and REST use the same values. GraphQL clients
 * see other names where a value is not a valid GraphQL name: TIMED_OUT for `timed_out`.
 */
import SchemaBuilder, { brandWithType } from '@pothos/core';
import ComplexityPlugin from '@pothos/plugin-complexity';
import PrismaPlugin from '@pothos/plugin-prisma';
import RelayPlugin from '@pothos/plugin-relay';
import type { Decimal } from 'decimal.js';
import { GraphQLError } from 'graphql';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type PrismaTypes from '../../../prisma/generated/pothos.ts';
import { getDatamodel } from '../../../prisma/generated/pothos.ts';
import { invalid } from '../../base/errors.ts';
import { nodeTypeOf } from '../../base/ids.ts';
import { formatMoney } from '../../base/money.ts';
import { isDay, parseTime } from '../database/times.ts';
import type { Context } from './context.ts';
import './loaded-rows.ts';

export const builder = new SchemaBuilder<{
  Context: Context;
  PrismaTypes: PrismaTypes;
  DefaultFieldNullability: false;
  Scalars: {
    ID: { Input: string; Output: string };
    DateTime: { Input: Date; Output: Date };
    Date: { Input: string; Output: string };
    SafeInt: { Input: number; Output: number | bigint };
    JSON: { Input: never; Output: object };
    Decimal: { Input: string; Output: Decimal | Prisma.Decimal | string };
    /** Defined in `jobs/graphql/enums.ts`. */
    Gpu: { Input: string; Output: string };
    Region: { Input: string; Output: string };
    /** Defined in `jobs/graphql/metrics.ts`. */
    MetricValue: { Input: never; Output: number };
  };
}>({
  defaultFieldNullability: false,
  plugins: ['loadedRows', RelayPlugin, PrismaPlugin, ComplexityPlugin],
  // Only declares the cost of each field. `api/graphql/limits.ts` adds the costs, once per operation and not for REST.
  complexity: { disabled: true, defaultComplexity: 1, defaultListMultiplier: 10 },
  prisma: {
    client: ({ services }) => services.db as never,
    dmmf: getDatamodel(),
    onUnusedQuery: null,
  },
  relay: {
    // A TypeID contains its type, so node ids are the ids themselves, as in REST.
    encodeGlobalID: (_type, id) => String(id),
    // An invalid id gets an empty type name and is refused by the resolvers below, so that it does not fail the other ids.
    decodeGlobalID: (id) => ({ typename: nodeTypeOf(id) ?? '', id }),
    clientMutationId: 'omit',
    cursorType: 'String',
    nodeTypeOptions: {
      description: 'An object with an id of its own. REST uses the same id.',
    },
    idFieldOptions: { description: 'The id, which is unique on the server and never changes.' },
    nodeQueryOptions: {
      description:
        'The object with this id; null without an error if it does not exist or the viewer may not see it.',
      args: { id: { description: 'The id of a repository, job, user, namespace …' } },
      resolve: (_root, { id }, _context, _info, resolveNode) => {
        if (!id.typename) throw invalidNodeId(id.id);
        return brandNode(resolveNode(id), id.typename);
      },
    },
    nodesQueryOptions: {
      complexity: ({ ids }) => ({ field: 1, multiplier: ids.length }),
      description:
        'The objects with these ids, in the same order; null for each that does not exist or that the viewer may not see. An id that is not the id of a node gives null and an error.',
      args: { ids: { description: 'The ids, at most 100.' } },
      nullable: { list: true, items: true },
      resolve: async (_root, args, _context, _info, resolveNodes) => {
        const ids = [...args.ids];
        if (ids.length > MAX_IDS) throw invalid('ids', `must contain at most ${MAX_IDS} ids`);
        // The plugin reads `args` itself and skips nulls.
        args.ids = ids.map((id) => (id.typename ? id : null)) as never;
        const nodes = await resolveNodes(args.ids);
        return ids.map(({ typename, id }, i) =>
          typename ? brandNode(nodes[i], typename) : invalidNodeId(id),
        );
      },
    },
    pageInfoTypeOptions: { description: 'The position of a page in its list.' },
    hasNextPageFieldOptions: {
      description: 'Whether another page follows; request it with `after: endCursor`.',
      complexity: 0,
    },
    hasPreviousPageFieldOptions: {
      description: 'Whether there are entries before this page.',
      complexity: 0,
    },
    startCursorFieldOptions: {
      description: 'The cursor of the first entry; null on an empty page.',
      complexity: 0,
    },
    endCursorFieldOptions: {
      complexity: 0,
      description: 'The cursor of the last entry, for `after`; null on an empty page.',
    },
    pageInfoFieldOptions: { description: 'The position of the page in the list.', complexity: 0 },
    edgesFieldOptions: { description: 'The entries of the page, each with its cursor.' },
    nodesOnConnection: {
      description: 'The entries of the page, without cursors.',
      complexity: { field: 1, multiplier: 1 },
    },
    nodeFieldOptions: { description: 'The entry.' },
    cursorFieldOptions: {
      description: 'The cursor of this entry; pass it as `after` to get the entries after it.',
    },
  },
});

const MAX_IDS = 100;

/**
 * Sets the brand by which Pothos finds the type of a node. Pothos brands a node only after it has cached the promise of the
 * node, so a second field with the same id could get an unbranded node.
 */
async function brandNode<T>(node: T, typename: string): Promise<Awaited<T>> {
  const row = await node;
  brandWithType(row, typename as never);
  return row;
}

function invalidNodeId(id: string): GraphQLError {
  return new GraphQLError(`id: "${id.slice(0, 80)}" is not the id of a node`, badInput);
}

const badInput = { extensions: { code: 'INVALID_REQUEST' } };

builder.queryType({ description: 'Queries read data.' });
builder.mutationType({ description: 'Mutations change data.' });
builder.subscriptionType({ description: 'Subscriptions follow changes over server-sent events.' });

builder.scalarType('DateTime', {
  description:
    'A time in ISO 8601 with an offset. Results are in UTC with milliseconds; times of log lines have microseconds.',
  serialize: (time: Date) => time.toISOString(),
  parseValue: (value) => {
    const date = typeof value === 'string' ? parseTime(value) : null;
    if (!date) throw new GraphQLError('must be an ISO 8601 timestamp with an offset', badInput);
    // In UTC the year may not have four digits. Prisma writes such a year in a form that PostgreSQL does not accept.
    const year = date.getUTCFullYear();
    if (year < 1 || year > 9_999)
      throw new GraphQLError('must be in the years 1 to 9999', badInput);
    return date;
  },
});
builder.scalarType('Date', {
  description: 'A day in UTC, such as "2026-01-31".',
  serialize: (value) => value,
  parseValue: (value) => {
    const isDate = typeof value === 'string' && /^\d{4}-\d{2}-\d{2}$/.test(value);
    if (!isDate || value < '0001' || Number.isNaN(Date.parse(value)) || !isDay(value))
      throw new GraphQLError('must be a day such as 2026-01-31', badInput);
    return value;
  },
});

builder.scalarType('SafeInt', {
  description:
    'A whole number up to 2^53 - 1, for sizes in bytes and sequence numbers, which can be too large for Int.',
  serialize: (value) => Number(value),
  parseValue: (value) => {
    if (typeof value === 'number' && Number.isSafeInteger(value)) return value;
    throw new GraphQLError('must be a whole number up to 2^53 - 1', badInput);
  },
});

builder.scalarType('Decimal', {
  description:
    'An exact amount of money as a string with at least two decimal places, such as "1.50".',
  serialize: formatMoney,
  parseValue: (value) => {
    if (typeof value === 'string' && /^\d+(\.\d+)?$/.test(value)) return value;
    throw new GraphQLError('must be a decimal number in a string', badInput);
  },
});

builder.scalarType('JSON', {
  description: 'A JSON object in the same form as in REST and webhooks. Output only.',
  serialize: (value) => value,
  parseValue: () => {
    throw new GraphQLError('cannot be used as input', badInput);
  },
});

export const SortOrder = builder.enumType('SortOrder', {
  description: 'The order of a list.',
  values: {
    ASC: { value: 'asc', description: 'Ascending: the smallest, the oldest or A comes first.' },
    DESC: { value: 'desc', description: 'Descending: the largest, the newest or Z comes first.' },
  } as const,
});

/*
 * Each mutation returns an object type of its own, which is nullable: if one of several mutations in an operation fails, the
 * results of the other mutations remain.
 */

/** `{Mutation}Payload` with the id of the deleted object. */
export function deletionPayload(mutation: string) {
  return builder.objectRef<{ id: string }>(`${mutation}Payload`).implement({
    description: 'What was deleted.',
    fields: (t) => ({ id: t.exposeID('id', { description: 'The id of what was deleted.' }) }),
  });
}

/** Options of the only argument of every mutation. */
export const INPUT = { required: true, description: 'The arguments of the mutation.' } as const;
