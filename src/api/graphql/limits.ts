/**
 * Limits on the size of an operation (docs/graphql.md): tokens before it is parsed; depth and cost before it is
 * executed, when its variables and therefore the sizes of its lists are known.
 *
 * Each field costs 1, times the sizes of the lists around it. Fields that start a process cost more (`complexity` in the
 * schema). The stored operations of REST are not measured: their lists are bounded.
 */
import { complexityFromQuery } from '@pothos/plugin-complexity';
import {
  type DocumentNode,
  type ExecutionArgs,
  GraphQLError,
  getOperationAST,
  Kind,
  Lexer,
  type OperationDefinitionNode,
  parse,
  Source,
  TokenKind,
} from 'graphql';
import type { Plugin } from 'graphql-yoga';
import { findWrongVariable } from './errors.ts';

/** Introspection has 250 tokens, a page of a front end about a hundred. Validation time grows with their square. */
export const MAX_TOKENS = 2_000;
/** Nested fields. GraphQL's own rules limit the depth of introspection. */
export const MAX_DEPTH = 15;
/**
 * A hundred jobs with attempts, five log lines and repository cost 18,000; fifty repositories with branches, commits and
 * tree cost 30,000.
 */
export const MAX_COST = 50_000;

type Limit = 'tokens' | 'depth' | 'cost';

/** `requested` is omitted if counting stopped at the limit. */
function tooLarge(limit: Limit, maximum: number, requested?: number): GraphQLError {
  const actual = requested === undefined ? '' : `, and this operation has ${requested}`;
  return new GraphQLError(`The limit of ${limit} is ${maximum}${actual}`, {
    extensions: { code: 'LIMIT_EXCEEDED', limit, maximum, ...(requested && { requested }) },
  });
}

/** Refuses operations that are too large, and reports the cost of the others in `extensions.cost`. */
export const useLimits: Plugin = {
  onParse({ setParseFn }) {
    setParseFn((source: string | Source, options?: object) => {
      const text = typeof source === 'string' ? new Source(source) : source;
      countTokens(text);
      return parse(text, options);
    });
  },
  onExecute({ args, setResultAndStopExecution }) {
    const measured = measureOperation(args);
    if (measured.errors) return setResultAndStopExecution({ errors: measured.errors });
    return {
      onExecuteDone({ result, setResult }) {
        if (Symbol.asyncIterator in result) return;
        setResult({ ...result, extensions: { ...result.extensions, cost: measured.cost } });
      },
    };
  },
  onSubscribe({ args, setResultAndStopExecution }) {
    const { errors } = measureOperation(args);
    if (errors) setResultAndStopExecution({ errors });
  },
};

/** @throws GraphQLError above the limit. Invalid syntax is left to the parser. */
function countTokens(source: Source): void {
  const lexer = new Lexer(source);
  for (let count = 0; ; count++) {
    if (count > MAX_TOKENS) throw tooLarge('tokens', MAX_TOKENS);
    try {
      if (lexer.advance().kind === TokenKind.EOF) return;
    } catch {
      return;
    }
  }
}

type OperationCost =
  | { errors: readonly GraphQLError[]; cost?: undefined }
  | { errors?: undefined; cost?: { requested: number; maximum: number } };

/**
 * Computes the cost of an operation. An invalid variable is an error here: during execution it would fail only one
 * field, and the rest would run without having been measured.
 */
/** Coerces the variables, so it also finds those with wrong values. */
function measureOperation(args: ExecutionArgs): OperationCost {
  const { schema, document, operationName, variableValues } = args;
  const operation = getOperationAST(document, operationName);
  if (!operation) return {};
  const variables = { ...variableValues };
  try {
    const { complexity: requested, depth } = complexityFromQuery(
      withSingleOperation(document, operation),
      { schema, variables },
    );
    if (depth > MAX_DEPTH) return { errors: [tooLarge('depth', MAX_DEPTH, depth)] };
    if (requested > MAX_COST) return { errors: [tooLarge('cost', MAX_COST, requested)] };
    return { cost: { requested, maximum: MAX_COST } };
  } catch (error) {
    if (error instanceof GraphQLError) return { errors: [findWrongVariable(args) ?? error] };
    throw error;
  }
}

/** Removes the other operations, because `complexityFromQuery` measures the first one. */
function withSingleOperation(
  document: DocumentNode,
  operation: OperationDefinitionNode,
): DocumentNode {
  const definitions = document.definitions.filter(
    (node) => node.kind !== Kind.OPERATION_DEFINITION || node === operation,
  );
  return { ...document, definitions };
}
