import { definePage } from '../../root.tsx';

export const jobRoutes = [
  definePage('/$namespace/-/jobs/$job', () => import('./job.tsx')),
  definePage('/$namespace/-/arrays/$array', () => import('../jobs/array.tsx')),
  definePage('/$namespace/-/compare', () => import('../compare/compare.tsx')),
  definePage('/new/job', () => import('./new.tsx')),
] as const;
