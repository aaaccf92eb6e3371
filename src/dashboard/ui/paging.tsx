import { Link, useSearch } from '@tanstack/react-router';

const LOOK =
  'rounded-md border border-edge bg-card px-3 py-1 text-sm font-medium hover:bg-hover no-underline';

/** The cursor in the address, after which the page begins; left out on the first one. */
export function useAfter(): string | undefined {
  return useSearch({ strict: false }).after;
}

/** Through a list that the server gives in pages. The page stands in the address, so the back button goes to the one before. */
export function Paging({
  pageInfo: { hasNextPage, endCursor },
  total,
}: {
  pageInfo: { hasNextPage: boolean; endCursor: string | null };
  total?: number;
}) {
  const after = useAfter();
  if (!hasNextPage && !after) return null;
  return (
    <nav aria-label="Pages of the list" className="mt-4 flex items-center justify-center gap-3">
      {after && (
        <Link to="." search={(old) => ({ ...old, after: undefined })} className={LOOK}>
          To the beginning
        </Link>
      )}
      {hasNextPage && (
        <Link to="." search={(old) => ({ ...old, after: endCursor ?? undefined })} className={LOOK}>
          Next page
        </Link>
      )}
      {total !== undefined && <span className="text-sm text-dim">{total} in all</span>}
    </nav>
  );
}
