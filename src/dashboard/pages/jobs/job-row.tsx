import { Link } from '@tanstack/react-router';
import { type FragmentOf, graphql, readFragment } from '../../graphql/graphql.ts';
import { money, words } from '../../ui/format.ts';
import { Status } from '../../ui/status.tsx';
import { Ago, Took } from '../../ui/time.tsx';

export const JobRowData = graphql(`
  fragment JobRow on Job {
    id
    name
    namespace
    status
    progress
    gpu
    gpuCount
    createdAt
    startedAt
    completedAt
    totalCost
    repo
    branch
    labels { key value }
  }
`);

/** A job in a list: what it is, how it stands, what it costs. */
export function JobRow({
  job: data,
  showNamespace = false,
}: {
  job: FragmentOf<typeof JobRowData>;
  showNamespace?: boolean;
}) {
  const job = readFragment(JobRowData, data);
  const hardware = job.gpu === 'NONE' ? 'CPU' : `${job.gpuCount} × ${job.gpu.replaceAll('_', ' ')}`;
  return (
    <li
      className="grid grid-cols-[1fr_auto] items-center gap-x-4 gap-y-1 sm:grid-cols-[1fr_10rem_6rem_7rem]"
      data-job={job.name}
    >
      <div className="col-span-2 min-w-0 sm:col-span-1">
        <div className="flex flex-wrap items-center gap-x-2 gap-y-1">
          <Link
            to="/$namespace/-/jobs/$job"
            params={{ namespace: job.namespace, job: job.name }}
            className="font-medium break-all hover:underline"
          >
            {showNamespace && <span className="font-normal text-dim">{job.namespace} / </span>}
            {job.name}
          </Link>
          {job.labels.map(({ key, value }) => (
            <span key={key} className="rounded bg-hover px-1.5 text-xs text-dim">
              {value ? `${key}=${value}` : key}
            </span>
          ))}
        </div>
        <p className="truncate text-sm text-dim">
          {job.repo && `${job.repo}${job.branch ? ` @ ${job.branch}` : ''} · `}
          {hardware} · created <Ago at={job.createdAt} />
        </p>
      </div>
      <p className="col-span-2 truncate text-sm text-dim sm:col-span-1">
        {job.progress !== words(job.status) && job.progress}
      </p>
      <div className="order-last text-right sm:order-none text-sm text-dim tabular-nums">
        {job.startedAt ? <Took from={job.startedAt} to={job.completedAt} /> : '–'}
        <div>{money(job.totalCost)}</div>
      </div>
      <div className="sm:text-right">
        <Status status={job.status} />
      </div>
    </li>
  );
}
