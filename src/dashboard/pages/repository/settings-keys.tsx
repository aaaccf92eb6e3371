import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Checkbox, Field, Input, TextArea } from '../../ui/field.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import type { RepositoryData } from './frame.tsx';

const KeysQuery = graphql(`
  query DeployKeys($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      deployKeys(first: 100) { nodes { id title fingerprint write createdAt lastUsedAt } }
    }
  }
`);

const AddKey = graphql(`
  mutation AddDeployKey($input: AddDeployKeyInput!) {
    addDeployKey(input: $input) { deployKey { id title } }
  }
`);

const DeleteKey = graphql(`
  mutation DeleteDeployKey($input: DeleteDeployKeyInput!) {
    deleteDeployKey(input: $input) { id }
  }
`);

/** SSH keys of machines, each valid for one repository. */
export function DeployKeys({ repository }: { repository: RepositoryData }) {
  const { namespace, name } = repository;
  const asked = useRetryingQuery({ query: KeysQuery, variables: { namespace, name } });
  const remove = useFormMutation(DeleteKey, { changes: ['DeployKey', 'DeployKeyConnection'] });
  const [toDelete, setToDelete] = useState<{ id: string; title: string } | null>(null);
  return (
    <section aria-labelledby="keys" className="space-y-3">
      <h2 id="keys">Deploy keys</h2>
      <p className="text-sm text-dim">
        SSH keys for machines. Each works for this repository only.
      </p>
      <Load asked={asked} of={(data) => data.repository?.deployKeys} what="list of keys">
        {({ nodes }) =>
          nodes.length > 0 && (
            <ul className="rows text-sm">
              {nodes.map((key) => (
                <li key={key.id} className="flex items-center gap-3">
                  <div className="min-w-0 flex-1">
                    <p className="font-medium break-words">
                      {key.title}{' '}
                      <span className="font-normal text-dim">
                        {key.write ? 'read and write' : 'read-only'}
                      </span>
                    </p>
                    <code className="text-xs break-all">{key.fingerprint}</code>
                    <p className="text-dim">
                      added <RelativeTime at={key.createdAt} /> · used{' '}
                      <RelativeTime at={key.lastUsedAt} />
                    </p>
                  </div>
                  <Button
                    look="danger"
                    aria-label={`Delete ${key.title}`}
                    onClick={() => setToDelete(key)}
                  >
                    Delete
                  </Button>
                </li>
              ))}
            </ul>
          )
        }
      </Load>
      <KeyForm repositoryId={repository.id} />
      {toDelete && (
        <Confirm
          title={`Delete ${toDelete.title}?`}
          verb="Delete key"
          onClose={() => setToDelete(null)}
          act={async () => (await remove.run({ input: { id: toDelete.id } })).problem}
        >
          <p>Machines with this key lose access to the repository.</p>
        </Confirm>
      )}
    </section>
  );
}

const EMPTY_KEY = { title: '', key: '', write: false };

function KeyForm({ repositoryId }: { repositoryId: string }) {
  const [input, setInput] = useState(EMPTY_KEY);
  const add = useFormMutation(AddKey, {
    changes: ['DeployKey', 'DeployKeyConnection'],
    fields: ['title', 'key'],
  });
  return (
    <details className="card p-4">
      <summary className="text-sm font-medium">Add a deploy key</summary>
      <form
        className="mt-4 space-y-4"
        onSubmit={async (event) => {
          event.preventDefault();
          const { data } = await add.run({ input: { repositoryId, ...input } });
          if (data) setInput(EMPTY_KEY);
        }}
      >
        <Field label="Title" problem={add.fieldError('title')}>
          <Input
            required
            value={input.title}
            onChange={({ target }) => setInput({ ...input, title: target.value })}
          />
        </Field>
        <Field
          label="Public key"
          hint="The line of a .pub file: ssh-ed25519 AAAA…"
          problem={add.fieldError('key')}
        >
          <TextArea
            required
            rows={3}
            className="font-mono text-[13px]"
            value={input.key}
            onChange={({ target }) => setInput({ ...input, key: target.value })}
          />
        </Field>
        <Checkbox
          label="Allow pushes"
          checked={input.write}
          onChange={({ target }) => setInput({ ...input, write: target.checked })}
        />
        {add.problem && <ProblemBox problem={add.problem} />}
        <Button type="submit" busy={add.busy}>
          Add key
        </Button>
      </form>
    </details>
  );
}
