import { Link } from '@tanstack/react-router';
import type { ResultOf } from '../../graphql/graphql.ts';
import { formatCount, formatEnum } from '../../ui/format.ts';
import { JobStatusBadge } from '../../ui/status.tsx';
import { ArrayLink, StatusCounts } from '../jobs/array-row.tsx';
import type { JobFacts } from './queries.ts';
import { Setting } from './setting.tsx';

/** Not the words of statuses, because the status of the job is next to them. */
const CONDITIONS = { SUCCEEDED: 'must succeed', FAILED: 'must fail', FINISHED: 'must finish' };

type Need = ResultOf<typeof JobFacts>['needs'][number];

function describeCondition({ when, array }: Need): string {
  return when === 'FAILED' && array ? 'one must fail' : CONDITIONS[when];
}

/** The jobs that the job needs, its array, and its concurrency group. */
export function Dependencies({ job }: { job: ResultOf<typeof JobFacts> }) {
  const { namespace, needs, array, concurrency } = job;
  return (
    <>
      <Needs namespace={namespace} needs={needs} />
      {array && (
        <Setting name="Array">
          <ArrayLink namespace={namespace} array={array} />
          {job.arrayIndex === null
            ? ` of ${formatCount(array.size, 'job')}`
            : `, ${job.arrayIndex + 1} of ${array.size}`}
        </Setting>
      )}
      {concurrency && (
        <Setting name="Concurrency group">
          <span className="break-all">{concurrency.group}</span>
          {concurrency.onConflict !== 'QUEUE' && ` (${formatEnum(concurrency.onConflict)})`}
        </Setting>
      )}
    </>
  );
}

/** The jobs and arrays that must have ended before. */
export function Needs({ namespace, needs }: { namespace: string; needs: readonly Need[] }) {
  if (needs.length === 0) return null;
  return (
    <Setting name="Needs">
      <ul className="space-y-1">
        {needs.map((need) => (
          <li key={need.name} className="flex min-h-6 flex-wrap items-center gap-x-2">
            {need.array ? (
              <ArrayLink namespace={namespace} array={need.array} />
            ) : need.job ? (
              <Link
                to="/$namespace/-/jobs/$job"
                params={{ namespace, job: need.job.name }}
                className="link break-all"
              >
                {need.name}
              </Link>
            ) : (
              <span>{need.name} (deleted)</span>
            )}
            {need.when !== 'SUCCEEDED' && (
              <span className="text-dim">{describeCondition(need)}</span>
            )}
            {need.job && <JobStatusBadge status={need.job.status} />}
            {need.array && <StatusCounts counts={need.array.counts} />}
          </li>
        ))}
      </ul>
    </Setting>
  );
}
