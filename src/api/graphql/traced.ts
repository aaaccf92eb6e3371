/** A span for each query and mutation. Of a subscription the span is that of its request. */
import { getOperationAST } from 'graphql';
import type { Plugin } from 'graphql-yoga';
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
