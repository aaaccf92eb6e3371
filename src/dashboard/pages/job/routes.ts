import { page } from '../../root.tsx';

export const jobRoutes = [
  page('/$namespace/-/jobs/$job', () => import('./job.tsx')),
  page('/new/job', () => import('./new.tsx')),
] as const;
