/**
 * The core schema in the form REST runs it: the same types and resolvers, with enums in their wire form,
 * and without what only costs time there.
 */
import { MapperKind, mapSchema } from '@graphql-tools/utils';
import {
  defaultFieldResolver,
  type GraphQLEnumType,
  type GraphQLFieldConfig,
  GraphQLScalarType,
  type GraphQLSchema,
  type GraphQLType,
  getNamedType,
} from 'graphql';

export function executable(core: GraphQLSchema): GraphQLSchema {
  return mapSchema(core, {
    // TYPE rather than ENUM_TYPE: the latter may only answer another enum.
    [MapperKind.TYPE]: (type) => ('getValues' in type ? wireEnum(type) : undefined),
    [MapperKind.OBJECT_FIELD]: plainRead,
  });
}

/** The wire forms of an enum, in the order of the schema; undefined for any other type. */
export function enumValues(type: GraphQLType): readonly string[] | undefined {
  return getNamedType(type).extensions.wireValues as readonly string[] | undefined;
}

/**
 * An enum's internal values are what REST shows (`A100-40GB` cannot be a GraphQL name), so here the type
 * is a scalar that passes them through. Parameters are checked against `enumValues` before they get here;
 * names are taken too, because that is how `mapSchema` hands over the core's default values.
 */
function wireEnum(type: GraphQLEnumType): GraphQLScalarType {
  const byName = new Map<unknown, string>(type.getValues().map((v) => [v.name, v.value]));
  return new GraphQLScalarType({
    name: type.name,
    description: type.description,
    serialize: (value) => value,
    parseValue: (value) => byName.get(value) ?? value,
    extensions: { wireValues: [...byName.values()] },
  });
}

/**
 * Pothos wraps exposed columns in a resolver that checks whether the row was selected with them; reading
 * the property first halves the cost of a list. A row without the property still takes the wrapper.
 */
function plainRead(field: GraphQLFieldConfig<Record<string, unknown>, unknown>) {
  const property = field.extensions?.pothosExposedField;
  const { resolve = defaultFieldResolver } = field;
  if (typeof property !== 'string') return undefined;
  return {
    ...field,
    resolve: ((parent, args, context, info) => {
      const value = parent[property];
      return value === undefined ? resolve(parent, args, context, info) : value;
    }) satisfies typeof resolve,
  };
}
