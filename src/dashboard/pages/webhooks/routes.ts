import { definePage } from '../../root.tsx';

export const webhookRoutes = [
  definePage('/$namespace/-/webhooks', () => import('./webhooks.tsx')),
  definePage('/$namespace/-/webhooks/$webhook', () => import('./webhook.tsx')),
  definePage('/new/webhook', () => import('./new.tsx')),
] as const;
