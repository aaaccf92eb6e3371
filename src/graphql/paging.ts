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
    ...numbers(t),
  }),
});

type PageFields<T> = PothosSchemaTypes.ObjectFieldBuilder<
  typeof builder.$inferSchemaTypes,
  NumberedPage<T>
>;

function numbers<T>(t: PageFields<T>) {
  return {
    page: t.exposeInt('page', { description: 'This one, from 1.' }),
    perPage: t.exposeInt('perPage', { description: 'How many stand on a page.' }),
    total: t.exposeInt('total', { description: 'How many there are on all pages.' }),
    totalPages: t.int({
      description: 'How many pages there are.',
      resolve: ({ total, perPage }) => Math.ceil(total / perPage),
    }),
  };
}

/** Defines `{name}` with `nodes` of the type `node`. */
export function pageType<T>(
  name: string,
  node: Parameters<typeof builder.objectRef<T>>[0] | object,
) {
  return builder.objectRef<NumberedPage<T>>(name).implement({
    description: 'A page by number: only for REST. In GraphQL the same list is a connection.',
    fields: (t) => ({
      nodes: t.field({
        type: [node] as never,
        description: 'What stands on the page.',
        resolve: (page) => page.nodes as never,
      }),
      ...numbers(t),
      pagination: t.field({
        type: Pagination,
        description: 'The four numbers above in one object, as REST answers them.',
        resolve: (page) => page,
      }),
    }),
  });
}
