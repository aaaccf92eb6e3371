/** The frame of every page: header with breadcrumbs and menus, footer, notices, and global keyboard shortcuts. */
import { Link, Outlet, useRouterState } from '@tanstack/react-router';
import { Search } from 'lucide-react';
import { lazy, Suspense, useEffect, useRef, useState } from 'react';
import { redirectToSignIn } from '../graphql/client.ts';
import { startData } from '../start.ts';
import { Button } from '../ui/button.tsx';
import { Notices } from '../ui/notices.tsx';
import { Breadcrumbs } from './crumbs.tsx';
import { HelpLink } from './help.tsx';
import { NewMenu, UserMenu } from './menus.tsx';
import { useShortcuts } from './shortcuts.ts';

const loadGoTo = () => import('./go-to.tsx');
const GoTo = lazy(loadGoTo);
const KeyboardHelp = lazy(() => import('./keys.tsx'));

export function Shell() {
  const [open, setOpen] = useState<'go' | 'keys' | null>(null);
  const main = useRef<HTMLElement>(null);
  // The resolved location is that of the page shown while the next one loads.
  const pathname = useRouterState({ select: (state) => state.resolvedLocation?.pathname });
  const lastPathname = useRef(pathname);
  // Screen readers start at the top of a new page, as after a full page load.
  useEffect(() => {
    const before = lastPathname.current;
    lastPathname.current = pathname;
    if (!before || before === pathname) return;
    // A page may focus a field of its own.
    if (document.activeElement?.matches('main :is(input, textarea)')) return;
    main.current?.focus({ preventScroll: true });
  }, [pathname]);
  // Preloaded: keys typed right after Ctrl-K must reach the palette.
  useEffect(() => {
    const timer = setTimeout(loadGoTo, 1_000);
    return () => clearTimeout(timer);
  }, []);
  useShortcuts({
    '?': () => setOpen('keys'),
    'mod+k': () => setOpen('go'),
    '/': () => {
      const field = document.querySelector<HTMLElement>('main [data-search]');
      if (field) field.focus();
      else setOpen('go');
    },
  });
  return (
    <div className="flex min-h-screen flex-col">
      <a
        href="#main"
        className="sr-only focus:not-sr-only focus:absolute focus:z-50 focus:bg-card focus:p-2"
      >
        Skip to content
      </a>
      <header className="border-b border-line bg-card">
        <div className="mx-auto flex h-14 max-w-7xl items-center gap-2 px-4">
          <Link to="/" aria-label="Loam, home" className="shrink-0">
            <img src="/favicon.svg" alt="" width={28} height={28} />
          </Link>
          <Breadcrumbs />
          <div className="ml-auto flex shrink-0 items-center gap-1.5">
            <button
              type="button"
              onClick={() => setOpen('go')}
              aria-keyshortcuts="Control+K"
              className="flex h-8 items-center gap-2 rounded-md border border-edge px-2 text-sm text-dim hover:bg-hover md:w-48"
            >
              <Search size={15} aria-hidden />
              <span className="sr-only md:not-sr-only md:flex-1 md:text-left">Go to…</span>
              <kbd aria-hidden className="hidden text-xs md:inline">
                Ctrl K
              </kbd>
            </button>
            <HelpLink />
            {startData.viewer ? (
              <>
                <NewMenu />
                <UserMenu viewer={startData.viewer} onKeys={() => setOpen('keys')} />
              </>
            ) : (
              <Button look="primary" onClick={redirectToSignIn}>
                Sign in
              </Button>
            )}
          </div>
        </div>
      </header>
      <main
        ref={main}
        id="main"
        aria-labelledby="page-title"
        tabIndex={-1}
        className="mx-auto w-full max-w-7xl flex-1 px-4 py-6"
      >
        <Outlet />
      </main>
      <footer className="mx-auto flex w-full max-w-7xl flex-wrap gap-x-4 gap-y-1 px-4 py-6 text-sm text-dim">
        <span>Loam {startData.build}</span>
        <a href="/docs" className="hover:underline">
          Documentation
        </a>
        <a href="/docs/api" className="hover:underline">
          REST
        </a>
        <a href="/graphql" className="hover:underline">
          GraphQL
        </a>
        <button type="button" className="hover:underline" onClick={() => setOpen('keys')}>
          Keyboard shortcuts
        </button>
      </footer>
      <Notices />
      <Suspense>
        {open === 'go' && <GoTo onClose={() => setOpen(null)} />}
        {open === 'keys' && <KeyboardHelp onClose={() => setOpen(null)} />}
      </Suspense>
    </div>
  );
}
