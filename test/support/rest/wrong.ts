/** Invalid values according to a parameter's own schema. */
import type { JsonSchema } from '../fuzz/values.ts';

export type Schema = JsonSchema & { format?: string; minLength?: number; maxLength?: number };

/** Values outside the documented limits, and of other types; few parameters accept JSON `null`. */
export function wrongValues(schema: Schema): unknown[] {
  const { enum: known, minimum, maximum, minLength, maxLength } = schema;
  const [type, ...others] = [schema.type].flat();
  return [
    ...(others.includes('null') ? [] : [null]),
    {},
    ...(type === 'integer' ? ['1', 1.5, 2 ** 40] : [1]),
    ...(type === 'object' ? [{ a: 1 }] : []),
    ...(type === 'array' ? ['x', [1], ...(schema.items?.enum ? [['unknown']] : [])] : []),
    ...(known ? [type === 'integer' ? 3 : 'unknown'] : []),
    ...(minimum === undefined ? [] : [minimum - 1]),
    ...(maximum === undefined ? [] : [maximum + 1]),
    ...(minLength ? [''] : []),
    ...(maxLength === undefined ? [] : ['x'.repeat(maxLength + 1)]),
  ].filter((value) => !(type === 'object' && isEmpty(value)));
}

export function wrongTexts({ type, enum: known, format, minimum, maximum }: Schema): string[] {
  return [
    ...(type === 'integer' ? ['', 'x', '1.5', '1e1', ' 1', '99999999999'] : []),
    ...(type === 'boolean' ? ['', '1', 'TRUE'] : []),
    ...(format === 'date-time' ? ['', 'yesterday', '2026-01-01'] : []),
    ...(known ? ['', 'unknown'] : []),
    ...(minimum === undefined ? [] : [String(minimum - 1)]),
    ...(maximum === undefined ? [] : [String(maximum + 1)]),
  ];
}

const isEmpty = (value: unknown) => value !== null && Object.keys(value as object).length === 0;
