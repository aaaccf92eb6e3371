import { Link } from '@tanstack/react-router';
import { useRef } from 'react';
import { type FragmentOf, graphql, readFragment } from '../../graphql/graphql.ts';
import { describeValues, formatDuration, formatEnum, formatMoney } from '../../ui/format.ts';
import { JobStatusBadge } from '../../ui/status.tsx';
import { RelativeTime, useUnixSeconds } from '../../ui/time.tsx';

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
    totalCost
    runtimeSeconds
    repo
    branch
    labels { key value }
    matrixValues { key value }
  }
`);

/** A job in a list, with its status, progress, runtime and cost; with `select`, also with a checkbox. */
export function JobRow({
  job: data,
  showNamespace = false,
  select,
}: {
  job: FragmentOf<typeof JobRowData>;
  showNamespace?: boolean;
  select?: { isSelected: boolean; onChange: (isSelected: boolean) => void } | undefined;
}) {
  const job = readFragment(JobRowData, data);
  const seconds = useRuntime(job);
  const hardware = job.gpu === 'NONE' ? 'CPU' : `${job.gpuCount} × ${job.gpu.replaceAll('_', ' ')}`;
  return (
    <li className="flex gap-x-3" data-job={job.name}>
      {select && (
        <input
          type="checkbox"
          aria-label={`Select ${job.name}`}
          checked={select.isSelected}
          onChange={({ target }) => select.onChange(target.checked)}
          className="mt-1 size-4 shrink-0 accent-accent"
        />
      )}
      <div className="grid min-w-0 flex-1 grid-cols-[1fr_auto] items-center gap-x-4 gap-y-1 sm:grid-cols-[1fr_6rem_7rem]">
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
            {job.matrixValues.length > 0 && (
              <span className="font-mono text-[13px] break-all" data-values>
                {describeValues(job.matrixValues)}
              </span>
            )}
            {job.labels.map(({ key, value }) => (
              <span key={key} className="rounded bg-hover px-1.5 text-xs text-dim">
                {value ? `${key}=${value}` : key}
              </span>
            ))}
          </div>
          <p className="text-sm break-words text-dim">
            {job.repo && `${job.repo}${job.branch ? ` @ ${job.branch}` : ''} · `}
            {hardware} · created <RelativeTime at={job.createdAt} />
          </p>
          {job.progress && job.progress !== formatEnum(job.status) && (
            <p className="text-sm break-words" data-progress>
              {job.progress}
            </p>
          )}
        </div>
        <div className="order-last text-right sm:order-none text-sm text-dim tabular-nums">
          <div>{job.startedAt ? formatDuration(seconds) : '–'}</div>
          <div>{formatMoney(job.totalCost)}</div>
        </div>
        <div className="sm:text-right">
          <JobStatusBadge status={job.status} />
        </div>
      </div>
    </li>
  );
}

/**
 * The billed runtime of a job's attempts, without the time between attempts and the time to store artifacts. For
 * a running job, the clock advances it between two results of the server.
 */
export function useRuntime(job: { status: string; runtimeSeconds: number }): number {
  const now = useUnixSeconds();
  const answer = useRef({ seconds: job.runtimeSeconds, at: now });
  if (answer.current.seconds !== job.runtimeSeconds)
    answer.current = { seconds: job.runtimeSeconds, at: now };
  const since = job.status === 'RUNNING' ? now - answer.current.at : 0;
  return job.runtimeSeconds + since;
}
