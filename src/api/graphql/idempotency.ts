/**
 * `Idempotency-Key` on GraphQL POSTs, after `useBody` has read them.
 *
 * Only what may have changed something is kept. A query is answered anew each time: it does no harm, and its answer
 * may be large. Of a mutation that met a fault of the server the key is released where no field of it took effect;
 * else a retry would do again what was done.
 */

import type { Request as HttpRequest } from 'express';
import { type ExecutionResult, type GraphQLError, getOperationAST } from 'graphql';
import type { Plugin } from 'graphql-yoga';
import type pg from 'pg';
import { AppError, invalid, unauthenticated } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { type Claim, claimKey, IDEMPOTENCY_KEY } from '../http/kept-answers.ts';
import { takesJson } from './accept.ts';
import { answerError } from './body.ts';

/** An answer that selects files or logs may hold 16 MiB; of more than this a replay says only that it was done. */
const MAX_KEPT_BYTES = 1024 * 1024;

type Server = { req: HttpRequest };
type Deps = { show(error: unknown): GraphQLError } & { pool: pg.Pool; log: Logger };
type Pending = { claim: Claim; released: boolean };

/** `show` decides what a client sees of an error. */
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
        if (isStream || !takesJson(request.headers.get('accept'))) throw noReplay();
        if (req.viewer.kind === 'anonymous' && !req.viewer.failure)
          throw unauthenticated(
            'Idempotency-Key: send credentials with it, because answers are kept for a credential',
          );
        const claim = await claimKey(services, req);
        if (!('replayed' in claim)) return void claims.set(req, { claim, released: false });
        const { status, headers, body } = claim.replayed;
        endResponse(new fetchAPI.Response(body as BodyInit, { status, headers }));
      } catch (error) {
        endResponse(answerError(show(error), error, fetchAPI));
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
      if (isFault(result as ExecutionResult)) releaseLater(req);
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
        const kept =
          body.length > MAX_KEPT_BYTES ? answerError(show(tooLong), tooLong, fetchAPI) : null;
        await claim.store({
          status: kept?.status ?? status,
          headers: lowerCased(kept?.headers ?? headers),
          body: kept ? Buffer.from(await kept.arrayBuffer()) : body,
        });
      } catch (error) {
        // The work is done: better an answer that cannot be replayed than none.
        services.log.error({ err: error }, 'could not store the response for its Idempotency-Key');
      }
    },
  };
}

/** Yoga's own implementation of Headers gives names as they were set. */
function lowerCased(headers: Headers): Record<string, string> {
  return Object.fromEntries([...headers].map(([name, value]) => [name.toLowerCase(), value]));
}

function noReplay(): AppError {
  return invalid(
    'Idempotency-Key',
    'an event stream cannot be replayed; leave the key out, or accept application/json',
  );
}

const tooLong = new AppError(
  'conflict',
  'The request under this Idempotency-Key was done; its answer was larger than 1 MiB and is not kept',
);

/** A fault of the server that left nothing done: what a field of a mutation did shows in its payload. */
function isFault({ data, errors = [] }: ExecutionResult): boolean {
  const isDone = Object.values(data ?? {}).some((value) => value && typeof value === 'object');
  return !isDone && errors.some(({ extensions }) => extensions.code === 'INTERNAL_ERROR');
}
