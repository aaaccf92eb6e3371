/**
 * Sends spans to a collector, by OTLP over HTTP. This file and its packages are loaded only where one is configured.
 *
 * Spans are named by hand where they begin. The packages that instrument others by themselves were refused: they
 * replace functions of modules when these are loaded, which takes a loader for ECMAScript modules, and would bring 40
 * packages and spans of what nobody asked for. `sdk-node` would load exporters for gRPC, Zipkin, logs and metrics.
 *
 * The tracer and the context are those of the whole process, as OpenTelemetry has them, so of several apps in one
 * process one traces.
 */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { context, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import {
  type ExportResult,
  ExportResultCode,
  W3CTraceContextPropagator,
} from '@opentelemetry/core';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { resourceFromAttributes } from '@opentelemetry/resources';
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BatchSpanProcessor,
  ParentBasedSampler,
  type ReadableSpan,
  type Sampler,
  type SpanExporter,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from '@opentelemetry/sdk-trace';
import type { TracingConfig } from '../../base/config/tracing.ts';
import type { Logger } from '../../base/log.ts';
import { GIT_STARTED, type StartedGit } from '../processes/git-started.ts';
import { startSpan } from './spans.ts';

/** Of the last spans, when the server stops: a collector that does not answer must not hold it up. */
const LAST_MS = 2_000;
/** Characters of a value. */
const LONGEST_VALUE = 512;

export function openTracing(
  { url, headers, resource, sampler, ratio }: TracingConfig,
  { version, serverId, log }: { version: string; serverId: string; log: Logger },
): AsyncDisposable {
  const exporter = told(new OTLPTraceExporter({ url, headers }), log);
  // Spans beyond its bound, 2,048, are dropped: a collector that is away costs no more memory than these.
  const processor = new BatchSpanProcessor({ exporter });
  const provider = new TracerProvider({
    resource: resourceFromAttributes({
      'service.version': version,
      'service.instance.id': serverId,
      ...resource,
    }),
    sampler: samplerOf(sampler, ratio),
    spanLimits: { attributeValueLengthLimit: LONGEST_VALUE },
    spanProcessors: [processor],
  });
  const contexts = new AsyncLocalStorageContextManager().enable();
  if (!trace.setGlobalTracerProvider(provider)) throw new Error('this process is traced already');
  context.setGlobalContextManager(contexts);
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  subscribe(GIT_STARTED, traceGit);
  return {
    async [Symbol.asyncDispose]() {
      unsubscribe(GIT_STARTED, traceGit);
      trace.disable();
      context.disable();
      propagation.disable();
      const late = Promise.withResolvers<void>();
      const timer = setTimeout(late.resolve, LAST_MS);
      await Promise.race([provider.shutdown().catch(() => {}), late.promise]);
      clearTimeout(timer);
    },
  };
}

/** Those that are kept for many reads belong to none of them. */
function traceGit(message: unknown): void {
  const { args, ended } = message as StartedGit;
  if (args[1] === '--batch-command') return;
  const span = startSpan(`git ${args[0]}`, { 'process.executable.name': 'git' });
  if (!span) return;
  void ended.then(({ code, signal }) => {
    span.setAttributes({
      'process.exit.code': code ?? undefined,
      'loam.signal': signal ?? undefined,
    });
    span.end();
  });
}

function samplerOf(name: TracingConfig['sampler'], ratio: number): Sampler {
  const kind = name.replace('parentbased_', '');
  const root =
    kind === 'always_off'
      ? new AlwaysOffSampler()
      : kind === 'traceidratio'
        ? new TraceIdRatioBasedSampler(ratio)
        : new AlwaysOnSampler();
  return name === kind ? root : new ParentBasedSampler({ root });
}

/** Tells of the first export that fails, and of the first that succeeds after it. */
function told(exporter: OTLPTraceExporter, log: Logger): SpanExporter {
  let failing = false;
  return {
    export(spans: ReadableSpan[], done: (result: ExportResult) => void) {
      exporter.export(spans, (result) => {
        const failed = result.code !== ExportResultCode.SUCCESS;
        if (failed && !failing) log.warn({ err: result.error }, 'traces cannot be sent');
        if (failing && !failed) log.info('traces are sent again');
        failing = failed;
        done(result);
      });
    },
    shutdown: () => exporter.shutdown(),
    forceFlush: () => exporter.forceFlush(),
  };
}
