/**
 * Makes endpoints that can be called from stored operations.
 *
 * Sofa turns the root fields of a schema into routes. It gets a facade: a schema without resolvers in which each route
 * is a root field with the type of its response. To execute such a field, the stored operation runs on the core schema.
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
import { type Operation, readOperations } from './operations.ts';
import { toRestSchema } from './rest-schema.ts';
import type { Route } from './routes.ts';

export type Endpoint = {
  route: Route;
  operation: Operation;
  /** Runs the operation and returns the response body. Rejects with the error of the resolver. */
  call(context: Context, values: Record<string, unknown>): Promise<unknown>;
};

type Stored = { operation: Operation; run: Run };
/** A request on its way through sofa, which passes it to `execute` in the context. */
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

/** @throws Error when routes, operations and schema do not match */
export function createEndpoints(core: GraphQLSchema, routes: readonly Route[]): Endpoint[] {
  const schema = toRestSchema(core);
  const operations = readOperations(schema);
  const stored = new Map<string, Stored>();
  for (const { operation: name } of routes) {
    const operation = operations.get(name);
    if (!operation) throw new Error(`There is no stored operation ${name}`);
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
 * Compiles queries, which halves their cost. Not mutations: compiled code turns an omitted variable inside an input
 * object into null, and so loses the default.
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
 * Values and body bypass sofa in the context: its parser converts values that must be refused, and its responses have no
 * headers. Only `call` sends requests to it, so no client reaches sofa's other routes (`POST /webhook` makes the server
 * call any address).
 */
function openSofa(stored: ReadonlyMap<string, Stored>, routes: readonly Route[]) {
  const root = (name: 'Query' | 'Mutation') => {
    const fields = [...stored.values()]
      .filter(({ operation }) => rootOf(operation) === name)
      .map(({ operation }) => [operation.name, { type: operation.response.type }] as const);
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
        call.body = call.operation.response.extractBody(data);
      } catch (error) {
        call.failure = { error: originalCause(error) };
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
 * The error that a resolver threw. An error of GraphQL itself means a bug in the stored operation, except for errors
 * about variables, which have no path.
 */
function originalCause(error: unknown): unknown {
  const { originalError, path, message } = error as GraphQLError;
  if (originalError) return originalCause(originalError);
  return error instanceof GraphQLError && !path ? invalid(null, message) : error;
}
