import { Link, useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { type ReactNode, useState } from 'react';
import { useQuery } from 'urql';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Input, Select } from '../../ui/field.tsx';
import { formatCount, formatEnum } from '../../ui/format.ts';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { ShowMoreButton } from '../../ui/page.tsx';
import { formatCurl, joinCommand } from '../../ui/shell.ts';
import { TerminalBox } from '../../ui/terminal-box.tsx';
import { ArrayRow } from '../jobs/array-row.tsx';
import { STATUSES, toJobFilter } from '../jobs/job-filter.ts';
import { JobRow, JobRowData } from '../jobs/job-row.tsx';
import { useLiveJobs } from '../jobs/live-jobs.ts';
import { SelectionBar, useSelection } from '../jobs/selection.tsx';
import { NamespaceFrame } from './frame.tsx';

const JobsQuery = graphql(
  `
  query Jobs($namespace: String!, $filter: JobFilter, $first: Int!, $sort: JobSort!, $order: SortOrder!, $foldArrays: Boolean!) {
    namespace(name: $namespace) {
      id
      viewerRole
      jobs(first: $first, filter: $filter, sort: $sort, order: $order, foldArrays: $foldArrays) {
        nodes {
          id
          name
          array @include(if: $foldArrays) { id name size maxParallel counts { status count } }
          ...JobRow
        }
        pageInfo { hasNextPage }
      }
      all: jobs(first: 1, filter: $filter) { totalCount }
    }
  }
`,
  [JobRowData],
);

const ModelsQuery = graphql(
  `query GpuModels($namespace: String!) { jobOptions(namespace: $namespace) { gpus { gpu } } }`,
);

const SORTS = {
  newest: ['CREATED_AT', 'DESC'],
  oldest: ['CREATED_AT', 'ASC'],
  name: ['NAME', 'ASC'],
  ended: ['COMPLETED_AT', 'DESC'],
} as const;
const PAGE_SIZE = 25;
/** The most jobs that the API returns in one response. */
const MAX_JOBS = 100;

/** The jobs of a namespace, updated live. The filters are in the URL. */
export default function Jobs() {
  const { namespace } = useParams({ from: '/$namespace/-/jobs' });
  return (
    <NamespaceFrame
      tab="Jobs"
      actions={
        <ButtonLink to="/new/job" search={{ namespace }} look="primary">
          New job
        </ButtonLink>
      }
    >
      {() => <JobList namespace={namespace} />}
    </NamespaceFrame>
  );
}

/** The jobs of a namespace or, given the full name of a repository, only the jobs of this repository. */
export function JobList({ namespace, repository }: { namespace: string; repository?: string }) {
  const search = useSearch({ strict: false }) as Search;
  const { status, name = '', gpu, label = '', array, sort = 'newest' } = search;
  const [first, setFirst] = useState(PAGE_SIZE);
  const matching = { status, name, gpu, label, array, repo: repository };
  const filter = toJobFilter(matching);
  const isFiltered = Boolean(status || gpu || name || label || array);
  // The jobs of an array can match one by one: `sweep-1` matches sweep-1 and sweep-10.
  const isFolded = (of: { name: string }) => `${of.name}-`.startsWith(name);
  const [by, order] = SORTS[sort as keyof typeof SORTS] ?? SORTS.newest;
  const asked = useRetryingQuery({
    query: JobsQuery,
    variables: { namespace, filter, first, sort: by, order, foldArrays: !array },
  });
  const live = useLiveJobs([namespace], asked.again);
  const selection = useSelection(JSON.stringify([namespace, filter]));
  return (
    <>
      <Filters namespace={namespace} search={search} live={<LiveDot state={live} />} />
      {array && (
        <p className="mb-4 text-sm">
          Only jobs of{' '}
          <Link to="/$namespace/-/arrays/$array" params={{ namespace, array }} className="link">
            one array
          </Link>
          .{' '}
          <Link to="." search={{ ...search, array: undefined }} className="link">
            Show all jobs
          </Link>
        </p>
      )}
      <Load
        asked={asked}
        of={({ namespace: owner }) =>
          owner?.jobs && owner.all && { ...owner.jobs, ...owner.all, role: owner.viewerRole }
        }
        what="list"
      >
        {({ nodes, totalCount, pageInfo, role }) =>
          nodes.length === 0 ? (
            <NoJobs namespace={namespace} repository={repository} isFiltered={isFiltered} />
          ) : (
            <>
              {mayWrite(role) ? (
                <SelectionBar
                  selection={selection}
                  namespace={namespace}
                  filter={filter}
                  matching={matching}
                  shown={nodes
                    .filter((job) => !(job.array && isFolded(job.array)))
                    .map((job) => job.name)}
                  total={totalCount}
                  onChange={asked.again}
                />
              ) : (
                <div className="mb-2 flex flex-wrap gap-x-3 text-sm">
                  <p role="status" className="text-dim">
                    {formatCount(totalCount, 'job')}
                  </p>
                  <Link
                    to="/$namespace/-/compare"
                    params={{ namespace }}
                    search={{ ...matching, all: '1' }}
                    className="link"
                  >
                    Compare
                  </Link>
                </div>
              )}
              <ul className="rows">
                {nodes.map((job) =>
                  job.array && isFolded(job.array) ? (
                    <ArrayRow
                      key={job.id}
                      namespace={namespace}
                      array={job.array}
                      isIndented={mayWrite(role)}
                    />
                  ) : (
                    <JobRow
                      key={job.id}
                      job={job}
                      select={
                        mayWrite(role)
                          ? {
                              isSelected: selection.matching || selection.names.has(job.name),
                              onChange: (isSelected) => selection.toggle([job.name], isSelected),
                            }
                          : undefined
                      }
                    />
                  ),
                )}
              </ul>
              <ShowMoreButton
                hasMore={pageInfo.hasNextPage && first < MAX_JOBS}
                onMore={() => setFirst(Math.min(first + PAGE_SIZE, MAX_JOBS))}
              />
              {pageInfo.hasNextPage && first >= MAX_JOBS && (
                <p className="mt-4 text-center text-sm text-dim">
                  Only the first {MAX_JOBS} jobs are shown. Use filters to find others.
                </p>
              )}
            </>
          )
        }
      </Load>
    </>
  );
}

function Filters({
  namespace,
  search,
  live,
}: {
  namespace: string;
  search: Search;
  live: ReactNode;
}) {
  const navigate = useNavigate();
  const setFilter = (change: Search) =>
    navigate({ to: '.', search: { ...search, ...change }, replace: true });
  const [{ data }] = useQuery({ query: ModelsQuery, variables: { namespace } });
  const offered = data?.jobOptions?.gpus.map(({ gpu }) => gpu) ?? [];
  // A job may have a model that the server does not offer any more.
  const models = [...new Set([...offered, ...(search.gpu ? [search.gpu] : [])])];
  return (
    <search className="mb-4 flex flex-wrap items-center gap-2">
      <Input
        data-search
        type="search"
        aria-label="Name begins with"
        placeholder="Name begins with…"
        defaultValue={search.name}
        onChange={({ target }) => setFilter({ name: target.value })}
        className="w-full sm:w-52"
      />
      <Input
        type="search"
        aria-label="Label, as key=value"
        placeholder="Label: key=value"
        defaultValue={search.label}
        onChange={({ target }) => setFilter({ label: target.value })}
        className="w-full sm:w-44"
      />
      <Select
        aria-label="Status"
        value={search.status ?? ''}
        onChange={({ target }) => setFilter({ status: target.value })}
        className="w-auto"
      >
        <option value="">Any status</option>
        {STATUSES.map((each) => (
          <option key={each} value={each}>
            {formatEnum(each)}
          </option>
        ))}
      </Select>
      <Select
        aria-label="GPU"
        value={search.gpu ?? ''}
        onChange={({ target }) => setFilter({ gpu: target.value })}
        className="w-auto"
      >
        <option value="">Any GPU</option>
        {models.map((each) => (
          <option key={each} value={each}>
            {each === 'NONE' ? 'No GPU' : each.replaceAll('_', ' ')}
          </option>
        ))}
      </Select>
      <Select
        aria-label="Order"
        value={search.sort ?? 'newest'}
        onChange={({ target }) => setFilter({ sort: target.value })}
        className="w-auto"
      >
        <option value="newest">Newest first</option>
        <option value="oldest">Oldest first</option>
        <option value="ended">Recently ended first</option>
        <option value="name">By name</option>
      </Select>
      <span className="ml-auto">{live}</span>
    </search>
  );
}

function NoJobs({
  namespace,
  repository,
  isFiltered,
}: {
  namespace: string;
  repository?: string;
  isFiltered: boolean;
}) {
  if (isFiltered) return <Empty title="No matching jobs">Remove a filter to see more jobs.</Empty>;
  const repo = repository ?? `${namespace}/my-repository`;
  const body = JSON.stringify({ name: 'train', command: 'make', repo, gpu: 'none' });
  return (
    <Empty title="There is no job yet">
      <p>
        A job is a command that runs once: on a commit of a repository or in an image, on the
        hardware that it asks for.
      </p>
      <ButtonLink to="/new/job" search={{ namespace, repo: repository }} look="primary">
        New job
      </ButtonLink>
      <p>Or from a terminal:</p>
      <div>
        <TerminalBox
          texts={[
            {
              client: 'loam',
              text: joinCommand([`loam run --repo ${repo}`, '--name train', '-- make']),
            },
            {
              client: 'curl',
              text: formatCurl(`${location.origin}/auth/v1/seed/${namespace}/jobs`, body),
            },
          ]}
        />
      </div>
    </Empty>
  );
}

function mayWrite(role: string | null): boolean {
  return role === 'WRITE' || role === 'ADMIN';
}
