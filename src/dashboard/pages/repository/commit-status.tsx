import { Link } from '@tanstack/react-router';
import { CircleCheck, CircleDashed, CircleX, type LucideIcon } from 'lucide-react';
import { type FragmentOf, graphql, readFragment } from '../../graphql/graphql.ts';
import { RelativeTime } from '../../ui/time.tsx';

export const CommitStatusIconData = graphql(`
  fragment CommitStatusIcon on Commit {
    sha
    status { state }
  }
`);

export const CommitChecksData = graphql(`
  fragment CommitChecks on Commit {
    status { state statuses { context state description targetUrl creator updatedAt } }
  }
`);

type CommitState = 'PENDING' | 'SUCCESS' | 'FAILURE' | 'ERROR';

const LOOKS: Record<CommitState, { icon: LucideIcon; word: string; className: string }> = {
  PENDING: { icon: CircleDashed, word: 'pending', className: 'text-warn' },
  SUCCESS: { icon: CircleCheck, word: 'succeeded', className: 'text-good' },
  FAILURE: { icon: CircleX, word: 'failed', className: 'text-bad' },
  ERROR: { icon: CircleX, word: 'error', className: 'text-bad' },
};

/** The combined state of the checks of a commit, linked to the list of them. Nothing for a commit without checks. */
export function CommitStatusIcon({
  commit: data,
  namespace,
  repository,
}: {
  commit: FragmentOf<typeof CommitStatusIconData>;
  namespace: string;
  repository: string;
}) {
  const { sha, status } = readFragment(CommitStatusIconData, data);
  if (!status) return null;
  const { icon: Icon, word, className } = LOOKS[status.state];
  const label = `Checks: ${word}`;
  return (
    <Link
      to="/$namespace/$repository/commit/$sha"
      params={{ namespace, repository, sha }}
      hash="checks"
      title={label}
      aria-label={label}
      data-checks={status.state}
      className={`inline-flex shrink-0 align-text-bottom ${className}`}
    >
      <Icon size={16} aria-hidden />
    </Link>
  );
}

/** All checks of a commit, with links to their pages. Nothing for a commit without checks. */
export function CommitChecks({ commit: data }: { commit: FragmentOf<typeof CommitChecksData> }) {
  const { status } = readFragment(CommitChecksData, data);
  if (!status) return null;
  return (
    <section aria-labelledby="checks">
      <h2 id="checks" className="mb-2">
        Checks: {LOOKS[status.state].word}
      </h2>
      <ul className="rows text-sm">
        {status.statuses.map((check) => (
          <Check key={check.context} {...check} />
        ))}
      </ul>
    </section>
  );
}

function Check({
  context,
  state,
  description,
  targetUrl,
  creator,
  updatedAt,
}: {
  context: string;
  state: CommitState;
  description: string | null;
  targetUrl: string | null;
  creator: string;
  updatedAt: string;
}) {
  const { icon: Icon, word, className } = LOOKS[state];
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1" data-check={state}>
      <span className={`inline-flex w-24 items-center gap-1.5 ${className}`}>
        <Icon size={16} aria-hidden />
        {word}
      </span>
      <p className="min-w-0 flex-1 basis-64 break-words">
        <bdi className="font-medium">
          {targetUrl ? (
            <a href={targetUrl} rel="nofollow noreferrer noopener" className="link">
              {context}
            </a>
          ) : (
            context
          )}
        </bdi>
        {description !== null && <bdi className="ml-2 text-dim">{description}</bdi>}
      </p>
      <span className="text-dim">
        {creator} · <RelativeTime at={updatedAt} />
      </span>
    </li>
  );
}
