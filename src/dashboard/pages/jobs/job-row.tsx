import { Link } from '@tanstack/react-router';
import { type FragmentOf, graphql, readFragment } from '../../graphql/graphql.ts';
import { money } from '../../ui/format.ts';
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
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1" data-job={job.name}>
      <div className="min-w-0 flex-1 basis-60">
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
      <div className="min-w-0 basis-40 text-sm text-dim">
        <p className="truncate">{job.progress}</p>
      </div>
      <div className="w-24 text-right text-sm text-dim tabular-nums">
        {job.startedAt ? <Took from={job.startedAt} to={job.completedAt} /> : '–'}
        <div>{money(job.totalCost)}</div>
      </div>
      <div className="w-28 text-right">
        <Status status={job.status} />
      </div>
    </li>
  );
}
