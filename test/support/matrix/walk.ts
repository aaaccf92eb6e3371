/**
 * Runs every operation as every kind of caller. The operations come from the schema's root fields and from the REST route
 * table, and the permissions from `expectations.ts`; an operation without a row there fails.
 */
import {
  coerceInputValue,
  type DocumentNode,
  type GraphQLField,
  getNamedType,
  isCompositeType,
  Kind,
  type ValueNode,
} from 'graphql';
import { beforeAll, describe, expect, test } from 'vitest';
import { schema } from '../../../src/api/graphql/schema.ts';
import { type Operation, readOperations } from '../../../src/api/rest/operations.ts';
import { toRestSchema } from '../../../src/api/rest/rest-schema.ts';
import { type Route, routes } from '../../../src/api/rest/routes.ts';
import type { Answer, Client, Loam } from '../harness.ts';
import { parseEvents } from '../sse.ts';
import { postSubscription } from '../subscribe.ts';
import {
  MUTATIONS,
  NAMESPACE_LISTS,
  NODES,
  PLACES,
  QUERIES,
  type Rule,
  SUBSCRIPTIONS,
} from './expectations.ts';
import { type Caller, createWorld, LEVELS, type Level, shared, type World } from './world.ts';

const ROOTS = [
  ['query', schema.getQueryType(), QUERIES],
  ['mutation', schema.getMutationType(), MUTATIONS],
  ['subscription', schema.getSubscriptionType(), SUBSCRIPTIONS],
] as const;
const operations = readOperations(toRestSchema(schema));

let world: World;
let targets: World;

const reaches = (caller: Caller, level: Level) =>
  LEVELS.indexOf(caller.level) >= LEVELS.indexOf(level);

/** Each caller who may change something needs its own target. */
const argsOf = async (rule: Rule, kind: string, caller: Caller): Promise<object> => {
  const fresh = kind === 'mutation' && reaches(caller, rule.from);
  return (await rule.args?.(fresh ? world : targets, caller.name)) ?? {};
};

/** Declares the tests. `open` is called before the first of them; the caller closes what it opened. */
export function walkMatrix(open: () => Promise<Loam>): void {
  beforeAll(async () => {
    world = await createWorld(await open());
    targets = shared(world);
  });

  describe.each(ROOTS)('GraphQL %s', (kind, type, rules) => {
    const fields = Object.values(type?.getFields() ?? {});

    test('has a row for every field', () => {
      expect(Object.keys(rules).sort()).toEqual(fields.map(({ name }) => name).sort());
    });

    test.each(fields.map((field) => [field.name, field] as const))('%s', async (name, field) => {
      for (const [at, rule] of (rules[name] ?? []).entries()) {
        for (const caller of world.callers) {
          const args = await argsOf(rule, kind, caller);
          const event = rule.event && (() => rule.event?.(targets));
          const { status, codes } = await callField(caller.client, kind, field, args, event);
          const told = `${caller.name}, rule ${at}, ${JSON.stringify(args)}: ${codes}`;
          expect(status, told).toBe(caller.refused ? 401 : 200);
          if (reaches(caller, rule.from) && !caller.refused)
            // Only callers who may see the target get a conflict.
            expect(['', 'CONFLICT'], told).toContain(codes.join());
          else if (
            (rule.isHidden && !caller.refused) ||
            (rule.isHiddenFromStrangers && reaches(caller, 'account') && !reaches(caller, 'read'))
          )
            expect(codes, told).toEqual(['NOT_FOUND']);
          else expect(codes, told).toEqual([refusal(caller).toUpperCase()]);
        }
      }
    });
  });

  describe('REST', () => {
    const table = routes.flatMap((route) =>
      route.paths.map((path) => [route.method, path, route] as const),
    );

    test.each(table)('%s %s', async (_method, path, route) => {
      const operation = operations.get(route.operation) as Operation;
      const { name, rules } = rootField(operation);
      let applied = 0;
      for (const [at, rule] of (rules[name] ?? []).entries()) {
        for (const caller of world.callers) {
          const values = variablesOf(operation, await argsOf(rule, operation.kind, caller));
          if (!values) continue;
          applied++;
          const answer = await callRoute(caller.client, route, path, values);
          const told = `${caller.name}, rule ${at}: ${answer.status} ${answer.text}`;
          const allowed = caller.level !== 'anyone' && reaches(caller, rule.from);
          if (route.public || allowed) expect([route.status, 409], told).toContain(answer.status);
          else
            expect([answer.status, answer.body.error.code], told).toEqual([
              caller.level === 'anyone' ? 401 : 403,
              refusal(caller),
            ]);
        }
      }
      expect(applied, 'no rule fits what this route can say').toBeGreaterThan(0);
    });
  });

  describe('nodes', () => {
    test('have a row for every type', () => {
      const node = schema.getType('Node');
      const types = schema.getPossibleTypes(node as never).map(({ name }) => name);
      expect(Object.keys(NODES).sort()).toEqual(types.sort());
    });

    test.each(Object.entries(NODES))('%s is found from %s', async (type, level) => {
      // `deleteSessions` has ended the sessions of the world.
      const id = type === 'Session' ? await world.session('manager') : world.ids[type];
      for (const caller of world.callers.filter(({ refused }) => !refused)) {
        const { node } = await caller.client.gql(`{ node(id: "${id}") { __typename } }`);
        const found = level === 'owner' ? caller.name === 'manager' : reaches(caller, level);
        expect(node, caller.name).toEqual(found ? { __typename: type } : null);
      }
    });
  });

  describe('lists and objects of a namespace', () => {
    test('have a row each', () => {
      const fields = Object.values((schema.getType('Namespace') as never as Composite).getFields());
      const lists = fields.filter(({ type }) => isCompositeType(getNamedType(type)));
      expect(Object.keys(NAMESPACE_LISTS).sort()).toEqual(lists.map(({ name }) => name).sort());
    });

    test.each(Object.entries(NAMESPACE_LISTS))(
      '%s hold nothing private for strangers',
      async (name, { args, selection, refused, from = 'read' }) => {
        for (const caller of world.callers.filter((each) => reaches(each, 'account'))) {
          const { data, errors } = await caller.client.graphql(
            `{ namespace(name: "acme") { list: ${name}${args} ${selection} } }`,
          );
          const member = reaches(caller, from);
          const { list } = data.namespace;
          const entries = list?.edges ?? list ?? [];
          expect([entries].flat().length > 0, caller.name).toBe(member);
          expect(
            errors?.map(({ extensions }) => extensions.code),
            caller.name,
          ).toEqual(refused && !member ? ['PERMISSION_DENIED'] : undefined);
        }
      },
    );
  });
}

type Composite = { getFields(): Record<string, GraphQLField<unknown, unknown>> };

const refusal = ({ level }: Caller) =>
  level === 'anyone' ? 'authentication_failed' : 'permission_denied';

/** Calls a root field with its required arguments only. @returns the codes of its errors */
async function callField(
  client: Client,
  kind: string,
  field: GraphQLField<unknown, unknown>,
  args: object,
  event?: () => unknown,
): Promise<{ status: number; codes: string[] }> {
  const query = queryOf(kind, field, args);
  if (kind === 'subscription') return firstOf(client, query, args, event);
  const { status, body } = await client.post('/graphql', { query, variables: args });
  return { status, codes: codesOf(body) };
}

/** An operation with one root field, with variables named like its arguments. */
export function queryOf(kind: string, field: GraphQLField<unknown, unknown>, args: object): string {
  const given = field.args.filter(({ name }) => name in args);
  const list = (texts: string[]) => (texts.length ? `(${texts.join()})` : '');
  return `${kind} ${list(given.map(({ name, type }) => `$${name}: ${type}`))} {
    ${field.name}${list(given.map(({ name }) => `${name}: $${name}`))}
    ${isCompositeType(getNamedType(field.type)) ? '{ __typename }' : ''} }`;
}

/** Follows a subscription until its first event, which `event` causes once the subscription is open. */
async function firstOf(client: Client, query: string, variables: object, event?: () => unknown) {
  const abort = new AbortController();
  const response = await postSubscription(client, { query, variables }, abort.signal);
  try {
    const { status, body } = response;
    if (!body || status !== 200) return { status, codes: codesOf(await response.json()) };
    await event?.();
    for await (const { event: kind, data } of parseEvents(body))
      if (kind === 'next') return { status, codes: codesOf(data) };
    throw new Error('It ended without a word');
  } finally {
    abort.abort();
  }
}

function codesOf({ errors = [] }: { errors?: { extensions: { code: string } }[] }): string[] {
  return errors.map(({ extensions }) => extensions.code);
}

function callRoute(
  client: Client,
  { method }: Route,
  template: string,
  values: Record<string, unknown>,
): Promise<Answer> {
  const rest = { ...values };
  const path = template.replaceAll(/\{(\w+)\*?\}/g, (_all, name: string) => {
    delete rest[name];
    return encodeURIComponent(String(values[name] ?? ''));
  });
  if (Object.keys(rest).length === 0) return client.request(method, path);
  if (method !== 'GET' && method !== 'DELETE') return client.request(method, path, { json: rest });
  return client.request(method, `${path}?${new URLSearchParams(rest as Record<string, string>)}`);
}

function rootOf(document: DocumentNode) {
  const operation = document.definitions.find((d) => d.kind === Kind.OPERATION_DEFINITION);
  const field = operation?.selectionSet.selections.find((s) => s.kind === Kind.FIELD);
  if (!field) throw new Error('An operation without a field');
  return field;
}

function rootField({ kind, document }: Operation) {
  const name = rootOf(document).name.value;
  const [, type, rules] = ROOTS.find(([root]) => root === kind) as (typeof ROOTS)[number];
  return { name, rules, args: type?.getFields()[name]?.args ?? [] };
}

/**
 * The variables of a stored operation that give its root field these arguments, with REST names; undefined if it has no
 * variable for one of them.
 */
function variablesOf(operation: Operation, args: object): Record<string, unknown> | undefined {
  const root = rootOf(operation.document);
  const types = new Map(rootField(operation).args.map(({ name, type }) => [name, type]));
  const values: Record<string, unknown> = {};
  const assign = (node: ValueNode | undefined, given: unknown, value: unknown): boolean => {
    if (node?.kind === Kind.VARIABLE) values[node.name.value] = value;
    if (node?.kind !== Kind.OBJECT) return node?.kind === Kind.VARIABLE;
    return Object.entries(given as object).every(([key, inner]) => {
      const field = node.fields.find(({ name }) => name.value === key);
      return assign(field?.value, inner, (value as Record<string, unknown>)[key]);
    });
  };
  const said = Object.entries(args).every(([key, given]) => {
    const node = root.arguments?.find(({ name }) => name.value === key);
    const type = types.get(key);
    return type && assign(node?.value, given, coerceInputValue(given, type));
  });
  for (const { name, required } of operation.parameters)
    if (required) values[name] ??= PLACES[name];
  return said ? values : undefined;
}
