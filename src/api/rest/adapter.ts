/** REST in Express: matches the routes, reads the parameters, and writes the answers. */

import { hash } from 'node:crypto';
import express, { type Request, type RequestHandler, type Response, type Router } from 'express';
import { demandAccount } from '../../identity/permissions.ts';
import type { ContextServices } from '../../platform/schema/context.ts';
import { inSpan } from '../../platform/tracing/spans.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { etagMatches } from '../../platform/web/send-object.ts';
import { contextOf } from '../graphql/context.ts';
import type { Endpoint } from './facade.ts';
import { parameterReader, readBody } from './parameters.ts';
import type { Route } from './routes.ts';

/** Answers a request for an event stream, HEAD too, with the parameters already checked. */
type StreamHandler = (
  req: Request,
  res: Response,
  values: Record<string, unknown>,
) => Promise<void> | void;

type RestOptions = {
  endpoints: readonly Endpoint[];
  /** By operation, for routes that stream. */
  streams: Record<string, StreamHandler>;
  /** Runs on every POST once it is authenticated and its body read. */
  onPost?: RequestHandler;
};

export function createRest(
  services: ContextServices,
  { endpoints, streams, onPost }: RestOptions,
): Router {
  const router = express.Router({ caseSensitive: true, strict: true });
  for (const [path, atPath] of byPath(endpoints)) {
    const registered = router.route(expressPaths(path) as never);
    const [first] = atPath;
    registered.all((req, _res, next) => {
      req.pattern = first?.route.paths[0];
      next();
    });
    for (const endpoint of atPath) {
      const { route } = endpoint;
      const method = route.method.toLowerCase() as Lowercase<Route['method']>;
      registered[method](
        ...(route.public ? [] : [authenticated]),
        readBody,
        ...(method === 'post' && onPost ? [onPost] : []),
        answer(services, endpoint, streams[route.operation]),
      );
    }
    registered.all(refuseOtherMethods(atPath.map(({ route }) => route.method)));
  }
  return router;
}

/** Endpoints by each of their paths, in the order of the table. */
function byPath(endpoints: readonly Endpoint[]): Map<string, Endpoint[]> {
  const paths = new Map<string, Endpoint[]>();
  for (const endpoint of endpoints)
    for (const path of endpoint.route.paths)
      paths.set(path, [...(paths.get(path) ?? []), endpoint]);
  return paths;
}

/** `{x}` is `:x`. `/{x*}` may be left out, with its slash or without it. */
function expressPaths(path: string): string[] {
  const express = path.replace(/\/\{(\w+)\*\}$/, '{/*$1}').replaceAll(/\{(\w+)\}/g, ':$1');
  return express.endsWith('}') ? [express, express.replace(/\{.*$/, '/')] : [express];
}

const authenticated: RequestHandler = (req, _res, next) => {
  demandAccount(req.viewer);
  next();
};

function answer(
  services: ContextServices,
  { route, operation, call }: Endpoint,
  stream: StreamHandler | undefined,
): RequestHandler {
  const read = parameterReader(route, operation);
  return async (req, res) => {
    const values = read(req);
    if (route.streamedBy && values[route.streamedBy]) {
      if (!stream) throw new Error(`Nothing streams ${route.operation}`);
      return stream(req, res, values);
    }
    const context = contextOf(services, req, res);
    const body = await inSpan(route.operation, {}, () => call(context, values));
    if (route.method !== 'GET') {
      res.setHeader('Cache-Control', 'no-store');
      if (route.status === 204) return void res.status(204).end();
      return sendJson(res, route.status, JSON.stringify(body));
    }
    const text = JSON.stringify(body);
    const inTrouble = route.trouble?.when(body as object);
    if (route.trouble && inTrouble) return sendJson(res, route.trouble.status, text);
    res.setHeader('Cache-Control', 'private, no-cache');
    const etag = `W/"${hash('sha1', text, 'base64url')}"`;
    res.setHeader('ETag', etag);
    const link = linkHeader(services.urls.base + req.originalUrl, body);
    if (link) res.setHeader('Link', link);
    if (etagMatches(req.headers['if-none-match'], etag)) return void res.status(304).end();
    sendJson(res, route.status, text);
  };
}

/** As Express does it, which looks up and takes apart the type again with each answer. */
function sendJson(res: Response, status: number, text: string): void {
  res.statusCode = status;
  res.setHeader('Content-Type', 'application/json; charset=utf-8');
  res.setHeader('Content-Length', Buffer.byteLength(text));
  res.end(text);
}

type Paginated = { pagination?: { page: number; total_pages: number } };

/** RFC 8288, for a body with a pagination object; undefined for any other, and for an empty list. */
function linkHeader(address: string, body: unknown): string | undefined {
  const { pagination } = body as Paginated;
  if (!pagination || pagination.total_pages === 0) return undefined;
  const { page, total_pages: last } = pagination;
  const url = new URL(address);
  const to = (rel: string, target: number) => {
    url.searchParams.set('page', String(target));
    return `<${url.href}>; rel="${rel}"`;
  };
  return [
    to('first', 1),
    ...(page > 1 ? [to('prev', Math.min(page - 1, last))] : []),
    ...(page < last ? [to('next', page + 1)] : []),
    to('last', last),
  ].join(', ');
}
