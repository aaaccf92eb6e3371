import { Link } from '@tanstack/react-router';
import { formatCount } from '../../ui/format.ts';
import { type JobStatus, JobStatusBadge } from '../../ui/status.tsx';

type JobArray = {
  id: string;
  name: string;
  size: number;
  maxParallel: number | null;
  counts: readonly { status: JobStatus; count: number }[];
};

/** An array of jobs in a list, with the number of its jobs in each status. The link shows its jobs. */
export function ArrayRow({
  namespace,
  array,
  isIndented,
}: {
  namespace: string;
  array: JobArray;
  /** Whether the jobs in the list have checkboxes. */
  isIndented: boolean;
}) {
  const { id, name, size, maxParallel, counts } = array;
  return (
    <li
      className={`flex flex-wrap items-center justify-between gap-x-4 gap-y-1 ${isIndented ? 'pl-11' : ''}`}
      data-array={name}
    >
      <div className="min-w-0">
        <Link
          to="/$namespace/-/jobs"
          params={{ namespace }}
          search={{ array: id }}
          className="font-medium break-all hover:underline"
        >
          {name}
        </Link>
        <p className="text-sm text-dim">
          Array of {formatCount(size, 'job')}
          {maxParallel !== null && `, at most ${maxParallel} at once`}
        </p>
      </div>
      <StatusCounts counts={counts} />
    </li>
  );
}

/** The number of jobs in each status. */
export function StatusCounts({ counts }: Pick<JobArray, 'counts'>) {
  return (
    <ul className="flex flex-wrap gap-2">
      {counts.map(({ status, count }) => (
        <li key={status} className="inline-flex items-center gap-1 text-sm tabular-nums">
          <span>{count}</span>
          <JobStatusBadge status={status} />
        </li>
      ))}
    </ul>
  );
}
