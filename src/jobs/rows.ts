/** How jobs are read where it must be cheap. */
import type { Visibility } from '../../prisma/generated/enums.ts';
import { type Rows, rowsOf } from '../platform/database/rows.ts';
import { repositoryColumns, type Sourced } from './repository-name.ts';
import { runtimeColumns } from './runtime.ts';

export const jobRows: Rows = rowsOf({
  model: 'Job',
  from: 'jobs r join namespaces n on n.id = r.namespace_id',
  relations: { namespace: { model: 'Namespace', alias: 'n' } },
  handmade: {
    attempts: {
      select: runtimeColumns.attempts,
      // An array of none or one, which has both times.
      sql: `array(select array[a.started_at, a.exited_at] from job_attempts a
        where a.job_id = r.id and a.ended_at is null order by a.number desc limit 1)`,
      read: (open: [Date | null, Date | null][]) =>
        open.map(([startedAt, exitedAt]) => ({ startedAt, exitedAt })),
    },
    repository: {
      select: repositoryColumns.repository,
      sql: `(select json_build_array(p.id, p.namespace_id, p.visibility, p.name, o.name)
        from repositories p join namespaces o on o.id = p.namespace_id where p.id = r.repository_id)`,
      read: ([id, namespaceId, visibility, name, owner]: [
        id: string,
        namespaceId: string,
        visibility: Visibility,
        name: string,
        owner: string,
      ]): Sourced['repository'] => ({
        id,
        namespaceId,
        visibility,
        name,
        namespace: { name: owner },
      }),
    },
  },
});
