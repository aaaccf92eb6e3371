/** The filters of lists of jobs, as the address of a page has them. */
import type { VariablesOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import type { JobStatus } from '../../ui/status.tsx';
import type { CompareJobs } from '../compare/queries.ts';

type JobFilter = NonNullable<VariablesOf<typeof CompareJobs>['jobs'][number]['filter']>;

export const STATUSES: readonly JobStatus[] = [
  'QUEUED',
  'RUNNING',
  'SUCCEEDED',
  'FAILED',
  'CANCELLED',
  'TIMED_OUT',
];

export function toJobFilter({ status, name, gpu, label = '', array, repo }: Search): JobFilter {
  const [key, ...value] = label.split('=');
  const known = STATUSES.find((one) => one === status);
  return {
    ...(known && { statuses: [known] }),
    ...(gpu && { gpus: [gpu] }),
    ...(name && { namePrefix: name }),
    ...(key && { labels: [{ key, ...(value.length > 0 && { values: [value.join('=')] }) }] }),
    ...(repo && { repository: repo }),
    ...(array && { array }),
  };
}
