import { definePage } from '../../root.tsx';

export const namespaceRoutes = [
  definePage('/$namespace', () => import('./repositories.tsx')),
  definePage('/$namespace/-/jobs', () => import('./jobs.tsx')),
  definePage('/$namespace/-/activity', () => import('./activity.tsx')),
  definePage('/$namespace/-/members', () => import('./members.tsx')),
  definePage('/$namespace/-/usage', () => import('./usage.tsx')),
  definePage('/$namespace/-/settings', () => import('./settings.tsx')),
  definePage('/new/organization', () => import('./new-organization.tsx')),
] as const;
