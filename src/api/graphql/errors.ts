/** Errors as GraphQL clients see them: with a code, and with no more details than REST shows. */
import {
  coerceInputValue,
  type ExecutionArgs,
  type ExecutionResult,
  GraphQLError,
  type GraphQLInputType,
  getNamedType,
  getOperationAST,
  isEnumType,
  isInputObjectType,
  isInputType,
  typeFromAST,
} from 'graphql';
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

/**
 * Finds the first variable with a wrong value. The error begins with the field and carries it as `field`, like all errors of
 * values; GraphQL's own error names the field only in its message.
 */
export function findWrongVariable(args: ExecutionArgs): GraphQLError | null {
  const operation = getOperationAST(args.document, args.operationName);
  for (const { variable, type: node } of operation?.variableDefinitions ?? []) {
    const type = typeFromAST(args.schema, node);
    const name = variable.name.value;
    const value = args.variableValues?.[name];
    if (value == null || !isInputType(type)) continue;
    try {
      coerceInputValue(value, type, (path, _value, error) => {
        throw describeWrongValue({ name, type }, path, error);
      });
    } catch (error) {
      if (error instanceof GraphQLError) return error;
      throw error;
    }
  }
  return null;
}

function describeWrongValue(
  variable: { name: string; type: GraphQLInputType },
  path: readonly (string | number)[],
  { message }: GraphQLError,
): GraphQLError {
  const names = path.filter((part) => typeof part === 'string');
  const type = typeAt(variable.type, names);
  const isInput = isInputObjectType(getNamedType(variable.type));
  const [field, ...inner] = isInput ? names : [variable.name];
  // The value belongs to no field, such as an unknown or a missing one, which the message names.
  if (field === undefined) return new GraphQLError(message);
  const values = isEnumType(type) ? type.getValues().map(({ name }) => name) : null;
  const problem = values ? `must be one of ${values.join(', ')}` : message;
  return new GraphQLError(`${field}: ${[...inner, problem].join(' ')}`, { extensions: { field } });
}

function typeAt(type: GraphQLInputType, names: readonly string[]) {
  let named = getNamedType(type);
  for (const name of names)
    if (isInputObjectType(named)) named = getNamedType(named.getFields()[name]?.type ?? named);
  return named;
}
