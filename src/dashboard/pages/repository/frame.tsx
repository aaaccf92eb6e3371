import { useParams } from '@tanstack/react-router';
import {
  Files,
  GitBranch,
  GitCommitHorizontal,
  GitCompareArrows,
  HardDrive,
  Settings,
  SquareTerminal,
  Tag,
  Workflow,
} from 'lucide-react';
import type { ReactNode } from 'react';
import { type FragmentOf, graphql, type ResultOf, readFragment } from '../../graphql/graphql.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { PageTitle, Tabs } from '../../ui/page.tsx';
import { VisibilityBadge } from './visibility.tsx';

/** The tabs that have pages below them. */
type RepositoryTab = 'Files' | 'Commits' | 'Runs' | 'Jobs';

export const RepositoryTabsData = graphql(`
  fragment RepositoryTabs on Repository {
    id
    namespace
    name
    fullName
    branchCount
    tagCount
    owner { id viewerRole }
  }
`);

const RepositoryQuery = graphql(
  `
  query RepositoryFrame($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      namespace
      name
      fullName
      description
      visibility
      defaultBranch
      language
      sizeBytes
      branchCount
      tagCount
      pushedAt
      cloneUrl
      sshUrl
      owner { id viewerRole }
      createdAt
      ...RepositoryTabs
    }
  }
`,
  [RepositoryTabsData],
);

export type RepositoryData = NonNullable<ResultOf<typeof RepositoryQuery>['repository']>;

/** The frame of all pages of a repository: title and tabs. */
export function RepositoryFrame({
  tab,
  within,
  actions,
  children,
}: {
  /** The name of the page in the document title. */
  tab: string;
  /** The tab that this page belongs to, if it has no tab of its own. */
  within?: RepositoryTab;
  actions?: ReactNode;
  children: (repository: RepositoryData, reload: () => void) => ReactNode;
}) {
  const { namespace, repository: name } = useParams({ strict: false }) as {
    namespace: string;
    repository: string;
  };
  const asked = useRetryingQuery({ query: RepositoryQuery, variables: { namespace, name } });
  return (
    <Load asked={asked} of={(data) => data.repository} what="repository">
      {(repository) => (
        <>
          <PageTitle
            title={repository.fullName}
            tab={`${tab} · ${repository.fullName}`}
            actions={actions}
          >
            <span className="mr-2">
              <VisibilityBadge visibility={repository.visibility} />
            </span>
            {repository.description}
          </PageTitle>
          <RepositoryTabs repository={repository} within={within} />
          {children(repository, asked.again)}
        </>
      )}
    </Load>
  );
}

/** The tabs of a repository, also on the pages of its jobs. */
export function RepositoryTabs({
  repository: data,
  within,
}: {
  repository: FragmentOf<typeof RepositoryTabsData>;
  within?: RepositoryTab | undefined;
}) {
  const repository = readFragment(RepositoryTabsData, data);
  const params = { namespace: repository.namespace, repository: repository.name };
  return (
    <Tabs
      label={`Pages of ${repository.fullName}`}
      within={within}
      tabs={[
        {
          name: 'Files',
          icon: Files,
          to: '/$namespace/$repository',
          params,
          activeOptions: { exact: true },
        },
        {
          name: 'Commits',
          icon: GitCommitHorizontal,
          to: '/$namespace/$repository/commits',
          params,
        },
        {
          name: 'Branches',
          icon: GitBranch,
          count: repository.branchCount,
          to: '/$namespace/$repository/branches',
          params,
        },
        {
          name: 'Tags',
          icon: Tag,
          count: repository.tagCount,
          to: '/$namespace/$repository/tags',
          params,
        },
        {
          name: 'Compare',
          icon: GitCompareArrows,
          to: '/$namespace/$repository/compare',
          params,
        },
        {
          name: 'Runs',
          icon: Workflow,
          to: '/$namespace/$repository/runs',
          params,
          activeOptions: { exact: true },
        },
        ...(repository.owner.viewerRole
          ? [
              {
                name: 'Jobs',
                icon: SquareTerminal,
                to: '/$namespace/$repository/jobs',
                params,
              } as const,
            ]
          : []),
        {
          name: 'Large files',
          icon: HardDrive,
          to: '/$namespace/$repository/large-files',
          params,
        },
        ...(repository.owner.viewerRole === 'ADMIN'
          ? [
              {
                name: 'Settings',
                icon: Settings,
                to: '/$namespace/$repository/settings',
                params,
              } as const,
            ]
          : []),
      ]}
    />
  );
}

/** Whether the viewer has write access. A branch rule may still refuse the push. */
export function mayWrite({ owner }: Pick<RepositoryData, 'owner'>): boolean {
  return owner.viewerRole === 'WRITE' || owner.viewerRole === 'ADMIN';
}
