/**
 * `Idempotency-Key` on GraphQL POSTs, after `useRequestBody` has read them.
 *
 * Stores responses to mutations only. A query runs again each time: it changes nothing, and its response may be large.
 * If a mutation failed with a server error, the key is released only if none of its fields took effect; otherwise a
 * retry would repeat those fields.
 */
import type { Request as HttpRequest } from 'express';
import { type ExecutionResult, type GraphQLError, getOperationAST } from 'graphql';
import type { Plugin } from 'graphql-yoga';
import type pg from 'pg';
import { AppError, invalid, unauthenticated } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import {
  claimIdempotencyKey,
  IDEMPOTENCY_KEY,
  type IdempotencyClaim,
  NOT_STORED,
  notStored,
} from '../http/idempotency.ts';
import { acceptsJson } from './accept.ts';
import { errorResponse } from './body.ts';

/** Responses may have 16 MiB of files or logs. Above this size, a replay only says that the request was done. */
const MAX_STORED_BYTES = 1024 * 1024;

type Server = { req: HttpRequest };
type Deps = { show(error: unknown): GraphQLError } & { pool: pg.Pool; log: Logger };
type Pending = { claim: IdempotencyClaim; released: boolean };

/** `show` converts an error to the form that clients see. */
export function useIdempotency({ show, ...services }: Deps): Plugin<Server, Server> {
  const claims = new WeakMap<HttpRequest, Pending>();
  const releaseLater = (req: HttpRequest) => {
    const pending = claims.get(req);
    if (pending) pending.released = true;
  };
  return {
    async onRequest({ request, url, serverContext: { req }, fetchAPI, endResponse }) {
      if (request.method !== 'POST' || req.get(IDEMPOTENCY_KEY) === undefined) return;
      try {
        const isStream = url.pathname === '/graphql/stream';
        if (isStream || !acceptsJson(request.headers.get('accept'))) throw noReplay();
        if (req.viewer.kind === 'anonymous' && !req.viewer.failure)
          throw unauthenticated(
            'Idempotency-Key: requires credentials, because responses are stored for a credential',
          );
        const claim = await claimIdempotencyKey(services, req);
        if (!('replayed' in claim)) return void claims.set(req, { claim, released: false });
        const { status, headers, body } = claim.replayed;
        endResponse(new fetchAPI.Response(body as BodyInit, { status, headers }));
      } catch (error) {
        endResponse(errorResponse(show(error), error, fetchAPI));
      }
    },
    onExecute({ args }) {
      const operation = getOperationAST(args.document, args.operationName);
      if (operation?.operation === 'query') releaseLater(args.contextValue.req);
    },
    onSubscribe({ args, setResultAndStopExecution }) {
      if (!claims.has(args.contextValue.req)) return;
      const error = show(noReplay());
      error.extensions.http = { status: 400 };
      setResultAndStopExecution({ errors: [error] });
    },
    onResultProcess({ result, serverContext: { req } }) {
      if (failedWithoutEffect(result as ExecutionResult)) releaseLater(req);
    },
    async onResponse({ response, serverContext: { req }, fetchAPI, setResponse }) {
      const pending = claims.get(req);
      if (!pending) return;
      claims.delete(req);
      const { claim, released } = pending;
      const { status, headers } = response;
      const body = Buffer.from(await response.arrayBuffer());
      setResponse(new fetchAPI.Response(body, { status, headers }));
      try {
        if (released || status >= 500) return await claim.release();
        const replacement =
          body.length > MAX_STORED_BYTES ? errorResponse(show(tooLarge), tooLarge, fetchAPI) : null;
        await claim.store({
          status: replacement?.status ?? status,
          headers: lowerCased(replacement?.headers ?? headers),
          body: replacement ? Buffer.from(await replacement.arrayBuffer()) : body,
        });
      } catch (error) {
        services.log.error({ err: error }, NOT_STORED);
        if (released || status >= 500) return;
        const failure = notStored();
        setResponse(errorResponse(show(failure), failure, fetchAPI));
      }
    },
  };
}

/** Yoga's implementation of Headers does not lower-case names. */
function lowerCased(headers: Headers): Record<string, string> {
  return Object.fromEntries([...headers].map(([name, value]) => [name.toLowerCase(), value]));
}

function noReplay(): AppError {
  return invalid(
    'Idempotency-Key',
    'an event stream cannot be replayed; leave the key out, or accept application/json',
  );
}

const tooLarge = new AppError(
  'conflict',
  'The request with this Idempotency-Key was done. Its response was larger than 1 MiB and was not stored.',
);

/** Whether the server failed before any field took effect. A mutation field that took effect has a payload. */
function failedWithoutEffect({ data, errors = [] }: ExecutionResult): boolean {
  const isDone = Object.values(data ?? {}).some((value) => value && typeof value === 'object');
  return !isDone && errors.some(({ extensions }) => extensions.code === 'INTERNAL_ERROR');
}
