/** `graphql(…)` parses a document and types its result and variables from `schema.graphql`. */
import { initGraphQLTada } from 'gql.tada';
import type { introspection } from '../generated/schema.d.ts';

export const graphql = initGraphQLTada<{
  introspection: introspection;
  scalars: {
    /** ISO 8601, in UTC. */
    DateTime: string;
    /** YYYY-MM-DD. */
    Date: string;
    /** Money, as text: a float would lose cents. */
    Decimal: string;
    /** Up to 2^53 - 1. */
    SafeInt: number;
    JSON: unknown;
    /** A name of the catalogue of hardware. */
    Gpu: string;
    Region: string;
    /** NaN and infinity are text. */
    MetricValue: number | string;
  };
}>();

export type { FragmentOf, ResultOf, VariablesOf } from 'gql.tada';
export { readFragment } from 'gql.tada';
