/** Counts the operations that are run, and the subscriptions that go on. */
import { getOperationAST } from 'graphql';
import type { Plugin } from 'graphql-yoga';
import type { Metrics } from '../../platform/metrics/metrics.ts';

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
