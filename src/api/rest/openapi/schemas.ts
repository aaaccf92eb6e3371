/** JSON Schema (2020-12, as in OpenAPI 3.1) of response types and parameters. */
import {
  type GraphQLObjectType,
  type GraphQLType,
  getNamedType,
  getNullableType,
  isListType,
  isNonNullType,
} from 'graphql';
import {
  type Catalogue,
  DISK_GB,
  defaultsOf,
  gpuCounts,
  gpuNames,
  isRange,
} from '../../../base/hardware.ts';
import type { Parameter } from '../operations.ts';
import type { FieldExtensions } from '../response-shape.ts';
import { enumValues } from '../rest-schema.ts';

export type JsonSchema = { [keyword: string]: unknown };

const SCALARS: Record<string, JsonSchema> = {
  ID: { type: 'string' },
  String: { type: 'string' },
  Boolean: { type: 'boolean' },
  Int: { type: 'integer', format: 'int32' },
  SafeInt: { type: 'integer', format: 'int64' },
  Float: { type: 'number' },
  DateTime: { type: 'string', format: 'date-time' },
  Decimal: { type: 'string', pattern: '^\\d+\\.\\d{2,}$' },
};
const STRING_MAP: JsonSchema = { type: 'object', additionalProperties: { type: 'string' } };

/** The schema of a response type. Adds the named types that it refers to, to `components`. */
export function schemaOf(type: GraphQLType, components: Map<string, JsonSchema>): JsonSchema {
  if (!isNonNullType(type)) return orNull(schemaOfNullable(type, components));
  return schemaOfNullable(type.ofType, components);
}

/** Named types whose values are names of the catalogue. */
export function catalogueTypes(offer: Catalogue): Record<string, JsonSchema> {
  const nameOf = (values: readonly string[], description: string) => ({
    type: 'string',
    enum: values,
    description,
  });
  return {
    Gpu: nameOf(gpuNames(offer), 'A GPU model that this server offers, or none.'),
    Region: nameOf(offer.regions, 'A region of this server.'),
  };
}

/** Allowed values and defaults of the parameters of a job that depend on the catalogue, by their names. */
export function catalogueLimits(offer: Catalogue): Record<string, JsonSchema> {
  const { gpuCount, cpu, memoryGb, diskGb, region } = defaultsOf(offer);
  const { cpus } = offer;
  return {
    gpu_count: { enum: gpuCounts(offer), default: gpuCount },
    cpu: {
      ...(isRange(cpus) ? { minimum: cpus.min, maximum: cpus.max } : { enum: cpus }),
      default: cpu,
    },
    memory_gb: { minimum: 1, default: memoryGb },
    disk_gb: { minimum: DISK_GB.min, maximum: DISK_GB.max, default: diskGb },
    region: { default: region },
  };
}

/** The schema of the values of a parameter. @param limits `catalogueLimits` */
export function parameterSchema(
  { name, type, range, length, isOfCatalogue, among, stringMap, nullable, fallback }: Parameter,
  components: Map<string, JsonSchema>,
  limits: Record<string, JsonSchema>,
): JsonSchema {
  const schema = stringMap
    ? STRING_MAP
    : among
      ? partialEnum(getNullableType(type), among)
      : schemaOfNullable(getNullableType(type), components);
  return {
    ...(nullable ? orNull(schema) : schema),
    ...(range?.min !== undefined && { minimum: range.min }),
    ...(range?.max !== undefined && { maximum: range.max }),
    ...(length?.min !== undefined && { minLength: length.min }),
    ...(length?.max !== undefined && { maxLength: length.max }),
    ...(isOfCatalogue && limits[name]),
    ...(fallback !== undefined && fallback !== null && { default: fallback }),
  };
}

/** The schema of an enum, or of a list of enum values, of which only some are accepted. */
function partialEnum(type: GraphQLType, values: readonly string[]): JsonSchema {
  const one: JsonSchema = { type: 'string', enum: [...values] };
  return isListType(type) ? { type: 'array', items: one } : one;
}

function schemaOfNullable(type: GraphQLType, components: Map<string, JsonSchema>): JsonSchema {
  if (isListType(type)) return { type: 'array', items: schemaOf(type.ofType, components) };
  const named = getNamedType(type);
  const values = enumValues(named);
  const scalar = SCALARS[named.name];
  if (scalar) return scalar;
  if (!components.has(named.name)) {
    // Added before it is complete, because a type may contain itself.
    const schema: JsonSchema = {};
    components.set(named.name, schema);
    Object.assign(
      schema,
      values
        ? { type: 'string', enum: values }
        : objectSchema(named as GraphQLObjectType, components),
      named.description && { description: named.description },
    );
  }
  return { $ref: `#/components/schemas/${named.name}` };
}

function objectSchema(type: GraphQLObjectType, components: Map<string, JsonSchema>): JsonSchema {
  const properties: Record<string, JsonSchema> = {};
  const required: string[] = [];
  for (const field of Object.values(type.getFields())) {
    const { absentWhenNull, stringMap } = field.extensions as FieldExtensions;
    const schema = stringMap
      ? STRING_MAP
      : absentWhenNull
        ? schemaOfNullable(getNullableType(field.type), components)
        : schemaOf(field.type, components);
    properties[field.name] = {
      ...schema,
      ...(field.description && { description: field.description }),
    };
    if (!absentWhenNull) required.push(field.name);
  }
  return { type: 'object', required, properties };
}

function orNull(schema: JsonSchema): JsonSchema {
  return typeof schema.type === 'string' && !schema.enum
    ? { ...schema, type: [schema.type, 'null'] }
    : { oneOf: [schema, { type: 'null' }] };
}
