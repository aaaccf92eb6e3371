import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Lines } from '../../ui/copy.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { Paging, useAfter } from '../../ui/paging.tsx';
import { Times } from './credentials.tsx';
import { SettingsFrame } from './frame.tsx';
import { NewApiKey } from './new-api-key.tsx';
import { ScopeBadges } from './scopes.tsx';

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

const DeleteApiKey = graphql(`
  mutation DeleteApiKey($name: String!) { deleteApiKey(input: { name: $name }) { id } }
`);

type Key = NonNullable<
  NonNullable<ResultOf<typeof ApiKeysQuery>['viewer']>['apiKeys']
>['nodes'][number];

/** Keys for programs: the viewer's own, and those of namespaces that the viewer administers. */
export default function ApiKeysPage() {
  const after = useAfter();
  const asked = useAsk({ query: ApiKeysQuery, variables: { after } });
  const [making, setMaking] = useState(false);
  const [deleting, setDeleting] = useState<Key | null>(null);
  const remove = useAct(DeleteApiKey, { changes: ['ApiKey'] });
  return (
    <SettingsFrame
      title="API keys"
      about="For programs and services: a name and a secret in the header Authorization."
      actions={
        <Button look="primary" onClick={() => setMaking(true)}>
          New API key
        </Button>
      }
    >
      <Load asked={asked} of={(data) => data.viewer?.apiKeys} what="list">
        {({ nodes, pageInfo, totalCount }) =>
          totalCount === 0 ? (
            <Empty title="No API key yet">
              <p>A program signs in with a key, in one namespace or wherever you have rights.</p>
              <Button look="primary" onClick={() => setMaking(true)}>
                New API key
              </Button>
              <p>Or from a terminal:</p>
              <div>
                <Lines
                  text={`curl -H "Authorization: Bearer $LOAM_TOKEN" -H 'Content-Type: application/json' \\\n  ${location.origin}/auth/v1/api_keys \\\n  -d '{"name":"ci"}'`}
                />
              </div>
            </Empty>
          ) : (
            <>
              <ul className="rows">
                {nodes.map((key) => (
                  <li key={key.id} className="flex flex-wrap items-start gap-x-4 gap-y-2">
                    <div className="min-w-0 flex-1 basis-64 space-y-1">
                      <p className="font-medium break-all">{key.name}</p>
                      <div className="flex flex-wrap gap-1">
                        <ScopeBadges scopes={key.scopes} />
                        {key.namespace && (
                          <span className="text-sm text-dim">only in {key.namespace}</span>
                        )}
                      </div>
                      <Times {...key} />
                    </div>
                    <Button
                      look="danger"
                      aria-label={`Delete ${key.name}`}
                      onClick={() => setDeleting(key)}
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
      {making && <NewApiKey onClose={() => setMaking(false)} />}
      {deleting && (
        <Confirm
          title={`Delete the API key ${deleting.name}?`}
          verb="Delete API key"
          onClose={() => setDeleting(null)}
          act={async () => {
            const { problem } = await remove.run({ name: deleting.name });
            if (!problem) notify(`The API key ${deleting.name} is deleted.`);
            return problem;
          }}
        >
          <p>Programs that use it are refused from now on.</p>
        </Confirm>
      )}
    </SettingsFrame>
  );
}
