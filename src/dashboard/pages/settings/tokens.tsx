import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { count } from '../../ui/format.ts';
import { Load, useAsk } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { Paging, useAfter } from '../../ui/paging.tsx';
import { Times } from './credentials.tsx';
import { SettingsFrame } from './frame.tsx';
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
  const [making, setMaking] = useState(false);
  const [deleting, setDeleting] = useState<Token | null>(null);
  const remove = useAct(DeleteToken, { changes: ['AccessToken', 'Session'] });
  return (
    <SettingsFrame
      title="Access tokens"
      about="For git over HTTPS, command lines and programs that act as you."
      actions={
        <Button look="primary" onClick={() => setMaking(true)}>
          New token
        </Button>
      }
    >
      <Load asked={asked} of={(data) => data.viewer?.accessTokens} what="list">
        {({ nodes, pageInfo, totalCount }) =>
          totalCount === 0 ? (
            <Empty title="No token yet">
              <p>With a token, git and programs sign in as you.</p>
              <Button look="primary" onClick={() => setMaking(true)}>
                New token
              </Button>
            </Empty>
          ) : (
            <>
              <ul className="rows">
                {nodes.map((token) => (
                  <li key={token.id} className="flex flex-wrap items-start gap-x-4 gap-y-2">
                    <div className="min-w-0 flex-1 basis-64 space-y-1">
                      <p className="font-medium break-all">{token.name}</p>
                      <div className="flex flex-wrap gap-1">
                        <ScopeBadges scopes={token.scopes} />
                        <Where token={token} />
                      </div>
                      <Times {...token} />
                    </div>
                    <Button
                      look="danger"
                      aria-label={`Delete ${token.name}`}
                      onClick={() => setDeleting(token)}
                    >
                      Delete
                    </Button>
                  </li>
                ))}
              </ul>
              <Paging pageInfo={pageInfo} total={totalCount} />
            </>
          )
        }
      </Load>
      {making && <NewToken onClose={() => setMaking(false)} />}
      {deleting && (
        <Confirm
          title={`Delete the token ${deleting.name}?`}
          verb="Delete token"
          onClose={() => setDeleting(null)}
          act={async () => {
            const { problem } = await remove.run({ name: deleting.name });
            if (!problem) notify(`The token ${deleting.name} is deleted.`);
            return problem;
          }}
        >
          <p>
            What uses it is refused from now on. A browser that signed in with it is signed out;
            when it is this one, you sign in anew.
          </p>
        </Confirm>
      )}
    </SettingsFrame>
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
