import { Link, useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { commitSubject, shortSha } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { ChangesData, ChangesView, INITIAL_FILES } from './changes.tsx';
import { CommitChecks, CommitChecksData } from './commit-status.tsx';
import { RepositoryFrame } from './frame.tsx';

const CommitQuery = graphql(
  `
  query Commit($namespace: String!, $name: String!, $sha: String!, $files: Int!) {
    repository(namespace: $namespace, name: $name) {
      id
      commit(revision: $sha) {
        sha
        message
        parents
        author { name email date }
        committer { name email date }
        changes { ...Changes }
        ...CommitChecks
      }
    }
  }
`,
  [ChangesData, CommitChecksData],
);

type CommitData = NonNullable<NonNullable<ResultOf<typeof CommitQuery>['repository']>['commit']>;

/** A commit: message, author, and changes since its first parent. */
export default function Commit() {
  const { namespace, repository, sha } = useParams({
    from: '/$namespace/$repository/commit/$sha',
  });
  const [files, setFiles] = useState(INITIAL_FILES);
  const variables = { namespace, name: repository, sha, files };
  const asked = useRetryingQuery({ query: CommitQuery, variables });
  const message = asked.data?.repository?.commit?.message;
  return (
    <RepositoryFrame
      tab={message === undefined ? shortSha(sha) : commitSubject(message)}
      within="Commits"
    >
      {() => (
        <Load asked={asked} of={(data) => data.repository?.commit} what="commit">
          {(commit) => (
            <div className="space-y-6">
              <CommitHeader commit={commit} namespace={namespace} repository={repository} />
              <CommitChecks commit={commit} />
              {commit.changes && (
                <ChangesView
                  changes={commit.changes}
                  namespace={namespace}
                  repository={repository}
                  at={commit.sha}
                  files={files}
                  onMore={setFiles}
                />
              )}
            </div>
          )}
        </Load>
      )}
    </RepositoryFrame>
  );
}

function CommitHeader({
  commit: { sha, message, author, committer, parents },
  namespace,
  repository,
}: {
  commit: CommitData;
  namespace: string;
  repository: string;
}) {
  const params = { namespace, repository };
  const rest = message.split('\n').slice(1).join('\n').trim();
  return (
    <section className="card space-y-3 p-4" aria-labelledby="message">
      <div className="flex flex-wrap items-start gap-3">
        <h2 id="message" className="min-w-0 flex-1 basis-64 break-words">
          {commitSubject(message)}
        </h2>
        <Link
          to="/$namespace/$repository"
          params={params}
          search={{ ref: sha }}
          className="link text-sm"
        >
          Files at this commit
        </Link>
      </div>
      {rest && <p className="text-sm break-words whitespace-pre-wrap">{rest}</p>}
      <p className="text-sm text-dim">
        <span className="text-ink">{author.name}</span> &lt;{author.email}&gt; authored{' '}
        <RelativeTime at={author.date} />
        {(committer.name !== author.name || committer.date !== author.date) && (
          <>
            , {committer.name} committed <RelativeTime at={committer.date} />
          </>
        )}
      </p>
      <dl className="flex flex-wrap gap-x-6 gap-y-1 text-sm">
        <div className="flex min-w-0 items-center gap-2">
          <dt className="text-dim">Commit</dt>
          <dd className="flex min-w-0 items-center gap-1">
            <code className="break-all">{sha}</code>
            <CopyButton text={sha} label="Copy the id" />
          </dd>
        </div>
        <div className="flex items-center gap-2">
          <dt className="text-dim">
            {parents.length === 0 ? 'No parent' : parents.length > 1 ? 'Parents' : 'Parent'}
          </dt>
          {parents.map((parent) => (
            <dd key={parent}>
              <Link
                to="/$namespace/$repository/commit/$sha"
                params={{ ...params, sha: parent }}
                className="link"
              >
                <code>{shortSha(parent)}</code>
              </Link>
            </dd>
          ))}
        </div>
      </dl>
    </section>
  );
}
