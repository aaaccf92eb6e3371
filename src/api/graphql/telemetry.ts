/** A span for each query and mutation. Of a subscription the span is that of its request. */
import { getOperationAST } from 'graphql';
import type { Plugin } from 'graphql-yoga';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import { inSpan } from '../../platform/tracing/spans.ts';

export const useTrace: Plugin = {
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

/* Counts the operations that are run, and the subscriptions that go on. */

/** To be the first of those that may refuse an operation, so that it counts what they refuse. */
export function useMeasure(metrics: Metrics): Plugin {
  return {
    onExecute({ args: { document, operationName } }) {
      const kind = getOperationAST(document, operationName)?.operation ?? 'query';
      const begun = performance.now();
      return {
        onExecuteDone({ result }) {
          const failed = 'errors' in result && result.errors !== undefined;
          const seconds = (performance.now() - begun) / 1_000;
          metrics.operationEnded(kind, failed ? 'error' : 'ok', seconds);
        },
      };
    },
    onSubscribe() {
      let open: Disposable | undefined;
      const close = () => open?.[Symbol.dispose]();
      return {
        onSubscribeResult({ result }) {
          const began = Symbol.asyncIterator in result;
          metrics.operationEnded('subscription', began ? 'ok' : 'error', null);
          if (!began) return undefined;
          open = metrics.streamOpened('subscription');
          return { onEnd: close };
        },
        onSubscribeError: close,
      };
    },
  };
}
