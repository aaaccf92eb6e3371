/** GraphQL at `/graphql`: Yoga with its plugins in order. */
import type { Request, Response } from 'express';
import { createYoga, type Plugin } from 'graphql-yoga';
import type { Config } from '../../base/config/config.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import type { Context, ContextServices } from '../../platform/schema/context.ts';
import { useAcceptCheck } from './accept.ts';
import { useRequestBody } from './body.ts';
import { createContext } from './context.ts';
import { addErrorCodes, showError } from './errors.ts';
import { useGraphiql } from './graphiql.ts';
import { useIdempotency } from './idempotency.ts';
import { useLimits } from './limits.ts';
import { schema } from './schema.ts';
import { useSse } from './sse.ts';
import { useMetrics, useTracing } from './telemetry.ts';

export type Deps = ContextServices & { metrics: Metrics; config: Config };

export function createGraphQLServer(services: Deps) {
  const show = (error: unknown) => showError(error, services);
  return createYoga<{ req: Request; res: Response }, Context>({
    schema,
    graphqlEndpoint: '/graphql',
    // Served by `useGraphiql`.
    graphiql: false,
    landingPage: false,
    // Express handles CORS and logging.
    cors: false,
    logging: false,
    batching: false,
    // No field accepts a file.
    multipart: false,
    // Limited by `useRequestBody`.
    maxRequestBodySize: false,
    context: ({ req, res }) => createContext(services, req, res),
    maskedErrors: { maskError: show },
    plugins: [
      useGraphiql,
      useAcceptCheck(show),
      useRequestBody(show),
      useIdempotency({ show, ...services }),
      useMetrics(services.metrics),
      useLimits,
      ...(services.config.tracing ? [useTracing] : []),
      useErrorCodes,
      useSse({ show, ...services }),
    ],
  });
}

const useErrorCodes: Plugin = {
  onResultProcess({ result }) {
    for (const item of Array.isArray(result) ? result : [result])
      if ('errors' in item) addErrorCodes(item);
  },
};
