import { createRootRoute, createRoute, lazyRouteComponent } from '@tanstack/react-router';
import { Shell } from './layout/shell.tsx';
import { ServerAway, serverAnswers } from './server-away.ts';

/** What may stand in a query: text alone, and a page reads what it knows. */
export type Search = Record<string, string | undefined>;

export function readSearch(search: Record<string, unknown>): Search {
  return Object.fromEntries(
    Object.entries(search).filter((pair): pair is [string, string] => typeof pair[1] === 'string'),
  );
}

export const root = createRootRoute({ component: Shell, validateSearch: readSearch });

/**
 * `/{namespace}/-/` has the pages of a namespace, and a repository may be called `-`: in addresses of its pages it is
 * `~-`, which no repository can be called.
 */
const HYPHEN = '~-';

const params = {
  parse: (given: Params) => renamed(given, HYPHEN, '-'),
  stringify: (given: Params) => renamed(given, '-', HYPHEN),
};

type Params = { repository?: string };

function renamed(given: Params, from: string, to: string): Params {
  return given.repository === from ? { ...given, repository: to } : given;
}

/** A page and its address. Its script is loaded when it is first gone to, or pointed at. */
export function page<P extends string>(
  path: P,
  load: () => Promise<{ default: () => React.ReactNode }>,
) {
  return createRoute({
    getParentRoute: () => root,
    path,
    // Without its type, from which the names in the path would not be taken.
    ...({ params } as object),
    component: lazyRouteComponent(() => loaded(load)),
  });
}

/**
 * The router loads the whole document again when a script is not there, as after an upgrade. While the server is away
 * that would leave the app for the browser's own error page.
 */
async function loaded<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (error) {
    throw (await serverAnswers()) ? error : new ServerAway();
  }
}
