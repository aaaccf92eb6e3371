import { useParams } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Load, useAsk } from '../../ui/load.tsx';
import { PageTitle, Tabs } from '../../ui/page.tsx';

const NamespaceQuery = graphql(`
  query NamespaceFrame($name: String!) {
    namespace(name: $name) { id name kind viewerRole }
  }
`);

export type NamespaceData = NonNullable<ResultOf<typeof NamespaceQuery>['namespace']>;

/** The title and tabs of a namespace. Who is no member sees what is public: its repositories. */
export function NamespaceFrame({
  tab,
  actions,
  children,
}: {
  /** The name of the tab, in the title of the browser. */
  tab: string;
  actions?: ReactNode;
  children: (namespace: NamespaceData) => ReactNode;
}) {
  const { namespace: name } = useParams({ strict: false }) as { namespace: string };
  const asked = useAsk({ query: NamespaceQuery, variables: { name } });
  const params = { namespace: name };
  return (
    <Load asked={asked} of={(data) => data.namespace} what="namespace">
      {(namespace) => (
        <>
          <PageTitle title={name} tab={`${tab} · ${name}`} actions={actions}>
            {namespace.kind === 'USER' ? 'User' : 'Organization'}
            {namespace.viewerRole &&
              `, where you have the role ${namespace.viewerRole.toLowerCase()}`}
          </PageTitle>
          <Tabs
            label={`Pages of ${name}`}
            tabs={[
              { name: 'Repositories', to: '/$namespace', params, activeOptions: { exact: true } },
              ...(namespace.viewerRole
                ? [
                    { name: 'Jobs', to: '/$namespace/-/jobs', params } as const,
                    { name: 'Webhooks', to: '/$namespace/-/webhooks', params } as const,
                    { name: 'Activity', to: '/$namespace/-/activity', params } as const,
                    { name: 'Members', to: '/$namespace/-/members', params } as const,
                    { name: 'Usage', to: '/$namespace/-/usage', params } as const,
                    { name: 'Settings', to: '/$namespace/-/settings', params } as const,
                  ]
                : []),
            ]}
          />
          {children(namespace)}
        </>
      )}
    </Load>
  );
}
