import { Link } from '@tanstack/react-router';
import { graphql } from '../../graphql/graphql.ts';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { formatCurl, joinCommand } from '../../ui/shell.ts';
import { TerminalBox } from '../../ui/terminal-box.tsx';
import { NamespaceFrame } from '../namespace/frame.tsx';
import { eventName } from './event-types.tsx';
import { WebhookState } from './state.tsx';

const WebhooksQuery = graphql(`
  query Webhooks($namespace: String!, $after: String) {
    namespace(name: $namespace) {
      id
      webhooks(first: 50, after: $after) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { id name url active offReason failingSince eventTypes hasSecret }
      }
    }
  }
`);

/** The webhooks of a namespace. */
export default function WebhooksPage() {
  return (
    <NamespaceFrame tab="Webhooks">
      {({ name, viewerRole }) =>
        viewerRole === 'ADMIN' ? (
          <List namespace={name} />
        ) : (
          <Empty title="Only administrators see webhooks">
            <p>Ask an administrator of {name} to show them to you, or to change your role.</p>
          </Empty>
        )
      }
    </NamespaceFrame>
  );
}

function CreateExample({ namespace }: { namespace: string }) {
  const [name, url, types] = ['chat', 'https://example.org/loam', ['job.completed', 'job.failed']];
  const body = JSON.stringify({ name, url, event_types: types, namespaces: [namespace] });
  return (
    <TerminalBox
      texts={[
        {
          client: 'loam',
          text: joinCommand([
            `loam webhooks create ${url}`,
            `--events ${types.join(',')}`,
            `--name ${name}`,
            `--namespace ${namespace}`,
          ]),
        },
        { client: 'curl', text: formatCurl(`${location.origin}/auth/v1/seed/webhooks`, body) },
      ]}
    />
  );
}

function List({ namespace }: { namespace: string }) {
  const after = useAfterCursor();
  const asked = useRetryingQuery({ query: WebhooksQuery, variables: { namespace, after } });
  const create = (
    <ButtonLink to="/new/webhook" search={{ namespace }} look="primary">
      New webhook
    </ButtonLink>
  );
  return (
    <Load asked={asked} of={(data) => data.namespace?.webhooks} what="list">
      {({ nodes, pageInfo, totalCount }) =>
        totalCount === 0 ? (
          <Empty title="No webhooks yet">
            <p>A webhook sends events of jobs and repositories to your HTTPS endpoint.</p>
            {create}
            <p>Or from a terminal:</p>
            <div>
              <CreateExample namespace={namespace} />
            </div>
          </Empty>
        ) : (
          <>
            <div className="mb-3 flex items-center justify-between gap-4">
              <h2>Webhooks</h2>
              {create}
            </div>
            <ul className="rows">
              {nodes.map((webhook) => (
                <li key={webhook.id} className="flex flex-wrap items-start gap-x-4 gap-y-1">
                  <div className="min-w-0 flex-1 basis-64">
                    <Link
                      to="/$namespace/-/webhooks/$webhook"
                      params={{ namespace, webhook: webhook.id }}
                      className="font-medium break-all hover:underline"
                    >
                      {webhook.name}
                    </Link>
                    {/* Plain text instead of a link: browsers have no use for an endpoint. */}
                    <p className="text-sm break-all text-dim">{webhook.url}</p>
                    <p className="text-sm break-words text-dim">
                      {webhook.eventTypes.map(eventName).join(', ')}
                      {!webhook.hasSecret && ' · not signed'}
                    </p>
                  </div>
                  <WebhookState webhook={webhook} />
                </li>
              ))}
            </ul>
            <CursorPagination pageInfo={pageInfo} total={totalCount} />
          </>
        )
      }
    </Load>
  );
}
