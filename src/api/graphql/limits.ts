/**
 * How large an operation may be: in tokens before it is parsed; in depth and cost before it is executed, where
 * its variables are known and with them the sizes of the lists it asks for (docs/graphql.md).
 *
 * An operation costs 1 for each field, times the sizes of the lists the field stands in, and more for fields
 * that start a process; fields say it themselves (`complexity` in the schema). REST's stored operations do not
 * pass here: we wrote them, and their lists are bounded.
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

/** Introspection takes 250 tokens, and a screen of a front end some hundred. Validation takes time by their square. */
export const MAX_TOKENS = 2_000;
/** Fields within each other. How deep an introspection goes is limited by GraphQL's own rules. */
export const MAX_DEPTH = 15;
/** A hundred jobs with attempts, five lines and repository take 18,000; fifty repositories with branches, commits and tree 30,000. */
export const MAX_COST = 50_000;

type Limit = 'tokens' | 'depth' | 'cost';

/** A refusal with a code of its own. `requested` is left out where counting stopped at the limit. */
function tooLarge(limit: Limit, maximum: number, requested?: number): GraphQLError {
  const found = requested === undefined ? '' : `, and this operation has ${requested}`;
  return new GraphQLError(`The limit of ${limit} is ${maximum}${found}`, {
    extensions: { code: 'LIMIT_EXCEEDED', limit, maximum, ...(requested && { requested }) },
  });
}

/** Refuses an operation that is too large, and answers in `extensions.cost` what it cost. */
export const useLimits: Plugin = {
  onParse({ setParseFn }) {
    setParseFn((source: string | Source, options?: object) => {
      const text = typeof source === 'string' ? new Source(source) : source;
      countTokens(text);
      return parse(text, options);
    });
  },
  onExecute({ args, setResultAndStopExecution }) {
    const measured = measure(args);
    if (measured.errors) return setResultAndStopExecution({ errors: measured.errors });
    return {
      onExecuteDone({ result, setResult }) {
        if (Symbol.asyncIterator in result) return;
        setResult({ ...result, extensions: { ...result.extensions, cost: measured.cost } });
      },
    };
  },
  onSubscribe({ args, setResultAndStopExecution }) {
    const { errors } = measure(args);
    if (errors) setResultAndStopExecution({ errors });
  },
};

/** @throws GraphQLError past the limit. Text that is no GraphQL is refused by the parser. */
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

export type Measured =
  | { errors: readonly GraphQLError[]; cost?: undefined }
  | { errors?: undefined; cost?: { requested: number; maximum: number } };

type Asked = Pick<ExecutionArgs, 'schema' | 'document' | 'operationName' | 'variableValues'>;

/**
 * What the operation that is about to run costs. A wrong value of a variable ends it here: executed, it would
 * fail in its one place, and the rest would have been let pass unmeasured.
 */
export function measure({ schema, document, operationName, variableValues }: Asked): Measured {
  const operation = getOperationAST(document, operationName);
  if (!operation) return {};
  const variables = { ...variableValues };
  try {
    const found = complexityFromQuery(only(document, operation), { schema, variables });
    const { complexity: requested, depth } = found;
    if (depth > MAX_DEPTH) return { errors: [tooLarge('depth', MAX_DEPTH, depth)] };
    if (requested > MAX_COST) return { errors: [tooLarge('cost', MAX_COST, requested)] };
    return { cost: { requested, maximum: MAX_COST } };
  } catch (error) {
    if (error instanceof GraphQLError) return { errors: [error] };
    throw error;
  }
}

/** The document with this operation alone, for a measure that takes the first one it finds. */
function only(document: DocumentNode, operation: OperationDefinitionNode): DocumentNode {
  const definitions = document.definitions.filter(
    (node) => node.kind !== Kind.OPERATION_DEFINITION || node === operation,
  );
  return { ...document, definitions };
}
