import { page } from '../../root.tsx';

export const namespaceRoutes = [
  page('/$namespace', () => import('./repositories.tsx')),
  page('/$namespace/-/jobs', () => import('./jobs.tsx')),
  page('/$namespace/-/activity', () => import('./activity.tsx')),
  page('/$namespace/-/members', () => import('./members.tsx')),
  page('/$namespace/-/usage', () => import('./usage.tsx')),
  page('/$namespace/-/settings', () => import('./settings.tsx')),
  page('/new/organization', () => import('./new-organization.tsx')),
] as const;
