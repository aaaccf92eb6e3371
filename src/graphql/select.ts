/** The columns that an operation asks for, found by Pothos. */
import { queryFromInfo } from '@pothos/plugin-prisma';
import { type FieldNode, type GraphQLResolveInfo, visit } from 'graphql';
import type { Context } from './context.ts';

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

/** By the field of a stored operation, and by where below it they were asked for. */
const known = new WeakMap<FieldNode, Map<string, object>>();

function select<S>(context: Context, info: GraphQLResolveInfo, key: string, where: Where): S {
  const [field] = info.fieldNodes as [FieldNode];
  const kept = known.get(field);
  const found = kept?.get(key);
  if (found) return found as S;
  const made = selectOf<S>(queryFromInfo({ context, info, ...where }));
  // What Pothos finds it also notes for the fields below, which look there whether they were loaded. Those of stored
  // operations look at the row instead (`rest/executable.ts`).
  if (info.schema.extensions.looksAtRows && isAlwaysTheSame(info, field))
    known.set(field, (kept ?? new Map<string, object>()).set(key, made as object));
  return made;
}

/** Whether no variable decides what is selected under a field. */
function isAlwaysTheSame({ fragments }: GraphQLResolveInfo, field: FieldNode): boolean {
  let isSame = true;
  const seen = new Set<string>();
  const look = (node: Parameters<typeof visit>[0]) =>
    visit(node, {
      Variable() {
        isSame = false;
      },
      FragmentSpread({ name: { value } }) {
        const fragment = fragments[value];
        if (fragment && !seen.has(value)) look(seen.add(value) && fragment);
      },
    });
  if (field.selectionSet) look(field.selectionSet);
  return isSame && field.directives?.every(({ arguments: given }) => given?.length === 0) !== false;
}
