/** The columns that an operation asks for, found by Pothos. */
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
import { needsNoPlan } from './loaded-rows.ts';

/** The columns of Pothos's `query`; the id alone when the operation asks for none. */
export function selectOf<S>(query: object): S {
  return ((query as { select?: S }).select ?? { id: true }) as S;
}

/** The columns asked for of what the field answers. */
export function selectHere<S>(context: Context, info: GraphQLResolveInfo): S {
  return select<S>(context, info, '', {});
}

/** The columns asked for of what stands under a field of the answer, such as `repository` of a payload. */
export function selectAt<S>(context: Context, info: GraphQLResolveInfo, field: string): S {
  return select<S>(context, info, field, { path: [field] });
}

/** The columns asked for of the nodes of a connection. */
export function selectOfNodes<S>(context: Context, info: GraphQLResolveInfo): S {
  return select<S>(context, info, 'nodes or edges', { paths: [['nodes'], ['edges', 'node']] });
}

type Where = { path?: string[]; paths?: string[][] };

/** By the field of a document that is kept, and by where below it they were asked for; null: not always the same. */
const known = new WeakMap<FieldNode, Map<string, object | null>>();

function select<S>(context: Context, info: GraphQLResolveInfo, key: string, where: Where): S {
  const [field] = info.fieldNodes as [FieldNode];
  // Of a field that is asked for in several places at once, each place has a part.
  if (info.fieldNodes.length > 1) return selectOf<S>(queryFromInfo({ context, info, ...where }));
  const kept = known.get(field);
  const found = kept?.get(key);
  if (found) return found as S;
  const made = selectOf<S>(queryFromInfo({ context, info, ...where }));
  if (found === null) return made;
  const isKept = isAlwaysTheSame(info, field);
  known.set(
    field,
    (kept ?? new Map<string, object | null>()).set(key, isKept ? (made as object) : null),
  );
  return made;
}

/**
 * Whether no variable decides what is selected under a field. What Pothos finds it also notes for the fields below, which
 * look there whether they were loaded; so they must all be of those that look at the row instead (`loaded-rows.ts`).
 */
function isAlwaysTheSame(
  { fragments, schema, returnType }: GraphQLResolveInfo,
  field: FieldNode,
): boolean {
  let isSame = true;
  const seen = new Set<string>();
  const look = (node: Parameters<typeof visit>[0], type: GraphQLOutputType) => {
    const types = new TypeInfo(schema, type);
    const visitor = visitWithTypeInfo(types, {
      Variable() {
        isSame = false;
      },
      Field() {
        const definition = types.getFieldDef();
        if (definition && !needsNoPlan(definition)) isSame = false;
      },
      FragmentSpread({ name: { value } }) {
        const fragment = fragments[value];
        const on = fragment && schema.getType(fragment.typeCondition.name.value);
        if (fragment && isCompositeType(on) && !seen.has(value))
          look(seen.add(value) && fragment, on);
      },
    });
    visit(node, visitor);
  };
  if (field.selectionSet) look(field.selectionSet, getNamedType(returnType));
  return isSame && field.directives?.every(({ arguments: given }) => given?.length === 0) !== false;
}
