import { useId, useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Checkbox, Field, Input, TextArea } from '../../ui/field.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { useOptimisticValue } from '../../ui/meanwhile.ts';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RepositoryStoredValues } from '../secrets/stored-values.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';
import { checkDescription } from './rules.ts';
import { DangerZone } from './settings-danger.tsx';
import { DeployKeys } from './settings-keys.tsx';
import { AllowedSecrets, BranchRules } from './settings-pushes.tsx';

/** The settings of a repository, for administrators of its namespace. */
export default function Settings() {
  return (
    <RepositoryFrame tab="Settings">
      {(repository) =>
        repository.owner.viewerRole === 'ADMIN' ? (
          // The key resets the forms when the repository changes, for example by a rename.
          <div key={repository.fullName} className="space-y-10">
            <Description repository={repository} />
            <DefaultBranch repository={repository} />
            <PushChecks repository={repository} />
            <BranchRules repository={repository} />
            <AllowedSecrets repository={repository} />
            <RepositoryStoredValues namespace={repository.namespace} name={repository.name} />
            <DeployKeys repository={repository} />
            <DangerZone repository={repository} />
          </div>
        ) : (
          <p>The settings are for administrators of {repository.namespace}.</p>
        )
      }
    </RepositoryFrame>
  );
}

const Update = graphql(`
  mutation UpdateRepository($input: UpdateRepositoryInput!) {
    updateRepository(input: $input) {
      repository { id description defaultBranch branchProtection secretScanning }
    }
  }
`);

const ChecksQuery = graphql(`
  query RepositoryChecks($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { id branchProtection secretScanning }
  }
`);

function Description({ repository }: { repository: RepositoryData }) {
  const [text, setText] = useState(repository.description);
  const update = useFormMutation(Update, { fields: ['description'] });
  const problem = checkDescription(text) ?? update.fieldError('description');
  return (
    <form
      className="space-y-3"
      onSubmit={async (event) => {
        event.preventDefault();
        const { data } = await update.run({ input: { id: repository.id, description: text } });
        if (data) notify('The description was saved.');
      }}
    >
      <Field label="Description" problem={problem} hint="At most 512 characters.">
        <TextArea rows={3} value={text} onChange={({ target }) => setText(target.value)} />
      </Field>
      {update.problem && <ProblemBox problem={update.problem} />}
      <Button
        type="submit"
        busy={update.busy}
        disabled={text === repository.description || Boolean(checkDescription(text))}
      >
        Save description
      </Button>
    </form>
  );
}

const BranchNamesQuery = graphql(`
  query BranchNames($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { id branches(first: 100) { nodes { name } } }
  }
`);

function DefaultBranch({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, defaultBranch } = repository;
  const asked = useRetryingQuery({ query: BranchNamesQuery, variables: { namespace, name } });
  const [branch, setBranch] = useState(defaultBranch);
  const update = useFormMutation(Update, { fields: ['defaultBranch'] });
  const branchListId = useId();
  return (
    <Load asked={asked} of={(data) => data.repository?.branches} what="list of branches">
      {({ nodes }) => (
        <form
          className="space-y-3"
          onSubmit={async (event) => {
            event.preventDefault();
            const { data } = await update.run({ input: { id, defaultBranch: branch } });
            if (data) notify(`The default branch is ${branch}.`);
          }}
        >
          <Field
            label="Default branch"
            problem={update.fieldError('defaultBranch')}
            hint="Checked out by clones, and shown first on the pages of the repository."
          >
            <Input
              list={branchListId}
              value={branch}
              disabled={nodes.length === 0}
              onChange={({ target }) => setBranch(target.value)}
            />
          </Field>
          <datalist id={branchListId}>
            {nodes.map((node) => (
              <option key={node.name} value={node.name} />
            ))}
          </datalist>
          {update.problem && <ProblemBox problem={update.problem} />}
          <Button type="submit" busy={update.busy} disabled={!branch || branch === defaultBranch}>
            Change default branch
          </Button>
        </form>
      )}
    </Load>
  );
}

/** Checks that apply to every push. */
function PushChecks({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, defaultBranch } = repository;
  const asked = useRetryingQuery({ query: ChecksQuery, variables: { namespace, name } });
  const update = useFormMutation(Update);
  async function set(change: { branchProtection?: boolean; secretScanning?: boolean }) {
    const result = await update.run({ input: { id, ...change } });
    if (result.data) notify('Saved.');
    return result;
  }
  return (
    <section aria-labelledby="pushes" className="space-y-3">
      <h2 id="pushes">Pushes</h2>
      <Load asked={asked} of={(data) => data.repository} what="repository">
        {({ branchProtection, secretScanning }) => (
          <>
            <CheckSetting
              label={`Protect ${defaultBranch}`}
              hint="Refuse force pushes to this branch, and its deletion."
              checked={branchProtection}
              set={(branchProtection) => set({ branchProtection })}
            />
            <CheckSetting
              label="Secret scanning"
              hint="Refuse pushes that add keys or passwords."
              checked={secretScanning}
              set={(secretScanning) => set({ secretScanning })}
            />
          </>
        )}
      </Load>
      {update.problem && <ProblemBox problem={update.problem} />}
    </section>
  );
}

function CheckSetting({
  label,
  hint,
  checked,
  set,
}: {
  label: string;
  hint: string;
  checked: boolean;
  set: (checked: boolean) => Promise<{ data?: unknown }>;
}) {
  const [shown, choose] = useOptimisticValue(checked);
  return (
    <Checkbox
      label={label}
      hint={hint}
      checked={shown}
      onChange={({ target }) => choose(target.checked, set(target.checked))}
    />
  );
}
