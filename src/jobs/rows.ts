/** How jobs are read where it must be cheap. */
import { type Rows, rowsOf } from '../database/rows.ts';
import { runtimeColumns } from './runtime.ts';

export const jobRows: Rows = rowsOf({
  model: 'Job',
  from: 'jobs r join namespaces n on n.id = r.namespace_id',
  relations: { namespace: { model: 'Namespace', alias: 'n' } },
  handmade: {
    attempts: {
      select: runtimeColumns.attempts,
      sql: `array(select a.started_at from job_attempts a
        where a.job_id = r.id and a.ended_at is null order by a.number desc limit 1)`,
      read: (times: (Date | null)[]) => times.map((startedAt) => ({ startedAt })),
    },
  },
});
