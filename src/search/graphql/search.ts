/** Going anywhere, in GraphQL. */
import { queryFromInfo } from '@pothos/plugin-prisma';
import { Namespace } from '../../identity/graphql/namespaces.ts';
import { Job } from '../../jobs/graphql/jobs.ts';
import { MAX_FIRST } from '../../platform/database/paging.ts';
import { builder } from '../../platform/schema/builder.ts';
import { pageCost } from '../../platform/schema/paging.ts';
import { selectOf } from '../../platform/schema/select.ts';
import { Repository } from '../../repositories/graphql/repositories.ts';
import { type ResultKind, type SearchHit, search } from '../search.ts';

const SearchResult = builder.unionType('SearchResult', {
  description: 'What one can go to.',
  types: [Namespace, Repository, Job],
  resolveType: (found) => (found as unknown as SearchHit).__typename,
});

builder.queryField('search', (t) =>
  t.field({
    type: [SearchResult],
    nullable: true,
    description:
      'Namespaces, repositories and jobs that the viewer may see, by their names, the best first. Anything of the namespaces of the viewer is found by the beginning of its name, and what is of late by any words of it; of other namespaces their names, and repositories that are open to all. `acme/tr` looks in the namespace `acme` alone.',
    // To find them takes several statements, however few they are.
    complexity: pageCost(20),
    args: {
      text: t.arg.string({
        required: true,
        description: 'The beginning of a name, or words of it: 1 to 200 characters.',
      }),
      first: t.arg.int({
        required: true,
        defaultValue: 20,
        description: `How many to find: 1 to ${MAX_FIRST}. More is refused.`,
      }),
    },
    resolve: async (_root, args, context, info) => {
      const select = (typeName: ResultKind) =>
        selectOf<object>(queryFromInfo({ context, info, typeName }));
      const { services, viewer } = context;
      return (await search(services, viewer, args, {
        Namespace: select('Namespace'),
        Repository: select('Repository'),
        Job: select('Job'),
      })) as never;
    },
  }),
);
