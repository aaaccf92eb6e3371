import { Link, useNavigate, useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { type FragmentOf, graphql, type ResultOf, readFragment } from '../../graphql/graphql.ts';
import { useLiveSubscription } from '../../live/follow.ts';
import { useCoalescedRefetch } from '../../live/refetch.ts';
import { Button } from '../../ui/button.tsx';
import { describeValues, formatEnum } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { isFailed, type JobStatus, JobStatusBadge, RunStatusBadge } from '../../ui/status.tsx';
import { CheckIcon } from '../job/checks.tsx';
import { Summary } from '../job/summary.tsx';
import { describeTests } from '../job/tests.tsx';
import { ArrayRow } from '../jobs/array-row.tsx';
import { JobRow, JobRowData } from '../jobs/job-row.tsx';
import { CompareLink } from '../jobs/selection.tsx';
import { mayWrite, type RepositoryData, RepositoryFrame } from './frame.tsx';
import { placeSteps } from './run-graph.ts';
import { durationOf, RunSource } from './runs.tsx';

const RunQuery = graphql(
  `
  query Run($namespace: String!, $name: String!, $number: Int!) {
    repository(namespace: $namespace, name: $name) {
      id
      run(number: $number) {
        id number status trigger ref sha title actor approvedBy createdAt startedAt completedAt
        problems { line column message }
        inputs { name value }
        steps { name needs { job when } }
        jobs { id namespace name runJob status hasSummary testReport { total failed skipped } checks { metric passed message } array { id name size maxParallel } ...JobRow }
      }
    }
  }
`,
  [JobRowData],
);

type Run = NonNullable<NonNullable<ResultOf<typeof RunQuery>['repository']>['run']>;

const RunChanged = graphql(`
  subscription RunChanged($namespace: String!, $name: String!, $number: Int!) {
    runChanges(namespace: $namespace, name: $name, number: $number) { run { id status } }
  }
`);

const ApproveRun = graphql(`
  mutation ApproveRun($input: RunIdInput!) { approveRun(input: $input) { run { id } } }
`);
const CancelRun = graphql(`
  mutation CancelRun($input: RunIdInput!) { cancelRun(input: $input) { run { id } } }
`);
const RerunRun = graphql(`
  mutation RerunRun($input: RerunRunInput!) { rerunRun(input: $input) { run { id number } } }
`);

/** Changes of this time cause one refetch, because many jobs change at once. */
const COALESCE_MS = 300;

export default function RunPage() {
  const { number } = useParams({ strict: false }) as { number: string };
  return (
    <RepositoryFrame tab={`Run #${number}`} within="Runs">
      {(repository) => <RunDetails repository={repository} number={Number(number) || 0} />}
    </RepositoryFrame>
  );
}

function RunDetails({ repository, number }: { repository: RepositoryData; number: number }) {
  const { namespace, name } = repository;
  const variables = { namespace, name, number };
  const asked = useRetryingQuery({ query: RunQuery, variables });
  const refetch = useCoalescedRefetch(asked.again, COALESCE_MS);
  useLiveSubscription(RunChanged, `${namespace}/${name}#${number}`, {
    variables: () => variables,
    onData: refetch,
  });
  return (
    <Load asked={asked} of={(data) => data.repository?.run} what="run">
      {(run) => (
        <div className="space-y-6">
          <RunHeader run={run} repository={repository} />
          {run.problems.length > 0 && <Problems run={run} repository={repository} />}
          {run.steps.length > 0 && <Graph run={run} />}
          <RunChecks run={run} />
          <Results run={run} />
          {run.jobs.length > 0 && (
            <section aria-labelledby="jobs" className="space-y-3">
              <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
                <h2 id="jobs">Jobs</h2>
                <CompareLinks namespace={repository.namespace} jobs={run.jobs} />
              </div>
              <ul className="rows">
                {foldArrays(run.jobs).map(({ job, array }) =>
                  array ? (
                    <ArrayRow key={array.id} namespace={repository.namespace} array={array} />
                  ) : (
                    <JobRow key={job.id} job={job} />
                  ),
                )}
              </ul>
            </section>
          )}
        </div>
      )}
    </Load>
  );
}

/** Of a matrix with many jobs, the failed checks come first. */
const MAX_CHECKS = 50;

/** The results of the checks of metrics of all jobs. */
function RunChecks({ run }: { run: Run }) {
  const decided = run.jobs
    .flatMap((job) => {
      const { name, namespace } = readFragment(JobRowData, job);
      return job.checks.map((check, index) => ({
        ...check,
        id: `${job.id} ${index}`,
        name,
        namespace,
      }));
    })
    .filter(({ passed }) => passed !== null)
    .sort((a, b) => Number(a.passed) - Number(b.passed));
  if (decided.length === 0) return null;
  const others = decided.length - MAX_CHECKS;
  return (
    <section aria-labelledby="checks" className="space-y-3">
      <h2 id="checks">Checks</h2>
      <ul className="rows text-sm">
        {decided.slice(0, MAX_CHECKS).map(({ id, name, namespace, passed, message }) => (
          <li key={id} className="flex flex-wrap gap-x-2 gap-y-1" data-check={passed}>
            <CheckIcon passed={passed} />
            <Link
              to="/$namespace/-/jobs/$job"
              params={{ namespace, job: name }}
              className="font-medium break-all hover:underline"
            >
              {name}
            </Link>
            <span className="min-w-0 flex-1 basis-64 break-words">{message}</span>
          </li>
        ))}
      </ul>
      {others > 0 && <p className="text-sm text-dim">And {others} more</p>}
    </section>
  );
}

/** Links to comparisons of each matrix; without one, of the jobs. */
function CompareLinks({ namespace, jobs }: { namespace: string; jobs: Run['jobs'] }) {
  const arrays = foldArrays(jobs).flatMap(({ array }) => (array && array.size > 1 ? [array] : []));
  const names = jobs.map((job) => readFragment(JobRowData, job).name);
  if (arrays.length > 0)
    return arrays.map(({ id, name }) => (
      <CompareLink
        key={id}
        namespace={namespace}
        search={{ array: id }}
        text={arrays.length > 1 ? `Compare ${name}` : 'Compare'}
      />
    ));
  if (names.length < 2) return null;
  return <CompareLink namespace={namespace} search={{ jobs: names.join(',') }} />;
}

/** More summaries are collapsed. */
const MAX_OPEN_SUMMARIES = 3;

/** The summaries and test counts of the jobs. */
function Results({ run: { jobs } }: { run: Run }) {
  const tested = jobs.filter(({ testReport }) => testReport);
  const summaries = jobs.filter(({ hasSummary }) => hasSummary);
  return (
    <>
      {tested.length > 0 && (
        <section aria-labelledby="tests" className="space-y-2">
          <h2 id="tests">Tests</h2>
          <ul className="rows text-sm">
            {tested.map(({ id, namespace, name, testReport }) => (
              <li key={id} className="flex flex-wrap gap-x-4">
                <Link
                  to="/$namespace/-/jobs/$job"
                  params={{ namespace, job: name }}
                  className="link min-w-0 flex-1 break-all"
                >
                  {name}
                </Link>
                {testReport && (
                  <span className={testReport.failed > 0 ? 'text-bad' : 'text-dim'}>
                    {describeTests(testReport)}
                  </span>
                )}
              </li>
            ))}
          </ul>
        </section>
      )}
      {summaries.map(({ id, namespace, name }) =>
        summaries.length > MAX_OPEN_SUMMARIES ? (
          <CollapsedSummary key={id} job={{ namespace, name }} />
        ) : (
          <Summary
            key={id}
            job={{ namespace, name }}
            title={<h2 className="mb-2 break-all">Summary of {name}</h2>}
          />
        ),
      )}
    </>
  );
}

/** Its text is loaded when it is opened. */
function CollapsedSummary({ job }: { job: { namespace: string; name: string } }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary className="font-semibold break-all">Summary of {job.name}</summary>
      {isOpen && <Summary job={job} title={null} />}
    </details>
  );
}

/** One row for each array. Its counts come from the jobs, because asking for them takes a query for each job. */
function foldArrays(jobs: Run['jobs']) {
  const byRow = Map.groupBy(jobs, ({ id, array }) => array?.id ?? id);
  return [...byRow.values()].flatMap((members) => {
    const [job] = members;
    if (!job) return [];
    const byStatus = Map.groupBy(members, ({ status }) => status);
    const counts = [...byStatus].map(([status, { length: count }]) => ({ status, count }));
    return [{ job, array: job.array && { ...job.array, counts } }];
  });
}

function RunHeader({ run, repository }: { run: Run; repository: RepositoryData }) {
  const { id, number, title, status, approvedBy } = run;
  const approve = useFormMutation(ApproveRun);
  const cancel = useFormMutation(CancelRun);
  const rerun = useFormMutation(RerunRun, { changes: ['Run'] });
  const params = { namespace: repository.namespace, repository: repository.name };
  const isOpen = status === 'QUEUED' || status === 'RUNNING';
  const problem = approve.problem ?? cancel.problem ?? rerun.problem;
  const navigate = useNavigate();
  async function startAgain(failedOnly: boolean): Promise<void> {
    const { data } = await rerun.run({ input: { id, failedOnly } });
    const next = data?.rerunRun?.run.number;
    if (next === undefined) return;
    const to = '/$namespace/$repository/runs/$number';
    await navigate({ to, params: { ...params, number: `${next}` } });
  }
  return (
    <section aria-labelledby="run" className="space-y-3">
      <div className="flex flex-wrap items-start gap-x-4 gap-y-3">
        <div className="min-w-0 flex-1 basis-64">
          <h2 id="run" className="break-words">
            <bdi>{title || 'Run'}</bdi> <span className="text-dim">#{number}</span>
          </h2>
          <p className="mt-1 text-sm text-dim">
            <RunSource run={run} params={params} />
            {approvedBy !== null && (
              <>
                {' '}
                · approved by <bdi>{approvedBy}</bdi>
              </>
            )}
            {durationOf(run) && ` · took ${durationOf(run)}`}
          </p>
          {run.inputs.length > 0 && (
            <ul aria-label="Inputs" className="mt-1 flex flex-wrap gap-x-4 text-sm">
              {run.inputs.map((input) => (
                <li key={input.name} className="min-w-0 break-words">
                  <span className="text-dim">{input.name}</span> <code>{input.value}</code>
                </li>
              ))}
            </ul>
          )}
        </div>
        <RunStatusBadge status={status} />
        {mayWrite(repository) && (
          <div className="flex flex-wrap gap-2">
            {status === 'WAITING_FOR_APPROVAL' && (
              <Button
                look="primary"
                busy={approve.busy}
                onClick={() => approve.run({ input: { id } })}
              >
                Approve and run
              </Button>
            )}
            {(isOpen || status === 'WAITING_FOR_APPROVAL') && (
              <Button
                look="danger"
                busy={cancel.busy}
                onClick={() => cancel.run({ input: { id } })}
              >
                Cancel run
              </Button>
            )}
            {!isOpen && run.jobs.length > 0 && (
              <>
                {status !== 'SUCCEEDED' && (
                  <Button busy={rerun.busy} onClick={() => startAgain(true)}>
                    Rerun failed jobs
                  </Button>
                )}
                <Button busy={rerun.busy} onClick={() => startAgain(false)}>
                  Rerun all jobs
                </Button>
              </>
            )}
          </div>
        )}
      </div>
      {problem && <ProblemBox problem={problem} />}
    </section>
  );
}

function Problems({ run, repository }: { run: Run; repository: RepositoryData }) {
  const { problems, sha, status } = run;
  return (
    <section aria-labelledby="problems" className="space-y-3">
      <h2 id="problems">{status === 'INVALID' ? 'Problems in the file' : 'Problems'}</h2>
      <ul className="rows text-sm">
        {problems.map(({ line, column, message }) => (
          <li key={`${line}:${column}:${message}`} className="flex flex-wrap gap-x-4 gap-y-1">
            {status === 'INVALID' && (
              <Link
                to="/$namespace/$repository/file/$"
                params={{
                  namespace: repository.namespace,
                  repository: repository.name,
                  _splat: '.loam/jobs.yml',
                }}
                search={{ ref: sha }}
                hash={`L${line}`}
                className="link font-mono"
              >
                .loam/jobs.yml:{line}:{column}
              </Link>
            )}
            <span className="min-w-0 flex-1 basis-64 break-words">{message}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

const WIDTH = 208;
const HEIGHT = 60;
const GAP_X = 48;
const GAP_Y = 16;
/** Of the line of a combination in the box of a job with a matrix. */
const LINE_HEIGHT = 24;
const MAX_LINES = 8;

/** The jobs of the run as a graph: a job stands to the right of those that it needs. */
function Graph({ run: { steps, jobs } }: { run: Run }) {
  const jobsOf = Map.groupBy(jobs, ({ runJob }) => runJob);
  const heightOf = (name: string) => {
    const { shown, others } = listCombinations(jobsOf.get(name) ?? []);
    return HEIGHT + LINE_HEIGHT * (shown.length + Math.min(others, 1));
  };
  const { placed, edges } = placeSteps(steps, { gap: GAP_Y, heightOf });
  const columns = Math.max(...placed.map(({ column }) => column)) + 1;
  const x = (column: number) => column * (WIDTH + GAP_X);
  const size = {
    width: x(columns) - GAP_X,
    height: Math.max(...placed.map(({ top, height }) => top + height)),
  };
  return (
    <section aria-labelledby="graph" className="space-y-3">
      <h2 id="graph">Graph</h2>
      <div className="card sideways p-4">
        <div className="relative" style={size}>
          <svg {...size} aria-hidden className="absolute inset-0 text-edge">
            {edges.map(({ from, to }) => {
              const [x1, y1] = [x(from.column) + WIDTH, from.top + HEIGHT / 2];
              const [x2, y2] = [x(to.column), to.top + HEIGHT / 2];
              const bend = GAP_X / 2;
              return (
                <path
                  key={`${from.name} ${to.name}`}
                  d={`M ${x1} ${y1} C ${x1 + bend} ${y1}, ${x2 - bend} ${y2}, ${x2} ${y2}`}
                  fill="none"
                  stroke="currentColor"
                  strokeWidth={1.5}
                />
              );
            })}
          </svg>
          <ol>
            {placed.map(({ name, column, top, height }) => (
              <li
                key={name}
                className="absolute rounded-md border border-edge bg-card px-3 py-2 text-sm"
                style={{ left: x(column), top, width: WIDTH, height }}
                data-step={name}
              >
                <StepNode name={name} jobs={jobsOf.get(name) ?? []} />
              </li>
            ))}
          </ol>
        </div>
      </div>
    </section>
  );
}

/** The states of a job with several combinations: the first of these that a combination has. */
const WORST_FIRST: readonly JobStatus[] = [
  'FAILED',
  'TIMED_OUT',
  'RUNNING',
  'QUEUED',
  'CANCELLED',
  'SUCCEEDED',
];

type JobData = FragmentOf<typeof JobRowData>;

/** The combinations of a matrix that have a line in the box of the job; those that failed come first. */
function listCombinations(jobs: readonly JobData[]) {
  const combinations = jobs
    .map((job) => readFragment(JobRowData, job))
    .filter(({ matrixValues }) => matrixValues.length > 0)
    .sort((a, b) => WORST_FIRST.indexOf(a.status) - WORST_FIRST.indexOf(b.status));
  const shown = combinations.slice(0, MAX_LINES);
  return { shown, others: combinations.length - shown.length };
}

function StepNode({ name, jobs }: { name: string; jobs: readonly JobData[] }) {
  const { shown, others } = listCombinations(jobs);
  const rows = jobs.map((job) => readFragment(JobRowData, job));
  const [only] = rows;
  const status = WORST_FIRST.find((one) => rows.some((row) => row.status === one));
  const succeeded = rows.filter((row) => row.status === 'SUCCEEDED').length;
  return (
    <>
      <p className="truncate font-medium" title={name}>
        {only && rows.length === 1 ? (
          <Link
            to="/$namespace/-/jobs/$job"
            params={{ namespace: only.namespace, job: only.name }}
            className="hover:underline"
          >
            {name}
          </Link>
        ) : (
          name
        )}
      </p>
      <p className="flex items-center gap-2 text-xs text-dim">
        {status ? <JobStatusBadge status={status} /> : 'Not created'}
        {rows.length > 1 && (
          <span>
            {succeeded} of {rows.length}
            <span className="sr-only"> succeeded</span>
          </span>
        )}
      </p>
      {shown.length > 0 && (
        <ul className="mt-1 text-xs" style={{ lineHeight: `${LINE_HEIGHT}px` }}>
          {shown.map((job) => (
            <li key={job.id}>
              <Link
                to="/$namespace/-/jobs/$job"
                params={{ namespace: job.namespace, job: job.name }}
                title={describeValues(job.matrixValues)}
                className={`block truncate font-mono hover:underline ${isFailed(job.status) ? 'text-bad' : 'text-dim'}`}
              >
                {describeValues(job.matrixValues)}
                <span className="sr-only">: {formatEnum(job.status)}</span>
              </Link>
            </li>
          ))}
          {others > 0 && <li className="text-dim">and {others} more</li>}
        </ul>
      )}
    </>
  );
}
