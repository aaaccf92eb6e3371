/** The columns that an operation needs, as determined by Pothos. */
import { queryFromInfo } from '@pothos/plugin-prisma';
import {
  type FieldNode,
  type GraphQLOutputType,
  type GraphQLResolveInfo,
  getNamedType,
  isCompositeType,
  TypeInfo,
  visit,
  visitWithTypeInfo,
} from 'graphql';
import type { Context } from './context.ts';
import { rowAccessOf } from './loaded-rows.ts';

/** The `select` of a Pothos query; only the id if the operation needs no column. */
export function selectOf<S>(query: object): S {
  return ((query as { select?: S }).select ?? { id: true }) as S;
}

/** The columns needed for the type of the field. */
export function selectForField<S>(context: Context, info: GraphQLResolveInfo): S {
  return selectColumns<S>(context, info, '', {});
}

/** The columns needed below one field of the result, such as `repository` of a payload. */
export function selectForChild<S>(context: Context, info: GraphQLResolveInfo, field: string): S {
  return selectColumns<S>(context, info, field, { path: [field] });
}

/** The columns needed for the nodes of a connection. */
export function selectForNodes<S>(context: Context, info: GraphQLResolveInfo): S {
  return selectColumns<S>(context, info, 'nodes or edges', {
    paths: [['nodes'], ['edges', 'node']],
  });
}

type QueryPath = { path?: string[]; paths?: string[][] };

/** Cache by field of a stored document and by the path below it; null: the columns depend on variables. */
const cache = new WeakMap<FieldNode, Map<string, object | null>>();

function selectColumns<S>(
  context: Context,
  info: GraphQLResolveInfo,
  key: string,
  where: QueryPath,
): S {
  const [field] = info.fieldNodes as [FieldNode];
  // A field that occurs several times in the operation has a part of its columns in each.
  if (info.fieldNodes.length > 1) return selectOf<S>(queryFromInfo({ context, info, ...where }));
  const cached = cache.get(field);
  const found = cached?.get(key);
  if (found) return found as S;
  const created = selectOf<S>(queryFromInfo({ context, info, ...where }));
  if (found === null) return created;
  const isConstant = hasConstantColumns(info, field);
  cache.set(
    field,
    (cached ?? new Map<string, object | null>()).set(key, isConstant ? (created as object) : null),
  );
  return created;
}

/**
 * Whether the columns below a field depend on no variable. Pothos also stores its result for the fields below, which check
 * there whether they were loaded; so those fields must all read their row instead (`loaded-rows.ts`).
 */
function hasConstantColumns(
  { fragments, schema, returnType }: GraphQLResolveInfo,
  field: FieldNode,
): boolean {
  let isSame = true;
  const seen = new Set<string>();
  const visitNode = (node: Parameters<typeof visit>[0], type: GraphQLOutputType) => {
    const types = new TypeInfo(schema, type);
    const visitor = visitWithTypeInfo(types, {
      Variable() {
        isSame = false;
      },
      Field() {
        const definition = types.getFieldDef();
        if (definition && rowAccessOf(definition).needsPlan) isSame = false;
      },
      FragmentSpread({ name: { value } }) {
        const fragment = fragments[value];
        const on = fragment && schema.getType(fragment.typeCondition.name.value);
        if (fragment && isCompositeType(on) && !seen.has(value))
          visitNode(seen.add(value) && fragment, on);
      },
    });
    visit(node, visitor);
  };
  if (field.selectionSet) visitNode(field.selectionSet, getNamedType(returnType));
  return isSame && field.directives?.every(({ arguments: given }) => given?.length === 0) !== false;
}
