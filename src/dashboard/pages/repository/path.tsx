import { Link } from '@tanstack/react-router';

/** The path in the repository as breadcrumbs; each folder is a link. */
export function PathBreadcrumbs({
  namespace,
  repository,
  path,
  ref,
}: {
  namespace: string;
  repository: string;
  path: string;
  ref?: string;
}) {
  const parts = path.split('/').filter(Boolean);
  return (
    <nav aria-label="Path" className="min-w-0 text-sm">
      <ol className="flex flex-wrap items-center gap-1">
        <li>
          <Link
            to="/$namespace/$repository"
            params={{ namespace, repository }}
            search={{ ref }}
            className="link"
          >
            {repository}
          </Link>
        </li>
        {parts.map((part, index) => {
          const to = parts.slice(0, index + 1).join('/');
          return (
            <li key={to} className="flex gap-1 break-all">
              <span aria-hidden className="text-dim">
                /
              </span>
              {index === parts.length - 1 ? (
                <span aria-current="page" className="font-medium">
                  {part}
                </span>
              ) : (
                <Link
                  to="/$namespace/$repository/tree/$"
                  params={{ namespace, repository, _splat: to }}
                  search={{ ref }}
                  className="link"
                >
                  {part}
                </Link>
              )}
            </li>
          );
        })}
      </ol>
    </nav>
  );
}
