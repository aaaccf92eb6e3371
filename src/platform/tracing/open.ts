/**
 * Exports spans to a collector by OTLP over HTTP. This file and its packages are loaded only if a collector is configured.
 *
 * Spans are created explicitly. Auto-instrumentation was rejected: it replaces functions of modules while they are loaded,
 * which needs a loader for ES modules, and it would add 40 packages and unwanted spans. `sdk-node` would load exporters for
 * gRPC, Zipkin, logs and metrics.
 *
 * OpenTelemetry has one tracer and context per process, so of several apps in one process only one is traced.
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

/** Time for the last spans when the server stops, so that a collector that does not answer cannot delay it. */
const SHUTDOWN_MS = 2_000;
/** Maximum length of an attribute value. */
const MAX_VALUE_LENGTH = 512;

export function openTracing(
  { url, headers, resource, sampler, ratio }: TracingConfig,
  { version, serverId, log }: { version: string; serverId: string; log: Logger },
): AsyncDisposable {
  const exporter = logFailures(new OTLPTraceExporter({ url, headers }), log);
  // It drops spans beyond a queue of 2,048, so an unavailable collector costs no more memory.
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
      await Promise.race([provider.shutdown().catch(() => {}), timedOut.promise]);
      clearTimeout(timer);
    },
  };
}

/** Git processes that serve many reads belong to no single span. */
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
