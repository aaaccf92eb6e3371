/** Reads the stored operations from `operations/`, checks them against the schema, and derives their REST interface. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  concatAST,
  type DocumentNode,
  extendSchema,
  type GraphQLArgument,
  type GraphQLInputField,
  type GraphQLInputType,
  type GraphQLSchema,
  getNamedType,
  isInputObjectType,
  isNonNullType,
  Kind,
  type OperationDefinitionNode,
  parse,
  Source,
  separateOperations,
  TypeInfo,
  typeFromAST,
  validate,
  visit,
  visitWithTypeInfo,
} from 'graphql';
import {
  createShapeReader,
  directiveArguments,
  directives,
  type ResponseShape,
} from './response-shape.ts';
import { enumValues } from './rest-schema.ts';

const FOLDER = join(import.meta.dirname, 'operations');

export type Parameter = {
  name: string;
  required: boolean;
  type: GraphQLInputType;
  description?: string;
  /** The default value. */
  fallback?: unknown;
  range?: { min?: number; max?: number };
  length?: { min?: number; max?: number };
  /** The allowed values and the default are those of the catalogue of hardware. */
  isOfCatalogue: boolean;
  /** The values of an enum that REST accepts, if not all. */
  among?: string[];
  /** Null is allowed, and differs from an omitted value. */
  nullable: boolean;
  /** A list of names and values, which REST accepts as an object with string values. */
  stringMap: boolean;
};

export type Operation = {
  name: string;
  kind: 'query' | 'mutation';
  document: DocumentNode;
  /** The first line of the description. */
  summary: string;
  description: string;
  parameters: readonly Parameter[];
  response: ResponseShape;
};

/** @throws Error when an operation does not match the schema, so that the server does not start */
export function readOperations(schema: GraphQLSchema): Map<string, Operation> {
  const files = readdirSync(FOLDER).filter((name) => name.endsWith('.graphql'));
  const all = concatAST(
    files.map((name) => parse(new Source(readFileSync(join(FOLDER, name), 'utf8'), name))),
  );
  const problems = validate(extendSchema(schema, directives), all);
  if (problems.length > 0)
    throw new Error(`The stored operations do not match the schema:\n${problems.join('\n\n')}`);

  const readShape = createShapeReader(schema);
  const operations = new Map<string, Operation>();
  for (const [name, document] of Object.entries(separateOperations(all))) {
    const definition = document.definitions.find((d) => d.kind === Kind.OPERATION_DEFINITION);
    if (!definition || definition.operation === 'subscription')
      throw new Error(`${name}: REST serves only queries and mutations`);
    const [summary = '', ...description] = (definition.description?.value ?? '').split('\n');
    operations.set(name, {
      name,
      kind: definition.operation,
      document,
      summary,
      description: description.join('\n').trim(),
      parameters: readParameters(schema, document, definition),
      response: readShape(document, definition),
    });
  }
  return operations;
}

function readParameters(
  schema: GraphQLSchema,
  document: DocumentNode,
  { variableDefinitions = [] }: OperationDefinitionNode,
): Parameter[] {
  const uses = findVariableUses(schema, document);
  return variableDefinitions.map((definition) => {
    const name = definition.variable.name.value;
    const type = typeFromAST(schema, definition.type as never) as GraphQLInputType;
    const use = uses.get(name);
    const { defaultValue } = definition;
    return {
      name,
      type,
      required: isNonNullType(type),
      description: definition.description?.value ?? use?.description ?? undefined,
      fallback: defaultValue && 'value' in defaultValue ? defaultValue.value : use?.defaultValue,
      range: directiveArguments('range', definition),
      length: directiveArguments('length', definition),
      isOfCatalogue: directiveArguments('catalogue', definition) !== undefined,
      among: checkAmong(name, type, directiveArguments('among', definition)?.values),
      nullable: directiveArguments('nullable', definition) !== undefined,
      stringMap: directiveArguments('stringMap', definition) !== undefined,
    };
  });
}

/** @throws Error for a value that the enum does not have */
function checkAmong(name: string, type: GraphQLInputType, values?: string[]): string[] | undefined {
  const unknown = values?.filter((value) => !enumValues(type)?.includes(value)) ?? [];
  if (unknown.length > 0) throw new Error(`${name}: the enum has no ${unknown.join()}`);
  return values;
}

/** Maps each variable to the argument or input field that it is passed to, which has the default and the description. */
function findVariableUses(schema: GraphQLSchema, document: DocumentNode) {
  const uses = new Map<string, GraphQLArgument | GraphQLInputField>();
  const info = new TypeInfo(schema);
  visit(
    document,
    visitWithTypeInfo(info, {
      Argument({ value }) {
        const argument = info.getArgument();
        if (value.kind === Kind.VARIABLE && argument) uses.set(value.name.value, argument);
      },
      ObjectField({ name, value }) {
        const parent = getNamedType(info.getParentInputType());
        const field = isInputObjectType(parent) ? parent.getFields()[name.value] : undefined;
        if (value.kind === Kind.VARIABLE && field) uses.set(value.name.value, field);
      },
    }),
  );
  return uses;
}
