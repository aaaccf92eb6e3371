import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import type { RepositoryData } from './frame.tsx';
import { checkRepositoryName } from './rules.ts';
import { VISIBILITY_TEXT, type Visibility, VisibilityField } from './visibility.tsx';

const Rename = graphql(`
  mutation RenameRepository($input: RenameRepositoryInput!) {
    renameRepository(input: $input) { repository { id name namespace } }
  }
`);

const ChangeVisibility = graphql(`
  mutation ChangeRepositoryVisibility($input: ChangeRepositoryVisibilityInput!) {
    changeRepositoryVisibility(input: $input) { repository { id visibility } }
  }
`);

const Transfer = graphql(`
  mutation TransferRepository($input: TransferRepositoryInput!) {
    transferRepository(input: $input) { repository { id name namespace } }
  }
`);

const Delete = graphql(`
  mutation DeleteRepository($input: DeleteRepositoryInput!) {
    deleteRepository(input: $input) { id }
  }
`);

/** Settings that change who can reach the repository, or under which address, and its deletion. */
export function DangerZone({ repository }: { repository: RepositoryData }) {
  return (
    <section aria-labelledby="danger" className="space-y-6">
      <h2 id="danger">Name, visibility, owner</h2>
      <RenameForm repository={repository} />
      <VisibilityForm repository={repository} />
      <TransferForm repository={repository} />
      <DeleteButton repository={repository} />
    </section>
  );
}

type Props = { repository: RepositoryData };

function RenameForm({ repository }: Props) {
  const [name, setName] = useState(repository.name);
  const navigate = useNavigate();
  const rename = useFormMutation(Rename, { fields: ['name'] });
  const nameProblem = checkRepositoryName(name);
  return (
    <form
      className="space-y-3"
      onSubmit={async (event) => {
        event.preventDefault();
        const { data } = await rename.run({ input: { id: repository.id, name } });
        const updated = data?.renameRepository?.repository;
        if (!updated) return;
        notify(`The repository is now called ${updated.name}.`);
        await navigate({
          to: '/$namespace/$repository/settings',
          params: { namespace: updated.namespace, repository: updated.name },
          replace: true,
        });
      }}
    >
      <Field
        label="Name"
        problem={nameProblem ?? rename.fieldError('name')}
        hint="Clone URLs with the old name stop working immediately."
      >
        <Input value={name} onChange={({ target }) => setName(target.value)} />
      </Field>
      {rename.problem && <ProblemBox problem={rename.problem} />}
      <Button
        type="submit"
        busy={rename.busy}
        disabled={name === repository.name || Boolean(nameProblem)}
      >
        Rename
      </Button>
    </form>
  );
}

function VisibilityForm({ repository }: Props) {
  const [visibility, setVisibility] = useState<Visibility>(repository.visibility);
  const [isConfirming, setConfirming] = useState(false);
  const change = useFormMutation(ChangeVisibility);
  return (
    <>
      <form
        className="space-y-3"
        onSubmit={(event) => {
          event.preventDefault();
          setConfirming(true);
        }}
      >
        <VisibilityField value={visibility} onChange={setVisibility} />
        <Button type="submit" disabled={visibility === repository.visibility}>
          Change visibility
        </Button>
      </form>
      {isConfirming && (
        <Confirm
          title={`Make ${repository.fullName} ${visibility.toLowerCase()}?`}
          verb="Change visibility"
          onClose={() => setConfirming(false)}
          act={async () => (await change.run({ input: { id: repository.id, visibility } })).problem}
        >
          <p>{VISIBILITY_TEXT[visibility]}</p>
        </Confirm>
      )}
    </>
  );
}

function TransferForm({ repository }: Props) {
  const [newNamespace, setNewNamespace] = useState('');
  const [isConfirming, setConfirming] = useState(false);
  const navigate = useNavigate();
  const transfer = useFormMutation(Transfer);
  return (
    <>
      <form
        className="space-y-3"
        onSubmit={(event) => {
          event.preventDefault();
          setConfirming(true);
        }}
      >
        <Field label="New owner" hint="A user or an organization that you administer.">
          <Input value={newNamespace} onChange={({ target }) => setNewNamespace(target.value)} />
        </Field>
        <Button type="submit" disabled={!newNamespace || newNamespace === repository.namespace}>
          Transfer
        </Button>
      </form>
      {isConfirming && (
        <Confirm
          title={`Transfer ${repository.fullName} to ${newNamespace}?`}
          verb="Transfer repository"
          name={repository.fullName}
          onClose={() => setConfirming(false)}
          act={async () => {
            const { data, problem } = await transfer.run({
              input: { id: repository.id, newNamespace },
            });
            const updated = data?.transferRepository?.repository;
            if (updated)
              await navigate({
                to: '/$namespace/$repository',
                params: { namespace: updated.namespace, repository: updated.name },
                replace: true,
              });
            return problem;
          }}
        >
          <p>
            Members of {newNamespace} get access, and members of {repository.namespace} lose it.
            Clone URLs with the old owner stop working immediately.
          </p>
        </Confirm>
      )}
    </>
  );
}

function DeleteButton({ repository }: Props) {
  const [isConfirming, setConfirming] = useState(false);
  const navigate = useNavigate();
  const remove = useFormMutation(Delete, { changes: ['RepositoryPage', 'RepositoryConnection'] });
  return (
    <div className="rounded-lg border border-bad p-4">
      <h3>Delete this repository</h3>
      <p className="mt-1 mb-3 text-sm text-dim">
        Permanently deletes its branches, commits and large files. Its jobs stay.
      </p>
      <Button look="danger" onClick={() => setConfirming(true)}>
        Delete repository
      </Button>
      {isConfirming && (
        <Confirm
          title={`Delete ${repository.fullName}?`}
          verb="Delete repository"
          name={repository.fullName}
          onClose={() => setConfirming(false)}
          act={async () => {
            const { data, problem } = await remove.run({ input: { id: repository.id } });
            if (data) {
              notify(`${repository.fullName} was deleted.`);
              await navigate({
                to: '/$namespace',
                params: { namespace: repository.namespace },
                replace: true,
              });
            }
            return problem;
          }}
        >
          <p>Permanently deletes its branches, commits and large files. This cannot be undone.</p>
        </Confirm>
      )}
    </div>
  );
}
