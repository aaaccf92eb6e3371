import { page } from '../../root.tsx';

export const homeRoutes = [page('/', () => import('./home.tsx'))] as const;
