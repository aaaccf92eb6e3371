import { Link, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Button } from '../../ui/button.tsx';
import { CopyableText } from '../../ui/copy.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { commitSubject, shortSha } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination } from '../../ui/paging.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { CommitStatusIcon, CommitStatusIconData } from './commit-status.tsx';
import { mayWrite, type RepositoryData, RepositoryFrame } from './frame.tsx';
import { RefForm } from './ref-form.tsx';

const BranchesQuery = graphql(
  `
  query Branches($namespace: String!, $name: String!, $after: String) {
    repository(namespace: $namespace, name: $name) {
      id
      branches(first: 50, after: $after) {
        nodes { name sha commit { message author { name } committer { date } ...CommitStatusIcon } }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`,
  [CommitStatusIconData],
);

type Branch = NonNullable<
  NonNullable<ResultOf<typeof BranchesQuery>['repository']>['branches']
>['nodes'][number];

/** A query of its own: counting commits takes seconds in long histories, and the list must not wait for it. */
const DistancesQuery = graphql(`
  query BranchDistances($namespace: String!, $name: String!, $after: String) {
    repository(namespace: $namespace, name: $name) {
      id
      branches(first: 50, after: $after) { nodes { name aheadBy behindBy } }
    }
  }
`);

const CreateBranch = graphql(`
  mutation CreateBranch($input: CreateBranchInput!) {
    createBranch(input: $input) { repository { id branchCount } }
  }
`);

const DeleteBranch = graphql(`
  mutation DeleteBranch($input: DeleteBranchInput!) {
    deleteBranch(input: $input) { repository { id branchCount } }
  }
`);

export default function Branches() {
  return (
    <RepositoryFrame tab="Branches">
      {(repository) => <BranchList repository={repository} />}
    </RepositoryFrame>
  );
}

function BranchList({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, defaultBranch } = repository;
  const { after } = useSearch({ strict: false }) as Search;
  const asked = useRetryingQuery({ query: BranchesQuery, variables: { namespace, name, after } });
  const distances = useRetryingQuery({
    query: DistancesQuery,
    variables: { namespace, name, after },
  });
  const distanceOf = new Map(
    distances.data?.repository?.branches?.nodes.map((each) => [each.name, each]),
  );
  const create = useFormMutation(CreateBranch, { fields: ['name', 'from'] });
  const remove = useFormMutation(DeleteBranch);
  const [toDelete, setToDelete] = useState<string | null>(null);
  const canWrite = mayWrite(repository);
  return (
    <div className="space-y-6">
      <Load asked={asked} of={(data) => data.repository?.branches} what="list of branches">
        {({ nodes, pageInfo }) =>
          nodes.length === 0 ? (
            <Empty title="No branches yet">
              <p>The first push creates one:</p>
              <div>
                <CopyableText text={`git push -u origin ${defaultBranch}`} />
              </div>
            </Empty>
          ) : (
            <>
              <ul className="rows text-sm">
                {nodes.map((branch) => (
                  <BranchRow
                    key={branch.name}
                    branch={branch}
                    distance={distanceOf.get(branch.name)}
                    repository={repository}
                    onDelete={
                      canWrite && branch.name !== defaultBranch
                        ? () => setToDelete(branch.name)
                        : undefined
                    }
                  />
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} />
              {canWrite && (
                <RefForm
                  title="New branch"
                  from={defaultBranch}
                  act={create}
                  submit={async (input) => {
                    const created = await create.run({ input: { id, ...input } });
                    return created.data !== undefined;
                  }}
                />
              )}
            </>
          )
        }
      </Load>
      {toDelete !== null && (
        <Confirm
          title={`Delete ${toDelete}?`}
          verb="Delete branch"
          name={toDelete}
          onClose={() => setToDelete(null)}
          act={async () => (await remove.run({ input: { id, name: toDelete } })).problem}
        >
          <p>Commits that are on no other branch or tag are lost.</p>
        </Confirm>
      )}
    </div>
  );
}

function BranchRow({
  branch: { name: branch, sha, commit },
  distance,
  repository: { namespace, name, defaultBranch },
  onDelete,
}: {
  branch: Branch;
  distance?: DistanceProps;
  repository: RepositoryData;
  onDelete?: () => void;
}) {
  const isDefault = branch === defaultBranch;
  const params = { namespace, repository: name };
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-2">
      <div className="min-w-0 flex-1 basis-64">
        <p className="break-all">
          <Link
            to="/$namespace/$repository"
            params={params}
            search={{ ref: isDefault ? undefined : branch }}
            className="font-medium hover:underline"
          >
            {branch}
          </Link>
          {isDefault && (
            <span className="ml-2 rounded-full bg-hover px-2 text-xs text-dim">default</span>
          )}
        </p>
        <p className="break-words text-dim">
          <Link
            to="/$namespace/$repository/commit/$sha"
            params={{ ...params, sha }}
            className="hover:underline"
          >
            <code>{shortSha(sha)}</code> {commit && commitSubject(commit.message)}
          </Link>
          {commit && (
            <>
              {' '}
              · {commit.author.name} <RelativeTime at={commit.committer.date} />{' '}
              <CommitStatusIcon commit={commit} {...params} />
            </>
          )}
        </p>
      </div>
      {!isDefault && <Distance {...distance} />}
      {!isDefault && (
        <Link
          to="/$namespace/$repository/compare"
          params={params}
          search={{ base: defaultBranch, head: branch }}
          className="link"
          aria-label={`Compare ${branch} with ${defaultBranch}`}
        >
          Compare
        </Link>
      )}
      {onDelete && (
        <Button look="danger" aria-label={`Delete ${branch}`} onClick={onDelete}>
          Delete
        </Button>
      )}
    </li>
  );
}

type DistanceProps = { aheadBy?: number | null; behindBy?: number | null };

/** How far a branch is ahead of and behind the default branch, in commits. */
function Distance({ aheadBy, behindBy }: DistanceProps) {
  if (aheadBy == null || behindBy == null) return null;
  return (
    <span className="text-dim tabular-nums" data-distance>
      {aheadBy} ahead, {behindBy} behind
    </span>
  );
}
