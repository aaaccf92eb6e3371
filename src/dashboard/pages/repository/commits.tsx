import { useSearch } from '@tanstack/react-router';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { CopyableText } from '../../ui/copy.tsx';
import { Empty } from '../../ui/empty.tsx';
import { formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination } from '../../ui/paging.tsx';
import { formatLongDate } from '../../ui/time.tsx';
import { CommitRow, CommitRowData } from './commit-row.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';
import { RefPicker } from './ref-picker.tsx';

const CommitsQuery = graphql(
  `
  query Commits($namespace: String!, $name: String!, $revision: String!, $after: String) {
    repository(namespace: $namespace, name: $name) {
      id
      commits(revision: $revision, first: 50, after: $after) {
        totalCount
        nodes { sha committer { date } ...CommitRow }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`,
  [CommitRowData],
);

/** The history of a branch, tag or commit. */
export default function Commits() {
  return (
    <RepositoryFrame tab="Commits">
      {(repository) =>
        repository.branchCount === 0 ? (
          <Empty title="No commits yet">
            <div>
              <CopyableText text={`git push -u origin ${repository.defaultBranch}`} />
            </div>
          </Empty>
        ) : (
          <History repository={repository} />
        )
      }
    </RepositoryFrame>
  );
}

function History({ repository }: { repository: RepositoryData }) {
  const { namespace, name, defaultBranch } = repository;
  const { ref, after } = useSearch({ strict: false }) as Search;
  const variables = { namespace, name, revision: ref || defaultBranch, after };
  const asked = useRetryingQuery({ query: CommitsQuery, variables });
  return (
    <>
      <div className="mb-3 flex flex-wrap items-center gap-3">
        <RefPicker namespace={namespace} name={name} />
      </div>
      <Load asked={asked} of={(data) => data.repository?.commits} what="branch, tag or commit">
        {({ nodes, totalCount, pageInfo }) => (
          <>
            <p role="status" className="mb-2 text-sm text-dim">
              {formatCount(totalCount, 'commit')}
            </p>
            <div className="space-y-5">
              {groupByDay(nodes).map(({ day, commits }) => (
                <section key={commits[0]?.sha} aria-label={`Commits on ${day}`}>
                  <h2 className="mb-2 text-sm font-medium text-dim">{day}</h2>
                  <ul className="rows">
                    {commits.map((commit) => (
                      <CommitRow
                        key={commit.sha}
                        commit={commit}
                        namespace={namespace}
                        repository={name}
                      />
                    ))}
                  </ul>
                </section>
              ))}
            </div>
            <CursorPagination pageInfo={pageInfo} />
          </>
        )}
      </Load>
    </>
  );
}

type Dated = { committer: { date: string } };

/** Groups consecutive commits by day, in the time zone of the reader. */
function groupByDay<C extends Dated>(commits: readonly C[]): { day: string; commits: C[] }[] {
  const days: { day: string; commits: C[] }[] = [];
  for (const commit of commits) {
    const day = formatLongDate(commit.committer.date);
    const last = days.at(-1);
    if (last?.day === day) last.commits.push(commit);
    else days.push({ day, commits: [commit] });
  }
  return days;
}
