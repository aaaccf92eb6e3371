/**
 * From stored operations to callable endpoints.
 *
 * Sofa turns a schema's root fields into routes. It is given a *facade*: a schema without resolvers in
 * which each route is one root field, whose type is the operation's answer. When sofa executes such a field,
 * the stored operation runs on the core instead.
 */
import {
  type ExecutionResult,
  execute,
  GraphQLError,
  GraphQLObjectType,
  GraphQLSchema,
} from 'graphql';
import { compileQuery, isCompiledQuery } from 'graphql-jit';
import { useSofa } from 'sofa-api';
import { invalid } from '../../base/errors.ts';
import type { Context } from '../../platform/schema/context.ts';
import { executable } from './executable.ts';
import { type Operation, readOperations } from './operations.ts';
import type { Route } from './routes.ts';

export type Endpoint = {
  route: Route;
  operation: Operation;
  /** Runs the operation and answers its body. Rejects with what it threw. */
  call(context: Context, values: Record<string, unknown>): Promise<unknown>;
};

type Stored = { operation: Operation; run: Run };
/** A request on its way through sofa, which gives it to `execute` as the context. */
type Call = Stored & {
  context: Context;
  values: Record<string, unknown>;
  body?: unknown;
  failure?: { error: unknown };
};
type Run = (
  context: Context,
  variables: Record<string, unknown>,
) => Promise<ExecutionResult> | ExecutionResult;

/** @throws when routes, operations and schema do not fit together. */
export function createEndpoints(core: GraphQLSchema, routes: readonly Route[]): Endpoint[] {
  const schema = executable(core);
  const operations = readOperations(schema);
  const stored = new Map<string, Stored>();
  for (const { operation: name } of routes) {
    const operation = operations.get(name);
    if (!operation) throw new Error(`No stored operation is called ${name}`);
    stored.set(name, { operation, run: compile(schema, operation) });
  }
  const sofa = openSofa(stored, routes);
  return routes.map((route) => {
    const { operation, run } = stored.get(route.operation) as Stored;
    return {
      route,
      operation,
      async call(context, values) {
        const call: Call = { operation, run, context, values };
        const url = `http://localhost${pathOf(route)}`;
        const { ok } = await sofa.fetch(url, { method: route.method }, { call });
        if (call.failure) throw call.failure.error;
        if (!ok) throw new Error(`Sofa did not run ${operation.name}`);
        return call.body;
      },
    };
  });
}

/**
 * Queries are compiled, which halves their cost. Mutations are not: compiled code turns an omitted
 * variable inside an input object into null, and so loses the default.
 */
function compile(schema: GraphQLSchema, { name, kind, document }: Operation): Run {
  if (kind === 'mutation')
    return (contextValue, variableValues) =>
      execute({ schema, document, contextValue, variableValues });
  const compiled = compileQuery(schema, document, name);
  if (!isCompiledQuery(compiled))
    throw new Error(`${name} does not compile: ${compiled.errors?.join('\n')}`);
  return (context, variables) => compiled.query(undefined, context, variables);
}

/**
 * Values and body pass by sofa in the context: its own parsing converts what it should refuse, and its answer has no headers.
 * Requests come from the adapter alone, so nobody reaches what else sofa routes (`POST /webhook` makes the server call any
 * address).
 */
function openSofa(stored: ReadonlyMap<string, Stored>, routes: readonly Route[]) {
  const root = (name: 'Query' | 'Mutation') => {
    const fields = [...stored.values()]
      .filter(({ operation }) => rootOf(operation) === name)
      .map(({ operation }) => [operation.name, { type: operation.answer.type }] as const);
    return fields.length > 0
      ? new GraphQLObjectType({ name, fields: Object.fromEntries(fields) })
      : undefined;
  };
  return useSofa({
    basePath: '',
    schema: new GraphQLSchema({ query: root('Query'), mutation: root('Mutation') }),
    routes: Object.fromEntries(
      routes.map((route) => [
        `${rootOf((stored.get(route.operation) as Stored).operation)}.${route.operation}`,
        { method: route.method, path: pathOf(route), responseStatus: 200 },
      ]),
    ),
    execute: (async ({ contextValue }) => {
      const { call } = contextValue as { call: Call };
      try {
        const { data, errors } = await call.run(call.context, { ...call.values });
        if (errors) throw errors[0];
        call.body = call.operation.answer.bodyOf(data);
      } catch (error) {
        call.failure = { error: cause(error) };
      }
      return { data: { [call.operation.name]: null } };
    }) as typeof execute,
  });
}

function rootOf({ kind }: Operation): 'Query' | 'Mutation' {
  return kind === 'mutation' ? 'Mutation' : 'Query';
}

function pathOf({ operation }: Route): string {
  return `/${operation}`;
}

/**
 * What a resolver threw. GraphQL's own errors come from a fault in the stored operation, except those about variables,
 * which have no path.
 */
function cause(error: unknown): unknown {
  const { originalError, path, message } = error as GraphQLError;
  if (originalError) return cause(originalError);
  return error instanceof GraphQLError && !path ? invalid(null, message) : error;
}
