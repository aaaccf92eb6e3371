import { Link } from '@tanstack/react-router';
import { History } from 'lucide-react';
import { graphql } from '../../graphql/graphql.ts';
import { commitSubject, shortSha } from '../../ui/format.ts';
import { useRetryingQuery } from '../../ui/load.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { CommitStatusIcon, CommitStatusIconData } from './commit-status.tsx';

const LastCommitQuery = graphql(
  `
  query LastCommit($namespace: String!, $name: String!, $path: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      lastCommit(path: $path, ref: $ref) {
        sha
        message
        author { name }
        committer { date }
        ...CommitStatusIcon
      }
    }
  }
`,
  [CommitStatusIconData],
);

/** The last commit of a file or folder. The bar has its height before the commit has loaded, so that nothing moves. */
export function LastCommit({
  namespace,
  name,
  path,
  ref,
  revision,
}: {
  namespace: string;
  name: string;
  path: string;
  /** From the URL; absent for the default branch. */
  ref?: string;
  /** `ref`, or the default branch. */
  revision: string;
}) {
  const asked = useRetryingQuery({
    query: LastCommitQuery,
    variables: { namespace, name, path, ref: revision },
  });
  const commit = asked.data?.repository?.lastCommit;
  const params = { namespace, repository: name };
  return (
    <div
      data-last-commit={commit?.sha}
      className="flex min-h-10 items-center gap-x-3 border-b border-line bg-sunken px-4 py-1.5 text-sm text-dim"
    >
      {commit && (
        <>
          <span className="max-w-40 shrink-0 truncate font-medium text-ink max-sm:hidden">
            {commit.author.name}
          </span>
          <Link
            to="/$namespace/$repository/commit/$sha"
            params={{ ...params, sha: commit.sha }}
            className="min-w-0 flex-1 truncate hover:underline"
          >
            {commitSubject(commit.message)}
          </Link>
          <CommitStatusIcon commit={commit} {...params} />
          <code className="max-md:hidden">{shortSha(commit.sha)}</code>
          <span className="shrink-0">
            <RelativeTime at={commit.committer.date} />
          </span>
        </>
      )}
      <Link
        to="/$namespace/$repository/commits"
        params={params}
        search={{ ref }}
        className="ml-auto flex shrink-0 items-center gap-1 hover:underline"
      >
        <History size={15} aria-hidden />
        <span className="max-sm:sr-only">History of {revision}</span>
      </Link>
    </div>
  );
}
