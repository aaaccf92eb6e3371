/**
 * Checks the `Accept` header before the operation runs. Yoga checks it afterwards: a mutation would take effect, and its
 * client would get a 406 without a body.
 */
import type { Request as HttpRequest } from 'express';
import type { GraphQLError } from 'graphql';
import type { Plugin } from 'graphql-yoga';
import { AppError } from '../../base/errors.ts';
import { errorResponse } from './body.ts';

/** Yoga responds with JSON to any operation but a subscription if the client accepts JSON at all. */
export function acceptsJson(accept: string | null): boolean {
  return accepts(accept, /^(?:\*|application)\/(?:\*|json|graphql-response\+json)$/);
}

function acceptsEvents(accept: string | null): boolean {
  return accepts(accept, /^(?:\*|text)\/(?:\*|event-stream)$/);
}

/** Follows the rules of Yoga, which ignores quality values and supports UTF-8 only. */
function accepts(accept: string | null, types: RegExp): boolean {
  const ranges = (accept || '*/*').toLowerCase().split(',');
  return ranges.some((range) => {
    const [type = '', ...parameters] = range.split(';').map((part) => part.trim());
    const charset = parameters.find((parameter) => parameter.startsWith('charset='));
    return types.test(type) && (charset ?? 'charset=utf-8') === 'charset=utf-8';
  });
}

export function notAcceptable(message: string): AppError {
  return new AppError('invalid_request', message, { status: 406 });
}

type Server = { req: HttpRequest };

/** Has its own rules (`sse.ts`), because results may go over another connection. */
const STREAM = '/graphql/stream';

/** `show` converts an error to the form that clients see. */
export function useAcceptCheck(show: (error: unknown) => GraphQLError): Plugin<Server, Server> {
  return {
    onRequest({ request, url, fetchAPI, endResponse }) {
      const accept = request.headers.get('accept');
      if (url.pathname === STREAM || acceptsJson(accept) || acceptsEvents(accept)) return;
      const error = notAcceptable(
        'Accept: must allow application/json, application/graphql-response+json or text/event-stream',
      );
      endResponse(errorResponse(show(error), error, fetchAPI));
    },
    onSubscribe({ args: { contextValue }, setResultAndStopExecution }) {
      const { req } = contextValue;
      if (req.path === STREAM || acceptsEvents(req.get('accept') ?? null)) return;
      const error = show(notAcceptable('Accept: a subscription needs text/event-stream'));
      error.extensions.http = { status: 406 };
      setResultAndStopExecution({ errors: [error] });
    },
  };
}
