/**
 * Exports spans to a collector by OTLP over HTTP. This file and its packages are loaded only if a collector is configured.
 *
 * Spans are created explicitly. Auto-instrumentation was rejected: it replaces functions of modules while they are loaded,
 * which needs a loader for ES modules, and it would add 40 packages and unwanted spans. The package `sdk-node` was rejected
 * because it loads exporters for gRPC, Zipkin, logs and metrics.
 *
 * OpenTelemetry has one tracer and context per process, so only one app of a process can enable tracing.
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

/** How long a stopping server waits for the export of its last spans, if the collector does not answer. */
const SHUTDOWN_MS = 2_000;
/** In characters. Longer attribute values are cut off. */
const MAX_VALUE_LENGTH = 512;

/** Enables tracing until disposed. @throws Error if tracing is already enabled in this process */
export function openTracing(
  { url, headers, resource, sampler, ratio }: TracingConfig,
  { version, serverId, log }: { version: string; serverId: string; log: Logger },
): AsyncDisposable {
  const exporter = logFailures(new OTLPTraceExporter({ url, headers }), log);
  // The processor drops spans beyond its queue of 2,048, so the memory for an unavailable collector is limited.
  const processor = new BatchSpanProcessor({ exporter });
  const provider = new TracerProvider({
    resource: resourceFromAttributes({
      'service.version': version,
      'service.instance.id': serverId,
      ...resource,
    }),
    sampler: createSampler(sampler, ratio),
    spanLimits: { attributeValueLengthLimit: MAX_VALUE_LENGTH },
    spanProcessors: [processor],
  });
  const contexts = new AsyncLocalStorageContextManager().enable();
  if (!trace.setGlobalTracerProvider(provider))
    throw new Error('tracing is already enabled in this process');
  context.setGlobalContextManager(contexts);
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  subscribe(GIT_STARTED, traceGit);
  return {
    async [Symbol.asyncDispose]() {
      unsubscribe(GIT_STARTED, traceGit);
      trace.disable();
      context.disable();
      propagation.disable();
      const timedOut = Promise.withResolvers<void>();
      const timer = setTimeout(timedOut.resolve, SHUTDOWN_MS);
      // `logFailures` has logged failed exports.
      await Promise.race([provider.shutdown().catch(() => {}), timedOut.promise]);
      clearTimeout(timer);
    },
  };
}

/** Records a git process as a span. `args[0]` is the git command (`StartedGit`). */
function traceGit(message: unknown): void {
  const { args, ended } = message as StartedGit;
  // A `git cat-file` that serves the reads of many requests belongs to no span.
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

/** @param name a value of OTEL_TRACES_SAMPLER, checked by `base/config/tracing.ts` */
function createSampler(name: TracingConfig['sampler'], ratio: number): Sampler {
  const kind = name.replace('parentbased_', '');
  const root =
    kind === 'always_off'
      ? new AlwaysOffSampler()
      : kind === 'traceidratio'
        ? new TraceIdRatioBasedSampler(ratio)
        : new AlwaysOnSampler();
  return name === kind ? root : new ParentBasedSampler({ root });
}

/** Logs the first failed export, and the first successful one after it. */
function logFailures(exporter: OTLPTraceExporter, log: Logger): SpanExporter {
  let failing = false;
  return {
    export(spans: ReadableSpan[], done: (result: ExportResult) => void) {
      exporter.export(spans, (result) => {
        const failed = result.code !== ExportResultCode.SUCCESS;
        if (failed && !failing) log.warn({ err: result.error }, 'cannot export traces');
        if (failing && !failed) log.info('traces are exported again');
        failing = failed;
        done(result);
      });
    },
    shutdown: () => exporter.shutdown(),
    forceFlush: () => exporter.forceFlush(),
  };
}
