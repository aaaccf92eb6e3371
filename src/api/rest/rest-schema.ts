/** The schema for REST operations: the types and resolvers of the core schema, with enums and names in their wire form. */
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

export function toRestSchema(core: GraphQLSchema): GraphQLSchema {
  return mapSchema(core, {
    // TYPE, because a mapper for ENUM_TYPE may only return an enum.
    [MapperKind.TYPE]: (type) => {
      if ('getValues' in type) return wireEnum(type);
      return type.extensions.isPlainInRest ? plainName(type) : undefined;
    },
    [MapperKind.OBJECT_FIELD]: withoutPropertyResolver,
  });
}

/** @returns the values of an enum in their wire form, in the order of the schema; undefined for any other type */
export function enumValues(type: GraphQLType): readonly string[] | undefined {
  return getNamedType(type).extensions.wireValues as readonly string[] | undefined;
}

/**
 * REST shows the internal values of an enum (`A100-40GB` cannot be a name in GraphQL), so the type becomes a scalar that
 * passes them through. Parameters have been checked against `enumValues` before. Names are accepted as well, because
 * `mapSchema` passes the default values of the core schema as names.
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

/** Names that REST shows as the catalogue of hardware has them. The domain checks them. */
function plainName({ name, description }: { name: string; description?: string | null }) {
  return new GraphQLScalarType<string>({
    name,
    description,
    serialize: (value) => String(value),
    parseValue: (value) => String(value),
  });
}

type Field = GraphQLFieldConfig<unknown, unknown>;

/**
 * Without a resolver, compiled code reads the property directly, which is faster. Only for non-null fields: the rows of
 * stored operations contain all selected columns, and a missing one must fail rather than become null.
 */
function withoutPropertyResolver(field: Field): Field {
  const isProperty = rowAccessOf(field).isProperty && isNonNullType(field.type);
  return isProperty ? { ...field, resolve: undefined } : field;
}
