import { Link, type LinkProps, useLocation } from '@tanstack/react-router';
import { type ComponentType, type ReactNode, type RefObject, useEffect, useRef } from 'react';

/** The heading of a page with its actions; also sets the title of the browser tab. */
export function PageTitle({
  title,
  tab = title,
  actions,
  children,
}: {
  title: ReactNode;
  /** The title of the browser tab; defaults to `title` if that is a string. */
  tab?: ReactNode;
  actions?: ReactNode;
  children?: ReactNode;
}) {
  return (
    <div className="mb-5 flex flex-wrap items-start gap-x-4 gap-y-3">
      {typeof tab === 'string' && <title>{`${tab} · Loam`}</title>}
      <div className="min-w-0 flex-1 basis-64">
        <h1 id="page-title" className="break-words">
          {title}
        </h1>
        {children && <div className="mt-1 text-sm text-dim">{children}</div>}
      </div>
      {actions && <div className="flex flex-wrap gap-2">{actions}</div>}
    </div>
  );
}

/** On a small screen the tabs scroll horizontally: scrolls the tab of the current page into view. */
export function useScrollCurrentIntoView<E extends HTMLElement>(): RefObject<E | null> {
  const list = useRef<E>(null);
  const { pathname } = useLocation();
  useEffect(() => {
    const { current } = list;
    const link = current?.querySelector<HTMLElement>('[aria-current=page], [aria-current=true]');
    if (!current || !link) return;
    const { left, right } = link.getBoundingClientRect();
    const box = current.getBoundingClientRect();
    if (left < box.left || right > box.right) current.scrollLeft += left - box.left;
    // Only after navigation, so that a render does not undo manual scrolling.
  }, [pathname]);
  return list;
}

type IconProps = { size: number; 'aria-hidden': true; className: string };

/** Links between related pages. On a small screen they scroll horizontally. */
export function Tabs({
  label,
  within,
  tabs,
}: {
  label: string;
  /** The tab to highlight on a page that is below a tab's page. */
  within?: string;
  tabs: (LinkProps & { name: string; count?: number; icon?: ComponentType<IconProps> })[];
}) {
  const list = useScrollCurrentIntoView<HTMLElement>();
  return (
    <nav ref={list} aria-label={label} className="sideways mb-6 border-b border-line">
      <ul className="flex gap-1">
        {tabs.map(({ name, count, icon: Icon, ...link }) => (
          <li key={name}>
            <Link
              {...link}
              {...(name === within && { 'aria-current': true })}
              className="flex items-center gap-1.5 border-b-2 border-transparent px-3 py-2 text-sm whitespace-nowrap text-dim hover:text-ink [&[aria-current]]:border-accent [&[aria-current]]:font-medium [&[aria-current]]:text-ink"
            >
              {Icon && <Icon size={15} aria-hidden className="shrink-0" />}
              {name}
              {count !== undefined && (
                <span className="rounded-full bg-hover px-1.5 text-xs tabular-nums">{count}</span>
              )}
            </Link>
          </li>
        ))}
      </ul>
    </nav>
  );
}

/** A button that appends the next page of a list. */
export function ShowMoreButton({
  hasMore,
  onMore,
  left,
}: {
  /** The number of rows not shown yet, if known. */
  left?: number;
  hasMore: boolean;
  onMore: () => void;
}) {
  if (!hasMore) return null;
  return (
    <div className="mt-4 flex justify-center">
      <button type="button" onClick={onMore} className="field w-auto text-sm hover:bg-hover">
        Show more{left !== undefined && ` (${left} left)`}
      </button>
    </div>
  );
}
