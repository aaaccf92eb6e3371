/** Errors as GraphQL clients see them: with a code, and with no more details than REST shows. */
import { type ExecutionResult, GraphQLError } from 'graphql';
import type { Logger } from '../../base/log.ts';
import { shouldLog, toClientError } from '../../platform/web/error-response.ts';

/** Shows expected errors and mistakes of the client. Logs all other errors, and hides their message. */
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

/** Adds a code to errors that GraphQL itself found, such as a variable of the wrong type. */
export function addErrorCodes<R extends ExecutionResult>(result: R): R {
  for (const error of result.errors ?? []) error.extensions.code ??= 'INVALID_REQUEST';
  return result;
}
