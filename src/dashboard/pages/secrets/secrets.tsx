import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { FormDialog } from '../../ui/dialog.tsx';
import { Field, Input, Select, TextArea } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { StoredValueList } from './list.tsx';
import { DeleteSecret, type Owner, type SecretData, SetSecret } from './queries.ts';

const CHANGED = ['Secret', 'SecretConnection'];

/** Values are entered here and never shown. */
export function Secrets({
  owner,
  secrets,
  mayChange,
}: {
  owner: Owner;
  secrets: readonly SecretData[];
  mayChange: boolean;
}) {
  const remove = useFormMutation(DeleteSecret, { changes: CHANGED });
  return (
    <StoredValueList
      kind="secret"
      title="Secrets"
      about={
        <>
          A job that lists a secret gets its value in an environment variable. Values are encrypted,
          and masked in logs.
          {owner.repository === null && ' They are for jobs of all its repositories.'}
        </>
      }
      values={secrets}
      mayChange={mayChange}
      summary={({ refs }) => <p className="break-words">{describeRefs(refs)}</p>}
      dialog={(secret, onClose) => <SecretDialog owner={owner} secret={secret} onClose={onClose} />}
      afterDeletion="The value is deleted permanently. Jobs that name the secret fail."
      remove={async (name) => (await remove.run({ input: { ...owner, name } })).problem}
    />
  );
}

const EVERY_JOB = '**';

function describeRefs(refs: readonly string[]): string {
  if (refs.length === 0) return 'Jobs of protected branches';
  return refs.includes(EVERY_JOB) ? 'All jobs' : `Jobs of ${refs.join(', ')}`;
}

type Availability = 'protected' | 'all' | 'patterns';

function SecretDialog({
  owner,
  secret,
  onClose,
}: {
  owner: Owner;
  secret: SecretData | null;
  onClose: () => void;
}) {
  const refs = secret?.refs ?? [];
  const [name, setName] = useState(secret?.name ?? '');
  const [value, setValue] = useState('');
  const [availability, setAvailability] = useState<Availability>(
    refs.length === 0 ? 'protected' : refs.includes(EVERY_JOB) ? 'all' : 'patterns',
  );
  const [patterns, setPatterns] = useState(refs.filter((ref) => ref !== EVERY_JOB).join(' '));
  const save = useFormMutation(SetSecret, {
    changes: CHANGED,
    fields: ['name', 'value', 'refs'],
  });
  async function submit(): Promise<void> {
    const chosen = {
      protected: [],
      all: [EVERY_JOB],
      patterns: patterns.split(/[\s,]+/).filter(Boolean),
    }[availability];
    const input = { ...owner, name, ...(value && { value }), refs: chosen };
    const { data } = await save.run({ input });
    if (!data) return;
    notify(`The secret ${name} was saved.`);
    onClose();
  }
  return (
    <FormDialog
      title={secret ? `Edit ${secret.name}` : 'New secret'}
      verb="Save secret"
      form={save}
      submit={submit}
      onClose={onClose}
    >
      {!secret && (
        <Field
          label="Name"
          hint="The name of the environment variable, such as NPM_TOKEN"
          problem={save.fieldError('name')}
        >
          <Input
            required
            autoComplete="off"
            value={name}
            onChange={({ target }) => setName(target.value)}
          />
        </Field>
      )}
      <Field
        label="Value"
        hint={secret ? 'Leave it empty to keep the present value.' : 'It is never shown again.'}
        problem={save.fieldError('value')}
      >
        <TextArea
          required={!secret}
          rows={4}
          autoComplete="off"
          className="font-mono text-[13px]"
          value={value}
          onChange={({ target }) => setValue(target.value)}
        />
      </Field>
      <Field
        label="Available to"
        hint={HINTS[availability]}
        problem={availability === 'patterns' ? null : save.fieldError('refs')}
      >
        <Select
          value={availability}
          onChange={({ target }) => setAvailability(target.value as Availability)}
        >
          <option value="protected">Jobs of protected branches</option>
          <option value="patterns">Jobs of certain branches and tags</option>
          <option value="all">All jobs</option>
        </Select>
      </Field>
      {availability === 'patterns' && (
        <Field
          label="Branches and tags"
          hint="Names or patterns, separated by spaces: main release/* tags/v*"
          problem={save.fieldError('refs')}
        >
          <Input required value={patterns} onChange={({ target }) => setPatterns(target.value)} />
        </Field>
      )}
    </FormDialog>
  );
}

const HINTS: Record<Availability, string> = {
  protected:
    'Branches with a branch rule, and the default branch if it is protected. Who creates the job must be allowed to push to the branch.',
  patterns: 'Who creates the job must be allowed to push to the branch.',
  all: 'Everyone who may create jobs can read the value with a job.',
};
