import { Link, useParams } from '@tanstack/react-router';
import { CircleX, Hourglass } from 'lucide-react';
import type { ReactNode } from 'react';
import { type FragmentOf, readFragment } from '../../graphql/graphql.ts';
import { useLiveSubscription } from '../../live/follow.ts';
import { describeValues, formatEnum, formatMoney } from '../../ui/format.ts';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { isFailed, isFinished, JobStatusBadge } from '../../ui/status.tsx';
import { RelativeTime, useInterval } from '../../ui/time.tsx';
import { NamespaceTabs } from '../namespace/tabs.tsx';
import { RepositoryTabs, type RepositoryTabsData } from '../repository/frame.tsx';
import { JobActions } from './actions.tsx';
import { Artifacts } from './artifacts.tsx';
import { AttemptTimeline } from './attempts.tsx';
import { Checks } from './checks.tsx';
import { type JobData, JobSettings, RuntimeAndCost } from './facts.tsx';
import { LogView } from './log/log-view.tsx';
import { Metrics } from './metrics.tsx';
import { OpenPort } from './open-port.tsx';
import { OpenShells } from './open-shells.tsx';
import { JobFacts, JobLive, JobQuery } from './queries.ts';
import { Shell } from './shell.tsx';
import { Summary } from './summary.tsx';
import { useTabState } from './tab.ts';
import { Tests } from './tests.tsx';
import { Usage } from './usage.tsx';

/** Polling interval of queued and running jobs, because changes of the progress line send no event. */
const POLL_MS = 5_000;

/** The page of a job: status, log, artifacts, resource usage, attempts and settings. */
export default function JobPage() {
  const { namespace, job: name } = useParams({ from: '/$namespace/-/jobs/$job' });
  const key = { namespace, name };
  const jobQuery = useRetryingQuery({ query: JobQuery, variables: key });
  const job = jobQuery.data?.job;
  const state = useLiveSubscription(JobLive, job ? `${namespace}/${name}` : null, {
    variables: () => key,
    onData: jobQuery.again,
    onLive: jobQuery.again,
  });
  const jobData = job && readFragment(JobFacts, job as FragmentOf<typeof JobFacts>);
  const isEnded = jobData != null && isFinished(jobData.status);
  // Processes of a cancelled job may run a while longer, and the end of an attempt sends no event.
  const mayChange = jobData && (!isEnded || jobData.attempts.nodes.some(({ endedAt }) => !endedAt));
  useInterval(mayChange ? POLL_MS : null, jobQuery.again);
  // A finished job stays subscribed, because it may be run again, but nothing on its page changes by itself.
  const live = isEnded && state === 'live' ? null : <LiveDot state={state} />;
  return (
    <Load asked={jobQuery} of={(data) => data.job} what="job">
      {(data) => (
        <Job data={data} repository={data.repository} live={live} onChange={jobQuery.again} />
      )}
    </Load>
  );
}

function Job({
  data,
  repository,
  live,
  onChange,
}: {
  data: FragmentOf<typeof JobFacts>;
  repository: FragmentOf<typeof RepositoryTabsData> | null;
  live: React.ReactNode;
  onChange: () => void;
}) {
  const job = readFragment(JobFacts, data);
  const { namespace, name, status, startedAt } = job;
  const watch = useTabState(job);
  return (
    <>
      {repository ? (
        <RepositoryTabs repository={repository} within="Jobs" />
      ) : (
        <NamespaceTabs name={namespace} viewerRole={job.owner.viewerRole} within="Jobs" />
      )}
      <PageTitle
        title={name}
        tab={`${name} · ${formatEnum(status)}`}
        actions={<JobActions job={job} watch={watch} onChange={onChange} />}
      >
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <JobStatusBadge status={status} />
          {job.matrixValues.length > 0 && (
            <span className="font-mono text-[13px] break-all" data-values>
              {describeValues(job.matrixValues)}
            </span>
          )}
          <span>
            created <RelativeTime at={job.createdAt} />
            {job.createdBy && ` by ${job.createdBy.username}`}
          </span>
          <RuntimeAndCost job={job} />
          {job.exitCode !== null && <span>exit code {job.exitCode}</span>}
          {live}
        </div>
      </PageTitle>
      <FailureNotice job={job} />
      <HoldNotice job={job} />
      {/* Hidden if it only repeats the status or the notices above. */}
      {job.progress &&
        job.progress !== formatEnum(status) &&
        !isFailed(status) &&
        !job.hold?.isActive &&
        status !== 'QUEUED' && (
          <p className="mb-4 text-sm" data-progress>
            {job.progress}
          </p>
        )}
      {status === 'QUEUED' && <QueueNotice job={job} />}
      <div className="columns">
        <div className="min-w-0 space-y-6">
          {job.hasSummary && (
            <Summary job={{ namespace, name }} title={<h2 className="mb-2">Summary</h2>} />
          )}
          <Tests job={job} />
          <LogView job={{ namespace, name }} status={status} startedAt={startedAt} />
          <Checks job={job} />
          <Metrics job={job} />
          <Shell job={job} />
          <OpenPort job={job} />
          <OpenShells job={job} onChange={onChange} />
          <Artifacts job={job} />
          <Usage job={job} />
        </div>
        <div className="min-w-0 space-y-6">
          <AttemptTimeline job={job} />
          <JobSettings job={job} />
        </div>
      </div>
    </>
  );
}

/** Why a job is still queued, and when it may start. */
function QueueNotice({ job }: { job: JobData }) {
  const { queue, progress } = job;
  // A worker prepares the job, or a cluster has it in its own queue.
  if (!queue)
    return (
      progress &&
      progress !== 'queued' && (
        <WaitNotice>
          <p className="break-words first-letter:uppercase" data-progress>
            {progress}
          </p>
        </WaitNotice>
      )
    );
  return (
    <WaitNotice>
      <div>
        <p className="font-medium">
          Waiting for {queue.waitsFor}
          {queue.position !== null && `, number ${queue.position} in the queue`}
        </p>
        <p>
          {!queue.offered ? (
            'No worker offers this hardware now. The job starts when one does.'
          ) : queue.estimatedStart ? (
            <>
              Estimated start: <RelativeTime at={queue.estimatedStart} />, at the current rate.
            </>
          ) : (
            'The job starts as soon as it is first in the queue and there is capacity.'
          )}
        </p>
        <SoonerStarts starts={queue.sooner} job={job} />
      </div>
    </WaitNotice>
  );
}

/** Other hardware on which the job would start earlier. */
function SoonerStarts({
  starts,
  job,
}: {
  starts: NonNullable<JobData['queue']>['sooner'];
  job: JobData;
}) {
  if (starts.length === 0) return null;
  return (
    <div className="mt-2" data-sooner>
      <p>
        It would start sooner with other hardware.{' '}
        <Link to="/new/job" search={{ namespace: job.namespace, rerun: job.name }} className="link">
          Change it in a new job
        </Link>
      </p>
      <ul className="mt-1 list-disc pl-5">
        {starts.map(({ gpu, region, estimatedStart, costPerHour }) => (
          <li key={`${gpu} ${region}`}>
            {formatHardware({ ...job, gpu })} in {formatName(region)}:{' '}
            {Date.parse(estimatedStart) - Date.now() < 60_000 ? (
              'now'
            ) : (
              <RelativeTime at={estimatedStart} />
            )}
            , {formatMoney(costPerHour)} an hour
          </li>
        ))}
      </ul>
    </div>
  );
}

function formatHardware({
  gpu,
  gpuCount,
  cpu,
  memoryGb,
}: Pick<JobData, 'gpu' | 'gpuCount' | 'cpu' | 'memoryGb'>): string {
  return gpu === 'NONE'
    ? `${cpu} vCPUs, ${memoryGb} GB`
    : `${gpuCount} × ${gpu.replaceAll('_', ' ')}`;
}

function formatName(region: string): string {
  return region.toLowerCase().replaceAll('_', '-');
}

function WaitNotice({ children }: { children: ReactNode }) {
  return (
    <div className="mb-6 flex gap-3 rounded-lg border border-line bg-warn-soft p-4 text-sm">
      <Hourglass size={18} className="mt-0.5 shrink-0 text-warn" aria-hidden />
      {children}
    </div>
  );
}

/** Why a job failed. */
function FailureNotice({ job }: { job: JobData }) {
  if (!isFailed(job.status)) return null;
  const { progress } = job;
  const reason = failureReason(job);
  const hasOwnProgress = progress && progress !== 'timed out' && !progress.startsWith('failed');
  return (
    <section
      aria-label="Why the job failed"
      className="mb-6 flex gap-3 rounded-lg border border-bad bg-bad-soft p-4 text-sm"
    >
      <CircleX size={18} className="mt-0.5 shrink-0 text-bad" aria-hidden />
      <div className="min-w-0">
        <p className="font-medium break-words">{reason}</p>
        {hasOwnProgress && <p className="break-words">Last progress: {progress}</p>}
      </div>
    </section>
  );
}

/** A failed job whose sandbox is held, and how to look into it. */
function HoldNotice({ job: { namespace, name, hold } }: { job: JobData }) {
  if (!hold?.isActive) return null;
  const minutes = Math.max(1, Math.ceil((Date.parse(hold.until) - Date.now()) / 60_000));
  const command = `loam shell ${namespace}/${name}`;
  return (
    <WaitNotice>
      <div className="min-w-0" data-hold>
        <p className="font-medium">
          Failed with exit code {hold.exitCode}. The sandbox is held for {minutes} min.
        </p>
        <p className="break-words">
          <code>{command}</code> opens it. Files that you change under the output path are kept.
        </p>
      </div>
    </WaitNotice>
  );
}

/** The server writes the reason into `progress`, unless the program printed a progress line of its own. */
function failureReason({ status, progress, exitCode, timeoutMinutes }: JobData): string {
  if (status === 'TIMED_OUT') return `Timed out after ${timeoutMinutes} min`;
  if (progress?.startsWith('failed')) return progress.replace('failed', 'Failed');
  return exitCode === null ? 'Failed' : `Failed with exit code ${exitCode}`;
}
