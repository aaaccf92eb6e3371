/**
 * Where traces are sent: the usual variables of OpenTelemetry, read where one of the endpoints is set. Those of the
 * exporter's connection (OTEL_EXPORTER_OTLP_TIMEOUT, …_COMPRESSION, …_CERTIFICATE) it reads itself.
 */
import { z } from 'zod';
import * as kinds from './kinds.ts';

const SAMPLERS = [
  'always_on',
  'always_off',
  'traceidratio',
  'parentbased_always_on',
  'parentbased_always_off',
  'parentbased_traceidratio',
] as const;

export type TracingConfig = {
  /** To which spans are posted. */
  url: string;
  /** May hold credentials. */
  headers: Record<string, string>;
  /** Of this process: `service.name` and more. */
  resource: Record<string, string>;
  sampler: (typeof SAMPLERS)[number];
  /** Of the traces, for the samplers by ratio: 0 to 1. */
  ratio: number;
};

/** `name=value` with commas between, each part percent-encoded. */
const pairs = z.string().transform((text, ctx) => {
  const found: Record<string, string> = {};
  for (const pair of text.split(',')) {
    const at = pair.indexOf('=');
    try {
      if (at < 1) throw new Error();
      const [name, value] = [pair.slice(0, at), pair.slice(at + 1)].map((part) =>
        decodeURIComponent(part.trim()),
      );
      found[name ?? ''] = value ?? '';
    } catch {
      ctx.addIssue({ code: 'custom', message: 'must be such as name=value,name=value' });
      return z.NEVER;
    }
  }
  return found;
});

const endpoint = kinds.url('http:', 'https:');
/** The one that we speak. A collector that listens for it listens on port 4318. */
const protocol = kinds.oneOf('http/protobuf');
const ratio = z
  .string()
  .regex(/^(0(\.\d+)?|1(\.0+)?)$/, 'must be a number from 0 to 1')
  .transform(Number);

export const TRACING_VARIABLES = {
  OTEL_EXPORTER_OTLP_ENDPOINT: ['', 'the collector; /v1/traces is appended', endpoint],
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: ['', 'the whole address, in place of that', endpoint],
  OTEL_EXPORTER_OTLP_HEADERS: ['', 'sent along, such as credentials', pairs],
  OTEL_EXPORTER_OTLP_TRACES_HEADERS: ['', 'in place of those of the same names', pairs],
  OTEL_EXPORTER_OTLP_PROTOCOL: ['http/protobuf', 'http/protobuf alone is spoken', protocol],
  OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: ['http/protobuf', 'in place of that', protocol],
  OTEL_SERVICE_NAME: ['', 'how this service is called; unset: loam', z.string()],
  OTEL_RESOURCE_ATTRIBUTES: ['', 'more about this process', pairs],
  OTEL_TRACES_SAMPLER: ['parentbased_always_on', 'which traces', kinds.oneOf(...SAMPLERS)],
  OTEL_TRACES_SAMPLER_ARG: ['1', 'the ratio of those samplers that take one', ratio],
} as const;

type Env = Record<string, string | undefined>;

/** Whether traces are wanted; else none of the variables above is looked at. */
export function wantsTraces(env: Env): boolean {
  const isOff =
    env.OTEL_SDK_DISABLED?.toLowerCase() === 'true' || env.OTEL_TRACES_EXPORTER === 'none';
  return (
    !isOff && Boolean(env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT)
  );
}

/** The values of the table, of which one of the endpoints is set. */
export function tracingOf(values: {
  OTEL_EXPORTER_OTLP_ENDPOINT?: string;
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT?: string;
  OTEL_EXPORTER_OTLP_HEADERS?: Record<string, string>;
  OTEL_EXPORTER_OTLP_TRACES_HEADERS?: Record<string, string>;
  OTEL_SERVICE_NAME?: string;
  OTEL_RESOURCE_ATTRIBUTES?: Record<string, string>;
  OTEL_TRACES_SAMPLER: TracingConfig['sampler'];
  OTEL_TRACES_SAMPLER_ARG: number;
}): TracingConfig {
  const attributes = values.OTEL_RESOURCE_ATTRIBUTES;
  return {
    url:
      values.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ??
      `${values.OTEL_EXPORTER_OTLP_ENDPOINT}/v1/traces`,
    headers: {
      ...values.OTEL_EXPORTER_OTLP_HEADERS,
      ...values.OTEL_EXPORTER_OTLP_TRACES_HEADERS,
    },
    resource: {
      ...attributes,
      'service.name': values.OTEL_SERVICE_NAME ?? attributes?.['service.name'] ?? 'loam',
    },
    sampler: values.OTEL_TRACES_SAMPLER,
    ratio: values.OTEL_TRACES_SAMPLER_ARG,
  };
}
