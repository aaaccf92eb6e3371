import { Link } from '@tanstack/react-router';
import type { Search } from '../../root.tsx';

const LINK_STYLE = 'field w-auto text-sm no-underline hover:bg-hover';

/** Links to the pages of a list. The URL has the page number, so that Back and Reload keep the page. */
export function PageNavigation({
  page,
  pages,
  search,
}: {
  page: number;
  pages: number;
  search: Search;
}) {
  if (pages <= 1) return null;
  const to = (number: number) => ({ ...search, page: number > 1 ? String(number) : undefined });
  return (
    <nav aria-label="Pages" className="mt-4 flex items-center justify-center gap-3 text-sm">
      {page > 1 && (
        <Link to="." search={to(page - 1)} rel="prev" className={LINK_STYLE}>
          Previous
        </Link>
      )}
      <span className="text-dim tabular-nums">
        Page {page} of {pages}
      </span>
      {page < pages && (
        <Link to="." search={to(page + 1)} rel="next" className={LINK_STYLE}>
          Next
        </Link>
      )}
    </nav>
  );
}
