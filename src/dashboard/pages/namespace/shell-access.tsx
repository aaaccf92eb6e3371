import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { SelectWithSave } from '../../ui/choice.tsx';
import { notify } from '../../ui/notices.tsx';

const SetShellAccess = graphql(`
  mutation SetShellAccess($input: SetShellAccessInput!) {
    setShellAccess(input: $input) { namespace { id shellAccess } }
  }
`);

const OPTIONS = [
  ['ALLOWED', 'Allowed'],
  ['NONE', 'None'],
] as const;

/** Whether shells can be opened in the jobs of the namespace. */
export function ShellAccessSection({
  namespace,
  access,
  mayChange,
}: {
  namespace: string;
  access: 'ALLOWED' | 'NONE';
  mayChange: boolean;
}) {
  const { run } = useFormMutation(SetShellAccess, { changes: ['Namespace'] });
  return (
    <section aria-labelledby="shells">
      <h2 id="shells" className="mb-1">
        Shells in jobs
      </h2>
      <p className="mb-3 text-sm text-dim">
        The creator of a running job and admins can open shells in it and connect to its ports. With
        None, nobody can, and open shells end. A job can also forbid them for itself.
      </p>
      {mayChange ? (
        <SelectWithSave
          label="Shells in jobs"
          value={access}
          options={OPTIONS}
          save={async (chosen) => {
            const outcome = await run({ input: { namespace, access: chosen } });
            notify(outcome.problem ? outcome.problem.message : 'The setting was saved.');
            return outcome;
          }}
        />
      ) : (
        <p className="text-sm">{access === 'NONE' ? 'None' : 'Allowed'}</p>
      )}
    </section>
  );
}
