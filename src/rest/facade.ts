/**
 * From stored operations to callable endpoints.
 *
 * Sofa turns a schema's root fields into routes. It is given a *facade*: a schema without resolvers in
 * which each route is one root field, whose arguments are the operation's variables and whose type is the
 * operation's answer. When sofa executes such a field, the stored operation runs on the core instead.
 */
import {
  type DocumentNode,
  type ExecutionResult,
  execute,
  GraphQLError,
  type GraphQLFieldConfigMap,
  GraphQLObjectType,
  GraphQLSchema,
  Kind,
} from 'graphql';
import { compileQuery, isCompiledQuery } from 'graphql-jit';
import { useSofa } from 'sofa-api';
import { invalid } from '../errors.ts';
import type { Context } from '../graphql/context.ts';
import { executable } from './executable.ts';
import { type Operation, readOperations } from './operations.ts';
import type { Route } from './routes.ts';

export type Endpoint = {
  route: Route;
  operation: Operation;
  /** Runs the operation, and leaves the body in the exchange. Rejects with what it threw. */
  call(exchange: Exchange, values: Record<string, unknown>): Promise<void>;
};

/** One call: who asks, and what is answered. */
export type Exchange = { context: Context; body?: unknown };
/** With what sofa does not pass on. */
type Call = Exchange & { nulls: Record<string, null> };

type Stored = { operation: Operation; run: Run };
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
  const handlers = sofaHandlers(facade(stored), routes, stored);
  return routes.map((route, at) => ({
    route,
    operation: (stored.get(route.operation) as Stored).operation,
    // All values are passed as path parameters: the one source that sofa mixes with no other.
    call: async (exchange, values) => {
      const call: Call = Object.assign(exchange, { nulls: nullsIn(values) });
      await (handlers[at] as SofaHandler)({ url: '', body: null, params: values }, call);
    },
  }));
}

/** Sofa takes them for values that were left out. */
function nullsIn(values: Record<string, unknown>): Call['nulls'] {
  const nulls = Object.keys(values).filter((name) => values[name] === null);
  return Object.fromEntries(nulls.map((name) => [name, null]));
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

function facade(stored: ReadonlyMap<string, Stored>): GraphQLSchema {
  const root = (kind: Operation['kind'], name: string) => {
    const fields: GraphQLFieldConfigMap<unknown, unknown> = {};
    for (const { operation } of stored.values()) {
      if (operation.kind !== kind) continue;
      const args = operation.parameters.map((p) => [p.name, { type: p.type }] as const);
      fields[operation.name] = { type: operation.answer.type, args: Object.fromEntries(args) };
    }
    return Object.keys(fields).length > 0 ? new GraphQLObjectType({ name, fields }) : undefined;
  };
  return new GraphQLSchema({
    query: root('query', 'Query'),
    mutation: root('mutation', 'Mutation'),
  });
}

type SofaHandler = (
  request: { url: string; body: null; params: Record<string, unknown> },
  call: Call,
) => Promise<Response>;

/**
 * Sofa's handlers, in the order of the routes. They are called directly: matching is Express's, whose
 * router costs a third of sofa's, and what else sofa mounts (`POST /webhook`, which makes the server call
 * any address that a request names) cannot be called.
 */
function sofaHandlers(
  schema: GraphQLSchema,
  routes: readonly Route[],
  stored: ReadonlyMap<string, Stored>,
): SofaHandler[] {
  const rootOf = ({ operation }: Route) =>
    stored.get(operation)?.operation.kind === 'mutation' ? 'Mutation' : 'Query';
  const sofaPath = ({ operation }: Route) => `/${operation}`;
  const router = useSofa({
    basePath: '',
    schema,
    routes: Object.fromEntries(
      routes.map((route) => [
        `${rootOf(route)}.${route.operation}`,
        { method: route.method, path: sofaPath(route), responseStatus: 200 },
      ]),
    ),
    execute: (async ({ document, contextValue, variableValues }) => {
      const call = contextValue as Call;
      const name = rootField(document);
      const { run, operation } = stored.get(name) as Stored;
      const { data, errors } = await run(call.context, { ...variableValues, ...call.nulls });
      if (errors) return { errors };
      call.body = operation.answer.bodyOf(data);
      // Sofa makes a `Response` of it, which took a twentieth of a read: the adapter writes the body itself.
      return { data: { [name]: null } };
    }) as typeof execute,
    // Thrown on to the adapter's caller; sofa catches and passes its own throw here once more.
    errorHandler: ([error]) => {
      throw cause(error);
    },
  });
  return routes.map((route) => {
    const found = router.__routes.find(
      ({ method, path }) => method === route.method && path === sofaPath(route),
    );
    if (!found) throw new Error(`Sofa made no route for ${route.operation}`);
    return found.handler as unknown as SofaHandler;
  });
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

function rootField({ definitions: [operation] }: DocumentNode): string {
  const node =
    operation?.kind === Kind.OPERATION_DEFINITION
      ? operation.selectionSet.selections[0]
      : undefined;
  return node?.kind === Kind.FIELD ? node.name.value : '';
}
