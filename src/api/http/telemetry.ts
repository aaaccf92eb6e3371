/** Traces and metrics of requests: a span for each request, and counts and durations by route. */
import { type Span, SpanStatusCode } from '@opentelemetry/api';
import type { Request, RequestHandler } from 'express';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import { serveInSpan } from '../../platform/tracing/spans.ts';
import { hasSwitchedProtocols } from '../../platform/web/websockets.ts';

declare global {
  namespace Express {
    interface Request {
      /** Set only when tracing is on. */
      traceId?: string;
      /** The documented pattern of the route, if the pattern in Express is different. */
      pattern?: string;
    }
  }
}

/** Continues the trace of the client. Omits the query string, because it holds the signatures of signed links. */
export const traceRequests: RequestHandler = (req, res, next) => {
  const attributes = {
    'http.request.method': req.method,
    'url.path': req.originalUrl.split('?')[0],
    'url.scheme': req.protocol,
    'network.protocol.version': req.httpVersion,
    'loam.request_id': req.id,
  };
  serveInSpan(req.method, req.headers, attributes, (span) => {
    req.traceId = span.spanContext().traceId;
    res.once('close', () => endSpan(span, req));
    next();
  });
};

function endSpan(span: Span, req: Request): void {
  const { statusCode, writableFinished } = req.res ?? {};
  const isSwitched = hasSwitchedProtocols({ statusCode: statusCode ?? 0 });
  const headersSent = req.res?.headersSent || isSwitched;
  const route = routeOf(req);
  if (route) {
    span.updateName(`${req.method} ${route}`);
    span.setAttribute('http.route', route);
  }
  if (headersSent) span.setAttribute('http.response.status_code', statusCode ?? 0);
  if (headersSent && (statusCode ?? 0) >= 500) {
    span.setStatus({ code: SpanStatusCode.ERROR });
    span.setAttribute('error.type', String(statusCode));
  }
  // The client disconnected, or the server broke off the response.
  if (!writableFinished && !isSwitched) span.addEvent('closed early');
  span.end();
}

/** Requests that ended before a route was found: refused, redirected, or to an unknown path. */
const NO_ROUTE = 'none';
/**
 * A response that is forwarded from another server has eleven listeners for its end, most of them added by `pipeline`.
 * Node prints a warning at the eleventh.
 */
const MAX_LISTENERS = 20;

/**
 * Counts requests by the pattern of their route, which bounds the number of series. Must be the first middleware, so
 * that it measures the whole duration.
 */
export function measureRequests(metrics: Metrics): RequestHandler {
  return (req, res, next) => {
    const startedAt = performance.now();
    metrics.requestBegan();
    res.setMaxListeners(MAX_LISTENERS);
    res.once('close', () => {
      const isStream = String(res.getHeader('Content-Type')).startsWith('text/event-stream');
      metrics.requestEnded({
        method: req.method,
        route: routeOf(req) ?? NO_ROUTE,
        status: res.headersSent || hasSwitchedProtocols(res) ? res.statusCode : null,
        seconds: isStream ? null : (performance.now() - startedAt) / 1_000,
      });
    });
    next();
  };
}

/** Path in Express → documented pattern. One entry per route. */
const patterns = new Map<unknown, string>();

/** @returns undefined before a route was found */
function routeOf({ pattern, route }: Request): string | undefined {
  if (pattern !== undefined) return pattern;
  const path: unknown = route?.path;
  if (path === undefined) return undefined;
  let known = patterns.get(path);
  if (known === undefined) {
    const [text] = [path].flat();
    known = String(text)
      .replaceAll(/:(\w+)/g, '{$1}')
      .replace(/\*(\w+)$/, '{$1*}');
    patterns.set(path, known);
  }
  return known;
}
