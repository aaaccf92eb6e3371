/** How repositories are read where it must be cheap. */
import { type Rows, rowsOf } from '../platform/database/rows.ts';
import { collaboratorColumns } from './collaborators.ts';

export const repositoryRows: Rows = rowsOf({
  model: 'Repository',
  from: 'repositories r join namespaces n on n.id = r.namespace_id',
  relations: {
    namespace: {
      model: 'Namespace',
      alias: 'n',
      handmade: {
        _count: {
          select: collaboratorColumns.namespace.select._count,
          sql: `(select json_build_object('members', count(*)) from members m
            where m.namespace_id = n.id and m.role in ('write', 'admin'))`,
        },
      },
    },
  },
});
