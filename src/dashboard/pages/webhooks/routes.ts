import { page } from '../../root.tsx';

export const webhookRoutes = [
  page('/$namespace/-/webhooks', () => import('./webhooks.tsx')),
  page('/$namespace/-/webhooks/$webhook', () => import('./webhook.tsx')),
  page('/new/webhook', () => import('./new.tsx')),
] as const;
