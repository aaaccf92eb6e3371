import { createRootRoute, createRoute, lazyRouteComponent } from '@tanstack/react-router';
import { isServerReady, ServerUnreachable } from './layout/crashed.tsx';
import { Shell } from './layout/shell.tsx';

/** Search parameters of the address. Values are strings; each page reads the parameters it knows. */
export type Search = Record<string, string | undefined>;

export function readSearch(search: Record<string, unknown>): Search {
  return Object.fromEntries(
    Object.entries(search).filter((pair): pair is [string, string] => typeof pair[1] === 'string'),
  );
}

export const rootRoute = createRootRoute({ component: Shell, validateSearch: readSearch });

/**
 * A repository may be named `-`, but `/{namespace}/-/` is the prefix of namespace pages. Its addresses use `~-` instead,
 * which is not a valid repository name.
 */
const HYPHEN_ALIAS = '~-';

const params = {
  parse: (given: PathParams) => replaceRepository(given, HYPHEN_ALIAS, '-'),
  stringify: (given: PathParams) => replaceRepository(given, '-', HYPHEN_ALIAS),
};

type PathParams = { repository?: string };

function replaceRepository(given: PathParams, from: string, to: string): PathParams {
  return given.repository === from ? { ...given, repository: to } : given;
}

/** Defines a page. Its script is loaded on the first visit, or when the pointer is over a link to it. */
export function definePage<P extends string>(
  path: P,
  load: () => Promise<{ default: () => React.ReactNode }>,
) {
  return createRoute({
    getParentRoute: () => rootRoute,
    path,
    // Cast to `object`: with the type of `params`, the router would not infer the parameter names from the path.
    ...({ params } as object),
    component: lazyRouteComponent(() => loadScript(load)),
  });
}

/**
 * When a script is missing, as after an upgrade, the router reloads the document. While the server is unreachable, that
 * would show the browser's error page. `ServerUnreachable` makes the app show a page of its own instead.
 */
async function loadScript<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (error) {
    throw (await isServerReady()) ? error : new ServerUnreachable();
  }
}
