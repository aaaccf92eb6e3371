/** Counts requests by the pattern of their route, which bounds how many series there can be. */
import type { Request, RequestHandler } from 'express';
import type { Metrics } from '../../platform/metrics/metrics.ts';

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
export function routeOf({ pattern, route }: Request): string | undefined {
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
