import { Link, useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Input, Select } from '../../ui/field.tsx';
import { formatBytes, formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { formatCurl } from '../../ui/shell.ts';
import { TerminalBox } from '../../ui/terminal-box.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { PageNavigation } from '../repository/page-links.tsx';
import { VisibilityBadge } from '../repository/visibility.tsx';
import { NamespaceFrame } from './frame.tsx';

const RepositoriesQuery = graphql(`
  query Repositories($namespace: String!, $page: Int!, $perPage: Int!, $sort: RepositorySort!, $order: SortOrder!, $visibility: Visibility) {
    repositoryPage(namespace: $namespace, page: $page, perPage: $perPage, sort: $sort, order: $order, visibility: $visibility) {
      total
      totalPages
      nodes { id name namespace description visibility language sizeBytes updatedAt pushedAt }
    }
  }
`);

type Row = NonNullable<ResultOf<typeof RepositoriesQuery>['repositoryPage']>['nodes'][number];

const SORTS = {
  changed: ['UPDATED_AT', 'DESC', 'Recently changed'],
  name: ['NAME', 'ASC', 'By name'],
  newest: ['CREATED_AT', 'DESC', 'Newest first'],
  largest: ['SIZE', 'DESC', 'Largest first'],
} as const;
const VISIBILITIES = { public: 'PUBLIC', internal: 'INTERNAL', private: 'PRIVATE' } as const;
const PER_PAGE = 30;
/** The largest page of the API. A search by name or description looks only at this many repositories. */
const MAX_PER_PAGE = 100;

/** The repositories of a namespace that the viewer may read. */
export default function Repositories() {
  const { namespace } = useParams({ from: '/$namespace' });
  return (
    <NamespaceFrame
      tab="Repositories"
      actions={
        <ButtonLink to="/new/repository" search={{ namespace }} look="primary">
          New repository
        </ButtonLink>
      }
    >
      {({ viewerRole }) => (
        <List namespace={namespace} mayCreate={viewerRole === 'ADMIN' || viewerRole === 'WRITE'} />
      )}
    </NamespaceFrame>
  );
}

function List({ namespace, mayCreate }: { namespace: string; mayCreate: boolean }) {
  const search = useSearch({ strict: false }) as Search;
  const { q = '', sort = 'changed', visibility } = search;
  const page = Math.max(1, Number.parseInt(search.page ?? '1', 10) || 1);
  const [by, order] = SORTS[sort as keyof typeof SORTS] ?? SORTS.changed;
  const asked = useRetryingQuery({
    query: RepositoriesQuery,
    variables: {
      namespace,
      page: q ? 1 : page,
      perPage: q ? MAX_PER_PAGE : PER_PAGE,
      sort: by,
      order,
      visibility: VISIBILITIES[visibility as keyof typeof VISIBILITIES] ?? null,
    },
  });
  return (
    <>
      <Filters search={search} />
      <Load asked={asked} of={(data) => data.repositoryPage} what="namespace">
        {({ nodes, total, totalPages }) => {
          const words = q.toLowerCase().split(/\s+/).filter(Boolean);
          const shown = nodes.filter(({ name, description }) =>
            words.every((word) => `${name} ${description}`.toLowerCase().includes(word)),
          );
          if (shown.length === 0)
            return (
              <NoRepositories
                namespace={namespace}
                isFiltered={Boolean(q || visibility)}
                mayCreate={mayCreate}
              />
            );
          return (
            <>
              <p role="status" className="mb-2 text-sm text-dim">
                {q
                  ? formatCount(shown.length, 'repository', 'repositories')
                  : formatCount(total, 'repository', 'repositories')}
                {q && total > MAX_PER_PAGE && ` among the first ${MAX_PER_PAGE}`}
              </p>
              <ul className="rows">
                {shown.map((each) => (
                  <RepositoryRow key={each.id} repository={each} />
                ))}
              </ul>
              {!q && <PageNavigation page={page} pages={totalPages} search={search} />}
            </>
          );
        }}
      </Load>
    </>
  );
}

function RepositoryRow({ repository }: { repository: Row }) {
  const { name, namespace, description, visibility, language, sizeBytes, pushedAt } = repository;
  return (
    <li data-repository={name}>
      <div className="flex flex-wrap items-center gap-x-2 gap-y-1">
        <Link
          to="/$namespace/$repository"
          params={{ namespace, repository: name }}
          className="min-w-0 font-medium break-words hover:underline"
        >
          {name}
        </Link>
        <VisibilityBadge visibility={visibility} />
      </div>
      {description && <p className="text-sm break-words">{description}</p>}
      <p className="mt-0.5 text-sm text-dim">
        {language && `${language} · `}
        {formatBytes(sizeBytes)} ·{' '}
        {pushedAt ? (
          <>
            pushed <RelativeTime at={pushedAt} />
          </>
        ) : (
          'nothing pushed yet'
        )}
      </p>
    </li>
  );
}

function Filters({ search }: { search: Search }) {
  const navigate = useNavigate();
  const setFilter = (change: Search) =>
    navigate({ to: '.', search: { ...search, page: undefined, ...change }, replace: true });
  return (
    <search className="mb-4 flex flex-wrap items-center gap-2">
      <Input
        data-search
        type="search"
        aria-label="Name or description"
        placeholder="Name or description…"
        defaultValue={search.q}
        onChange={({ target }) => setFilter({ q: target.value })}
        className="w-full sm:w-64"
      />
      <Select
        aria-label="Visibility"
        value={search.visibility ?? ''}
        onChange={({ target }) => setFilter({ visibility: target.value })}
        className="w-auto max-sm:flex-1"
      >
        <option value="">Any visibility</option>
        {Object.keys(VISIBILITIES).map((each) => (
          <option key={each}>{each}</option>
        ))}
      </Select>
      <Select
        aria-label="Order"
        value={search.sort ?? 'changed'}
        onChange={({ target }) => setFilter({ sort: target.value })}
        className="w-auto max-sm:flex-1"
      >
        {Object.entries(SORTS).map(([key, [, , text]]) => (
          <option key={key} value={key}>
            {text}
          </option>
        ))}
      </Select>
    </search>
  );
}

function NoRepositories({
  namespace,
  isFiltered,
  mayCreate,
}: {
  namespace: string;
  isFiltered: boolean;
  mayCreate: boolean;
}) {
  if (isFiltered)
    return <Empty title="No matching repositories">Remove a filter to see more.</Empty>;
  if (!mayCreate) return <Empty title="No repositories that you may read" />;
  return (
    <Empty title="There is no repository yet">
      <p>A repository holds the code and the large files of jobs.</p>
      <ButtonLink to="/new/repository" search={{ namespace }} look="primary">
        New repository
      </ButtonLink>
      <p>Or from a terminal:</p>
      <div>
        <TerminalBox
          texts={[
            { client: 'loam', text: `loam repo create ${namespace}/my-repository --init` },
            {
              client: 'curl',
              text: formatCurl(
                `${location.origin}/auth/v1/repository/${namespace}`,
                JSON.stringify({ name: 'my-repository' }),
              ),
            },
          ]}
        />
      </div>
    </Empty>
  );
}
