/**
 * Where traces are exported: the standard OpenTelemetry variables, read when one of the endpoints is set. The exporter
 * itself reads the variables of its connection (OTEL_EXPORTER_OTLP_TIMEOUT, …_COMPRESSION, …_CERTIFICATE).
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
  /** Spans are posted to this URL. */
  url: string;
  /** May contain credentials. */
  headers: Record<string, string>;
  /** Resource attributes of this process, such as `service.name`. */
  resource: Record<string, string>;
  sampler: (typeof SAMPLERS)[number];
  /** Ratio of sampled traces, 0 to 1, for the samplers that use a ratio. */
  ratio: number;
};

/** `name=value` pairs separated by commas, each part percent-encoded. */
const pairs = z.string().transform((text, ctx) => {
  const parsed: Record<string, string> = {};
  for (const pair of text.split(',')) {
    const at = pair.indexOf('=');
    try {
      if (at < 1) throw new Error();
      const [name, value] = [pair.slice(0, at), pair.slice(at + 1)].map((part) =>
        decodeURIComponent(part.trim()),
      );
      parsed[name ?? ''] = value ?? '';
    } catch {
      ctx.addIssue({ code: 'custom', message: 'must be pairs such as name=value,name=value' });
      return z.NEVER;
    }
  }
  return parsed;
});

const endpoint = kinds.url('http:', 'https:');
/** The only supported protocol. Collectors accept it on port 4318 by default. */
const protocol = kinds.oneOf('http/protobuf');
const ratio = z
  .string()
  .regex(/^(0(\.\d+)?|1(\.0+)?)$/, 'must be a number from 0 to 1')
  .transform(Number);

export const TRACING_VARIABLES = {
  OTEL_EXPORTER_OTLP_ENDPOINT: ['', 'URL of the collector; /v1/traces is appended', endpoint],
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: [
    '',
    'full URL for traces; replaces OTEL_EXPORTER_OTLP_ENDPOINT',
    endpoint,
  ],
  OTEL_EXPORTER_OTLP_HEADERS: ['', 'headers of each export, such as credentials', pairs],
  OTEL_EXPORTER_OTLP_TRACES_HEADERS: [
    '',
    'override headers of OTEL_EXPORTER_OTLP_HEADERS with the same name',
    pairs,
  ],
  OTEL_EXPORTER_OTLP_PROTOCOL: ['http/protobuf', 'only http/protobuf is supported', protocol],
  OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: [
    'http/protobuf',
    'only http/protobuf is supported',
    protocol,
  ],
  OTEL_SERVICE_NAME: ['', 'name of this service; unset: loam', z.string()],
  OTEL_RESOURCE_ATTRIBUTES: ['', 'more resource attributes of this process', pairs],
  OTEL_TRACES_SAMPLER: ['parentbased_always_on', 'sampler of traces', kinds.oneOf(...SAMPLERS)],
  OTEL_TRACES_SAMPLER_ARG: ['1', 'ratio for the samplers that use one', ratio],
} as const;

type Env = Record<string, string | undefined>;

/** Whether traces are exported. If not, none of the other variables is read. */
export function isTracingEnabled(env: Env): boolean {
  const isOff =
    env.OTEL_SDK_DISABLED?.toLowerCase() === 'true' || env.OTEL_TRACES_EXPORTER === 'none';
  return (
    !isOff && Boolean(env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT)
  );
}

/** `values` has one of the endpoints. */
export function readTracingConfig(values: {
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
