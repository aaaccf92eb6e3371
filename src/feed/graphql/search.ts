/** Search in GraphQL. */
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
  description: 'A result of a search.',
  types: [Namespace, Repository, Job],
  resolveType: (found) => (found as unknown as SearchHit).__typename,
});

builder.queryField('search', (t) =>
  t.field({
    type: [SearchResult],
    nullable: true,
    description:
      'Searches the names of namespaces, repositories and jobs that the viewer may see; the best match comes first. In namespaces of the viewer, a name prefix finds everything, and words inside a name find recent objects. Elsewhere, a name prefix finds namespaces, and repositories that are open to all. `acme/tr` searches only in the namespace `acme`.',
    // The search runs several statements, independent of the number of results.
    complexity: pageCost(20),
    args: {
      text: t.arg.string({
        required: true,
        description: 'The beginning of a name, or words in it: 1 to 200 characters.',
      }),
      first: t.arg.int({
        required: true,
        defaultValue: 20,
        description: `The maximum number of results: 1 to ${MAX_FIRST}. More is refused.`,
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
