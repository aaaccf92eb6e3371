/** GraphQL at `/graphql`: compiled queries first, then Yoga with its plugins in order. */
import type { Request, RequestHandler, Response } from 'express';
import { createYoga, type Plugin } from 'graphql-yoga';
import type { Config } from '../../base/config/config.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import type { Context, ContextServices } from '../../platform/schema/context.ts';
import { useAcceptCheck } from './accept.ts';
import { useRequestBody } from './body.ts';
import { createContext } from './context.ts';
import { Documents } from './documents.ts';
import { addErrorCodes, showError } from './errors.ts';
import { useGraphiql } from './graphiql.ts';
import { useIdempotency } from './idempotency.ts';
import { useLimits } from './limits.ts';
import { repeatedQueries } from './repeated.ts';
import { schema } from './schema.ts';
import { useSse } from './sse.ts';
import { useMetrics, useTracing } from './telemetry.ts';

export type Deps = ContextServices & { metrics: Metrics; config: Config };

type GraphQLServer = {
  /** Answers queries that it has compiled, and passes on all others. */
  repeated: RequestHandler;
  /** Answers every request; used after `repeated`. */
  any(req: Request, res: Response): unknown;
};

export function createGraphQLServer(services: Deps): GraphQLServer {
  const show = (error: unknown) => showError(error, services);
  const documents = new Documents(schema);
  const any = createYoga<{ req: Request; res: Response }, Context>({
    schema,
    graphqlEndpoint: '/graphql',
    // `useGraphiql` serves it.
    graphiql: false,
    landingPage: false,
    // Express does both.
    cors: false,
    logging: false,
    batching: false,
    // No field accepts a file.
    multipart: false,
    // `useRequestBody` limits it.
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
      useDocuments(documents),
    ],
  });
  return { repeated: repeatedQueries(services, documents), any };
}

function useDocuments(documents: Documents): Plugin {
  return {
    onExecute({ args: { document } }) {
      documents.note(document);
    },
  };
}

const useErrorCodes: Plugin = {
  onResultProcess({ result }) {
    for (const one of Array.isArray(result) ? result : [result])
      if ('errors' in one) addErrorCodes(one);
  },
};
