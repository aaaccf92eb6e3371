import { Tabs } from '../../ui/page.tsx';

/** The tabs of a namespace. Users who are not members see only the repositories. */
export function NamespaceTabs({
  name,
  viewerRole,
  within,
}: {
  name: string;
  viewerRole: string | null;
  /** The tab to highlight on the page of a job or webhook, which has no tab of its own. */
  within?: 'Jobs' | 'Webhooks';
}) {
  const params = { namespace: name };
  return (
    <Tabs
      label={`Pages of ${name}`}
      within={within}
      tabs={[
        { name: 'Repositories', to: '/$namespace', params, activeOptions: { exact: true } },
        ...(viewerRole
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
  );
}
