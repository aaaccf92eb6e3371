/**
 * Every page and its address. Names of namespaces never begin with a hyphen, so `/-/` keeps what belongs to a namespace
 * apart from its repositories, whatever these are called (but see `root.tsx` for one called `-`). A ref stands in the query: its name may have slashes.
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
import { readSearch, root, type Search } from './root.tsx';
import { Waiting } from './ui/load.tsx';
import { NotFound } from './ui/not-found.tsx';

const routeTree = root.addChildren([
  ...homeRoutes,
  ...namespaceRoutes,
  ...repositoryRoutes,
  ...jobRoutes,
  ...webhookRoutes,
  ...settingsRoutes,
  ...serverRoutes,
]);

/** Queries are plain `name=value`, not JSON as the library would have them. */
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
  defaultPendingComponent: Waiting,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}
