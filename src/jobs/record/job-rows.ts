/** Compiles the SQL that reads jobs, from the fields that a client selects. The namespace of a job is joined. */
import { createRowReader, type RowReader } from '../../platform/database/rows.ts';

export const jobRows: RowReader = createRowReader({
  model: 'Job',
  from: 'jobs r join namespaces n on n.id = r.namespace_id',
  joined: { namespace: 'n' },
});
