import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { start } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { Ago } from '../../ui/time.tsx';
import type { RepositoryData } from './frame.tsx';

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

const CHANGES = ['LfsLock', 'LfsLockConnection'];

/** Files that their owner alone may change, on all branches. */
export function Locks({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, owner } = repository;
  const asked = useAsk({ query: LocksQuery, variables: { namespace, name } });
  const unlock = useAct(UnlockFile, { changes: CHANGES });
  const [ending, setEnding] = useState<{ id: string; path: string; owner: string } | null>(null);
  const isMine = (lock: { owner: string }) => lock.owner === start.viewer?.username;
  const mayEnd = (lock: { owner: string }) => owner.viewerRole === 'ADMIN' || isMine(lock);
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
                        locked by {lock.owner} <Ago at={lock.lockedAt} />
                      </p>
                    </div>
                    {mayEnd(lock) && (
                      <Button aria-label={`Unlock ${lock.path}`} onClick={() => setEnding(lock)}>
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
      {ending && (
        <Confirm
          title={`Unlock ${ending.path}?`}
          verb="Unlock"
          onClose={() => setEnding(null)}
          act={async () =>
            (await unlock.run({ input: { id: ending.id, force: !isMine(ending) } })).problem
          }
        >
          <p>
            {isMine(ending)
              ? 'Others may change the file again.'
              : `${ending.owner} may be working on it: others can change it from now on.`}
          </p>
        </Confirm>
      )}
    </section>
  );
}

function LockForm({ repositoryId }: { repositoryId: string }) {
  const [path, setPath] = useState('');
  const lock = useAct(LockFile, { changes: CHANGES, fields: ['path'] });
  return (
    <form
      className="max-w-2xl space-y-3"
      onSubmit={async (event) => {
        event.preventDefault();
        const { data } = await lock.run({ input: { repositoryId, path } });
        if (data) setPath('');
      }}
    >
      <Field
        label="Path"
        hint="From the root of the repository, such as models/large.bin"
        problem={lock.fault('path')}
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
