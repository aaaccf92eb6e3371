/**
 * Spans of what is done here. They go nowhere, and cost next to nothing, unless a collector is configured
 * (`open.ts`). What they say is names of our own, ids, counts and outcomes: no command, query, header, token or text
 * that a user wrote.
 */
import {
  type Attributes,
  context,
  propagation,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api';

export type { Span };

const NAME = 'loam';

/** Runs `work` in a span within the one that is under way; what it throws marks the span as failed. */
export function inSpan<T>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<T>,
): Promise<T> {
  return run(name, { attributes }, work);
}

/** As `inSpan`, for what no request has asked for: a trace of its own. */
export function inTrace<T>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<T>,
): Promise<T> {
  return run(name, { attributes, root: true }, work);
}

/** As `inSpan`, for a request to another server, which may be told of the trace (`traceHeaders`). */
export function inCall<T>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<T>,
): Promise<T> {
  return run(name, { attributes, kind: SpanKind.CLIENT }, work);
}

function run<T>(
  name: string,
  options: { attributes: Attributes; root?: boolean; kind?: SpanKind },
  work: (span: Span) => Promise<T>,
): Promise<T> {
  return trace.getTracer(NAME).startActiveSpan(name, options, async (span) => {
    try {
      return await work(span);
    } catch (error) {
      fail(span, error);
      throw error;
    } finally {
      span.end();
    }
  });
}

/** By the class of what was thrown: its message may quote what a user wrote. */
export function fail(span: Span, error: unknown): void {
  const type = error instanceof Error ? error.name : typeof error;
  span.setStatus({ code: SpanStatusCode.ERROR, message: type });
  span.setAttribute('error.type', type);
}

/** A span of what somebody else waits for; undefined when nothing is under way that it would belong to. */
export function startSpan(name: string, attributes: Attributes): Span | undefined {
  if (!trace.getActiveSpan()) return undefined;
  return trace.getTracer(NAME).startSpan(name, { attributes });
}

/** The request that comes in with these headers, and all that is done for it in `next`. */
export function serveInSpan(
  name: string,
  headers: Record<string, string | string[] | undefined>,
  attributes: Attributes,
  next: (span: Span) => void,
): void {
  const parent = propagation.extract(context.active(), headers);
  const options = { kind: SpanKind.SERVER, attributes };
  trace.getTracer(NAME).startActiveSpan(name, options, parent, next);
}

/** For a request to another of our own servers, which goes on with the trace. */
export function traceHeaders(): Record<string, string> {
  const headers: Record<string, string> = {};
  propagation.inject(context.active(), headers);
  return headers;
}
