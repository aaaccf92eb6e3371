import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm, Dialog } from '../../ui/dialog.tsx';
import { Field, Input, TextArea } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RelativeTime } from '../../ui/time.tsx';
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
  /** `new`: a variable that is created. */
  const [edited, setEdited] = useState<VariableData | 'new' | null>(null);
  const [toDelete, setToDelete] = useState<string | null>(null);
  return (
    <section aria-labelledby="stored-variables" className="space-y-3">
      <div className="flex items-center justify-between gap-3">
        <h2 id="stored-variables">Variables</h2>
        {mayChange && <Button onClick={() => setEdited('new')}>New variable</Button>}
      </div>
      <p className="text-sm text-dim">
        Environment variables for jobs that name them. Values are not secret.
      </p>
      {variables.length === 0 ? (
        <p className="card px-4 py-3 text-sm text-dim">No variables</p>
      ) : (
        <ul className="rows text-sm">
          {variables.map((variable) => (
            <li
              key={variable.name}
              data-variable={variable.name}
              className="flex flex-wrap items-center gap-x-3 gap-y-2"
            >
              <div className="min-w-0 flex-1 basis-60">
                <code className="font-medium break-all">{variable.name}</code>
                <p className="line-clamp-3 font-mono text-[13px] break-all">{variable.value}</p>
                <p className="text-dim">
                  set by {variable.updatedBy} <RelativeTime at={variable.updatedAt} /> · used{' '}
                  <RelativeTime at={variable.lastUsedAt} />
                </p>
              </div>
              {mayChange && (
                <div className="flex gap-2">
                  <Button aria-label={`Edit ${variable.name}`} onClick={() => setEdited(variable)}>
                    Edit
                  </Button>
                  <Button
                    look="danger"
                    aria-label={`Delete ${variable.name}`}
                    onClick={() => setToDelete(variable.name)}
                  >
                    Delete
                  </Button>
                </div>
              )}
            </li>
          ))}
        </ul>
      )}
      {edited && (
        <VariableDialog
          owner={owner}
          variable={edited === 'new' ? null : edited}
          onClose={() => setEdited(null)}
        />
      )}
      {toDelete && (
        <Confirm
          title={`Delete ${toDelete}?`}
          verb="Delete variable"
          onClose={() => setToDelete(null)}
          act={async () => (await remove.run({ input: { ...owner, name: toDelete } })).problem}
        >
          <p>Jobs that name the variable fail.</p>
        </Confirm>
      )}
    </section>
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
    <Dialog title={variable ? `Edit ${variable.name}` : 'New variable'} onClose={onClose}>
      <form
        className="space-y-4"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
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
        {save.problem && <ProblemBox problem={save.problem} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" look="primary" busy={save.busy}>
            Save variable
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
