/**
 * The protocol of graphql-sse at `/graphql/stream`, over the same parsing, limits and execution as `/graphql`.
 *
 * Yoga has a plugin for this, which hands the library results without `data`; the library takes those for
 * nothing at all and answers every refused operation with "Unable to detect operation AST". It also runs
 * mutations that come by GET.
 */
import { type ExecutionResult, GraphQLError, getOperationAST } from 'graphql';
import type { RequestParams } from 'graphql-sse';
import { createHandler } from 'graphql-sse/lib/use/fetch';
import type { Plugin } from 'graphql-yoga';
import { withCodes } from './errors.ts';

type Result = ExecutionResult | AsyncIterable<ExecutionResult>;

/** `show` decides what a client sees of an error. */
export function useSse(show: (error: unknown) => GraphQLError): Plugin {
  const contexts = new WeakMap<Request, object>();
  let handle: (request: Request) => Promise<Response>;
  return {
    onYogaInit({ yoga }) {
      handle = createHandler(
        {
          onSubscribe: async ({ raw, method }, params) => {
            const enveloped = yoga.getEnveloped({ ...contexts.get(raw), request: raw, params });
            try {
              return told(await run(enveloped, method, params));
            } catch (error) {
              return told({ errors: [show(error)] });
            }
          },
        },
        yoga.fetchAPI,
      );
    },
    onRequest({ request, url, serverContext, endResponse }) {
      if (url.pathname !== '/graphql/stream') return;
      contexts.set(request, serverContext ?? {});
      return handle(request).then(endResponse);
    },
  };
}

type Enveloped = ReturnType<
  Parameters<NonNullable<Plugin['onYogaInit']>>[0]['yoga']['getEnveloped']
>;

async function run(
  { parse, validate, schema, contextFactory, execute, subscribe }: Enveloped,
  method: string,
  { query, operationName, variables }: RequestParams,
): Promise<Result> {
  const document = parse(query);
  const errors = validate(schema, document);
  if (errors.length > 0) return { errors };
  const kind = getOperationAST(document, operationName)?.operation;
  if (kind === 'mutation' && method === 'GET')
    throw new GraphQLError('A mutation goes by POST', { extensions: { code: 'INVALID_REQUEST' } });
  const contextValue = await contextFactory();
  const args = { schema, document, contextValue, variableValues: variables, operationName };
  return kind === 'subscription' ? subscribe(args) : execute(args);
}

/** In the form that the library knows: with `data`, which JSON leaves out where there is none. */
function told(result: Result): Result {
  return Symbol.asyncIterator in result ? result : withCodes({ data: undefined, ...result });
}
