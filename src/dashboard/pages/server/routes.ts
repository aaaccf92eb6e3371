import { page } from '../../root.tsx';

export const serverRoutes = [
  page('/settings/server', () => import('./health.tsx')),
  page('/settings/server/users', () => import('./users.tsx')),
  page('/settings/server/organizations', () => import('./organizations.tsx')),
  page('/settings/server/servers', () => import('./servers.tsx')),
  page('/settings/server/queue', () => import('./queue.tsx')),
  page('/settings/server/audit', () => import('./audit.tsx')),
] as const;
