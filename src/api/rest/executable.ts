/** The core schema in the form REST runs it: the same types and resolvers, with enums in their wire form. */
import { MapperKind, mapSchema } from '@graphql-tools/utils';
import {
  type GraphQLEnumType,
  type GraphQLFieldConfig,
  GraphQLScalarType,
  type GraphQLSchema,
  type GraphQLType,
  getNamedType,
  isNonNullType,
} from 'graphql';
import { rowAccessOf } from '../../platform/schema/loaded-rows.ts';

export function executable(core: GraphQLSchema): GraphQLSchema {
  return mapSchema(core, {
    // TYPE rather than ENUM_TYPE: the latter may only answer another enum.
    [MapperKind.TYPE]: (type) => ('getValues' in type ? wireEnum(type) : undefined),
    [MapperKind.OBJECT_FIELD]: cheaper,
  });
}

/** The wire forms of an enum, in the order of the schema; undefined for any other type. */
export function enumValues(type: GraphQLType): readonly string[] | undefined {
  return getNamedType(type).extensions.wireValues as readonly string[] | undefined;
}

/**
 * An enum's internal values are what REST shows (`A100-40GB` cannot be a GraphQL name), so here the type
 * is a scalar that passes them through. Parameters are checked against `enumValues` before they get here;
 * names are taken too, because that is how `mapSchema` passes the default values of the core schema.
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

type Field = GraphQLFieldConfig<unknown, unknown>;

/**
 * Without a resolver compiled code reads the property itself. What is missing fails here: the rows of stored operations have
 * what these select, and where a null could hide it the resolver stays.
 */
function cheaper(field: Field, name: string): Field {
  const isProperty = rowAccessOf(field).shownProperty === name && isNonNullType(field.type);
  return isProperty ? { ...field, resolve: undefined } : field;
}
