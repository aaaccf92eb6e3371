/**
 * The response of an operation: where its body is in the data of GraphQL, and the type of the body. The type is derived
 * from the selections, with aliases as field names. A selection of a single fragment gives the type its name.
 */
import {
  buildASTSchema,
  type DocumentNode,
  type FieldNode,
  type FragmentDefinitionNode,
  type GraphQLFieldConfigMap,
  GraphQLList,
  GraphQLNonNull,
  GraphQLObjectType,
  type GraphQLOutputType,
  type GraphQLSchema,
  getDirectiveValues,
  getNamedType,
  getNullableType,
  isListType,
  isNonNullType,
  isObjectType,
  Kind,
  type OperationDefinitionNode,
  parse,
  type SelectionSetNode,
  type VariableDefinitionNode,
} from 'graphql';

export type ResponseShape = {
  type: GraphQLOutputType;
  /** Extracts the body from the data of the operation, without the fields that REST omits when they are null. */
  extractBody(data: unknown): unknown;
};

/** The directives of a response field, in the `extensions` of the field. */
export type FieldExtensions = { absentWhenNull?: boolean; stringMap?: boolean };
/** The keys whose fields move up into the object itself, in the `extensions` of its type. */
type TypeExtensions = { inlined?: string[] };

/** The field of an operation that is the body. Without this field, the whole data is the body. */
const BODY = 'answer';

export function createShapeReader(schema: GraphQLSchema) {
  /** Shared by all operations, because a schema may have only one type of a name. */
  const types = new Map<string, GraphQLObjectType>();

  return (document: DocumentNode, operation: OperationDefinitionNode): ResponseShape => {
    const fragments = new Map<string, FragmentDefinitionNode>();
    for (const node of document.definitions)
      if (node.kind === Kind.FRAGMENT_DEFINITION) fragments.set(node.name.value, node);

    const root = schema.getRootType(operation.operation) as GraphQLObjectType;
    const name = operation.name?.value ?? '';
    const path = pathToBody(operation.selectionSet);
    const type = path
      ? // Non-null: the body is null only if there is an error, and then it is not sent.
        new GraphQLNonNull(getNullableType(typeAt(root, operation.selectionSet, path)))
      : new GraphQLNonNull(typeOf(root, operation.selectionSet, `${name}Answer`));
    const reshape = reshaper(type);
    return {
      type,
      extractBody(data) {
        const body = (path ?? []).reduce<unknown>((at, key) => (at as Tree)[key], data);
        reshape?.(body);
        return body;
      },
    };

    function typeAt(
      parent: GraphQLObjectType,
      { selections }: SelectionSetNode,
      [key, ...rest]: string[],
    ): GraphQLOutputType {
      const node = selections.find((s) => s.kind === Kind.FIELD && keyOf(s) === key) as FieldNode;
      const field = fieldOf(parent, node);
      if (rest.length === 0) return wrap(field.type, named(field.type, node, `${name}Answer`));
      return typeAt(getNamedType(field.type) as GraphQLObjectType, selectionsOf(node), rest);
    }

    function typeOf(parent: GraphQLObjectType, set: SelectionSetNode, fallback: string) {
      const [only, ...others] = set.selections;
      const typeName =
        only?.kind === Kind.FRAGMENT_SPREAD && others.length === 0
          ? only.name.value
          : upperFirst(fallback);
      const known = types.get(typeName);
      if (known) return known;
      const inlined: string[] = [];
      const type = new GraphQLObjectType({
        name: typeName,
        fields: fieldsOf(parent, set, typeName, inlined),
        extensions: { inlined } satisfies TypeExtensions,
      });
      types.set(typeName, type);
      return type;
    }

    function fieldsOf(
      parent: GraphQLObjectType,
      set: SelectionSetNode,
      typeName: string,
      inlined: string[],
    ) {
      const fields: GraphQLFieldConfigMap<unknown, unknown> = {};
      for (const node of set.selections) {
        if (node.kind === Kind.FRAGMENT_SPREAD) {
          const fragment = fragments.get(node.name.value) as FragmentDefinitionNode;
          Object.assign(fields, fieldsOf(parent, fragment.selectionSet, typeName, inlined));
        } else if (node.kind === Kind.FIELD) {
          const { type, description } = fieldOf(parent, node);
          const key = keyOf(node);
          if (directiveArguments('inline', node)) {
            inlined.push(key);
            const inner = getNamedType(type) as GraphQLObjectType;
            Object.assign(fields, fieldsOf(inner, selectionsOf(node), typeName, inlined));
            continue;
          }
          const inner = named(type, node, `${typeName}${upperFirst(key)}`);
          const always = directiveArguments('alwaysPresent', node) && !isNonNullType(type);
          fields[key] = {
            type: always ? new GraphQLNonNull(wrap(type, inner) as never) : wrap(type, inner),
            description,
            extensions: {
              absentWhenNull: directiveArguments('absentWhenNull', node) !== undefined,
              stringMap: directiveArguments('stringMap', node) !== undefined,
            } satisfies FieldExtensions,
          };
        }
      }
      return fields;
    }

    function named(type: GraphQLOutputType, node: FieldNode, fallback: string): GraphQLOutputType {
      const core = getNamedType(type);
      return isObjectType(core) ? typeOf(core, selectionsOf(node), fallback) : core;
    }
  };
}

function pathToBody({ selections }: SelectionSetNode): string[] | undefined {
  for (const node of selections) {
    if (node.kind !== Kind.FIELD) continue;
    if (keyOf(node) === BODY) return [BODY];
    const rest = node.selectionSet && pathToBody(node.selectionSet);
    if (rest) return [keyOf(node), ...rest];
  }
  return undefined;
}

function fieldOf(parent: GraphQLObjectType, node: FieldNode) {
  const field = parent.getFields()[node.name.value];
  if (!field) throw new Error(`${parent.name} has no field ${node.name.value}`);
  return field;
}

function selectionsOf(node: FieldNode): SelectionSetNode {
  return node.selectionSet ?? { kind: Kind.SELECTION_SET, selections: [] };
}

/** Wraps `inner` in the lists and non-nulls of `outer`. */
function wrap(outer: GraphQLOutputType, inner: GraphQLOutputType): GraphQLOutputType {
  if (isNonNullType(outer)) return new GraphQLNonNull(wrap(outer.ofType, inner) as never);
  if (isListType(outer)) return new GraphQLList(wrap(outer.ofType, inner));
  return inner;
}

type Tree = Record<string, unknown>;
type Reshape = (value: unknown) => void;

/**
 * Converts a value from the form of GraphQL to that of REST, in place: inlined fields move up, lists of names and values
 * become objects, and fields to omit become undefined, which JSON leaves out.
 * @returns undefined if values of the type need no conversion
 */
function reshaper(type: GraphQLOutputType): Reshape | undefined {
  const nullable = getNullableType(type);
  if (isListType(nullable)) {
    const each = reshaper(nullable.ofType);
    return each && ((list) => (list as unknown[] | null)?.forEach(each));
  }
  if (!isObjectType(nullable)) return undefined;
  const steps: Reshape[] = [];
  for (const key of (nullable.extensions as TypeExtensions).inlined ?? [])
    steps.push((value) => {
      const tree = value as Tree;
      Object.assign(tree, tree[key]);
      tree[key] = undefined;
    });
  for (const field of Object.values(nullable.getFields())) {
    const { name } = field;
    const { absentWhenNull, stringMap } = field.extensions as FieldExtensions;
    if (stringMap) {
      steps.push((value) => {
        const tree = value as Tree;
        tree[name] = toStringMap(tree[name] as NamedValue[]);
      });
      continue;
    }
    const inner = reshaper(field.type);
    if (inner) steps.push((value) => inner((value as Tree)[name]));
    if (absentWhenNull)
      steps.push((value) => {
        const tree = value as Tree;
        if (tree[name] === null) tree[name] = undefined;
      });
  }
  if (steps.length === 0) return undefined;
  return (value) => {
    if (value != null) for (const step of steps) step(value);
  };
}

type NamedValue = { name: string; value: string };

function toStringMap(list: NamedValue[]): Record<string, string> {
  return Object.fromEntries(list.map(({ name, value }) => [name, value]));
}

function keyOf(node: FieldNode): string {
  return node.alias?.value ?? node.name.value;
}

function upperFirst(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Directives for what only REST needs to know of a stored operation. They do not change its execution. */
export const directives = parse(`
  "REST omits the field when it is null: fields that are 'present only when …' are never null."
  directive @absentWhenNull on FIELD
  "Nullable in the schema, never null in this operation."
  directive @alwaysPresent on FIELD
  "A list of names and values in GraphQL, an object with string values in REST."
  directive @stringMap on FIELD | VARIABLE_DEFINITION
  "Its fields move up into the enclosing object: GraphQL payloads name the created object, REST returns it flat."
  directive @inline on FIELD
  "Limits for the OpenAPI document only: domain code enforces them."
  directive @range(min: Int, max: Int) on VARIABLE_DEFINITION
  directive @length(min: Int, max: Int) on VARIABLE_DEFINITION
  "The allowed values and the default are those of the catalogue of hardware, which the domain knows."
  directive @catalogue on VARIABLE_DEFINITION
  "The values of an enum that REST accepts, in their wire form, if GraphQL accepts more."
  directive @among(values: [String!]!) on VARIABLE_DEFINITION
  "Null is a value, and differs from an omitted parameter."
  directive @nullable on VARIABLE_DEFINITION
`);

type Arguments = {
  absentWhenNull: object;
  alwaysPresent: object;
  stringMap: object;
  inline: object;
  range: { min?: number; max?: number };
  length: { min?: number; max?: number };
  catalogue: object;
  among: { values: string[] };
  nullable: object;
};

const directiveSchema = buildASTSchema(directives, { assumeValid: true });

/** @returns the arguments of a directive on a node; undefined if the node does not have it */
export function directiveArguments<Name extends keyof Arguments>(
  name: Name,
  node: FieldNode | VariableDefinitionNode,
): Arguments[Name] | undefined {
  const definition = directiveSchema.getDirective(name);
  return definition
    ? (getDirectiveValues(definition, node as FieldNode) as Arguments[Name] | undefined)
    : undefined;
}
