import { useParams } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { NamespaceTabs } from './tabs.tsx';

const NamespaceQuery = graphql(`
  query NamespaceFrame($name: String!) {
    namespace(name: $name) { id name kind viewerRole }
  }
`);

type NamespaceData = NonNullable<ResultOf<typeof NamespaceQuery>['namespace']>;

/** Loads the namespace of the URL and shows a page of it below its title and tabs. */
export function NamespaceFrame({
  tab,
  within,
  actions,
  children,
}: {
  /** The name of the tab, for the title of the browser window. */
  tab: string;
  /** The tab to highlight on a page that has no tab of its own. */
  within?: 'Jobs';
  actions?: ReactNode;
  children: (namespace: NamespaceData) => ReactNode;
}) {
  const { namespace: name } = useParams({ strict: false }) as { namespace: string };
  const asked = useRetryingQuery({ query: NamespaceQuery, variables: { name } });
  return (
    <Load asked={asked} of={(data) => data.namespace} what="namespace">
      {(namespace) => (
        <>
          <PageTitle title={name} tab={`${tab} · ${name}`} actions={actions}>
            {namespace.kind === 'USER' ? 'User' : 'Organization'}
            {namespace.viewerRole && ` · your role: ${namespace.viewerRole.toLowerCase()}`}
          </PageTitle>
          <NamespaceTabs
            name={name}
            viewerRole={namespace.viewerRole}
            {...(within && { within })}
          />
          {children(namespace)}
        </>
      )}
    </Load>
  );
}
