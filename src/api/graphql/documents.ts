/**
 * Queries that were executed before, by their text: parsed, valid, within the limits, and compiled from the second time on.
 *
 * Compiled code turns a variable that was left out of an input object into null, so a query with a variable in one is left
 * to the interpreter; and so are introspection, and whatever else does not compile.
 */
import {
  type DocumentNode,
  type ExecutionResult,
  type GraphQLSchema,
  getOperationAST,
  getVariableValues,
  type OperationDefinitionNode,
  TypeInfo,
  valueFromASTUntyped,
  visit,
  visitWithTypeInfo,
} from 'graphql';
import { compileQuery, isCompiledQuery } from 'graphql-jit';
import { LRUCache } from 'lru-cache';
import type { Context } from '../../platform/schema/context.ts';
import { measureOperation, type OperationCost } from './limits.ts';

export type Prepared = {
  operation: OperationDefinitionNode;
  document: DocumentNode;
  /** Undefined where the values are wrong, or too much is asked for: who else executes it says so. */
  costOf(variables: Record<string, unknown>): NonNullable<OperationCost['cost']> | undefined;
  run(
    context: Context,
    variables: Record<string, unknown>,
  ): Promise<ExecutionResult> | ExecutionResult;
};

/** A front end has some hundred. A parsed document takes some hundred times its text. */
const MAX_DOCUMENTS = 300;
const MAX_CHARACTERS = 300_000;

type Known = { document: DocumentNode; operations: Map<string, Prepared | null> };

export class Documents {
  readonly #schema: GraphQLSchema;
  readonly #known = new LRUCache<string, Known>({
    max: MAX_DOCUMENTS,
    maxSize: MAX_CHARACTERS,
    sizeCalculation: (_known, text) => text.length + 1,
  });

  constructor(schema: GraphQLSchema) {
    this.#schema = schema;
  }

  /** Of a document that is valid, and about to be executed. */
  note(document: DocumentNode): void {
    const text = document.loc?.source.body;
    if (text !== undefined && !this.#known.has(text))
      this.#known.set(text, { document, operations: new Map() });
  }

  /** Null for what is no query that can be answered so, and at the first time. */
  find(text: string, operationName: string | undefined): Prepared | null {
    const known = this.#known.get(text);
    if (!known) return null;
    const name = operationName ?? '';
    const found = known.operations.get(name);
    if (found !== undefined) return found;
    const operation = getOperationAST(known.document, operationName);
    // Names that no operation has would be kept without end.
    if (!operation) return null;
    const prepared = prepare(this.#schema, known.document, operation);
    known.operations.set(name, prepared);
    return prepared;
  }
}

function prepare(
  schema: GraphQLSchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
): Prepared | null {
  const operationName = operation.name?.value;
  if (operation.operation !== 'query' || !canBeCompiled(document)) return null;
  const compiled = compileQuery(schema, document, operationName, {
    disablingCapturingStackErrors: true,
  });
  if (!isCompiledQuery(compiled)) return null;
  const hasVariables = (operation.variableDefinitions ?? []).length > 0;
  const measured = (variableValues: Record<string, unknown>) =>
    measureOperation({ schema, document, operationName, variableValues }).cost;
  const defaults = defaultsOf(operation);
  const known = decidedByVariables(schema, document) ? undefined : measured({});
  return {
    operation,
    document,
    costOf(variables) {
      if (hasVariables && !areRight(schema, operation, variables)) return undefined;
      return known ?? measured(variables);
    },
    run: (context, variables) => compiled.query(undefined, context, { ...defaults, ...variables }),
  };
}

/** As a client would send them: compiled code takes the internal value of an enum for a wrong one. */
function defaultsOf({ variableDefinitions = [] }: OperationDefinitionNode) {
  return Object.fromEntries(
    variableDefinitions.flatMap(({ variable, defaultValue }) =>
      defaultValue ? [[variable.name.value, valueFromASTUntyped(defaultValue)]] : [],
    ),
  );
}

function areRight(
  schema: GraphQLSchema,
  { variableDefinitions = [] }: OperationDefinitionNode,
  variables: Record<string, unknown>,
): boolean {
  return (
    getVariableValues(schema, variableDefinitions, variables, { maxErrors: 1 }).coerced !==
    undefined
  );
}

function canBeCompiled(document: DocumentNode): boolean {
  let can = true;
  visit(document, {
    Field({ name: { value } }) {
      if (value === '__schema' || value === '__type') can = false;
    },
    ObjectValue(object) {
      visit(object, {
        Variable() {
          can = false;
        },
      });
    },
  });
  return can;
}

/** Whether the cost of a field depends on what a variable says. */
function decidedByVariables(schema: GraphQLSchema, document: DocumentNode): boolean {
  let isDecided = false;
  const types = new TypeInfo(schema);
  const visitor = visitWithTypeInfo(types, {
    Field({ arguments: given = [] }) {
      if (typeof types.getFieldDef()?.extensions.complexity !== 'function') return;
      for (const argument of given)
        visit(argument, {
          Variable() {
            isDecided = true;
          },
        });
    },
  });
  visit(document, visitor);
  return isDecided;
}
