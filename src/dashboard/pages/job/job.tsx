import { useParams } from '@tanstack/react-router';
import { type FragmentOf, readFragment } from '../../graphql/graphql.ts';
import { useFollow } from '../../live/follow.ts';
import { words } from '../../ui/format.ts';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { useEvery } from '../../ui/repeat.ts';
import { isFailed, isOver, Status } from '../../ui/status.tsx';
import { Ago } from '../../ui/time.tsx';
import { NamespaceTabs } from '../namespace/tabs.tsx';
import { JobActions } from './actions.tsx';
import { Artifacts } from './artifacts.tsx';
import { Attempts } from './attempts.tsx';
import { Cost, Facts } from './facts.tsx';
import { Failure } from './failure.tsx';
import { LogView } from './log/log-view.tsx';
import { JobFacts, JobLive, JobQuery } from './queries.ts';
import { useTabState } from './tab.ts';
import { Usage } from './usage.tsx';
import { Waits } from './waits.tsx';

/** A progress line changes without an event; a job that runs or waits is looked at this often. */
const LOOK_MS = 5_000;

/** A job while it waits, runs, and after it: how it stands, what it prints, uses, costs and leaves. */
export default function JobPage() {
  const { namespace, job: name } = useParams({ from: '/$namespace/-/jobs/$job' });
  const key = { namespace, name };
  const asked = useAsk({ query: JobQuery, variables: key });
  const job = asked.data?.job;
  const state = useFollow(JobLive, job ? `${namespace}/${name}` : null, {
    variables: () => key,
    onData: asked.again,
    onLive: asked.again,
  });
  const facts = job && readFragment(JobFacts, job as FragmentOf<typeof JobFacts>);
  const isEnded = facts != null && isOver(facts.status);
  // Processes of a cancelled job may go on for a while, and the end of an attempt is no event.
  const isMoving = facts && (!isEnded || facts.attempts.nodes.some(({ endedAt }) => !endedAt));
  useEvery(isMoving ? LOOK_MS : null, asked.again);
  // One that has ended is still heard of, as when it is run again, and nothing in it moves by itself.
  const live = isEnded && state === 'live' ? null : <LiveDot state={state} />;
  return (
    <Load asked={asked} of={(data) => data.job} what="job">
      {(data) => <Job data={data} live={live} onChange={asked.again} />}
    </Load>
  );
}

function Job({
  data,
  live,
  onChange,
}: {
  data: FragmentOf<typeof JobFacts>;
  live: React.ReactNode;
  onChange: () => void;
}) {
  const job = readFragment(JobFacts, data);
  const { namespace, name, status, startedAt } = job;
  const watch = useTabState(job);
  return (
    <>
      <NamespaceTabs name={namespace} viewerRole={job.owner.viewerRole} within="Jobs" />
      <PageTitle
        title={name}
        tab={`${name} · ${words(status)}`}
        actions={<JobActions job={job} watch={watch} onChange={onChange} />}
      >
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <Status status={status} />
          <span>
            created <Ago at={job.createdAt} />
            {job.createdBy && ` by ${job.createdBy.username}`}
          </span>
          <Cost job={job} />
          {job.exitCode !== null && <span>exit code {job.exitCode}</span>}
          {live}
        </div>
      </PageTitle>
      <Failure job={job} />
      {/* Where it says no more than the status, or than why it waits, once is enough. */}
      {job.progress &&
        job.progress !== words(status) &&
        !isFailed(status) &&
        status !== 'QUEUED' && (
          <p className="mb-4 text-sm" data-progress>
            {job.progress}
          </p>
        )}
      {status === 'QUEUED' && <Waits job={job} />}
      <div className="grid gap-6 xl:grid-cols-[1fr_22rem]">
        <div className="min-w-0 space-y-6">
          <LogView job={{ namespace, name }} status={status} startedAt={startedAt} />
          <Artifacts job={job} />
          <Usage job={job} />
        </div>
        <div className="min-w-0 space-y-6">
          <Attempts job={job} />
          <Facts job={job} />
        </div>
      </div>
    </>
  );
}
