/** Operations generated from the schema, with valid and invalid arguments: none may end in an unexpected error. */
import fc from 'fast-check';
import {
  type GraphQLArgument,
  type GraphQLInputType,
  type GraphQLObjectType,
  type GraphQLOutputType,
  getNamedType,
  getNullableType,
  isEnumType,
  isInputObjectType,
  isInterfaceType,
  isListType,
  isNonNullType,
  isObjectType,
} from 'graphql';
import { expect, test } from 'vitest';
import { schema } from '../../../src/api/graphql/schema.ts';
import { mostly, nastyJson, nastyNumber, nastyString } from '../../support/fuzz/values.ts';
import { openWire } from '../../support/fuzz/wire.ts';
import { count, createWorld, type World } from '../../support/fuzz/world.ts';
import { startApp } from '../../support/harness.ts';

const BATCH = 16;
const MAX_DEPTH = 3;

type Operation = { query: string; variables: Record<string, unknown> };

test('no GraphQL operation ends in an unexpected error', async () => {
  const config = { webhooks: { allow: ['127.0.0.1'] } };
  await using app = await startApp({ config });
  const world = await createWorld(app);
  using wire = openWire(app.base);
  const batches = fc.array(fc.tuple(world.callers, operations(world)), {
    minLength: BATCH,
    maxLength: BATCH,
  });

  let rounds = 0;
  let [answered, refused] = [0, 0];
  const property = fc.asyncProperty(batches, async (batch) => {
    if (rounds++ % 25 === 0) await world.restore();
    await Promise.all(
      batch.map(async ([client, operation]) => {
        const body = JSON.stringify(operation);
        const headers = { 'content-type': 'application/json' };
        const reply = await wire.send(client, { method: 'POST', path: '/graphql', headers, body });
        const shown = `${operation.query}\n${JSON.stringify(operation.variables)}\n→ ${reply.status} ${reply.text.slice(0, 800)}`;
        expect(reply.status, shown).toBeLessThan(500);
        expect(reply.text, shown).not.toContain('INTERNAL_ERROR');
        JSON.parse(reply.text).errors ? refused++ : answered++;
      }),
    );
  });
  await fc.assert(property, { numRuns: count(1_200, 7_600) / BATCH });
  console.log(`GraphQL: ${answered} operations answered, ${refused} refused`);
  expect(answered).toBeGreaterThan(refused / 20);
});

function operations(world: World): fc.Arbitrary<Operation> {
  const roots = [schema.getQueryType(), schema.getMutationType()].map((type, i) =>
    fields(type as GraphQLObjectType, MAX_DEPTH, i === 0 ? 2 : 1),
  );
  return fc
    .oneof(
      { arbitrary: roots[0] as Fields, weight: 3 },
      { arbitrary: roots[1] as Fields, weight: 1 },
    )
    .map((made) => {
      const variables: Record<string, unknown> = {};
      const declared: string[] = [];
      const write = (selection: Selection[]): string =>
        selection
          .map(({ name, args, inner }, i) => {
            const given = args.filter((a) => a.value !== undefined);
            const passed = given.map(({ name: arg, type, value }) => {
              const variable = `v${declared.length}`;
              declared.push(`$${variable}: ${type}`);
              variables[variable] = value;
              return `${arg}: $${variable}`;
            });
            const call = passed.length ? `(${passed.join(', ')})` : '';
            return `f${i}: ${name}${call}${inner.length ? ` { ${write(inner)} }` : ''}`;
          })
          .join(' ');
      const text = write(made.selection);
      return {
        query: `${made.kind}${declared.length ? ` (${declared.join(', ')})` : ''} { ${text} }`,
        variables,
      };
    });

  type Selection = {
    name: string;
    args: { name: string; type: string; value: unknown }[];
    inner: Selection[];
  };
  type Fields = fc.Arbitrary<{ kind: string; selection: Selection[] }>;

  function fields(type: GraphQLObjectType, depth: number, max: number): Fields {
    const kind = type === schema.getMutationType() ? 'mutation' : 'query';
    return selections(type, depth, max).map((selection) => ({ kind, selection }));
  }

  function selections(
    type: GraphQLObjectType,
    depth: number,
    max: number,
  ): fc.Arbitrary<Selection[]> {
    const possible = Object.values(type.getFields()).filter(
      (f) => depth > 1 || !isComposite(f.type),
    );
    if (!possible.length) return fc.constant([{ name: '__typename', args: [], inner: [] }]);
    const one = fc.constantFrom(...possible).chain((field) => {
      const named = getNamedType(field.type);
      const inner = isObjectType(named)
        ? selections(named, depth - 1, 3)
        : fc.constant<Selection[]>(
            isInterfaceType(named) ? [{ name: '__typename', args: [], inner: [] }] : [],
          );
      return fc.record({
        name: fc.constant(field.name),
        args: fc.tuple(...field.args.map(argument)),
        inner,
      });
    });
    return fc.array(one, { minLength: 1, maxLength: max });
  }

  function argument({ name, type }: GraphQLArgument) {
    const likely = input(type, name);
    const value = isNonNullType(type) ? likely : fc.option(likely, { nil: undefined });
    return fc.record({ name: fc.constant(name), type: fc.constant(String(type)), value });
  }

  function input(type: GraphQLInputType, name: string): fc.Arbitrary<unknown> {
    const bare = getNullableType(type);
    if (isListType(bare))
      return mostly(fc.array(input(bare.ofType, name), { maxLength: 2 }), nastyJson, 15);
    if (isEnumType(bare))
      return mostly(fc.constantFrom(...bare.getValues().map((v) => v.name)), nastyJson, 15);
    if (isInputObjectType(bare)) {
      const inner = Object.values(bare.getFields()).map(
        (f) => [f.name, input(f.type, f.name)] as const,
      );
      const required = Object.values(bare.getFields()).filter((f) => isNonNullType(f.type));
      const requiredKeys = required.map((f) => f.name) as never[];
      return mostly(fc.record(Object.fromEntries(inner), { requiredKeys }), nastyJson, 25);
    }
    switch (String(bare)) {
      case 'Int':
      case 'SafeInt':
        return mostly(fc.integer({ min: 1, max: 50 }), fc.oneof(nastyNumber, nastyJson), 15);
      case 'Boolean':
        return mostly(fc.boolean(), nastyJson, 15);
      case 'JSON':
        return mostly(fc.constant({ KEY: 'value' }), nastyJson);
      default:
        return mostly(world.known(name) ?? nastyString, fc.oneof(nastyString, nastyJson), 15);
    }
  }
}

function isComposite(type: GraphQLOutputType): boolean {
  const named = getNamedType(type);
  return isObjectType(named) || isInterfaceType(named);
}
