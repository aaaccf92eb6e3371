import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import type { RepositoryData } from './frame.tsx';
import { nameProblem } from './rules.ts';
import { VISIBILITY_TEXT, type Visibility } from './visibility.tsx';

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

/** What changes who reaches the repository, and where, or whether there is one. */
export function Danger({ repository }: { repository: RepositoryData }) {
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
  const rename = useAct(Rename, { fields: ['name'] });
  const wrong = nameProblem(name);
  return (
    <form
      className="space-y-3"
      onSubmit={async (event) => {
        event.preventDefault();
        const { data } = await rename.run({ input: { id: repository.id, name } });
        const now = data?.renameRepository?.repository;
        if (!now) return;
        notify(`The repository is now called ${now.name}.`);
        await navigate({
          to: '/$namespace/$repository/settings',
          params: { namespace: now.namespace, repository: now.name },
          replace: true,
        });
      }}
    >
      <Field
        label="Name"
        problem={wrong ?? rename.fault('name')}
        hint="Clone addresses with the old name stop working at once."
      >
        <Input value={name} onChange={({ target }) => setName(target.value)} />
      </Field>
      {rename.problem && <ProblemBox problem={rename.problem} />}
      <Button
        type="submit"
        busy={rename.busy}
        disabled={name === repository.name || Boolean(wrong)}
      >
        Rename
      </Button>
    </form>
  );
}

function VisibilityForm({ repository }: Props) {
  const [visibility, setVisibility] = useState<Visibility>(repository.visibility);
  const [isAsking, setAsking] = useState(false);
  const change = useAct(ChangeVisibility);
  return (
    <>
      <form
        className="space-y-3"
        onSubmit={(event) => {
          event.preventDefault();
          setAsking(true);
        }}
      >
        <Field label="Visibility" hint={VISIBILITY_TEXT[visibility]}>
          <Select
            value={visibility}
            onChange={({ target }) => setVisibility(target.value as Visibility)}
          >
            <option value="PRIVATE">private</option>
            <option value="INTERNAL">internal</option>
            <option value="PUBLIC">public</option>
          </Select>
        </Field>
        <Button type="submit" disabled={visibility === repository.visibility}>
          Change visibility
        </Button>
      </form>
      {isAsking && (
        <Confirm
          title={`Make ${repository.fullName} ${visibility.toLowerCase()}?`}
          verb="Change visibility"
          onClose={() => setAsking(false)}
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
  const [isAsking, setAsking] = useState(false);
  const navigate = useNavigate();
  const transfer = useAct(Transfer);
  return (
    <>
      <form
        className="space-y-3"
        onSubmit={(event) => {
          event.preventDefault();
          setAsking(true);
        }}
      >
        <Field
          label="New owner"
          hint="A user or an organization, where you are an administrator too."
        >
          <Input value={newNamespace} onChange={({ target }) => setNewNamespace(target.value)} />
        </Field>
        <Button type="submit" disabled={!newNamespace || newNamespace === repository.namespace}>
          Transfer
        </Button>
      </form>
      {isAsking && (
        <Confirm
          title={`Transfer ${repository.fullName} to ${newNamespace}?`}
          verb="Transfer repository"
          name={repository.fullName}
          onClose={() => setAsking(false)}
          act={async () => {
            const { data, problem } = await transfer.run({
              input: { id: repository.id, newNamespace },
            });
            const now = data?.transferRepository?.repository;
            if (now)
              await navigate({
                to: '/$namespace/$repository',
                params: { namespace: now.namespace, repository: now.name },
                replace: true,
              });
            return problem;
          }}
        >
          <p>
            Members of {newNamespace} get access, and members of {repository.namespace} lose it.
            Clone addresses with the old owner stop working at once.
          </p>
        </Confirm>
      )}
    </>
  );
}

function DeleteButton({ repository }: Props) {
  const [isAsking, setAsking] = useState(false);
  const navigate = useNavigate();
  const remove = useAct(Delete, { changes: ['RepositoryPage', 'RepositoryConnection'] });
  return (
    <div className="rounded-lg border border-bad p-4">
      <h3>Delete this repository</h3>
      <p className="mt-1 mb-3 text-sm text-dim">
        Deletes its branches, commits and large files for good. Its jobs stay.
      </p>
      <Button look="danger" onClick={() => setAsking(true)}>
        Delete repository
      </Button>
      {isAsking && (
        <Confirm
          title={`Delete ${repository.fullName}?`}
          verb="Delete repository"
          name={repository.fullName}
          onClose={() => setAsking(false)}
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
          <p>Its branches, commits and large files are deleted for good. This cannot be undone.</p>
        </Confirm>
      )}
    </div>
  );
}
