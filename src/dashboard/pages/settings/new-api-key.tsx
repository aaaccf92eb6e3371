import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Lines, Secret } from '../../ui/copy.tsx';
import { Dialog } from '../../ui/dialog.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { ExpiryField } from './credentials.tsx';
import { useMyNamespaces } from './narrowing.tsx';
import { type Scope, ScopeFields } from './scopes.tsx';

const CreateApiKey = graphql(`
  mutation CreateApiKey($input: CreateApiKeyInput!) {
    createApiKey(input: $input) { key apiKey { id name } }
  }
`);

const FIELDS = ['name', 'expiresInDays', 'scopes', 'namespace'] as const;

/** The form for a new API key, and then the key, which is shown this once. */
export function NewApiKey({ onClose }: { onClose: () => void }) {
  const create = useAct(CreateApiKey, { changes: ['ApiKey'], fields: FIELDS });
  const administered = useMyNamespaces().filter(({ viewerRole }) => viewerRole === 'ADMIN');
  const [name, setName] = useState('');
  const [days, setDays] = useState('30');
  const [scopes, setScopes] = useState<Scope[] | null>(null);
  const [namespace, setNamespace] = useState('');
  const [key, setKey] = useState<string | null>(null);
  /** No scope chosen would mean all of them to the server. */
  const [unchosen, setUnchosen] = useState(false);

  async function submit() {
    setUnchosen(scopes?.length === 0);
    if (scopes?.length === 0) return;
    const { data } = await create.run({
      input: { name, expiresInDays: Number(days), scopes, namespace: namespace || null },
    });
    setKey(data?.createApiKey?.key ?? null);
  }

  if (key)
    return (
      <Dialog key="made" title="The new API key" onClose={onClose}>
        <div className="space-y-4">
          <Secret label={`The API key ${name} is made.`} value={key} />
          <p className="text-sm">Try it in a terminal:</p>
          {/* Single quotes: to a shell, what follows the dollar would be a variable. */}
          <Lines
            text={`export LOAM_KEY='${key}'\ncurl -H "Authorization: API-Key $LOAM_KEY" \\\n  ${location.origin}/auth/v1/whoami`}
          />
          <div className="flex justify-end">
            <Button look="primary" onClick={onClose}>
              I have copied it
            </Button>
          </div>
        </div>
      </Dialog>
    );
  return (
    <Dialog title="New API key" onClose={onClose}>
      <form
        className="space-y-5"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <Field
          label="Name"
          hint="Letters, digits and . _ -; no other key of the server has it"
          problem={create.fault('name')}
        >
          <Input
            value={name}
            onChange={({ target }) => setName(target.value)}
            required
            maxLength={100}
            autoComplete="off"
          />
        </Field>
        <ExpiryField days={days} onChange={setDays} problem={create.fault('expiresInDays')} />
        <ScopeFields
          chosen={scopes}
          onChange={setScopes}
          problem={unchosen ? 'Choose at least one.' : create.fault('scopes')}
        />
        <Field
          label="Where it works"
          hint="Of the namespaces that you administer"
          problem={create.fault('namespace')}
        >
          <Select value={namespace} onChange={({ target }) => setNamespace(target.value)}>
            <option value="">Wherever I have rights</option>
            {administered.map(({ id, name: each }) => (
              <option key={id} value={each}>
                Only in {each}
              </option>
            ))}
          </Select>
        </Field>
        {create.problem && <ProblemBox problem={create.problem} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" look="primary" busy={create.busy}>
            Create API key
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
