/** What an error looks like to a GraphQL client: it has a code, and shows no more than REST would. */

import { type ExecutionResult, GraphQLError } from 'graphql';
import type { Logger } from '../../base/log.ts';
import { shouldLog, toClientError } from '../../platform/web/error-response.ts';

/** Deliberate errors and the client's own mistakes pass; all else is logged and hidden. */
export function showError(error: unknown, { log }: { log: Logger }): GraphQLError {
  const graphql = error instanceof GraphQLError ? error : undefined;
  const original = graphql?.originalError ?? error;
  if (graphql && (!graphql.originalError || original instanceof GraphQLError)) return graphql;
  const shown = toClientError(original);
  if (shouldLog(original)) log.error({ err: original }, 'unexpected error in GraphQL');
  return new GraphQLError(shown.message, {
    nodes: graphql?.nodes,
    source: graphql?.source,
    positions: graphql?.positions,
    path: graphql?.path,
    extensions: {
      code: shown.code.toUpperCase(),
      ...(shown.field && { field: shown.field }),
      ...(shown.retryAfter && { retryAfter: shown.retryAfter }),
    },
  });
}

/** Errors that never reach a resolver (a wrong variable, say) carry a code too. */
export function withCodes<R extends ExecutionResult>(result: R): R {
  for (const error of result.errors ?? []) error.extensions.code ??= 'INVALID_REQUEST';
  return result;
}
