/**
 * The Pothos builder that each feature's `graphql.ts` adds to, and the scalars they share.
 *
 * Enums carry the REST wire form as their internal value (`A100-40GB` is no GraphQL name), so the domain,
 * the database and REST speak one language and GraphQL clients see A100_40GB.
 */
import SchemaBuilder from '@pothos/core';
import PrismaPlugin from '@pothos/plugin-prisma';
import RelayPlugin from '@pothos/plugin-relay';
import { Decimal } from 'decimal.js';
import { GraphQLError } from 'graphql';
import type { Prisma } from '../../prisma/generated/client.ts';
import type PrismaTypes from '../../prisma/generated/pothos.ts';
import { getDatamodel } from '../../prisma/generated/pothos.ts';
import { isId, PREFIXES, type Prefix } from '../ids.ts';
import type { Context } from './context.ts';

export const builder = new SchemaBuilder<{
  Context: Context;
  PrismaTypes: PrismaTypes;
  DefaultFieldNullability: false;
  Scalars: {
    ID: { Input: string; Output: string };
    DateTime: { Input: Date; Output: Date };
    SafeInt: { Input: number; Output: number | bigint };
    Decimal: { Input: string; Output: Decimal | Prisma.Decimal | string };
    JSON: { Input: unknown; Output: unknown };
  };
}>({
  defaultFieldNullability: false,
  plugins: [RelayPlugin, PrismaPlugin],
  prisma: {
    client: ({ services }) => services.db as never,
    dmmf: getDatamodel(),
    onUnusedQuery: null,
    maxConnectionSize: 100,
    defaultConnectionSize: 20,
  },
  relay: {
    // A TypeID says what it is, so node ids are the ids themselves and the same in REST.
    encodeGlobalID: (_type, id) => String(id),
    decodeGlobalID: (id) => {
      const prefix = id.slice(0, id.lastIndexOf('_'));
      const typename = Object.hasOwn(PREFIXES, prefix) ? PREFIXES[prefix as Prefix] : null;
      if (!typename || !isId(prefix as Prefix, id))
        throw new GraphQLError(`id: "${id.slice(0, 80)}" is not the id of a node`, badInput);
      return { typename, id };
    },
    clientMutationId: 'omit',
    cursorType: 'String',
  },
});

const badInput = { extensions: { code: 'INVALID_REQUEST' } };

builder.queryType({ description: 'What can be read.' });
builder.mutationType({ description: 'What can be changed.' });
builder.subscriptionType({ description: 'What can be followed, over server-sent events.' });

builder.scalarType('DateTime', {
  description: 'A moment as ISO 8601 with an offset; always answered in UTC with milliseconds.',
  serialize: (value) => value.toISOString(),
  parseValue: (value) => {
    const date = typeof value === 'string' && ISO_8601.test(value) ? new Date(value) : undefined;
    if (!date || Number.isNaN(date.getTime()) || !isDay(value as string))
      throw new GraphQLError('must be an ISO 8601 timestamp with an offset', badInput);
    return date;
  },
});
const ISO_8601 = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})$/;

/** Whether the date is in the calendar: `Date` takes February 30 for March 2. */
function isDay(timestamp: string): boolean {
  const day = timestamp.slice(0, 10);
  return new Date(`${day}T00:00Z`).toISOString().startsWith(day);
}

builder.scalarType('SafeInt', {
  description:
    'A whole number up to 2^53 - 1: sizes in bytes and sequence numbers pass the 32 bits of Int.',
  serialize: (value) => Number(value),
  parseValue: (value) => {
    if (typeof value === 'number' && Number.isSafeInteger(value)) return value;
    throw new GraphQLError('must be a whole number up to 2^53 - 1', badInput);
  },
});

builder.scalarType('Decimal', {
  description:
    'An exact amount of money as a string with at least two decimal places, such as "1.50".',
  serialize: (value) => {
    const amount = new Decimal(value.toString());
    return amount.toFixed(Math.max(2, amount.decimalPlaces()));
  },
  parseValue: (value) => {
    if (typeof value === 'string' && /^\d+(\.\d+)?$/.test(value)) return value;
    throw new GraphQLError('must be a decimal number in a string', badInput);
  },
});

builder.scalarType('JSON', {
  description: 'Any JSON value.',
  serialize: (value) => value,
  parseValue: (value) => value,
});

export const SortOrder = builder.enumType('SortOrder', {
  values: { ASC: { value: 'asc' }, DESC: { value: 'desc' } } as const,
});
