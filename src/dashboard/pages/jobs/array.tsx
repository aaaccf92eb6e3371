import { Link, useParams, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { graphql, type ResultOf, type VariablesOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { formatCount, formatDuration, formatMoney } from '../../ui/format.ts';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { NotFound } from '../../ui/not-found.tsx';
import { PageTitle, ShowMoreButton } from '../../ui/page.tsx';
import { isFinished, type JobStatus, JobStatusBadge } from '../../ui/status.tsx';
import { RelativeTime, useUnixSeconds } from '../../ui/time.tsx';
import { Needs } from '../job/dependencies.tsx';
import { RunSetting } from '../job/facts.tsx';
import { CommandText, Setting } from '../job/setting.tsx';
import { NamespaceTabs } from '../namespace/tabs.tsx';
import { JobRow, JobRowData } from './job-row.tsx';
import { useLiveJobs } from './live-jobs.ts';
import { CompareLink, SelectionActions } from './selection.tsx';

const ArrayQuery = graphql(
  `
  query Array(
    $namespace: String!
    $array: JobFilter!
    $failed: JobFilter!
    $running: JobFilter!
    $others: JobFilter!
    $first: Int!
  ) {
    namespace(name: $namespace) {
      id
      viewerRole
      all: jobs(first: 1, filter: $array, order: ASC) {
        totalCount
        nodes {
          id
          command
          repo
          branch
          image
          createdAt
          createdBy { id username }
          runJob
          run { id number repository { id namespace name } }
          needs { name when job { id name status } array { id name size counts { status count } } }
          array {
            id
            name
            size
            maxParallel
            counts { status count }
            totals { startedAt completedAt totalCost }
          }
        }
      }
      failed: jobs(first: $first, filter: $failed, order: ASC) { nodes { id ...JobRow } }
      running: jobs(first: $first, filter: $running, order: ASC) { nodes { id ...JobRow } }
      others: jobs(first: $first, filter: $others, order: ASC) { nodes { id ...JobRow } }
    }
  }
`,
  [JobRowData],
);

type OwnerData = NonNullable<ResultOf<typeof ArrayQuery>['namespace']>;
type FirstJob = NonNullable<OwnerData['all']>['nodes'][number];
type ArrayData = NonNullable<FirstJob['array']>;
type Filter = VariablesOf<typeof ArrayQuery>['array'];

/** The order of the bar and its legend. */
const STATUSES: readonly JobStatus[] = [
  'FAILED',
  'TIMED_OUT',
  'RUNNING',
  'QUEUED',
  'CANCELLED',
  'SUCCEEDED',
];
const FAILED: JobStatus[] = ['FAILED', 'TIMED_OUT'];
const ACTIVE: JobStatus[] = ['QUEUED', 'RUNNING'];

const COLORS: Record<JobStatus, string> = {
  FAILED: 'bg-bad',
  TIMED_OUT: 'bg-bad',
  RUNNING: 'bg-run',
  QUEUED: 'bg-warn',
  CANCELLED: 'bg-edge',
  SUCCEEDED: 'bg-good',
};

const PAGE_SIZE = 25;
/** The most jobs that the API returns in one response. */
const MAX_JOBS = 100;

/** The form of ids of arrays. The API refuses other texts as a wrong filter, which no page could explain. */
const ARRAY_ID = /^arr_[0-7][0-9a-hjkmnp-tv-z]{25}$/;

/** The page of an array: the states, times and cost of its jobs, and the jobs, failed ones first. */
export default function ArrayPage() {
  const { namespace, array } = useParams({ from: '/$namespace/-/arrays/$array' });
  if (!ARRAY_ID.test(array)) return <NotFound what="array" />;
  return <ArrayDetails key={array} namespace={namespace} id={array} />;
}

function ArrayDetails({ namespace, id }: { namespace: string; id: string }) {
  const search = useSearch({ strict: false }) as Search;
  const status = STATUSES.find((one) => one === search.status);
  const [first, setFirst] = useState(PAGE_SIZE);
  const withStatus = (statuses: JobStatus[]): Filter => ({
    array: id,
    statuses: status ? statuses.filter((one) => one === status) : statuses,
  });
  const asked = useRetryingQuery({
    query: ArrayQuery,
    variables: {
      namespace,
      first,
      array: { array: id },
      failed: withStatus(FAILED),
      running: withStatus(['RUNNING']),
      others: withStatus(['QUEUED', 'CANCELLED', 'SUCCEEDED']),
    },
  });
  const live = useLiveJobs([namespace], asked.again);
  return (
    <Load
      asked={asked}
      of={({ namespace: owner }) => {
        const job = owner?.all?.nodes[0];
        return owner && job?.array ? { owner, job, array: job.array } : null;
      }}
      what="array"
    >
      {({ owner, job, array }) => {
        const { failed, running, others } = owner;
        const jobs = [failed, running, others].flatMap((list) => list?.nodes ?? []);
        const total = array.counts
          .filter((one) => !status || one.status === status)
          .reduce((sum, { count }) => sum + count, 0);
        return (
          <>
            <NamespaceTabs name={namespace} viewerRole={owner.viewerRole} within="Jobs" />
            <PageTitle
              title={array.name}
              actions={
                <>
                  <CompareLink namespace={namespace} search={{ array: array.id }} />
                  <ArrayActions
                    namespace={namespace}
                    array={array}
                    role={owner.viewerRole}
                    onChange={asked.again}
                  />
                </>
              }
            >
              <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
                <span>
                  Array of {formatCount(array.size, 'job')}
                  {array.maxParallel !== null && `, at most ${array.maxParallel} at once`}
                </span>
                <span>
                  created <RelativeTime at={job.createdAt} />
                  {job.createdBy && ` by ${job.createdBy.username}`}
                </span>
                <Duration totals={array.totals} />
                <span className="tabular-nums" data-cost>
                  {formatMoney(array.totals.totalCost)}
                </span>
                <LiveDot state={live} />
              </div>
            </PageTitle>
            <div className="columns">
              <div className="min-w-0 space-y-6">
                <StatusBar array={array} shown={status} />
                <section aria-labelledby="jobs" className="space-y-3">
                  <h2 id="jobs">Jobs</h2>
                  {jobs.length > 0 ? (
                    <ul className="rows">
                      {jobs.slice(0, first).map((one) => (
                        <JobRow key={one.id} job={one} />
                      ))}
                    </ul>
                  ) : (
                    <p className="card px-4 py-3 text-sm text-dim">No jobs with this status</p>
                  )}
                  <ShowMoreButton
                    hasMore={total > first && first < MAX_JOBS}
                    onMore={() => setFirst(Math.min(first + PAGE_SIZE, MAX_JOBS))}
                  />
                  <p className="text-center text-sm text-dim">
                    {total > first && first >= MAX_JOBS && `Only ${MAX_JOBS} jobs are shown. `}
                    <Link
                      to="/$namespace/-/jobs"
                      params={{ namespace }}
                      search={{ array: array.id, status }}
                      className="link"
                    >
                      Search and select jobs
                    </Link>
                  </p>
                </section>
              </div>
              <ArraySettings namespace={namespace} job={job} />
            </div>
          </>
        );
      }}
    </Load>
  );
}

/** From the start of the first job to the end of the last one, or until now. */
function Duration({ totals: { startedAt, completedAt } }: { totals: ArrayData['totals'] }) {
  const now = useUnixSeconds();
  if (!startedAt) return null;
  const end = completedAt ? Date.parse(completedAt) / 1_000 : now;
  const seconds = Math.max(0, end - Date.parse(startedAt) / 1_000);
  return (
    <span className="tabular-nums" data-duration>
      {completedAt ? 'took' : 'running for'} {formatDuration(seconds)}
    </span>
  );
}

/** The actions that the viewer may take on all jobs of the array; the server checks the permission again. */
function ArrayActions({
  namespace,
  array: { id, counts },
  role,
  onChange,
}: {
  namespace: string;
  array: ArrayData;
  role: string | null;
  onChange: () => void;
}) {
  if (role !== 'WRITE' && role !== 'ADMIN') return null;
  const has = (statuses: readonly JobStatus[]) =>
    counts.some(({ status }) => statuses.includes(status));
  const actions = [
    ...(has(FAILED) ? (['rerun'] as const) : []),
    ...(has(ACTIVE) ? (['cancel'] as const) : []),
  ];
  if (actions.length === 0) return null;
  return (
    <SelectionActions
      label="Actions on the array"
      actions={actions}
      verbs={{ rerun: 'Rerun failed jobs', cancel: 'Cancel' }}
      selected={(action) => ({
        namespace,
        filter: { array: id, statuses: action === 'rerun' ? FAILED : ACTIVE },
      })}
      onDone={onChange}
    />
  );
}

/** The number of jobs in each status, as a bar. Its legend filters the jobs. */
function StatusBar({
  array: { counts },
  shown,
}: {
  array: ArrayData;
  shown: JobStatus | undefined;
}) {
  const sorted = STATUSES.flatMap((status) => counts.filter((one) => one.status === status));
  const total = counts.reduce((sum, { count }) => sum + count, 0);
  const ended = counts.reduce((sum, one) => sum + (isFinished(one.status) ? one.count : 0), 0);
  return (
    <section aria-label="Jobs by status" className="card space-y-3 p-4">
      <p className="text-sm text-dim">
        {ended} of {formatCount(total, 'job')} ended
      </p>
      <div aria-hidden className="flex h-3 gap-px overflow-hidden rounded-full bg-sunken">
        {sorted.map(({ status, count }) => (
          <div key={status} className={`min-w-1 ${COLORS[status]}`} style={{ flexGrow: count }} />
        ))}
      </div>
      <ul className="flex flex-wrap gap-x-4 gap-y-2">
        {sorted.map(({ status, count }) => (
          <li key={status}>
            <Link
              to="."
              search={{ status: shown === status ? undefined : status }}
              replace
              aria-current={shown === status}
              className="inline-flex items-center gap-1 rounded px-1 text-sm tabular-nums hover:bg-hover [&[aria-current=true]]:bg-hover"
            >
              {count} <JobStatusBadge status={status} />
            </Link>
          </li>
        ))}
        {shown && (
          <li>
            <Link to="." search={{}} replace className="link text-sm">
              Show all
            </Link>
          </li>
        )}
      </ul>
    </section>
  );
}

/** The settings that all jobs have in common; of a matrix, those of its first job. */
function ArraySettings({ namespace, job }: { namespace: string; job: FirstJob }) {
  const [owner = '', repository = ''] = job.repo?.split('/') ?? [];
  return (
    <section aria-labelledby="settings" className="card min-w-0 self-start p-4">
      <h2 id="settings" className="mb-3 text-base">
        Settings
      </h2>
      <div className="mb-4">
        <CommandText command={job.command} />
      </div>
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-2 text-sm">
        {job.repo && (
          <Setting name="Repository">
            <Link
              to="/$namespace/$repository"
              params={{ namespace: owner, repository }}
              className="link"
            >
              {job.repo}
            </Link>
            {job.branch && ` @ ${job.branch}`}
          </Setting>
        )}
        <RunSetting job={job} />
        {job.image && (
          <Setting name="Image">
            <code className="break-all">{job.image}</code>
          </Setting>
        )}
        <Needs namespace={namespace} needs={job.needs} />
      </dl>
    </section>
  );
}
