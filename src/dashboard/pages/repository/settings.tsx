import { useId, useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Checkbox, Field, Input, TextArea } from '../../ui/field.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { useMeanwhile } from '../../ui/meanwhile.ts';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';
import { descriptionProblem } from './rules.ts';
import { Danger } from './settings-danger.tsx';
import { DeployKeys } from './settings-keys.tsx';
import { AllowedSecrets, BranchRules } from './settings-pushes.tsx';

/** What administrators of a repository decide. */
export default function Settings() {
  return (
    <RepositoryFrame tab="Settings">
      {(repository) =>
        repository.owner.viewerRole === 'ADMIN' ? (
          // Another repository, as after a rename: other forms.
          <div key={repository.fullName} className="max-w-4xl space-y-10">
            <Description repository={repository} />
            <DefaultBranch repository={repository} />
            <Checks repository={repository} />
            <BranchRules repository={repository} />
            <AllowedSecrets repository={repository} />
            <DeployKeys repository={repository} />
            <Danger repository={repository} />
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
  const update = useAct(Update, { fields: ['description'] });
  const problem = descriptionProblem(text) ?? update.fault('description');
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
        disabled={text === repository.description || Boolean(descriptionProblem(text))}
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
  const asked = useAsk({ query: BranchNamesQuery, variables: { namespace, name } });
  const [branch, setBranch] = useState(defaultBranch);
  const update = useAct(Update, { fields: ['defaultBranch'] });
  const known = useId();
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
            problem={update.fault('defaultBranch')}
            hint="Checked out by clones, and shown first on the pages of the repository."
          >
            <Input
              list={known}
              value={branch}
              disabled={nodes.length === 0}
              onChange={({ target }) => setBranch(target.value)}
            />
          </Field>
          <datalist id={known}>
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

/** What is refused of each push. */
function Checks({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, defaultBranch } = repository;
  const asked = useAsk({ query: ChecksQuery, variables: { namespace, name } });
  const update = useAct(Update);
  async function set(change: { branchProtection?: boolean; secretScanning?: boolean }) {
    const done = await update.run({ input: { id, ...change } });
    if (done.data) notify('Saved.');
    return done;
  }
  return (
    <section aria-labelledby="pushes" className="space-y-3">
      <h2 id="pushes">Pushes</h2>
      <Load asked={asked} of={(data) => data.repository} what="repository">
        {({ branchProtection, secretScanning }) => (
          <>
            <Check
              label={`Protect ${defaultBranch}`}
              hint="Refuse force pushes to this branch, and its deletion."
              checked={branchProtection}
              set={(branchProtection) => set({ branchProtection })}
            />
            <Check
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

function Check({
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
  const [shown, choose] = useMeanwhile(checked);
  return (
    <Checkbox
      label={label}
      hint={hint}
      checked={shown}
      onChange={({ target }) => choose(target.checked, set(target.checked))}
    />
  );
}
