/** REST in Express: matches routes, reads parameters, and writes responses. */
import { hash } from 'node:crypto';
import express, { type Request, type RequestHandler, type Response, type Router } from 'express';
import { demandAccount } from '../../identity/permissions.ts';
import type { ContextServices } from '../../platform/schema/context.ts';
import { inSpan } from '../../platform/tracing/spans.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { etagMatches } from '../../platform/web/send-object.ts';
import { createContext } from '../graphql/context.ts';
import type { Endpoint } from './endpoints.ts';
import { createParameterReader, readBody } from './parameters.ts';
import type { Route } from './routes.ts';

/** Responds to a request for an event stream, also to HEAD. The parameters are already checked. */
type StreamHandler = (
  req: Request,
  res: Response,
  values: Record<string, unknown>,
) => Promise<void> | void;

type RestOptions = {
  endpoints: readonly Endpoint[];
  /** The handlers of routes that can stream, by operation. */
  streams: Record<string, StreamHandler>;
  /** Runs on every POST after authentication and after the body was read. */
  onPost?: RequestHandler;
};

export function createRest(
  services: ContextServices,
  { endpoints, streams, onPost }: RestOptions,
): Router {
  const router = express.Router({ caseSensitive: true, strict: true });
  for (const [path, atPath] of groupByPath(endpoints)) {
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
        ...(route.public ? [] : [requireAccount]),
        readBody,
        ...(method === 'post' && onPost ? [onPost] : []),
        respond(services, endpoint, streams[route.operation]),
      );
    }
    registered.all(refuseOtherMethods(atPath.map(({ route }) => route.method)));
  }
  return router;
}

/** Maps each path to its endpoints, in the order of the table. */
function groupByPath(endpoints: readonly Endpoint[]): Map<string, Endpoint[]> {
  const paths = new Map<string, Endpoint[]>();
  for (const endpoint of endpoints)
    for (const path of endpoint.route.paths)
      paths.set(path, [...(paths.get(path) ?? []), endpoint]);
  return paths;
}

/** `{x}` becomes `:x`. `/{x*}` is optional, with or without its slash. */
function expressPaths(path: string): string[] {
  const express = path.replace(/\/\{(\w+)\*\}$/, '{/*$1}').replaceAll(/\{(\w+)\}/g, ':$1');
  return express.endsWith('}') ? [express, express.replace(/\{.*$/, '/')] : [express];
}

const requireAccount: RequestHandler = (req, _res, next) => {
  demandAccount(req.viewer);
  next();
};

function respond(
  services: ContextServices,
  { route, operation, call }: Endpoint,
  stream: StreamHandler | undefined,
): RequestHandler {
  const read = createParameterReader(route, operation);
  return async (req, res) => {
    const values = read(req);
    if (route.streamedBy && values[route.streamedBy]) {
      if (!stream) throw new Error(`No stream handler for ${route.operation}`);
      return stream(req, res, values);
    }
    const context = createContext(services, req, res);
    const body = await inSpan(route.operation, {}, () => call(context, values));
    if (route.method !== 'GET') {
      res.setHeader('Cache-Control', 'no-store');
      if (route.status === 204) return void res.status(204).end();
      return sendJson(res, route.status, JSON.stringify(body));
    }
    const text = JSON.stringify(body);
    if (route.degraded?.when(body as object)) return sendJson(res, route.degraded.status, text);
    res.setHeader('Cache-Control', 'private, no-cache');
    const etag = `W/"${hash('sha1', text, 'base64url')}"`;
    res.setHeader('ETag', etag);
    const link = linkHeader(services.urls.base + req.originalUrl, body);
    if (link) res.setHeader('Link', link);
    if (etagMatches(req.headers['if-none-match'], etag)) return void res.status(304).end();
    sendJson(res, route.status, text);
  };
}

/** Not `res.json` of Express, which looks up and parses the content type for each response. */
function sendJson(res: Response, status: number, text: string): void {
  res.statusCode = status;
  res.setHeader('Content-Type', 'application/json; charset=utf-8');
  res.setHeader('Content-Length', Buffer.byteLength(text));
  res.end(text);
}

type Paginated = { pagination?: { page: number; total_pages: number } };

/** RFC 8288. @returns undefined for a body without a pagination object, and for an empty list */
function linkHeader(requestUrl: string, body: unknown): string | undefined {
  const { pagination } = body as Paginated;
  if (!pagination || pagination.total_pages === 0) return undefined;
  const { page, total_pages: last } = pagination;
  const url = new URL(requestUrl);
  const link = (rel: string, target: number) => {
    url.searchParams.set('page', String(target));
    return `<${url.href}>; rel="${rel}"`;
  };
  return [
    link('first', 1),
    ...(page > 1 ? [link('prev', Math.min(page - 1, last))] : []),
    ...(page < last ? [link('next', page + 1)] : []),
    link('last', last),
  ].join(', ');
}
