/**
 * What is done with a GraphQL request before Yoga reads it: its body is read, no larger than REST's may be, so that
 * nobody makes the server hold more; and the JSON in its address is JSON, of which Yoga would make a 500.
 */
import type { Request as HttpRequest } from 'express';
import type { GraphQLError } from 'graphql';
import type { FetchAPI, Plugin } from 'graphql-yoga';
import { AppError, invalid } from '../../base/errors.ts';
import { toErrorResponse } from '../../platform/web/error-response.ts';
import { parseBody, readBodyBytes, requireWellFormed } from '../../platform/web/request-body.ts';

type Server = { req: HttpRequest };

export function useBody(show: (error: unknown) => GraphQLError): Plugin<object, Server> {
  return {
    async onRequest({ request, url, serverContext, fetchAPI, setRequest, endResponse }) {
      try {
        demandJson(url.searchParams);
        if (request.method === 'GET' || request.method === 'HEAD') return;
        const { method, headers, signal } = request;
        if ((headers.get('content-encoding') ?? 'identity') !== 'identity')
          throw invalid(null, 'The body must not be compressed');
        const { req } = serverContext;
        // It was read where the query might have been one that is known (`repeated.ts`).
        req.rawBody ??= await readBodyBytes(req);
        const body = req.rawBody as Buffer<ArrayBuffer>;
        const type = headers.get('content-type') ?? '';
        const whole = new fetchAPI.Request(request.url, { method, headers, body, signal });
        if (/^application\/(graphql\+)?json/i.test(type)) {
          // Here, because Yoga would answer with the engine's message, which quotes the body.
          const parsed = parseBody(body.toString());
          whole.json = async () => parsed;
        }
        if (type.startsWith('application/x-www-form-urlencoded'))
          demandJson(new URLSearchParams(body.toString()));
        setRequest(whole);
      } catch (error) {
        endResponse(answerError(show(error), error, fetchAPI));
      }
    },
  };
}

/** @throws AppError 400 */
function demandJson(params: URLSearchParams): void {
  for (const name of ['variables', 'extensions']) {
    const given = params.get(name);
    if (!given) continue;
    let value: unknown;
    try {
      value = JSON.parse(given);
    } catch {
      throw invalid(name, 'is not valid JSON');
    }
    requireWellFormed(given, { [name]: value });
  }
}

/** An error that no operation has, as an answer: `shown` to the client, with the status and headers of `error`. */
export function answerError(shown: GraphQLError, error: unknown, { Response }: FetchAPI): Response {
  const { status, headers } =
    error instanceof AppError ? toErrorResponse(error, '') : { status: 500, headers: {} };
  return Response.json({ errors: [shown] }, { status, headers: headers as Record<string, string> });
}
