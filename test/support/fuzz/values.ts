/** Arbitrary values: valid for a schema, almost valid, and unrelated to it. */
import fc from 'fast-check';

/** Strings that have broken other servers. */
const NASTY = [
  '',
  ' ',
  '.',
  '..',
  '../../etc/passwd',
  '%00',
  '\u0000',
  '%2e%2e%2f',
  '\u202e',
  '\ud800',
  '𝕳𝖊𝖑𝖑𝖔',
  'null',
  'true',
  '-1',
  '1e309',
  '9007199254740993',
  "' or 1=1 --",
  '{{7*7}}',
  '<script>',
  '__proto__',
  'constructor',
  'HEAD@{1}',
  'main..other',
  ':/x',
  '-n',
  '--upload-pack=x',
  'a'.repeat(300),
  'refs/heads/main',
  '2026-02-30T00:00:00Z',
  '2026-01-01T00:00:00Z',
];

export const nastyString = fc.oneof(
  fc.constantFrom(...NASTY),
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.string({ maxLength: 20 }),
);

const NUMBERS = [
  0,
  -0,
  -1,
  1,
  2,
  5,
  8,
  100,
  101,
  2 ** 31,
  -(2 ** 31) - 1,
  2 ** 53,
  1e21,
  0.5,
  1e-7,
];
export const nastyNumber = fc.oneof(
  fc.constantFrom(...NUMBERS),
  fc.integer(),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
);

/** Any JSON, including keys that refer to a prototype. */
export const nastyJson: fc.Arbitrary<unknown> = fc.letrec<{ any: unknown }>((tie) => ({
  any: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.constant(null),
    fc.boolean(),
    nastyNumber,
    nastyString,
    fc.array(tie('any'), { maxLength: 3 }),
    fc.dictionary(
      fc.oneof(fc.constantFrom('__proto__', 'constructor', 'toString', 'name'), nastyString),
      tie('any'),
      { maxKeys: 3 },
    ),
  ),
})).any;

/** Usually `likely`, sometimes anything. */
export function mostly<T>(
  likely: fc.Arbitrary<T>,
  unlikely: fc.Arbitrary<unknown>,
  weight = 4,
): fc.Arbitrary<T | unknown> {
  return fc.oneof({ arbitrary: likely, weight }, { arbitrary: unlikely, weight: 1 });
}

export type JsonSchema = {
  $ref?: string;
  type?: string | string[];
  enum?: unknown[];
  properties?: Record<string, JsonSchema>;
  required?: string[];
  items?: JsonSchema;
  minimum?: number;
  maximum?: number;
  oneOf?: JsonSchema[];
  anyOf?: JsonSchema[];
  allOf?: JsonSchema[];
  additionalProperties?: boolean | JsonSchema;
};

/**
 * Values of a JSON schema, with parts occasionally replaced by other values. `known` gives real values for a property name
 * (ids and names of existing objects), so that validation does not refuse all requests.
 */
export function fromSchema(
  schema: JsonSchema,
  resolve: (ref: string) => JsonSchema,
  known: (name: string) => fc.Arbitrary<unknown> | undefined,
  name = '',
): fc.Arbitrary<unknown> {
  if (schema.$ref) return fromSchema(resolve(schema.$ref), resolve, known, name);
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return fc.oneof(...choices.map((s) => fromSchema(s, resolve, known, name)));
  if (schema.enum) return mostly(fc.constantFrom(...schema.enum), nastyJson);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  switch (type) {
    case 'object': {
      const parts = Object.entries(schema.properties ?? {}).map(([key, s]) => [
        key,
        fromSchema(s, resolve, known, key),
      ]);
      const fields = fc.record(Object.fromEntries(parts), {
        requiredKeys: schema.required as never,
      });
      const extra = fc.tuple(
        fields,
        fc.dictionary(nastyString, nastyJson, { minKeys: 1, maxKeys: 2 }),
      );
      const strings = fc.dictionary(fc.constantFrom('A', 'PATH_X', '9bad', ''), fc.string(), {
        maxKeys: 2,
      });
      const likely = parts.length ? fields : (strings as fc.Arbitrary<object>);
      return mostly(
        likely,
        fc.oneof(
          nastyJson,
          extra.map(([a, b]) => ({ ...a, ...b })),
        ),
        6,
      );
    }
    case 'array':
      return mostly(
        fc.array(fromSchema(schema.items ?? {}, resolve, known, name), { maxLength: 3 }),
        nastyJson,
        6,
      );
    case 'integer':
    case 'number': {
      const { minimum = 1, maximum = 100 } = schema;
      return mostly(
        fc.integer({ min: minimum, max: Math.min(maximum, 2 ** 31 - 1) }),
        fc.oneof(nastyNumber, nastyJson),
        8,
      );
    }
    case 'boolean':
      return mostly(fc.boolean(), nastyJson, 8);
    default:
      return mostly(
        known(name) ?? nastyString,
        fc.oneof(nastyString, nastyJson),
        known(name) ? 8 : 2,
      );
  }
}
