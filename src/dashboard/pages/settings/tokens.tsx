import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { FormDialog } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { formatCount } from '../../ui/format.ts';
import { useRetryingQuery } from '../../ui/load.tsx';
import { useAfterCursor } from '../../ui/paging.tsx';
import { formatCurl } from '../../ui/shell.ts';
import { CreatedDialog, CredentialsPage, ExpiryField } from './credentials.tsx';
import { RestrictionFields, type TokenRestriction } from './restrictions.tsx';
import { type Scope, ScopeBadges, ScopeFields } from './scopes.tsx';

const TokensQuery = graphql(`
  query Tokens($after: String) {
    viewer {
      id
      accessTokens(first: 50, after: $after) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { id name scopes namespaces repositories createdAt lastUsedAt expiresAt }
      }
    }
  }
`);

const RepositoriesOf = graphql(`
  query RepositoriesOf($ids: [ID!]!) {
    nodes(ids: $ids) { id ... on Repository { fullName } }
  }
`);

const CreateToken = graphql(`
  mutation CreateToken($input: CreateAccessTokenInput!) {
    createAccessToken(input: $input) { token accessToken { id name } }
  }
`);

const DeleteToken = graphql(`
  mutation DeleteToken($name: String!) { deleteAccessToken(input: { name: $name }) { id } }
`);

type Token = NonNullable<
  NonNullable<ResultOf<typeof TokensQuery>['viewer']>['accessTokens']
>['nodes'][number];

/** The viewer's access tokens. */
export default function TokensPage() {
  const after = useAfterCursor();
  const asked = useRetryingQuery({ query: TokensQuery, variables: { after } });
  const remove = useFormMutation(DeleteToken, { changes: ['AccessToken', 'Session'] });
  return (
    <CredentialsPage
      title="Access tokens"
      about="For git over HTTPS, command lines and programs that act as you."
      noun="token"
      addLabel="New token"
      asked={asked}
      of={(data) => data.viewer?.accessTokens}
      nameOf={({ name }) => name}
      details={(token) => (
        <div className="flex flex-wrap gap-1">
          <ScopeBadges scopes={token.scopes} />
          <RestrictionText token={token} />
        </div>
      )}
      empty={(addButton) => (
        <Empty title="No tokens yet">
          <p>With a token, git and programs sign in as you.</p>
          {addButton}
        </Empty>
      )}
      form={(onClose) => <NewToken onClose={onClose} />}
      warning={
        <p>
          Requests with this token are refused from now on. Browsers that signed in with it are
          signed out; if this browser did, sign in again.
        </p>
      }
      remove={({ name }) => remove.run({ name })}
    />
  );
}

/** The namespaces or repositories to which a token is limited; nothing for a token that works everywhere. */
function RestrictionText({ token: { namespaces, repositories } }: { token: Token }) {
  const { data } = useRetryingQuery({
    query: RepositoriesOf,
    variables: { ids: repositories },
    pause: repositories.length === 0,
  });
  const names = (data?.nodes ?? []).flatMap((node) =>
    node && 'fullName' in node ? [node.fullName] : [],
  );
  const hiddenCount = repositories.length - names.length;
  return (
    <>
      {namespaces.length > 0 && (
        <span className="text-sm break-all text-dim">only in {namespaces.join(', ')}</span>
      )}
      {repositories.length > 0 && data && (
        <span className="text-sm break-all text-dim">
          only for {names.join(', ')}
          {hiddenCount > 0 &&
            `${names.length > 0 ? ' and ' : ''}${formatCount(hiddenCount, 'repository', 'repositories')} that you can no longer see`}
        </span>
      )}
    </>
  );
}

const FIELDS = ['name', 'expiresInDays', 'scopes', 'namespaces', 'repositories'] as const;

/** The form for a new token, then the token itself: the server shows it only once. */
function NewToken({ onClose }: { onClose: () => void }) {
  const create = useFormMutation(CreateToken, { changes: ['AccessToken'], fields: FIELDS });
  const [name, setName] = useState('');
  const [days, setDays] = useState('30');
  const [scopes, setScopes] = useState<Scope[] | null>(null);
  const [where, setWhere] = useState<TokenRestriction>({ to: 'everywhere' });
  const [token, setToken] = useState<string | null>(null);
  // The server takes an empty list as no restriction, the opposite of what the form says, so the form refuses one.
  const [missing, setMissing] = useState<'scopes' | 'where' | null>(null);

  async function submit() {
    const isWhereEmpty =
      (where.to === 'namespaces' && where.names.length === 0) ||
      (where.to === 'repositories' && where.repositories.length === 0);
    const empty = scopes?.length === 0 ? 'scopes' : isWhereEmpty ? 'where' : null;
    setMissing(empty);
    if (empty) return;
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
      <CreatedDialog
        title="The new token"
        label={`The token ${name} was created.`}
        secret={token}
        curl={`export LOAM_TOKEN=${token}\n${formatCurl(`${location.origin}/auth/v1/whoami`)}`}
        note="For git, use the token as the password; the user name can be anything."
        onClose={onClose}
      />
    );
  return (
    <FormDialog
      title="New token"
      verb="Create token"
      form={create}
      submit={submit}
      onClose={onClose}
    >
      <Field
        label="Name"
        hint="What the token is for, for example laptop or ci"
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
        problem={missing === 'scopes' ? 'Choose at least one.' : create.fieldError('scopes')}
      />
      <RestrictionFields
        value={where}
        onChange={setWhere}
        problem={
          missing === 'where'
            ? 'Choose at least one.'
            : (create.fieldError('namespaces') ?? create.fieldError('repositories'))
        }
      />
    </FormDialog>
  );
}
