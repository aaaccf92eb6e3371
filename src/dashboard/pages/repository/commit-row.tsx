import { Link } from '@tanstack/react-router';
import { type FragmentOf, graphql, readFragment } from '../../graphql/graphql.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { commitSubject, shortSha } from '../../ui/format.ts';
import { RelativeTime } from '../../ui/time.tsx';
import { CommitStatusIcon, CommitStatusIconData } from './commit-status.tsx';

export const CommitRowData = graphql(
  `
  fragment CommitRow on Commit {
    sha
    message
    author { name }
    committer { date }
    ...CommitStatusIcon
  }
`,
  [CommitStatusIconData],
);

/** A commit in a list. */
export function CommitRow({
  commit: data,
  namespace,
  repository,
}: {
  commit: FragmentOf<typeof CommitRowData>;
  namespace: string;
  repository: string;
}) {
  const commit = readFragment(CommitRowData, data);
  const { sha, message, author, committer } = commit;
  const params = { namespace, repository };
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1 text-sm" data-commit={sha}>
      <div className="min-w-0 flex-1 basis-64">
        <Link
          to="/$namespace/$repository/commit/$sha"
          params={{ ...params, sha }}
          className="font-medium break-words hover:underline"
        >
          {commitSubject(message)}
        </Link>{' '}
        <CommitStatusIcon commit={commit} {...params} />
        <p className="text-dim">
          {author.name} · <RelativeTime at={committer.date} />
        </p>
      </div>
      <div className="flex items-center gap-1">
        <code>{shortSha(sha)}</code>
        <CopyButton text={sha} label={`Copy the id ${shortSha(sha)}`} />
      </div>
      <Link
        to="/$namespace/$repository"
        params={params}
        search={{ ref: sha }}
        className="link"
        aria-label={`Files at ${shortSha(sha)}`}
      >
        Files
      </Link>
    </li>
  );
}
