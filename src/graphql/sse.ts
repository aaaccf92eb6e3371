/**
 * The protocol of graphql-sse (its PROTOCOL.md) at `/graphql/stream`, over the same parsing, limits and execution as
 * `/graphql`: an event stream for each operation, or one that is reserved first and then given its operations.
 *
 * Yoga's plugin for it answers every refused operation with "Unable to detect operation AST", and the library
 * below it reads ahead of clients and reads bodies without a limit, keeps streams that are reserved and never
 * connected, and takes its tokens from `Math.random`.
 */
import { GraphQLError, getOperationAST } from 'graphql';
import type { Plugin } from 'graphql-yoga';
import type { Viewer } from '../auth/permissions.ts';
import { AppError, invalid, notFound } from '../errors.ts';
import type { Bus } from '../events/bus.ts';
import { notAcceptable } from './accept.ts';
import { answerError, parseParameter } from './body.ts';
import { withCodes } from './errors.ts';
import { EventStream, type Result } from './event-stream.ts';
import { ReservedStreams, reserveOperation } from './reserved-streams.ts';

const TOKEN_HEADER = 'x-graphql-event-stream-token';

type Deps = { show(error: unknown): GraphQLError; bus: Bus };
type Yoga = Parameters<NonNullable<Plugin<object, ServerContext>['onYogaInit']>>[0]['yoga'];
type ServerContext = { req: { viewer: Viewer; ip?: string } };
type Params = {
  query: string;
  operationName?: string;
  variables?: Record<string, unknown>;
  extensions?: Record<string, unknown>;
};

/** `show` decides what a client sees of an error. */
export function useSse({ show, bus }: Deps): Plugin<object, ServerContext> {
  let yoga: Yoga;
  const reserved = new ReservedStreams(show, bus.closing);

  async function answer(request: Request, url: URL, context: ServerContext): Promise<Response> {
    const token = request.headers.get(TOKEN_HEADER) ?? url.searchParams.get('token');
    const caller = callerOf(context);
    const stream = token ? reserved.find(caller, token) : undefined;
    if (request.headers.get('accept')?.includes('text/event-stream')) {
      if (stream?.connected) throw new AppError('conflict', 'The stream is open already');
      if (stream) return respond(stream, request);
      const params = await paramsOf(request, url);
      const own = new EventStream(show);
      own.reserve('');
      own.start('', await perform(request, context, params));
      own.finish();
      return respond(own, request);
    }
    switch (request.method) {
      case 'PUT':
        if (stream) throw new AppError('conflict', 'The stream is reserved already');
        return text(reserved.reserve(caller), 201);
      case 'DELETE': {
        if (!stream) throw notFound('Stream');
        stream.end(operationId(url.searchParams.get('operationId')));
        return text(null, 200);
      }
      case 'GET':
      case 'POST': {
        if (!token)
          throw notAcceptable(
            `Accept: must allow text/event-stream, unless ${TOKEN_HEADER} names a reserved stream`,
          );
        if (!stream) throw notFound('Stream');
        const params = await paramsOf(request, url);
        const id = operationId(params.extensions?.operationId);
        reserveOperation(stream, id);
        stream.start(id, await perform(request, context, params));
        return text(null, 202);
      }
      default:
        throw new AppError('invalid_request', `${request.method} is not allowed here`, {
          status: 405,
          headers: { Allow: 'GET, POST, PUT, DELETE' },
        });
    }
  }

  async function perform(
    request: Request,
    context: ServerContext,
    params: Params,
  ): Promise<Result> {
    try {
      const enveloped = yoga.getEnveloped({ ...context, request, params } as never);
      const result = await run(enveloped, request.method, params);
      return Symbol.asyncIterator in result ? result : withCodes(result);
    } catch (error) {
      return withCodes({ errors: [show(error)] });
    }
  }

  function text(body: string | null, status: number): Response {
    return new yoga.fetchAPI.Response(body, {
      status,
      headers: body === null ? {} : { 'content-type': 'text/plain; charset=utf-8' },
    });
  }

  function respond(stream: EventStream, { signal }: Request): Response {
    const encoder = new TextEncoder();
    const messages = stream.messages();
    const body = new yoga.fetchAPI.ReadableStream<Uint8Array>({
      async pull(controller) {
        const { done, value } = await messages.next();
        if (done) controller.close();
        else controller.enqueue(encoder.encode(value));
      },
      cancel: () => stream.close(),
    });
    signal.addEventListener('abort', () => stream.close());
    if (signal.aborted) stream.close();
    return new yoga.fetchAPI.Response(body, {
      headers: {
        'cache-control': 'no-cache',
        // No proxy may hold events back to pack them.
        'content-encoding': 'none',
        'content-type': 'text/event-stream; charset=utf-8',
      },
    });
  }

  return {
    onYogaInit(init) {
      yoga = init.yoga;
    },
    onRequest({ request, url, serverContext, fetchAPI, endResponse }) {
      if (url.pathname !== '/graphql/stream') return;
      return answer(request, url, serverContext)
        .catch((error) => answerError(show(error), error, fetchAPI))
        .then(endResponse);
    },
  };
}

type Enveloped = ReturnType<Yoga['getEnveloped']>;

async function run(
  { parse, validate, schema, contextFactory, execute, subscribe }: Enveloped,
  method: string,
  { query, operationName, variables }: Params,
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

/** Whose streams these are. */
function callerOf({ req }: ServerContext): string {
  const { viewer, ip } = req;
  return viewer.kind === 'account' ? viewer.credential.id : `address ${ip}`;
}

function operationId(given: unknown): string {
  if (given === undefined || given === null || given === '')
    throw invalid(null, 'The id of the operation is missing (`operationId`)');
  return String(given);
}

/** @throws AppError 400 */
async function paramsOf(request: Request, url: URL): Promise<Params> {
  const given = request.method === 'GET' ? paramsOfUrl(url) : await paramsOfBody(request);
  const { query, operationName, variables, extensions } = given;
  if (typeof query !== 'string') throw invalid('query', 'must be a string');
  return {
    query,
    operationName: typeof operationName === 'string' ? operationName : undefined,
    variables: objectOrNone('variables', variables),
    extensions: objectOrNone('extensions', extensions),
  };
}

function paramsOfUrl({ searchParams }: URL): Record<string, unknown> {
  return {
    query: searchParams.get('query'),
    operationName: searchParams.get('operationName'),
    variables: parseParameter(searchParams, 'variables'),
    extensions: parseParameter(searchParams, 'extensions'),
  };
}

async function paramsOfBody(request: Request): Promise<Record<string, unknown>> {
  if (!request.headers.get('content-type')?.startsWith('application/json'))
    throw new AppError('invalid_request', 'The body must be application/json', { status: 415 });
  return objectOrNone('The body', await request.json()) ?? {};
}

function objectOrNone(name: string, value: unknown): Record<string, unknown> | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== 'object' || Array.isArray(value))
    throw invalid(null, `${name} must be an object`);
  return value as Record<string, unknown>;
}
