/**
 * All pages and their addresses. Pages of a namespace are below `/{namespace}/-/`, which keeps them apart from its
 * repositories (`root.tsx` handles a repository named `-`). A ref is a search parameter, because ref names have slashes.
 */
import { createRouter } from '@tanstack/react-router';
import { Crashed } from './layout/crashed.tsx';
import { homeRoutes } from './pages/home/routes.ts';
import { jobRoutes } from './pages/job/routes.ts';
import { namespaceRoutes } from './pages/namespace/routes.ts';
import { repositoryRoutes } from './pages/repository/routes.ts';
import { serverRoutes } from './pages/server/routes.ts';
import { settingsRoutes } from './pages/settings/routes.ts';
import { webhookRoutes } from './pages/webhooks/routes.ts';
import { readSearch, rootRoute, type Search } from './root.tsx';
import { LoadingSkeleton } from './ui/load.tsx';
import { NotFound } from './ui/not-found.tsx';

const routeTree = rootRoute.addChildren([
  ...homeRoutes,
  ...namespaceRoutes,
  ...repositoryRoutes,
  ...jobRoutes,
  ...webhookRoutes,
  ...settingsRoutes,
  ...serverRoutes,
]);

/** Search parameters are plain `name=value`; the library's default is JSON. */
function parseSearch(text: string): Search {
  return Object.fromEntries(new URLSearchParams(text));
}

function stringifySearch(search: Record<string, unknown>): string {
  const given = Object.entries(readSearch(search)).filter(([, value]) => value !== '');
  const text = new URLSearchParams(given as [string, string][]).toString();
  return text && `?${text}`;
}

export const router = createRouter({
  routeTree,
  parseSearch,
  stringifySearch,
  defaultPreload: 'intent',
  scrollRestoration: true,
  defaultNotFoundComponent: () => <NotFound />,
  defaultErrorComponent: Crashed,
  defaultPendingComponent: LoadingSkeleton,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}
