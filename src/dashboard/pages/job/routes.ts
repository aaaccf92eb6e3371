import { definePage } from '../../root.tsx';

export const jobRoutes = [
  definePage('/$namespace/-/jobs/$job', () => import('./job.tsx')),
  definePage('/new/job', () => import('./new.tsx')),
] as const;
