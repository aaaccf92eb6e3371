import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Lines } from '../../ui/copy.tsx';
import { Empty } from '../../ui/empty.tsx';
import { useAsk } from '../../ui/load.tsx';
import { useAfter } from '../../ui/paging.tsx';
import { CredentialsPage } from './credentials.tsx';
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

/** Keys for programs: the viewer's own, and those of namespaces that the viewer administers. */
export default function ApiKeysPage() {
  const after = useAfter();
  const asked = useAsk({ query: ApiKeysQuery, variables: { after } });
  const remove = useAct(DeleteApiKey, { changes: ['ApiKey'] });
  return (
    <CredentialsPage
      title="API keys"
      about="For programs and services: a name and a secret in the header Authorization."
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
        <Empty title="No API key yet">
          <p>A program signs in with a key, in one namespace or wherever you have rights.</p>
          {addButton}
          <p>Or from a terminal:</p>
          <div>
            <Lines
              text={`curl -H "Authorization: Bearer $LOAM_TOKEN" -H 'Content-Type: application/json' \\\n  ${location.origin}/auth/v1/api_keys \\\n  -d '{"name":"ci"}'`}
            />
          </div>
        </Empty>
      )}
      form={(onClose) => <NewApiKey onClose={onClose} />}
      warning={<p>Programs that use it are refused from now on.</p>}
      remove={({ name }) => remove.run({ name })}
    />
  );
}
