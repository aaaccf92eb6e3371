/** Directives with which a stored operation says what only REST needs. They do not change how it is executed. */
import {
  buildASTSchema,
  type FieldNode,
  getDirectiveValues,
  parse,
  type VariableDefinitionNode,
} from 'graphql';

export const directives = parse(`
  "Null is left out of the answer: what the specification has 'present only when …' is never null."
  directive @absentWhenNull on FIELD
  "Nullable in the schema, never null in this operation."
  directive @alwaysPresent on FIELD
  "A list of names and values here, in REST an object whose values are strings."
  directive @stringMap on FIELD | VARIABLE_DEFINITION
  "Its fields stand in the object around it: GraphQL names what a mutation made, REST answers it flat."
  directive @inline on FIELD
  "Limits for the OpenAPI document; the domain enforces them."
  directive @range(min: Int, max: Int) on VARIABLE_DEFINITION
  directive @length(min: Int, max: Int) on VARIABLE_DEFINITION
  directive @choices(values: [Int!]!) on VARIABLE_DEFINITION
  "The values of an enum that REST takes, in their wire form, where GraphQL takes more."
  directive @among(values: [String!]!) on VARIABLE_DEFINITION
  "Null is a value of its own, and not the same as leaving it out."
  directive @nullable on VARIABLE_DEFINITION
`);

type Arguments = {
  absentWhenNull: object;
  alwaysPresent: object;
  stringMap: object;
  inline: object;
  range: { min?: number; max?: number };
  length: { min?: number; max?: number };
  choices: { values: number[] };
  among: { values: string[] };
  nullable: object;
};

const defined = buildASTSchema(directives, { assumeValid: true });

/** The arguments of a directive on a node; undefined where it is not. */
export function directive<Name extends keyof Arguments>(
  name: Name,
  node: FieldNode | VariableDefinitionNode,
): Arguments[Name] | undefined {
  const definition = defined.getDirective(name);
  return definition
    ? (getDirectiveValues(definition, node as FieldNode) as Arguments[Name] | undefined)
    : undefined;
}
