/** GraphQL at `/graphql`: Yoga with its plugins in order. */
import type { Request, Response } from 'express';
import { getOperationAST } from 'graphql';
import { createYoga, type Plugin } from 'graphql-yoga';
import type { Config } from '../../base/config/config.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import type { Context, ContextServices } from '../../platform/schema/context.ts';
import { inSpan } from '../../platform/tracing/spans.ts';
import { useAcceptCheck } from './accept.ts';
import { useRequestBody } from './body.ts';
import { createContext } from './context.ts';
import { addErrorCodes, showError } from './errors.ts';
import { useGraphiql } from './graphiql.ts';
import { useIdempotency } from './idempotency.ts';
import { useLimits } from './limits.ts';
import { schema } from './schema.ts';
import { useSse } from './sse.ts';

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

/** A span for each query and mutation. A subscription has no span of its own, only that of its request. */
const useTracing: Plugin = {
  onExecute({ args, executeFn, setExecuteFn }) {
    const operation = getOperationAST(args.document, args.operationName);
    const type = operation?.operation ?? 'query';
    const name = operation?.name?.value;
    const attributes = {
      'graphql.operation.type': type,
      ...(name && { 'graphql.operation.name': name }),
    };
    setExecuteFn((given) =>
      inSpan(`GraphQL ${type}`, attributes, async (span) => {
        const result = await executeFn(given as typeof args);
        if (result.errors) span.setAttribute('graphql.errors', result.errors.length);
        return result;
      }),
    );
  },
};

/** Counts and durations of operations, and open subscriptions. Must be the first plugin that can refuse one, to count refusals too. */
function useMetrics(metrics: Metrics): Plugin {
  return {
    onExecute({ args: { document, operationName } }) {
      const kind = getOperationAST(document, operationName)?.operation ?? 'query';
      const startedAt = performance.now();
      return {
        onExecuteDone({ result }) {
          const failed = 'errors' in result && result.errors !== undefined;
          const seconds = (performance.now() - startedAt) / 1_000;
          metrics.operationEnded(kind, failed ? 'error' : 'ok', seconds);
        },
      };
    },
    onSubscribe() {
      let open: Disposable | undefined;
      const close = () => open?.[Symbol.dispose]();
      return {
        onSubscribeResult({ result }) {
          const isStream = Symbol.asyncIterator in result;
          metrics.operationEnded('subscription', isStream ? 'ok' : 'error', null);
          if (!isStream) return undefined;
          open = metrics.streamOpened('subscription');
          return { onEnd: close };
        },
        onSubscribeError: close,
      };
    },
  };
}
