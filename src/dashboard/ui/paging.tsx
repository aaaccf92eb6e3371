import { Link, useSearch } from '@tanstack/react-router';

const LOOK =
  'rounded-md border border-edge bg-card px-3 py-1 text-sm font-medium hover:bg-hover no-underline';

/** The cursor in the address after which the page starts; undefined for the first page. */
export function useAfterCursor(): string | undefined {
  return useSearch({ strict: false }).after;
}

/** Links between pages of a list. The cursor is in the address, so that the back button returns to the previous page. */
export function CursorPagination({
  pageInfo: { hasNextPage, endCursor },
  total,
}: {
  pageInfo: { hasNextPage: boolean; endCursor: string | null };
  total?: number;
}) {
  const after = useAfterCursor();
  if (!hasNextPage && !after) return null;
  return (
    <nav aria-label="Pagination" className="mt-4 flex items-center justify-center gap-3">
      {after && (
        <Link to="." search={(old) => ({ ...old, after: undefined })} className={LOOK}>
          First page
        </Link>
      )}
      {hasNextPage && (
        <Link to="." search={(old) => ({ ...old, after: endCursor ?? undefined })} className={LOOK}>
          Next page
        </Link>
      )}
      {total !== undefined && <span className="text-sm text-dim">{total} total</span>}
    </nav>
  );
}
