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

/** An array of jobs in a list, with the number of its jobs in each status. */
export function ArrayRow({
  namespace,
  array,
  showNamespace = false,
  isIndented = false,
}: {
  namespace: string;
  array: JobArray;
  showNamespace?: boolean;
  /** Whether the jobs in the list have checkboxes. */
  isIndented?: boolean;
}) {
  const { id, name, size, maxParallel, counts } = array;
  return (
    <li
      className={`flex flex-wrap items-center justify-between gap-x-4 gap-y-1 ${isIndented ? 'pl-11' : ''}`}
      data-array={name}
    >
      <div className="min-w-0">
        {showNamespace && <span className="text-dim">{namespace} / </span>}
        <ArrayLink
          namespace={namespace}
          array={{ id, name }}
          className="font-medium break-all hover:underline"
        />
        <p className="text-sm text-dim">
          Array of {formatCount(size, 'job')}
          {maxParallel !== null && `, at most ${maxParallel} at once`}
        </p>
      </div>
      <StatusCounts counts={counts} />
    </li>
  );
}

/** A link to the page of an array. */
export function ArrayLink({
  namespace,
  array: { id, name },
  className = 'link break-all',
}: {
  namespace: string;
  array: Pick<JobArray, 'id' | 'name'>;
  className?: string;
}) {
  return (
    <Link to="/$namespace/-/arrays/$array" params={{ namespace, array: id }} className={className}>
      {name}
    </Link>
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
