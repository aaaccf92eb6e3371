/** A span for each request, which takes over the trace that its client names. Only where traces are wanted. */
import { type Span, SpanStatusCode } from '@opentelemetry/api';
import type { Request, RequestHandler } from 'express';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import { serveInSpan } from '../../platform/tracing/spans.ts';

declare global {
  namespace Express {
    interface Request {
      /** Of its trace. */
      traceId?: string;
    }
  }
}

/** What stands after a `?` is left out, because links are signed there. */
export const traced: RequestHandler = (req, res, next) => {
  const attributes = {
    'http.request.method': req.method,
    'url.path': req.originalUrl.split('?')[0],
    'url.scheme': req.protocol,
    'network.protocol.version': req.httpVersion,
    'loam.request_id': req.id,
  };
  serveInSpan(req.method, req.headers, attributes, (span) => {
    req.traceId = span.spanContext().traceId;
    res.once('close', () => end(span, req));
    next();
  });
};

function end(span: Span, req: Request): void {
  const { headersSent, statusCode, writableFinished } = req.res ?? {};
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
  // Its client has left, or the answer was broken off.
  if (!writableFinished) span.addEvent('closed early');
  span.end();
}

/** Counts requests by the pattern of their route, which bounds how many series there can be. */
declare global {
  namespace Express {
    interface Request {
      /** Of its route, where Express's own is not the one that is documented. */
      pattern?: string;
    }
  }
}

/** Requests that ended before a route was found: refused, redirected, or to a path where there is nothing. */
const NO_ROUTE = 'none';
/**
 * Of one answer. An answer that comes from another server has eleven that hear its end, most of them of `pipeline`;
 * Node would print a warning at the eleventh.
 */
const MAX_LISTENERS = 20;

/** To be the first that sees a request, so that its time is the whole. */
export function measured(metrics: Metrics): RequestHandler {
  return (req, res, next) => {
    const begun = performance.now();
    metrics.requestBegan();
    res.setMaxListeners(MAX_LISTENERS);
    res.once('close', () => {
      const isStream = String(res.getHeader('Content-Type')).startsWith('text/event-stream');
      metrics.requestEnded({
        method: req.method,
        route: routeOf(req) ?? NO_ROUTE,
        status: res.headersSent ? res.statusCode : null,
        seconds: isStream ? null : (performance.now() - begun) / 1_000,
      });
    });
    next();
  };
}

/** By what Express was given, which is as many as there are routes. */
const patterns = new Map<unknown, string>();

/** Undefined before a route was found. */
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
