import { definePage } from '../../root.tsx';

export const settingsRoutes = [
  definePage('/settings', () => import('./account.tsx')),
  definePage('/settings/tokens', () => import('./tokens.tsx')),
  definePage('/settings/api-keys', () => import('./api-keys.tsx')),
  definePage('/settings/ssh-keys', () => import('./ssh-keys.tsx')),
  definePage('/settings/sessions', () => import('./sessions.tsx')),
] as const;
