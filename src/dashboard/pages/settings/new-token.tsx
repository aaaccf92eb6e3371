import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Lines, Secret } from '../../ui/copy.tsx';
import { Dialog } from '../../ui/dialog.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { ExpiryField } from './credentials.tsx';
import { type Narrowed, NarrowingFields } from './narrowing.tsx';
import { type Scope, ScopeFields } from './scopes.tsx';

const CreateToken = graphql(`
  mutation CreateToken($input: CreateAccessTokenInput!) {
    createAccessToken(input: $input) { token accessToken { id name } }
  }
`);

const FIELDS = ['name', 'expiresInDays', 'scopes', 'namespaces', 'repositories'] as const;

/** The form for a new token, and then the token, which is shown this once. */
export function NewToken({ onClose }: { onClose: () => void }) {
  const create = useAct(CreateToken, { changes: ['AccessToken'], fields: FIELDS });
  const [name, setName] = useState('');
  const [days, setDays] = useState('30');
  const [scopes, setScopes] = useState<Scope[] | null>(null);
  const [where, setWhere] = useState<Narrowed>({ to: 'everywhere' });
  const [token, setToken] = useState<string | null>(null);
  /** Nothing chosen would mean everything to the server: the opposite of what the form says. */
  const [unchosen, setUnchosen] = useState<'scopes' | 'where' | null>(null);

  async function submit() {
    const isEmpty =
      (where.to === 'namespaces' && where.names.length === 0) ||
      (where.to === 'repositories' && where.repositories.length === 0);
    const missing = scopes?.length === 0 ? 'scopes' : isEmpty ? 'where' : null;
    setUnchosen(missing);
    if (missing) return;
    const { data } = await create.run({
      input: {
        name,
        expiresInDays: Number(days),
        scopes,
        namespaces: where.to === 'namespaces' ? where.names : null,
        repositories: where.to === 'repositories' ? where.repositories.map(({ id }) => id) : null,
      },
    });
    setToken(data?.createAccessToken?.token ?? null);
  }

  if (token)
    return (
      <Dialog key="made" title="The new token" onClose={onClose}>
        <div className="space-y-4">
          <Secret label={`The token ${name} is made.`} value={token} />
          <p className="text-sm">Try it in a terminal:</p>
          <Lines
            text={`export LOAM_TOKEN=${token}\ncurl -H "Authorization: Bearer $LOAM_TOKEN" \\\n  ${location.origin}/auth/v1/whoami`}
          />
          <p className="text-sm text-dim">
            For git, it is the password; the user name can be anything.
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
    <Dialog title="New token" onClose={onClose}>
      <form
        className="space-y-5"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <Field
          label="Name"
          hint="What it is for, such as laptop, or ci of code"
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
          problem={unchosen === 'scopes' ? 'Choose at least one.' : create.fault('scopes')}
        />
        <NarrowingFields
          value={where}
          onChange={setWhere}
          problem={
            unchosen === 'where'
              ? 'Choose at least one.'
              : (create.fault('namespaces') ?? create.fault('repositories'))
          }
        />
        {create.problem && <ProblemBox problem={create.problem} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" look="primary" busy={create.busy}>
            Create token
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
