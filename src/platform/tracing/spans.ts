/**
 * Creates spans. Without a configured collector (`open.ts`) they cost almost nothing. Spans contain only fixed names, ids,
 * counts and outcomes: no command, query, header, token or user text.
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

const TRACER_NAME = 'loam';

/** Runs `work` in a child of the active span. An error marks the span as failed. */
export function inSpan<T>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<T>,
): Promise<T> {
  return run(name, { attributes }, work);
}

/** Like `inSpan`, but starts a new trace, for work that no request has caused. */
export function inTrace<T>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<T>,
): Promise<T> {
  return run(name, { attributes, root: true }, work);
}

/** Like `inSpan`, for a request to another server, which continues the trace if it receives `traceHeaders`. */
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
  return trace.getTracer(TRACER_NAME).startActiveSpan(name, options, async (span) => {
    try {
      return await work(span);
    } catch (error) {
      markFailed(span, error);
      throw error;
    } finally {
      span.end();
    }
  });
}

/** Only the class of the error is recorded: its message may quote user text. */
function markFailed(span: Span, error: unknown): void {
  const type = error instanceof Error ? error.name : typeof error;
  span.setStatus({ code: SpanStatusCode.ERROR, message: type });
  span.setAttribute('error.type', type);
}

/** Starts a child span without making it active; undefined if no span is active. */
export function startSpan(name: string, attributes: Attributes): Span | undefined {
  if (!trace.getActiveSpan()) return undefined;
  return trace.getTracer(TRACER_NAME).startSpan(name, { attributes });
}

/** Runs `next` in a span for the incoming request with these headers. */
export function serveInSpan(
  name: string,
  headers: Record<string, string | string[] | undefined>,
  attributes: Attributes,
  next: (span: Span) => void,
): void {
  const parent = propagation.extract(context.active(), headers);
  const options = { kind: SpanKind.SERVER, attributes };
  trace.getTracer(TRACER_NAME).startActiveSpan(name, options, parent, next);
}

/** Headers that continue the trace in a request to another Loam server. */
export function traceHeaders(): Record<string, string> {
  const headers: Record<string, string> = {};
  propagation.inject(context.active(), headers);
  return headers;
}
