import { useAct } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Empty } from '../../ui/empty.tsx';
import { count } from '../../ui/format.ts';
import { useAsk } from '../../ui/load.tsx';
import { useAfter } from '../../ui/paging.tsx';
import { CredentialsPage } from './credentials.tsx';
import { NewToken } from './new-token.tsx';
import { ScopeBadges } from './scopes.tsx';

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

const DeleteToken = graphql(`
  mutation DeleteToken($name: String!) { deleteAccessToken(input: { name: $name }) { id } }
`);

type Token = NonNullable<
  NonNullable<ResultOf<typeof TokensQuery>['viewer']>['accessTokens']
>['nodes'][number];

/** The viewer's tokens. */
export default function TokensPage() {
  const after = useAfter();
  const asked = useAsk({ query: TokensQuery, variables: { after } });
  const remove = useAct(DeleteToken, { changes: ['AccessToken', 'Session'] });
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
          <Where token={token} />
        </div>
      )}
      empty={(addButton) => (
        <Empty title="No token yet">
          <p>With a token, git and programs sign in as you.</p>
          {addButton}
        </Empty>
      )}
      form={(onClose) => <NewToken onClose={onClose} />}
      warning={
        <p>
          What uses it is refused from now on. A browser that signed in with it is signed out; when
          it is this one, you sign in anew.
        </p>
      }
      remove={({ name }) => remove.run({ name })}
    />
  );
}

/** Where it works when that is not everywhere. */
function Where({ token: { namespaces, repositories } }: { token: Token }) {
  const { data } = useAsk({
    query: RepositoriesOf,
    variables: { ids: repositories },
    pause: repositories.length === 0,
  });
  const names = (data?.nodes ?? []).flatMap((node) =>
    node && 'fullName' in node ? [node.fullName] : [],
  );
  const unseen = repositories.length - names.length;
  return (
    <>
      {namespaces.length > 0 && (
        <span className="text-sm break-all text-dim">only in {namespaces.join(', ')}</span>
      )}
      {repositories.length > 0 && data && (
        <span className="text-sm break-all text-dim">
          only for {names.join(', ')}
          {unseen > 0 &&
            `${names.length > 0 ? ' and ' : ''}${count(unseen, 'repository', 'repositories')} that you do not see any more`}
        </span>
      )}
    </>
  );
}
