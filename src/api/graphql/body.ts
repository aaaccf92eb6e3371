/**
 * Reads the body of a GraphQL request before Yoga does, with the size limit of REST, so that no client can fill the
 * server's memory. Checks the JSON in the query string as well: Yoga responds to invalid JSON there with a 500.
 */
import type { Request as HttpRequest } from 'express';
import type { GraphQLError } from 'graphql';
import type { FetchAPI, Plugin } from 'graphql-yoga';
import { AppError, invalid } from '../../base/errors.ts';
import { toErrorResponse } from '../../platform/web/error-response.ts';
import { parseBody, readBodyBytes, requireWellFormed } from '../../platform/web/request-body.ts';

type Server = { req: HttpRequest };

export function useRequestBody(show: (error: unknown) => GraphQLError): Plugin<object, Server> {
  return {
    async onRequest({ request, url, serverContext, fetchAPI, setRequest, endResponse }) {
      try {
        requireJson(url.searchParams);
        if (request.method === 'GET' || request.method === 'HEAD') return;
        const { method, headers, signal } = request;
        if ((headers.get('content-encoding') ?? 'identity') !== 'identity')
          throw invalid(null, 'The body must not be compressed');
        const { req } = serverContext;
        const body = await readBodyBytes(req);
        req.rawBody = body;
        const type = headers.get('content-type') ?? '';
        const buffered = new fetchAPI.Request(request.url, { method, headers, body, signal });
        if (/^application\/(graphql\+)?json/i.test(type)) {
          // Parsed here, because Yoga responds with the message of the JavaScript engine, which quotes the body.
          const parsed = parseBody(body.toString());
          buffered.json = async () => parsed;
        }
        if (type.startsWith('application/x-www-form-urlencoded'))
          requireJson(new URLSearchParams(body.toString()));
        setRequest(buffered);
      } catch (error) {
        endResponse(errorResponse(show(error), error, fetchAPI));
      }
    },
  };
}

/** @throws AppError 400 */
function requireJson(params: URLSearchParams): void {
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

/** A response for an error outside any operation: `shown` is its body, `error` gives its status and headers. */
export function errorResponse(
  shown: GraphQLError,
  error: unknown,
  { Response }: FetchAPI,
): Response {
  const { status, headers } =
    error instanceof AppError ? toErrorResponse(error, '') : { status: 500, headers: {} };
  return Response.json({ errors: [shown] }, { status, headers: headers as Record<string, string> });
}
