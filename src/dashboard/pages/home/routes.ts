import { definePage } from '../../root.tsx';

export const homeRoutes = [definePage('/', () => import('./home.tsx'))] as const;
