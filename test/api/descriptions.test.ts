import {
  type GraphQLNamedType,
  isEnumType,
  isInputObjectType,
  isInterfaceType,
  isIntrospectionType,
  isObjectType,
  isSpecifiedScalarType,
} from 'graphql';
import { expect, test } from 'vitest';
import { schema } from '../../src/api/graphql/schema.ts';

type Described = { name: string; description?: string | null };

/** The parts of a type, by their path in the schema. */
function parts(type: GraphQLNamedType): [string, Described][] {
  const own: [string, Described][] = [[type.name, type]];
  if (isEnumType(type))
    return [...own, ...type.getValues().map((v) => [`${type.name}.${v.name}`, v] as never)];
  if (!isObjectType(type) && !isInterfaceType(type) && !isInputObjectType(type)) return own;
  for (const field of Object.values(type.getFields())) {
    const place = `${type.name}.${field.name}`;
    own.push([place, field]);
    if ('args' in field)
      for (const argument of field.args) own.push([`${place}(${argument.name}:)`, argument]);
  }
  return own;
}

const types = Object.values(schema.getTypeMap()).filter(
  (type) => !isIntrospectionType(type) && !isSpecifiedScalarType(type),
);

test('every type, field, argument and enum value has a description', () => {
  const missing = types
    .flatMap(parts)
    .filter(([, { description }]) => !description?.trim())
    .map(([place]) => place);
  expect(missing).toEqual([]);
});

test('the description of a field for REST only says so', () => {
  const forRest = /\.(whoami|accessTokens|apiKeys|\w*Page)$/;
  const fields = parts(schema.getQueryType() as never)
    .concat(parts(schema.getType('Repository') as never))
    .concat(parts(schema.getType('Webhook') as never))
    .filter(([place]) => forRest.test(place));
  expect(fields.map(([place]) => place)).toEqual([
    'Query.accessTokens',
    'Query.apiKeys',
    'Query.jobPage',
    'Query.repositoryPage',
    'Query.webhookPage',
    'Query.whoami',
    'Repository.commitPage',
    'Webhook.deliveryPage',
  ]);
  for (const [place, { description }] of fields)
    expect(description, place).toMatch(/only for REST/i);
});

test('every list that may be long is a connection, with nodes and a total count beside the edges', () => {
  // Not the feed: counting it would read all stored events.
  const connections = types.filter(({ name }) => /(?<!^Event)Connection$/.test(name));
  expect(connections.length).toBeGreaterThan(8);
  for (const type of connections)
    expect(Object.keys((type as never as { getFields(): object }).getFields()).sort()).toEqual([
      'edges',
      'nodes',
      'pageInfo',
      'totalCount',
    ]);
});
