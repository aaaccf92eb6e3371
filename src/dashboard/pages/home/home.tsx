import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { errorCode } from '../../graphql/client.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { formatCurl } from '../../ui/shell.ts';
import { installCommands, TerminalBox } from '../../ui/terminal-box.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { ArrayRow } from '../jobs/array-row.tsx';
import { JobRow, JobRowData } from '../jobs/job-row.tsx';
import { useLiveJobs } from '../jobs/live-jobs.ts';
import { JOB_FILE } from '../repository/job-file.ts';

const HomeQuery = graphql(
  `
  query Home($username: String!) {
    viewer {
      id
      namespace { ...NamespaceOverview }
      organizations(first: 10) { nodes { ...NamespaceOverview } }
      active: jobs(first: 50, filter: { statuses: [RUNNING, QUEUED] }, foldArrays: true) { nodes { ...HomeJob } }
      mine: jobs(first: 10, filter: { creator: $username }, foldArrays: true) { nodes { ...HomeJob } }
      failed: jobs(first: 10, filter: { statuses: [FAILED, TIMED_OUT] }, foldArrays: true) { nodes { ...HomeJob } }
    }
  }
  fragment NamespaceOverview on Namespace {
    id
    name
    kind
    viewerRole
    repositories(first: 5, sort: UPDATED_AT) {
      totalCount
      nodes { id name namespace description visibility updatedAt pushedAt branchCount defaultBranch }
    }
  }
  fragment HomeJob on Job {
    id
    namespace
    status
    array { id name size maxParallel counts { status count } }
    ...JobRow
  }
`,
  [JobRowData],
);

type Viewer = NonNullable<ResultOf<typeof HomeQuery>['viewer']>;
type NamespaceData = Viewer['namespace'];
type JobData = NonNullable<Viewer['active']>['nodes'][number];

/** The jobs of the viewer's namespaces, the next step, and repositories. */
export default function Home() {
  const username = startData.viewer?.username ?? '';
  const homeQuery = useRetryingQuery({ query: HomeQuery, variables: { username } });
  const { viewer } = homeQuery.data ?? {};
  const organizations = viewer?.organizations?.nodes ?? [];
  const namespaces = viewer ? [viewer.namespace, ...organizations] : [];
  const live = useLiveJobs(
    namespaces.map(({ name }) => name),
    homeQuery.again,
  );
  return (
    <>
      <PageTitle title="Home" actions={<LiveDot state={live} />} />
      <Load asked={homeQuery} of={(data) => data.viewer} what="page">
        {({ active, mine, failed }) => {
          const listed = new Set<string>();
          const running = takeNew(runningFirst(active?.nodes ?? []), listed);
          const recent = takeNew(mine?.nodes ?? [], listed);
          const failures = takeNew(failed?.nodes ?? [], listed);
          return (
            <div className="columns">
              <div className="min-w-0 space-y-8">
                <JobList id="running" title="Running and waiting" jobs={running}>
                  {recent.length > 0 ? (
                    <p className="card px-4 py-3 text-sm text-dim">No running jobs</p>
                  ) : (
                    <Empty title="No running jobs" level={3}>
                      <p>
                        A job is a command that runs once: on a commit of a repository or in an
                        image, on the hardware that it asks for.
                      </p>
                      <ButtonLink to="/new/job" look="primary">
                        New job
                      </ButtonLink>
                    </Empty>
                  )}
                </JobList>
                {recent.length > 0 && <JobList id="mine" title="My recent jobs" jobs={recent} />}
                {failures.length > 0 && (
                  <JobList id="failed" title="Recent failures of others" jobs={failures} />
                )}
                <NextStep namespaces={namespaces} />
              </div>
              <aside className="min-w-0 space-y-6" aria-label="My namespaces">
                {namespaces.map((each) => (
                  <NamespaceRepositories key={each.id} namespace={each} />
                ))}
                <TerminalExample />
              </aside>
            </div>
          );
        }}
      </Load>
    </>
  );
}

function runningFirst(jobs: readonly JobData[]): JobData[] {
  return [
    ...jobs.filter(({ status }) => status === 'RUNNING'),
    ...jobs.filter(({ status }) => status !== 'RUNNING'),
  ];
}

/** The jobs that no list shows yet. Of an array, only the first one is taken: its row stands for all. */
function takeNew(jobs: readonly JobData[], listed: Set<string>): JobData[] {
  return jobs.filter(({ id, array }) => {
    const key = array?.id ?? id;
    const isNew = !listed.has(key);
    listed.add(key);
    return isNew;
  });
}

/** `children` are shown if there are no jobs. */
function JobList({
  id,
  title,
  jobs,
  children,
}: {
  id: string;
  title: string;
  jobs: JobData[];
  children?: ReactNode;
}) {
  return (
    <section aria-labelledby={id}>
      <h2 id={id} className="mb-2">
        {title}
      </h2>
      {jobs.length > 0 ? (
        <ul className="rows">
          {jobs.map((job) =>
            job.array ? (
              <ArrayRow key={job.id} namespace={job.namespace} array={job.array} showNamespace />
            ) : (
              <JobRow key={job.id} job={job} showNamespace />
            ),
          )}
        </ul>
      ) : (
        children
      )}
    </section>
  );
}

const JobFileQuery = graphql(`
  query JobFile($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { id file(path: ".loam/jobs.yml") { path } }
  }
`);

/** What the repository that changed last lacks: a first push, or jobs that start by themselves. */
function NextStep({ namespaces }: { namespaces: readonly NamespaceData[] }) {
  const [repository] = namespaces
    .filter(({ viewerRole }) => viewerRole === 'WRITE' || viewerRole === 'ADMIN')
    .flatMap(({ repositories }) => repositories?.nodes ?? [])
    .sort((a, b) => b.updatedAt.localeCompare(a.updatedAt));
  const { namespace = '', name = '' } = repository ?? {};
  const isPushed = repository !== undefined && repository.branchCount > 0;
  const asked = useRetryingQuery({
    query: JobFileQuery,
    variables: { namespace, name },
    pause: !isPushed,
  });
  if (!repository) return null;
  const params = { namespace, repository: name };
  if (!isPushed)
    return (
      <Step title={`Push your project to ${name}`} text="The repository has no commits yet.">
        <ButtonLink to="/$namespace/$repository" params={params}>
          Show how
        </ButtonLink>
      </Step>
    );
  // Without the file, the query fails.
  if (!asked.error || errorCode(asked.error) !== 'NOT_FOUND') return null;
  return (
    <Step
      title={`Start jobs by pushes to ${name}`}
      text="The file .loam/jobs.yml names jobs that start by a push, at given times, or by hand."
    >
      <ButtonLink
        to="/$namespace/$repository/new-file"
        params={params}
        search={{ ref: repository.defaultBranch, path: JOB_FILE }}
      >
        Add .loam/jobs.yml
      </ButtonLink>
    </Step>
  );
}

function Step({ title, text, children }: { title: string; text: string; children: ReactNode }) {
  return (
    <section aria-labelledby="next">
      <h2 id="next" className="mb-2">
        Next step
      </h2>
      <div className="card flex flex-wrap items-center justify-between gap-3 px-4 py-3">
        <div className="min-w-0">
          <h3 className="break-words">{title}</h3>
          <p className="text-sm text-dim">{text}</p>
        </div>
        {children}
      </div>
    </section>
  );
}

function NamespaceRepositories({
  namespace: { name, kind, repositories },
}: {
  namespace: NamespaceData;
}) {
  return (
    <section aria-labelledby={`of-${name}`}>
      <h2 id={`of-${name}`} className="mb-2 flex flex-wrap items-baseline gap-x-2 text-base">
        <Link to="/$namespace" params={{ namespace: name }} className="hover:underline">
          {name}
        </Link>
        <span className="text-sm font-normal text-dim">
          {kind === 'USER' ? 'you' : 'organization'}
        </span>
      </h2>
      {repositories && repositories.nodes.length > 0 ? (
        <ul className="rows text-sm">
          {repositories.nodes.map((each) => (
            <li key={each.id}>
              <Link
                to="/$namespace/$repository"
                params={{ namespace: each.namespace, repository: each.name }}
                className="font-medium break-words hover:underline"
              >
                {each.name}
              </Link>
              <p className="text-dim">
                updated <RelativeTime at={each.updatedAt} />
              </p>
            </li>
          ))}
        </ul>
      ) : (
        <p className="text-sm text-dim">
          No repositories yet.{' '}
          <Link to="/new/repository" search={{ namespace: name }} className="link">
            Create one
          </Link>
        </p>
      )}
    </section>
  );
}

function TerminalExample() {
  return (
    <section aria-labelledby="terminal">
      <h2 id="terminal" className="mb-2 text-base">
        From a terminal
      </h2>
      <TerminalBox
        texts={[
          {
            client: 'loam',
            text: `${installCommands()}\nloam whoami`,
            hint: <p>Needs Node 20 or newer. You approve the login on a page of this server.</p>,
          },
          { client: 'curl', text: formatCurl(`${location.origin}/auth/v1/whoami`) },
        ]}
      />
    </section>
  );
}
