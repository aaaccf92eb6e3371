import { queryFromInfo } from '@pothos/plugin-prisma';
import type { GraphQLResolveInfo } from 'graphql';
import type { Context } from './context.ts';

/** The columns that an operation asks for, as Pothos found them; the id alone when it asks for none. */
export function selectOf<S>(query: object): S {
  return ((query as { select?: S }).select ?? { id: true }) as S;
}

/** The columns asked for of what stands under a field of the answer, such as `repository` of a payload. */
export function selectAt<S>(context: Context, info: GraphQLResolveInfo, field: string): S {
  return selectOf<S>(queryFromInfo({ context, info, path: [field] }));
}

/** The columns asked for of the nodes of a connection. */
export function selectOfNodes<S>(context: Context, info: GraphQLResolveInfo): S {
  return selectOf<S>(queryFromInfo({ context, info, paths: [['nodes'], ['edges', 'node']] }));
}
