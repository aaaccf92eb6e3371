import { definePage } from '../../root.tsx';

export const serverRoutes = [
  definePage('/settings/server', () => import('./health.tsx')),
  definePage('/settings/server/users', () => import('./users.tsx')),
  definePage('/settings/server/organizations', () => import('./organizations.tsx')),
  definePage('/settings/server/servers', () => import('./servers.tsx')),
  definePage('/settings/server/machines', () => import('./machines.tsx')),
  definePage('/settings/server/queue', () => import('./queue.tsx')),
  definePage('/settings/server/audit', () => import('./audit.tsx')),
] as const;
