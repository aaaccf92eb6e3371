/** The GraphQL form of a numbered page; one type per kind of node, so that each is typed. */
import type { NumberedPage } from '../paging.ts';
import { builder } from './builder.ts';

/** The arguments every numbered page takes. */
export const pageArgs = {
  page: { defaultValue: 1, description: 'From 1; a page past the end is empty.' },
  perPage: { defaultValue: 20, description: 'From 1 to 100.' },
} as const;

const Pagination = builder.objectRef<NumberedPage<unknown>>('Pagination').implement({
  description: 'Where a numbered page stands in its list.',
  fields: (t) => ({
    page: t.exposeInt('page'),
    perPage: t.exposeInt('perPage'),
    total: t.exposeInt('total'),
    totalPages: t.int({ resolve: ({ total, perPage }) => Math.ceil(total / perPage) }),
  }),
});

/** Defines `{name}` with `nodes` of the type `node`. */
export function pageType<T>(
  name: string,
  node: Parameters<typeof builder.objectRef<T>>[0] | object,
) {
  return builder.objectRef<NumberedPage<T>>(name).implement({
    description:
      'A page by number, as REST has it; where the list has a connection, front ends scroll with that.',
    fields: (t) => ({
      nodes: t.field({ type: [node] as never, resolve: (page) => page.nodes as never }),
      page: t.exposeInt('page'),
      perPage: t.exposeInt('perPage'),
      total: t.exposeInt('total'),
      totalPages: t.int({ resolve: ({ total, perPage }) => Math.ceil(total / perPage) }),
      pagination: t.field({
        type: Pagination,
        description: 'The four numbers above in one object, as REST answers them.',
        resolve: (page) => page,
      }),
    }),
  });
}
