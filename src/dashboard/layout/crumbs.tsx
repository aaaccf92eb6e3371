import { Link, useParams } from '@tanstack/react-router';

/** Breadcrumbs: the namespace, and the repository or job in it. */
export function Breadcrumbs() {
  const { namespace, repository, job } = useParams({ strict: false }) as Record<
    string,
    string | undefined
  >;
  if (!namespace) return <span className="font-semibold">Loam</span>;
  return (
    <nav aria-label="Breadcrumb" className="min-w-0">
      <ol className="flex min-w-0 items-center gap-1.5 text-[15px]">
        <li className="min-w-0 truncate">
          <Link
            to="/$namespace"
            params={{ namespace }}
            className="hover:underline"
            activeOptions={{ exact: true }}
            activeProps={{ className: 'font-semibold' }}
          >
            {namespace}
          </Link>
        </li>
        {repository && (
          <li className="flex min-w-0 items-center gap-1.5 truncate">
            <span className="text-dim" aria-hidden>
              /
            </span>
            <Link
              to="/$namespace/$repository"
              params={{ namespace, repository }}
              className="truncate font-semibold hover:underline"
            >
              {repository}
            </Link>
          </li>
        )}
        {job && (
          <li className="flex min-w-0 items-center gap-1.5 truncate">
            <span className="text-dim" aria-hidden>
              /
            </span>
            <Link
              to="/$namespace/-/jobs/$job"
              params={{ namespace, job }}
              className="truncate font-semibold hover:underline"
            >
              {job}
            </Link>
          </li>
        )}
      </ol>
    </nav>
  );
}
