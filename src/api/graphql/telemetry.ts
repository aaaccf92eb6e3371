/** Traces and metrics of operations: a span for each query and mutation, and counts and durations. */
import { getOperationAST } from 'graphql';
import type { Plugin } from 'graphql-yoga';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import { inSpan } from '../../platform/tracing/spans.ts';

/** A subscription has no span of its own, only that of its request. */
export const useTracing: Plugin = {
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

/** Counts operations and open subscriptions. Must be the first plugin that can refuse one, to count refusals too. */
export function useMetrics(metrics: Metrics): Plugin {
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
