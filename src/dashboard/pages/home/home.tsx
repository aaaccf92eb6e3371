import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { type FragmentOf, graphql, type ResultOf } from '../../graphql/graphql.ts';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { formatCurl } from '../../ui/shell.ts';
import { installCommands, TerminalBox } from '../../ui/terminal-box.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { JobRow, JobRowData } from '../jobs/job-row.tsx';
import { useLiveJobs } from '../jobs/live-jobs.ts';

const HomeQuery = graphql(
  `
  query Home {
    viewer {
      id
      namespace { ...NamespaceOverview }
      organizations(first: 10) { nodes { ...NamespaceOverview } }
    }
  }
  fragment NamespaceOverview on Namespace {
    id
    name
    kind
    repositories(first: 5, sort: UPDATED_AT) {
      totalCount
      nodes { id name namespace description visibility updatedAt }
    }
    running: jobs(first: 10, filter: { statuses: [RUNNING, QUEUED] }) { nodes { id createdAt ...JobRow } }
    failed: jobs(first: 5, filter: { statuses: [FAILED, TIMED_OUT] }) { nodes { id createdAt ...JobRow } }
  }
`,
  [JobRowData],
);

type NamespaceData = NonNullable<ResultOf<typeof HomeQuery>['viewer']>['namespace'];
type JobData = FragmentOf<typeof JobRowData> & { id: string; createdAt: string };

/** The viewer's running jobs, recent failures and repositories. */
export default function Home() {
  const homeQuery = useRetryingQuery({ query: HomeQuery });
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
        {() => {
          const running = newestFirst(namespaces.flatMap((each) => each.running?.nodes ?? []));
          const failed = newestFirst(namespaces.flatMap((each) => each.failed?.nodes ?? []));
          return (
            <div className="grid gap-8 lg:grid-cols-[1fr_20rem]">
              <div className="min-w-0 space-y-8">
                <JobList id="running" title="Running and queued" jobs={running}>
                  <Empty title="No running jobs" level={3}>
                    <p>
                      A job is a command that runs once: on a commit of a repository, in an image,
                      on a GPU.
                    </p>
                    <ButtonLink to="/new/job" look="primary">
                      New job
                    </ButtonLink>
                  </Empty>
                </JobList>
                {failed.length > 0 && (
                  <JobList id="failed" title="Recent failures" jobs={failed.slice(0, 8)} />
                )}
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

function newestFirst(jobs: JobData[]): JobData[] {
  return jobs.sort((a, b) => b.createdAt.localeCompare(a.createdAt));
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
          {jobs.map((job) => (
            <JobRow key={job.id} job={job} showNamespace />
          ))}
        </ul>
      ) : (
        children
      )}
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
