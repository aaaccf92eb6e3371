/**
 * What a client accepts as an answer at `/graphql`. Yoga looks only when the operation has run, so that a mutation would take
 * effect and its client would learn nothing: it sends a 406 without a body.
 */
import type { Request as HttpRequest } from 'express';
import type { GraphQLError } from 'graphql';
import type { Plugin } from 'graphql-yoga';
import { AppError } from '../../base/errors.ts';
import { answerError } from './body.ts';

/** Yoga answers what is no stream so wherever JSON is among what is accepted. */
export function takesJson(accept: string | null): boolean {
  return accepts(accept, /^(?:\*|application)\/(?:\*|json|graphql-response\+json)$/);
}

function takesEvents(accept: string | null): boolean {
  return accepts(accept, /^(?:\*|text)\/(?:\*|event-stream)$/);
}

/** By the rules of Yoga, which weighs nothing and knows UTF-8 alone. */
function accepts(accept: string | null, types: RegExp): boolean {
  const asked = (accept || '*/*').toLowerCase().split(',');
  return asked.some((each) => {
    const [type = '', ...parameters] = each.split(';').map((part) => part.trim());
    const charset = parameters.find((parameter) => parameter.startsWith('charset='));
    return types.test(type) && (charset ?? 'charset=utf-8') === 'charset=utf-8';
  });
}

export function notAcceptable(message: string): AppError {
  return new AppError('invalid_request', message, { status: 406 });
}

type Server = { req: HttpRequest };

/** Has rules of its own: results may go over another connection. */
const STREAM = '/graphql/stream';

/** `show` decides what a client sees of an error. */
export function useAccept(show: (error: unknown) => GraphQLError): Plugin<Server, Server> {
  return {
    onRequest({ request, url, fetchAPI, endResponse }) {
      const accept = request.headers.get('accept');
      if (url.pathname === STREAM || takesJson(accept) || takesEvents(accept)) return;
      const error = notAcceptable(
        'Accept: must allow application/json, application/graphql-response+json or text/event-stream',
      );
      endResponse(answerError(show(error), error, fetchAPI));
    },
    onSubscribe({ args: { contextValue }, setResultAndStopExecution }) {
      const { req } = contextValue;
      if (req.path === STREAM || takesEvents(req.get('accept') ?? null)) return;
      const error = show(notAcceptable('Accept: a subscription needs text/event-stream'));
      error.extensions.http = { status: 406 };
      setResultAndStopExecution({ errors: [error] });
    },
  };
}
