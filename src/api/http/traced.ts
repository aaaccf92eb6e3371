/** A span for each request, which takes over the trace that its client names. Only where traces are wanted. */
import { type Span, SpanStatusCode } from '@opentelemetry/api';
import type { Request, RequestHandler } from 'express';
import { serveInSpan } from '../../platform/tracing/spans.ts';
import { routeOf } from './measured.ts';

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
