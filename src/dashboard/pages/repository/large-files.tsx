import { Link, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { startData } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { CopyableText } from '../../ui/copy.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { formatBytes, formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination } from '../../ui/paging.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';

/** Git LFS objects of a repository, and its file locks. */
export default function LargeFiles() {
  return (
    <RepositoryFrame tab="Large files">
      {(repository) => (
        <div className="space-y-10">
          <Objects repository={repository} />
          {repository.owner.viewerRole && <Locks repository={repository} />}
        </div>
      )}
    </RepositoryFrame>
  );
}

const LocksQuery = graphql(`
  query Locks($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      lfsLocks(first: 100) { totalCount nodes { id path owner lockedAt } }
    }
  }
`);

const LockFile = graphql(`
  mutation LockFile($input: LockLfsFileInput!) {
    lockLfsFile(input: $input) { lock { id path } }
  }
`);

const UnlockFile = graphql(`
  mutation UnlockFile($input: UnlockLfsFileInput!) {
    unlockLfsFile(input: $input) { lock { id path } }
  }
`);

const LOCK_TYPES = ['LfsLock', 'LfsLockConnection'];

/** Locked files: only the owner of the lock may change them, on every branch. */
function Locks({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, owner } = repository;
  const asked = useRetryingQuery({ query: LocksQuery, variables: { namespace, name } });
  const unlock = useFormMutation(UnlockFile, { changes: LOCK_TYPES });
  const [toUnlock, setToUnlock] = useState<{ id: string; path: string; owner: string } | null>(
    null,
  );
  const isMine = (lock: { owner: string }) => lock.owner === startData.viewer?.username;
  const mayUnlock = (lock: { owner: string }) => owner.viewerRole === 'ADMIN' || isMine(lock);
  return (
    <section aria-labelledby="locks" className="space-y-3">
      <h2 id="locks">Locks</h2>
      <p className="text-sm text-dim">
        Pushes that change a file locked by someone else are refused.
      </p>
      <Load asked={asked} of={(data) => data.repository?.lfsLocks} what="list of locks">
        {({ nodes, totalCount }) => (
          <>
            {nodes.length > 0 && (
              <ul className="rows text-sm">
                {nodes.map((lock) => (
                  <li key={lock.id} className="flex items-center gap-3">
                    <div className="min-w-0 flex-1">
                      <code className="break-all">{lock.path}</code>
                      <p className="text-dim">
                        locked by {lock.owner} <RelativeTime at={lock.lockedAt} />
                      </p>
                    </div>
                    {mayUnlock(lock) && (
                      <Button aria-label={`Unlock ${lock.path}`} onClick={() => setToUnlock(lock)}>
                        Unlock
                      </Button>
                    )}
                  </li>
                ))}
              </ul>
            )}
            {totalCount > nodes.length && (
              <p className="text-sm text-dim">The oldest {nodes.length} are shown.</p>
            )}
          </>
        )}
      </Load>
      {owner.viewerRole !== 'READ' && <LockForm repositoryId={id} />}
      {toUnlock && (
        <Confirm
          title={`Unlock ${toUnlock.path}?`}
          verb="Unlock"
          onClose={() => setToUnlock(null)}
          act={async () =>
            (await unlock.run({ input: { id: toUnlock.id, force: !isMine(toUnlock) } })).problem
          }
        >
          <p>
            {isMine(toUnlock)
              ? 'Others may change the file again.'
              : `${toUnlock.owner} may be working on the file. After this, others can change it.`}
          </p>
        </Confirm>
      )}
    </section>
  );
}

function LockForm({ repositoryId }: { repositoryId: string }) {
  const [path, setPath] = useState('');
  const lock = useFormMutation(LockFile, { changes: LOCK_TYPES, fields: ['path'] });
  return (
    <form
      className="space-y-3"
      onSubmit={async (event) => {
        event.preventDefault();
        const { data } = await lock.run({ input: { repositoryId, path } });
        if (data) setPath('');
      }}
    >
      <Field
        label="Path"
        hint="From the root of the repository, such as models/large.bin"
        problem={lock.fieldError('path')}
      >
        <Input required value={path} onChange={({ target }) => setPath(target.value)} />
      </Field>
      {lock.problem && <ProblemBox problem={lock.problem} />}
      <Button type="submit" busy={lock.busy}>
        Lock file
      </Button>
    </form>
  );
}

const ObjectsQuery = graphql(`
  query LargeFiles($namespace: String!, $name: String!, $after: String) {
    repository(namespace: $namespace, name: $name) {
      id
      lfsObjects(first: 50, after: $after) {
        totalCount
        nodes { oid sizeBytes givenAt paths }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);

const DeleteObjects = graphql(`
  mutation DeleteLargeFiles($input: DeleteLfsObjectsInput!) {
    deleteLfsObjects(input: $input) { oids }
  }
`);

function Objects({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name } = repository;
  const { after } = useSearch({ strict: false }) as Search;
  const asked = useRetryingQuery({ query: ObjectsQuery, variables: { namespace, name, after } });
  const remove = useFormMutation(DeleteObjects, { changes: ['LfsObject', 'LfsObjectConnection'] });
  const [toDelete, setToDelete] = useState<string | null>(null);
  const mayDelete = repository.owner.viewerRole === 'ADMIN';
  return (
    <section aria-labelledby="objects" className="space-y-3">
      <h2 id="objects">Large files</h2>
      <Load asked={asked} of={(data) => data.repository?.lfsObjects} what="list of large files">
        {({ nodes, totalCount, pageInfo }) =>
          nodes.length === 0 ? (
            <Empty title="No large files" level={3}>
              <p>Git LFS stores them outside the commits, so that clones stay small:</p>
              <div>
                <CopyableText
                  text={
                    'git lfs install\ngit lfs track "*.bin"\ngit add .gitattributes model.bin\ngit commit -m "Add the model" && git push'
                  }
                />
              </div>
            </Empty>
          ) : (
            <>
              <p className="text-sm text-dim">{formatCount(totalCount, 'large file')}</p>
              <ul className="rows text-sm">
                {nodes.map(({ oid, sizeBytes, givenAt, paths }) => (
                  <li key={oid} className="flex flex-wrap items-center gap-x-4 gap-y-1">
                    <div className="min-w-0 flex-1 basis-56">
                      {paths.map((path) => (
                        <Link
                          key={path}
                          to="/$namespace/$repository/file/$"
                          params={{ namespace, repository: name, _splat: path }}
                          search={{ ref: repository.defaultBranch }}
                          className="block font-medium break-all hover:underline"
                        >
                          {path}
                        </Link>
                      ))}
                      {paths.length === 0 && (
                        <span className="text-dim">Not on {repository.defaultBranch}</span>
                      )}
                      <code className="block text-xs break-all text-dim">{oid}</code>
                    </div>
                    <span className="tabular-nums">{formatBytes(sizeBytes)}</span>
                    <span className="text-dim">
                      uploaded <RelativeTime at={givenAt} />
                    </span>
                    {mayDelete && (
                      <Button
                        look="danger"
                        aria-label={`Delete ${oid.slice(0, 12)}`}
                        onClick={() => setToDelete(oid)}
                      >
                        Delete
                      </Button>
                    )}
                  </li>
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} />
            </>
          )
        }
      </Load>
      {toDelete !== null && (
        <Confirm
          title="Delete this large file?"
          verb="Delete file"
          name={toDelete.slice(0, 12)}
          onClose={() => setToDelete(null)}
          act={async () =>
            (await remove.run({ input: { repositoryId: id, oids: [toDelete] } })).problem
          }
        >
          <p>Commits that refer to it stay, but its content is lost. This cannot be undone.</p>
        </Confirm>
      )}
    </section>
  );
}
