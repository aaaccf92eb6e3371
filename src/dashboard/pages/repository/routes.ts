import { definePage } from '../../root.tsx';

export const repositoryRoutes = [
  definePage('/$namespace/$repository', () => import('./overview.tsx')),
  definePage('/$namespace/$repository/tree/$', () => import('./folder.tsx')),
  definePage('/$namespace/$repository/file/$', () => import('./file.tsx')),
  definePage('/$namespace/$repository/edit/$', () => import('./edit/edit.tsx')),
  definePage('/$namespace/$repository/new-file', () => import('./edit/new-file.tsx')),
  definePage('/$namespace/$repository/commits', () => import('./commits.tsx')),
  definePage('/$namespace/$repository/commit/$sha', () => import('./commit.tsx')),
  definePage('/$namespace/$repository/compare', () => import('./compare.tsx')),
  definePage('/$namespace/$repository/branches', () => import('./branches.tsx')),
  definePage('/$namespace/$repository/tags', () => import('./tags.tsx')),
  definePage('/$namespace/$repository/search', () => import('./search.tsx')),
  definePage('/$namespace/$repository/jobs', () => import('./jobs.tsx')),
  definePage('/$namespace/$repository/caches', () => import('./caches.tsx')),
  definePage('/$namespace/$repository/tests', () => import('./tests.tsx')),
  definePage('/$namespace/$repository/runs', () => import('./runs.tsx')),
  definePage('/$namespace/$repository/runs/$number', () => import('./run.tsx')),
  definePage('/$namespace/$repository/large-files', () => import('./large-files.tsx')),
  definePage('/$namespace/$repository/settings', () => import('./settings.tsx')),
  definePage('/new/repository', () => import('./new.tsx')),
] as const;
