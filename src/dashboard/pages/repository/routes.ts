import { page } from '../../root.tsx';

export const repositoryRoutes = [
  page('/$namespace/$repository', () => import('./overview.tsx')),
  page('/$namespace/$repository/tree/$', () => import('./folder.tsx')),
  page('/$namespace/$repository/file/$', () => import('./file.tsx')),
  page('/$namespace/$repository/edit/$', () => import('./edit/edit.tsx')),
  page('/$namespace/$repository/new-file', () => import('./edit/new-file.tsx')),
  page('/$namespace/$repository/commits', () => import('./commits.tsx')),
  page('/$namespace/$repository/commit/$sha', () => import('./commit.tsx')),
  page('/$namespace/$repository/compare', () => import('./compare.tsx')),
  page('/$namespace/$repository/branches', () => import('./branches.tsx')),
  page('/$namespace/$repository/tags', () => import('./tags.tsx')),
  page('/$namespace/$repository/search', () => import('./search.tsx')),
  page('/$namespace/$repository/jobs', () => import('./jobs.tsx')),
  page('/$namespace/$repository/large-files', () => import('./large-files.tsx')),
  page('/$namespace/$repository/settings', () => import('./settings.tsx')),
  page('/new/repository', () => import('./new.tsx')),
] as const;
