/**
 * The core schema in the form REST runs it: the same types and resolvers, with enums in their wire form,
 * and without what only costs time there.
 */
import { isDeepStrictEqual } from 'node:util';
import { MapperKind, mapSchema } from '@graphql-tools/utils';
import {
  defaultFieldResolver,
  type GraphQLEnumType,
  type GraphQLFieldConfig,
  GraphQLScalarType,
  type GraphQLSchema,
  type GraphQLType,
  getNamedType,
  isNonNullType,
  isObjectType,
} from 'graphql';
import { SELECTED } from '../database/rows.ts';

export function executable(core: GraphQLSchema): GraphQLSchema {
  const schema = mapSchema(core, {
    // TYPE rather than ENUM_TYPE: the latter may only answer another enum.
    [MapperKind.TYPE]: (type) => ('getValues' in type ? wireEnum(type) : undefined),
    [MapperKind.OBJECT_FIELD]: cheaper,
  });
  schema.extensions = { ...schema.extensions, looksAtRows: true };
  return schema;
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

type Field = GraphQLFieldConfig<Row, unknown>;
type Resolve = NonNullable<Field['resolve']>;
type Row = Record<string, unknown> & { [SELECTED]?: object };

/**
 * Pothos wraps each field of a row in a resolver that looks up, by the path, whether the row was loaded with
 * what the field selects. Looking at the row costs far less; one without it still takes the wrapper.
 */
function cheaper(field: Field, name: string, typeName: string, schema: GraphQLSchema): Field {
  const { pothosExposedField: exposed, pothosPrismaSelect: select } = field.extensions ?? {};
  const original = field.extensions?.pothosOriginalResolve as Resolve | undefined;
  const { resolve = defaultFieldResolver } = field;

  const isNodeId = name === 'id' && implementsNode(schema, typeName);
  const property = isNodeId ? 'id' : exposed;
  if (typeof property === 'string') {
    // Compiled code then reads the property itself. What is missing fails here, so only where a null could
    // hide it the resolver stays.
    if (property === name && isNonNullType(field.type)) return { ...field, resolve: undefined };
    return {
      ...field,
      resolve: (row, args, context, info) => {
        const value = row[property];
        return value === undefined ? resolve(row, args, context, info) : value;
      },
    };
  }
  if (!original || typeof select !== 'object' || select === null) return field;
  const isLoaded = loadedWith(select);
  return {
    ...field,
    resolve: (row, args, context, info) =>
      (isLoaded(row) ? original : resolve)(row, args, context, info),
  };
}

function implementsNode(schema: GraphQLSchema, typeName: string): boolean {
  const type = schema.getType(typeName);
  return isObjectType(type) && type.getInterfaces().some(({ name }) => name === 'Node');
}

/** A check that a row has what is selected. */
function loadedWith(select: object): (row: Row) => boolean {
  const isShown = shownWith(select);
  const bySelect = new WeakMap<object, boolean>();
  return (row) => {
    const read = row[SELECTED];
    if (!read) return isShown?.(row) ?? false;
    const known = bySelect.get(read);
    if (known !== undefined) return known;
    const isIn = contains(read, select);
    bySelect.set(read, isIn);
    return isIn;
  };
}

/** Whether all columns of `some` are in `whole`, those of relations under the same filters. */
function contains(whole: object, some: object): boolean {
  return Object.entries(some).every(([field, selected]) => {
    const read = (whole as Record<string, unknown>)[field];
    if (typeof read !== 'object' || read === null || typeof selected !== 'object')
      return read === selected;
    const { select: columns = {}, ...filters } = read as { select?: object };
    const { select: asked = {}, ...under } = selected;
    return isDeepStrictEqual(filters, under) && contains(columns, asked);
  });
}

/** A check by the row alone; undefined where the row does not show it, as with filters. */
function shownWith(select: unknown): ((row: Row) => boolean) | undefined {
  if (typeof select !== 'object' || select === null) return undefined;
  const checks: ((row: Row) => boolean)[] = [];
  for (const [name, selected] of Object.entries(select)) {
    if (selected === true) {
      checks.push((row) => row[name] !== undefined);
      continue;
    }
    const isOnlySelect = Object.keys(selected).join() === 'select' && name !== '_count';
    const inner = isOnlySelect ? shownWith(selected.select) : undefined;
    if (!inner) return undefined;
    checks.push((row) => {
      const value = row[name];
      return value === null || (typeof value === 'object' && inner(value as Row));
    });
  }
  return (row) => checks.every((check) => check(row));
}
