import { page } from '../../root.tsx';

export const settingsRoutes = [
  page('/settings', () => import('./account.tsx')),
  page('/settings/tokens', () => import('./tokens.tsx')),
  page('/settings/api-keys', () => import('./api-keys.tsx')),
  page('/settings/ssh-keys', () => import('./ssh-keys.tsx')),
  page('/settings/sessions', () => import('./sessions.tsx')),
] as const;
