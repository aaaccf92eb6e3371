import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { CopyableText, CopyButton } from '../../ui/copy.tsx';
import { FormDialog } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Input, TextArea } from '../../ui/field.tsx';
import { useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { useAfterCursor } from '../../ui/paging.tsx';
import { CredentialsPage } from './credentials.tsx';

const SshKeysQuery = graphql(`
  query SshKeys($after: String) {
    viewer {
      id
      sshKeys(first: 50, after: $after) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { id title fingerprint publicKey createdAt lastUsedAt }
      }
    }
  }
`);

const AddSshKey = graphql(`
  mutation AddSshKey($title: String!, $key: String!) {
    addSshKey(input: { title: $title, key: $key }) { sshKey { id title } }
  }
`);

const DeleteSshKey = graphql(`
  mutation DeleteSshKey($id: ID!) { deleteSshKey(input: { id: $id }) { id } }
`);

const KEYGEN_COMMANDS = 'ssh-keygen -t ed25519\ncat ~/.ssh/id_ed25519.pub';

/** The viewer's SSH keys. */
export default function SshKeysPage() {
  const after = useAfterCursor();
  const asked = useRetryingQuery({ query: SshKeysQuery, variables: { after } });
  const remove = useFormMutation(DeleteSshKey, { changes: ['SshKey'] });
  return (
    <CredentialsPage
      title="SSH keys"
      about="For git over SSH, as you. Deploy keys are in the settings of their repositories."
      noun="key"
      addLabel="Add a key"
      asked={asked}
      of={(data) => data.viewer?.sshKeys}
      nameOf={({ title }) => title}
      details={({ title, fingerprint, publicKey }) => (
        <p className="flex items-center gap-1">
          <code className="text-[13px] break-all text-dim">{fingerprint}</code>
          <CopyButton text={publicKey} label={`Copy the public key ${title}`} />
        </p>
      )}
      empty={(addButton) => (
        <Empty title="No SSH keys yet">
          <p>Create a key if you have none, and paste the output of the second command.</p>
          <CopyableText text={KEYGEN_COMMANDS} />
          {addButton}
        </Empty>
      )}
      form={(onClose) => <NewKey onClose={onClose} />}
      warning={<p>Git over SSH refuses this key from now on.</p>}
      remove={({ id }) => remove.run({ id })}
    />
  );
}

function NewKey({ onClose }: { onClose: () => void }) {
  const add = useFormMutation(AddSshKey, { changes: ['SshKey'], fields: ['title', 'key'] });
  const [title, setTitle] = useState('');
  const [key, setKey] = useState('');
  return (
    <FormDialog
      title="Add an SSH key"
      verb="Add key"
      form={add}
      submit={async () => {
        const { data } = await add.run({ title: title.trim(), key: key.trim() });
        if (!data) return;
        notify(`The key ${data.addSshKey?.sshKey.title} was added.`);
        onClose();
      }}
      onClose={onClose}
    >
      <Field
        label="Public key"
        hint="The content of a file that ends in .pub. Never paste the private key."
        problem={add.fieldError('key')}
      >
        <TextArea
          value={key}
          onChange={({ target }) => setKey(target.value)}
          rows={4}
          required
          placeholder="ssh-ed25519 AAAA… me@laptop"
          className="font-mono text-[13px] break-all"
        />
      </Field>
      <Field
        label="Title"
        hint="If empty, the comment at the end of the key is used"
        problem={add.fieldError('title')}
      >
        <Input
          value={title}
          onChange={({ target }) => setTitle(target.value)}
          maxLength={100}
          autoComplete="off"
        />
      </Field>
      <details className="text-sm">
        <summary className="text-dim">How to create a key</summary>
        <div className="mt-2">
          <CopyableText text={KEYGEN_COMMANDS} />
        </div>
      </details>
    </FormDialog>
  );
}
