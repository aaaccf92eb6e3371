import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Checkbox, Field, TextArea } from '../../ui/field.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { useMeanwhile } from '../../ui/meanwhile.ts';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import type { RepositoryData } from './frame.tsx';
import { descriptionProblem } from './rules.ts';

const Update = graphql(`
  mutation UpdateRepository($input: UpdateRepositoryInput!) {
    updateRepository(input: $input) {
      repository { id description branchProtection secretScanning }
    }
  }
`);

const ChecksQuery = graphql(`
  query RepositoryChecks($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { id branchProtection secretScanning }
  }
`);

export function Description({ repository }: { repository: RepositoryData }) {
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
        <TextArea rows={2} value={text} onChange={({ target }) => setText(target.value)} />
      </Field>
      {update.problem && <ProblemBox problem={update.problem} />}
      <Button
        type="submit"
        busy={update.busy}
        disabled={text === repository.description || Boolean(descriptionProblem(text))}
      >
        Save the description
      </Button>
    </form>
  );
}

/** What is refused of each push. */
export function Checks({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, defaultBranch } = repository;
  const asked = useAsk({ query: ChecksQuery, variables: { namespace, name } });
  const update = useAct(Update);
  const set = (change: { branchProtection?: boolean; secretScanning?: boolean }) =>
    update.run({ input: { id, ...change } });
  return (
    <section aria-labelledby="pushes" className="space-y-3">
      <h2 id="pushes">Pushes</h2>
      <Load asked={asked} of={(data) => data.repository} what="repository">
        {({ branchProtection, secretScanning }) => (
          <>
            <Check
              label={`Protect ${defaultBranch}`}
              hint="It cannot be deleted, and takes no push that is not a fast-forward."
              checked={branchProtection}
              set={(branchProtection) => set({ branchProtection })}
            />
            <Check
              label="Look for secrets"
              hint="A push that adds what looks like a valid key or password is refused."
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
