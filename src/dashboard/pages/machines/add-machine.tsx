import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { CopyableText } from '../../ui/copy.tsx';
import { Dialog, FormDialog } from '../../ui/dialog.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { quoteForShell } from '../../ui/shell.ts';
import { ExpiryField } from '../settings/credentials.tsx';

const CreateWorkerToken = graphql(`
  mutation CreateWorkerToken($input: CreateWorkerTokenInput!) {
    createWorkerToken(input: $input) { token command workerToken { id } }
  }
`);

const FIELDS = ['name', 'namespace', 'expiresInDays'];

/** Creates a worker token, and shows the command with which a machine joins. */
export function AddMachine({
  namespace,
  onClose,
}: {
  /** Of the page; null: the user may choose one. */
  namespace: string | null;
  onClose: () => void;
}) {
  const create = useFormMutation(CreateWorkerToken, { changes: ['WorkerToken'], fields: FIELDS });
  const [name, setName] = useState('');
  const [only, setOnly] = useState(namespace ?? '');
  const [days, setDays] = useState('7');
  const [command, setCommand] = useState<string | null>(null);

  async function submit() {
    const { data } = await create.run({
      input: {
        name: name || 'Add a machine',
        namespace: only || null,
        expiresInDays: Number(days),
      },
    });
    const line = data?.createWorkerToken?.command;
    if (line) setCommand(name ? `${line} --name ${quoteForShell(name)}` : line);
  }

  if (command)
    return (
      <Dialog title="Run this on the machine" onClose={onClose} wide>
        <div className="space-y-4">
          <CopyableText text={command} label="Command" />
          <p className="text-sm">
            The machine needs Node.js and curl, and connects to this server. It joins within
            seconds. As root, the worker starts with the machine and can run containers; as an
            ordinary user, it runs what this user may run.
          </p>
          <p className="text-sm text-dim">
            Copy the command now: its token is not shown again. Until the token expires, more
            machines can join with it.
          </p>
          <div className="flex justify-end">
            <Button look="primary" onClick={onClose}>
              I have copied it
            </Button>
          </div>
        </div>
      </Dialog>
    );
  return (
    <FormDialog
      title="Add a machine"
      verb="Show the command"
      form={create}
      submit={submit}
      onClose={onClose}
    >
      <Field
        label="Name of the machine"
        hint="Optional. By default the name of its host"
        problem={create.fieldError('name')}
      >
        <Input
          value={name}
          onChange={({ target }) => setName(target.value)}
          pattern="[a-z0-9]([a-z0-9._\-]{0,61}[a-z0-9])?"
          title="a-z, 0-9, dots, underscores and hyphens"
          maxLength={63}
          autoComplete="off"
        />
      </Field>
      {namespace === null && (
        <Field
          label="Only for the namespace"
          hint="Optional. The machine then runs no jobs of others"
          problem={create.fieldError('namespace')}
        >
          <Input
            value={only}
            onChange={({ target }) => setOnly(target.value)}
            maxLength={39}
            autoComplete="off"
          />
        </Field>
      )}
      <ExpiryField days={days} onChange={setDays} problem={create.fieldError('expiresInDays')} />
    </FormDialog>
  );
}
