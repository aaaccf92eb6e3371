import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { FormDialog } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { useRetryingQuery } from '../../ui/load.tsx';
import { useAfterCursor } from '../../ui/paging.tsx';
import { formatCurl } from '../../ui/shell.ts';
import { TerminalBox } from '../../ui/terminal-box.tsx';
import { CreatedDialog, CredentialsPage, ExpiryField } from './credentials.tsx';
import { useMyNamespaces } from './restrictions.tsx';
import { type Scope, ScopeBadges, ScopeFields } from './scopes.tsx';

const ApiKeysQuery = graphql(`
  query ApiKeys($after: String) {
    viewer {
      id
      apiKeys(first: 50, after: $after) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { id name scopes namespace createdAt lastUsedAt expiresAt }
      }
    }
  }
`);

const CreateApiKey = graphql(`
  mutation CreateApiKey($input: CreateApiKeyInput!) {
    createApiKey(input: $input) { key apiKey { id name } }
  }
`);

const DeleteApiKey = graphql(`
  mutation DeleteApiKey($name: String!) { deleteApiKey(input: { name: $name }) { id } }
`);

/** API keys: the viewer's own, and the keys of namespaces that the viewer administers. */
export default function ApiKeysPage() {
  const after = useAfterCursor();
  const asked = useRetryingQuery({ query: ApiKeysQuery, variables: { after } });
  const remove = useFormMutation(DeleteApiKey, { changes: ['ApiKey'] });
  // Names of keys are unique on the server.
  const exampleName = `${startData.viewer?.username}-ci`;
  return (
    <CredentialsPage
      title="API keys"
      about="For programs and services, which send the key in the Authorization header."
      noun="API key"
      addLabel="New API key"
      asked={asked}
      of={(data) => data.viewer?.apiKeys}
      nameOf={({ name }) => name}
      details={({ scopes, namespace }) => (
        <div className="flex flex-wrap gap-1">
          <ScopeBadges scopes={scopes} />
          {namespace && <span className="text-sm text-dim">only in {namespace}</span>}
        </div>
      )}
      empty={(addButton) => (
        <Empty title="No API keys yet">
          <p>Programs authenticate with a key. A key can be limited to one namespace.</p>
          {addButton}
          <p>Or from a terminal:</p>
          <div>
            <TerminalBox
              texts={[
                { client: 'loam', text: `loam keys create ${exampleName}` },
                {
                  client: 'curl',
                  text: formatCurl(
                    `${location.origin}/auth/v1/api_keys`,
                    JSON.stringify({ name: exampleName }),
                  ),
                },
              ]}
            />
          </div>
        </Empty>
      )}
      form={(onClose) => <NewApiKey onClose={onClose} />}
      warning={<p>Requests with this key are refused from now on.</p>}
      remove={({ name }) => remove.run({ name })}
    />
  );
}

const FIELDS = ['name', 'expiresInDays', 'scopes', 'namespace'] as const;

/** The form for a new API key, then the key itself: the server shows it only once. */
function NewApiKey({ onClose }: { onClose: () => void }) {
  const create = useFormMutation(CreateApiKey, { changes: ['ApiKey'], fields: FIELDS });
  const administered = useMyNamespaces().filter(({ viewerRole }) => viewerRole === 'ADMIN');
  const [name, setName] = useState('');
  const [days, setDays] = useState('30');
  const [scopes, setScopes] = useState<Scope[] | null>(null);
  const [namespace, setNamespace] = useState('');
  const [key, setKey] = useState<string | null>(null);
  // The server takes an empty list of scopes as all scopes, so the form refuses one.
  const [isMissingScopes, setMissingScopes] = useState(false);

  async function submit() {
    setMissingScopes(scopes?.length === 0);
    if (scopes?.length === 0) return;
    const { data } = await create.run({
      input: { name, expiresInDays: Number(days), scopes, namespace: namespace || null },
    });
    setKey(data?.createApiKey?.key ?? null);
  }

  if (key)
    return (
      <CreatedDialog
        title="The new API key"
        label={`The API key ${name} was created.`}
        secret={key}
        // Single quotes: a shell would expand a `$` in the key as a variable.
        curl={`export LOAM_KEY='${key}'\ncurl -H "Authorization: API-Key $LOAM_KEY" \\\n  ${location.origin}/auth/v1/whoami`}
        onClose={onClose}
      />
    );
  return (
    <FormDialog
      title="New API key"
      verb="Create API key"
      form={create}
      submit={submit}
      onClose={onClose}
    >
      <Field
        label="Name"
        hint="Letters, digits and . _ -; unique on this server"
        problem={create.fieldError('name')}
      >
        <Input
          value={name}
          onChange={({ target }) => setName(target.value)}
          required
          maxLength={100}
          autoComplete="off"
        />
      </Field>
      <ExpiryField days={days} onChange={setDays} problem={create.fieldError('expiresInDays')} />
      <ScopeFields
        chosen={scopes}
        onChange={setScopes}
        problem={isMissingScopes ? 'Choose at least one.' : create.fieldError('scopes')}
      />
      <Field
        label="Where it works"
        hint="You can choose a namespace that you administer"
        problem={create.fieldError('namespace')}
      >
        <Select value={namespace} onChange={({ target }) => setNamespace(target.value)}>
          <option value="">Everywhere I have access</option>
          {administered.map(({ id, name: each }) => (
            <option key={id} value={each}>
              Only in {each}
            </option>
          ))}
        </Select>
      </Field>
    </FormDialog>
  );
}
