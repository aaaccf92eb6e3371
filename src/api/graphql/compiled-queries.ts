/**
 * A cache of parsed and validated queries by their text. Each is compiled when it is requested for the second time.
 *
 * Not compiled: introspection, and queries with a variable inside an input object, because compiled code turns an omitted
 * variable there into null.
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

export type CompiledQuery = {
  operation: OperationDefinitionNode;
  document: DocumentNode;
  /** @returns undefined if a variable is invalid or a limit is exceeded; Yoga then responds with the error */
  costOf(variables: Record<string, unknown>): NonNullable<OperationCost['cost']> | undefined;
  run(
    context: Context,
    variables: Record<string, unknown>,
  ): Promise<ExecutionResult> | ExecutionResult;
};

/** A front end has about a hundred queries. A parsed document takes about a hundred times the memory of its text. */
const MAX_DOCUMENTS = 300;
const MAX_CHARACTERS = 300_000;

/** The operations of a document by name; null for an operation that cannot be compiled. */
type Entry = { document: DocumentNode; operations: Map<string, CompiledQuery | null> };

export class CompiledQueryCache {
  readonly #schema: GraphQLSchema;
  readonly #entries = new LRUCache<string, Entry>({
    max: MAX_DOCUMENTS,
    maxSize: MAX_CHARACTERS,
    sizeCalculation: (_entry, text) => text.length + 1,
  });

  constructor(schema: GraphQLSchema) {
    this.#schema = schema;
  }

  /** `document` must be valid. */
  add(document: DocumentNode): void {
    const text = document.loc?.source.body;
    if (text !== undefined && !this.#entries.has(text))
      this.#entries.set(text, { document, operations: new Map() });
  }

  /** @returns null if the document is not in the cache, or the operation does not exist or cannot be compiled */
  get(text: string, operationName: string | undefined): CompiledQuery | null {
    const entry = this.#entries.get(text);
    if (!entry) return null;
    const name = operationName ?? '';
    const found = entry.operations.get(name);
    if (found !== undefined) return found;
    const operation = getOperationAST(entry.document, operationName);
    // Not stored: a client could fill the memory with names of operations that do not exist.
    if (!operation) return null;
    const compiled = compile(this.#schema, entry.document, operation);
    entry.operations.set(name, compiled);
    return compiled;
  }
}

function compile(
  schema: GraphQLSchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
): CompiledQuery | null {
  const operationName = operation.name?.value;
  if (operation.operation !== 'query' || !canBeCompiled(document)) return null;
  const compiled = compileQuery(schema, document, operationName, {
    disablingCapturingStackErrors: true,
  });
  if (!isCompiledQuery(compiled)) return null;
  const hasVariables = (operation.variableDefinitions ?? []).length > 0;
  const measure = (variableValues: Record<string, unknown>) =>
    measureOperation({ schema, document, operationName, variableValues }).cost;
  const defaults = defaultsOf(operation);
  const fixedCost = doesCostDependOnVariables(schema, document) ? undefined : measure({});
  return {
    operation,
    document,
    costOf(variables) {
      if (hasVariables && !areValid(schema, operation, variables)) return undefined;
      return fixedCost ?? measure(variables);
    },
    run: (context, variables) => compiled.query(undefined, context, { ...defaults, ...variables }),
  };
}

/** The default values in the form in which a client sends values: compiled code refuses internal values of enums. */
function defaultsOf({ variableDefinitions = [] }: OperationDefinitionNode) {
  return Object.fromEntries(
    variableDefinitions.flatMap(({ variable, defaultValue }) =>
      defaultValue ? [[variable.name.value, valueFromASTUntyped(defaultValue)]] : [],
    ),
  );
}

function areValid(
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
  let canCompile = true;
  visit(document, {
    Field({ name: { value } }) {
      if (value === '__schema' || value === '__type') canCompile = false;
    },
    ObjectValue(object) {
      visit(object, {
        Variable() {
          canCompile = false;
        },
      });
    },
  });
  return canCompile;
}

/** Whether an argument that determines the cost of a field contains a variable. */
function doesCostDependOnVariables(schema: GraphQLSchema, document: DocumentNode): boolean {
  let depends = false;
  const types = new TypeInfo(schema);
  const visitor = visitWithTypeInfo(types, {
    Field({ arguments: given = [] }) {
      if (typeof types.getFieldDef()?.extensions.complexity !== 'function') return;
      for (const argument of given)
        visit(argument, {
          Variable() {
            depends = true;
          },
        });
    },
  });
  visit(document, visitor);
  return depends;
}
