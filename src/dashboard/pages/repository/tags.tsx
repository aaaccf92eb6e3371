import { Link, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useClient } from 'urql';
import { useFormMutation } from '../../graphql/act.ts';
import { type Problem, toProblem } from '../../graphql/client.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Button } from '../../ui/button.tsx';
import { CopyableText } from '../../ui/copy.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { commitSubject, shortSha } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination } from '../../ui/paging.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { mayWrite, type RepositoryData, RepositoryFrame } from './frame.tsx';
import { RefForm } from './ref-form.tsx';

const TagsQuery = graphql(`
  query Tags($namespace: String!, $name: String!, $after: String) {
    repository(namespace: $namespace, name: $name) {
      id
      tags(first: 50, after: $after) {
        nodes {
          name
          sha
          annotation { message tagger { name date } }
          commit { message committer { date } }
        }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);

type Tag = NonNullable<
  NonNullable<ResultOf<typeof TagsQuery>['repository']>['tags']
>['nodes'][number];

const CreateTag = graphql(`
  mutation CreateTag($input: CreateTagInput!) {
    createTag(input: $input) { repository { id tagCount } }
  }
`);

const DeleteTag = graphql(`
  mutation DeleteTag($input: DeleteTagInput!) {
    deleteTag(input: $input) { repository { id tagCount } }
  }
`);

export default function Tags() {
  return (
    <RepositoryFrame tab="Tags">
      {(repository) => <TagList repository={repository} />}
    </RepositoryFrame>
  );
}

function TagList({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, defaultBranch, branchCount } = repository;
  const { after } = useSearch({ strict: false }) as Search;
  const asked = useRetryingQuery({ query: TagsQuery, variables: { namespace, name, after } });
  const create = useFormMutation(CreateTag, { fields: ['name', 'from', 'message'] });
  const remove = useFormMutation(DeleteTag);
  const [toDelete, setToDelete] = useState<string | null>(null);
  const canWrite = mayWrite(repository);
  return (
    <div className="space-y-6">
      <Load asked={asked} of={(data) => data.repository?.tags} what="list of tags">
        {({ nodes, pageInfo }) =>
          nodes.length === 0 ? (
            <Empty title="No tags yet">
              <p>A tag is a name for one commit, such as a release:</p>
              <div>
                <CopyableText
                  text={'git tag -a v1.0 -m "The first release"\ngit push origin v1.0'}
                />
              </div>
            </Empty>
          ) : (
            <>
              <ul className="rows text-sm">
                {nodes.map((tag) => (
                  <TagRow
                    key={tag.name}
                    tag={tag}
                    repository={repository}
                    onDelete={canWrite ? () => setToDelete(tag.name) : undefined}
                  />
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} />
            </>
          )
        }
      </Load>
      {canWrite && branchCount > 0 && (
        <RefForm
          title="New tag"
          from={defaultBranch}
          withMessage
          act={create}
          submit={async (input) => {
            const created = await create.run({ input: { id, ...input } });
            return created.data !== undefined;
          }}
        />
      )}
      {toDelete !== null && (
        <Confirm
          title={`Delete ${toDelete}?`}
          verb="Delete tag"
          name={toDelete}
          onClose={() => setToDelete(null)}
          act={async () => (await remove.run({ input: { id, name: toDelete } })).problem}
        >
          <p>Commits that are on no branch or other tag are lost.</p>
        </Confirm>
      )}
    </div>
  );
}

function TagRow({
  tag: { name: tag, sha, annotation, commit },
  repository: { namespace, name },
  onDelete,
}: {
  tag: Tag;
  repository: RepositoryData;
  onDelete?: () => void;
}) {
  const params = { namespace, repository: name };
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-2">
      <div className="min-w-0 flex-1 basis-64">
        <Link
          to="/$namespace/$repository"
          params={params}
          search={{ ref: tag }}
          className="font-medium break-all hover:underline"
        >
          {tag}
        </Link>
        {annotation && (
          <p className="break-words whitespace-pre-wrap">{annotation.message.trim()}</p>
        )}
        <p className="truncate text-dim">
          {commit ? (
            <>
              <Link
                to="/$namespace/$repository/commit/$sha"
                params={{ ...params, sha }}
                className="hover:underline"
              >
                <code>{shortSha(sha)}</code> {!annotation && commitSubject(commit.message)}
              </Link>{' '}
              · {annotation?.tagger && `${annotation.tagger.name} `}
              <RelativeTime at={annotation?.tagger?.date ?? commit.committer.date} />
            </>
          ) : (
            <>
              <code>{shortSha(sha)}</code> is not a commit
            </>
          )}
        </p>
      </div>
      {commit && <ArchiveLinks namespace={namespace} name={name} at={tag} />}
      {onDelete && (
        <Button look="danger" aria-label={`Delete ${tag}`} onClick={onDelete}>
          Delete
        </Button>
      )}
    </li>
  );
}

const ArchiveQuery = graphql(`
  query Archive($namespace: String!, $name: String!, $ref: String!, $format: ArchiveFormat!) {
    repository(namespace: $namespace, name: $name) { id archiveUrl(ref: $ref, format: $format) }
  }
`);

/** Downloads all files of a ref. Archive URLs expire after 15 minutes, so each click requests a new URL. */
function ArchiveLinks({ namespace, name, at }: { namespace: string; name: string; at: string }) {
  const client = useClient();
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  async function download(format: 'TAR_GZ' | 'ZIP'): Promise<void> {
    setBusy(true);
    setProblem(null);
    const variables = { namespace, name, ref: at, format };
    const { data, error } = await client
      .query(ArchiveQuery, variables, { requestPolicy: 'network-only' })
      .toPromise();
    setBusy(false);
    const url = data?.repository?.archiveUrl;
    if (url) location.assign(url);
    else setProblem(error ? toProblem(error) : { message: `No archive of ${at} is available.` });
  }
  return (
    <div>
      <div className="flex gap-2">
        <Button
          busy={busy}
          aria-label={`Download ${at} as tar.gz`}
          onClick={() => download('TAR_GZ')}
        >
          tar.gz
        </Button>
        <Button busy={busy} aria-label={`Download ${at} as zip`} onClick={() => download('ZIP')}>
          zip
        </Button>
      </div>
      {problem && <ProblemBox problem={problem} />}
    </div>
  );
}
