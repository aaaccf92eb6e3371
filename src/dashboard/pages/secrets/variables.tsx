import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { FormDialog } from '../../ui/dialog.tsx';
import { Field, Input, TextArea } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { StoredValueList } from './list.tsx';
import { DeleteVariable, type Owner, SetVariable, type VariableData } from './queries.ts';

const CHANGED = ['Variable', 'VariableConnection'];

export function Variables({
  owner,
  variables,
  mayChange,
}: {
  owner: Owner;
  variables: readonly VariableData[];
  mayChange: boolean;
}) {
  const remove = useFormMutation(DeleteVariable, { changes: CHANGED });
  return (
    <StoredValueList
      kind="variable"
      title="Variables"
      about="A job that lists a variable gets its value in an environment variable. Values are not secret."
      values={variables}
      mayChange={mayChange}
      summary={({ value }) => (
        <p className="line-clamp-3 font-mono text-[13px] break-all">{value}</p>
      )}
      dialog={(variable, onClose) => (
        <VariableDialog owner={owner} variable={variable} onClose={onClose} />
      )}
      afterDeletion="Jobs that name the variable fail."
      remove={async (name) => (await remove.run({ input: { ...owner, name } })).problem}
    />
  );
}

function VariableDialog({
  owner,
  variable,
  onClose,
}: {
  owner: Owner;
  variable: VariableData | null;
  onClose: () => void;
}) {
  const [name, setName] = useState(variable?.name ?? '');
  const [value, setValue] = useState(variable?.value ?? '');
  const save = useFormMutation(SetVariable, { changes: CHANGED, fields: ['name', 'value'] });
  async function submit(): Promise<void> {
    const { data } = await save.run({ input: { ...owner, name, value } });
    if (!data) return;
    notify(`The variable ${name} was saved.`);
    onClose();
  }
  return (
    <FormDialog
      title={variable ? `Edit ${variable.name}` : 'New variable'}
      verb="Save variable"
      form={save}
      submit={submit}
      onClose={onClose}
    >
      {!variable && (
        <Field
          label="Name"
          hint="The name of the environment variable"
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
      <Field label="Value" problem={save.fieldError('value')}>
        <TextArea
          rows={4}
          className="font-mono text-[13px]"
          value={value}
          onChange={({ target }) => setValue(target.value)}
        />
      </Field>
    </FormDialog>
  );
}
