/**
 * The graphql-sse protocol at `/graphql/stream`, served by the library's handler: one event stream per operation, or a
 * reserved stream for several operations. Parsing, limits, execution and errors are those of `/graphql`.
 *
 * The handler runs inside Yoga, whose plugins have already read the body and checked its size.
 */
import { GraphQLError, getOperationAST } from 'graphql';
import {
  createHandler,
  type RequestParams,
  type Response as SseResponse,
  TOKEN_HEADER_KEY,
  TOKEN_QUERY_KEY,
} from 'graphql-sse';
import type { Plugin } from 'graphql-yoga';
import { AppError } from '../../base/errors.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { notAcceptable } from './accept.ts';
import { errorResponse } from './body.ts';
import { addErrorCodes } from './errors.ts';
import { EventStream, type OperationResult, ReservedStreams } from './event-streams.ts';

type Deps = { show(error: unknown): GraphQLError; bus: Bus };
type Yoga = Parameters<NonNullable<Plugin<object, ServerContext>['onYogaInit']>>[0]['yoga'];
type ServerContext = { req: { viewer: Viewer; ip?: string } };
type Call = { request: Request; server: ServerContext; stream: EventStream };

const EVENTS = 'text/event-stream';

/** `show` converts an error to the form that clients see. */
export function useSse({ show, bus }: Deps): Plugin<object, ServerContext> {
  let yoga: Yoga;
  const reserved = new ReservedStreams(drop, bus.closing);
  const handle = createHandler<Call>({
    // The token of a reserved stream, or of a new stream for one operation or a reservation.
    authenticate: ({ raw }) => raw.stream.token,
    // Returns results: given execution arguments instead, the handler would check them by its own rules.
    onSubscribe: async ({ raw }, params) => raw.stream.start(await runOperation(raw, params), show),
    onComplete: (_context, { raw }) => raw.stream.operationEnded(),
  });

  async function respond(request: Request, url: URL, server: ServerContext): Promise<Response> {
    const { method } = request;
    const acceptsEvents = request.headers.get('accept')?.includes(EVENTS) === true;
    const token = request.headers.get(TOKEN_HEADER_KEY) ?? url.searchParams.get(TOKEN_QUERY_KEY);
    const caller = callerOf(server);
    const found = token ? reserved.find(caller, token) : undefined;
    const isOperation = !acceptsEvents && (method === 'GET' || method === 'POST');
    if (isOperation && !token)
      throw notAcceptable(
        `Accept: must allow text/event-stream, unless ${TOKEN_HEADER_KEY} names a reserved stream`,
      );
    const isReservation = !acceptsEvents && method === 'PUT' && !found;
    const stream = found ?? (isReservation ? reserved.reserve(caller) : new EventStream());
    using _admission = isOperation && found ? stream.admit() : undefined;
    const [body, init] = await call({ request, server, stream }, acceptsEvents);
    if (init.status >= 400) throw toAppError([body, init]);
    const { Response } = yoga.fetchAPI;
    if (typeof body === 'string' || body === null) return new Response(body, init);
    return new Response(stream.connect(body, request.signal), init);
  }

  /** Sets `Accept` to the exact value that the handler compares with. */
  function call(raw: Call, acceptsEvents: boolean): Promise<SseResponse> {
    const { method, url, headers } = raw.request;
    const get = (name: string) =>
      name === 'accept' ? (acceptsEvents ? EVENTS : '*/*') : headers.get(name);
    const body = () => raw.request.json();
    return handle({ method, url, headers: { get }, body, raw, context: undefined });
  }

  /** Connects and disconnects, because the handler forgets a stream only when its client disconnects. */
  async function drop(stream: EventStream): Promise<void> {
    const request = new Request('http://localhost/graphql/stream');
    const [messages] = await call({ request, stream } as Call, true);
    if (messages !== null && typeof messages !== 'string') await messages.return();
    stream.close();
  }

  async function runOperation(
    { request, server }: Call,
    { query, operationName, variables }: RequestParams,
  ): Promise<OperationResult> {
    try {
      const params = {
        query,
        operationName: typeof operationName === 'string' ? operationName : undefined,
        variables: variables ?? undefined,
      };
      const enveloped = yoga.getEnveloped({ ...server, request, params } as never);
      const result = await executeRequest(enveloped, request.method, params);
      return Symbol.asyncIterator in result ? result : addErrorCodes(result);
    } catch (error) {
      return addErrorCodes({ errors: [show(error)] });
    }
  }

  return {
    onYogaInit(init) {
      yoga = init.yoga;
    },
    onRequest({ request, url, serverContext, fetchAPI, endResponse }) {
      if (url.pathname !== '/graphql/stream') return;
      return respond(request, url, serverContext)
        .catch((error) => errorResponse(show(error), error, fetchAPI))
        .then(endResponse);
    },
  };
}

type Enveloped = ReturnType<Yoga['getEnveloped']>;

async function executeRequest(
  { parse, validate, schema, contextFactory, execute, subscribe }: Enveloped,
  method: string,
  { query, operationName, variables }: Pick<RequestParams, 'query' | 'operationName' | 'variables'>,
): Promise<OperationResult> {
  const document = parse(query);
  const errors = validate(schema, document);
  if (errors.length > 0) return { errors };
  const kind = getOperationAST(document, operationName)?.operation;
  if (kind === 'mutation' && method === 'GET')
    throw new GraphQLError('Send mutations with POST', { extensions: { code: 'INVALID_REQUEST' } });
  const contextValue = await contextFactory();
  const args = { schema, document, contextValue, variableValues: variables, operationName };
  return kind === 'subscription' ? subscribe(args) : execute(args);
}

/** Identifies the owner of a stream. */
function callerOf({ req }: ServerContext): string {
  const { viewer, ip } = req;
  return viewer.kind === 'account' ? viewer.credential.id : `address ${ip}`;
}

/** Converts an error response of the handler. */
function toAppError([body, { status, statusText, headers }]: SseResponse): AppError {
  const message =
    typeof body === 'string' ? JSON.parse(body).errors[0].message : `${status} ${statusText}`;
  const code = status === 404 ? 'not_found' : status === 409 ? 'conflict' : 'invalid_request';
  return new AppError(code, message, {
    status,
    ...(headers?.allow && { headers: { Allow: headers.allow } }),
  });
}
