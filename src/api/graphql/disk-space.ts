/** What the floor of free disk means for GraphQL, and so for REST, whose writes are mutations. */
import type { GraphQLSchema } from 'graphql';
import type { Context } from '../../platform/schema/context.ts';

/** What ends or removes something frees space, and may be how the operator mends it. */
const FREES = /^(cancel|delete|remove|revoke)[A-Z]/;

/** Makes every other mutation ask first whether there is space. Changes the schema that it is given. */
export function demandDiskSpace(schema: GraphQLSchema): GraphQLSchema {
  for (const field of Object.values(schema.getMutationType()?.getFields() ?? {})) {
    const { name, resolve } = field;
    if (FREES.test(name) || !resolve) continue;
    field.resolve = (source, args, context: Context, info) => {
      context.services.space.demand();
      return resolve(source, args, context, info);
    };
  }
  return schema;
}
