import { useRouterState } from '@tanstack/react-router';
import { CircleQuestionMark } from 'lucide-react';

/** What explains each page: a page of the documentation (`docs/`), and a section of it. */
const HELP: Record<string, string> = {
  '/': 'dashboard',
  '/$namespace': 'repositories',
  '/$namespace/-/jobs': 'jobs#labels-and-finding-jobs',
  '/$namespace/-/jobs/$job': 'jobs',
  '/$namespace/-/arrays/$array': 'jobs#arrays',
  '/$namespace/-/compare': 'metrics#compare-jobs',
  '/$namespace/-/activity': 'operations#the-audit-log',
  '/$namespace/-/members': 'identity#users-organizations-members',
  '/$namespace/-/usage': 'budgets#budgets',
  '/$namespace/-/settings': 'secrets',
  '/$namespace/-/webhooks': 'webhooks',
  '/$namespace/-/webhooks/$webhook': 'webhooks#deliveries',
  '/$namespace/$repository': 'repositories',
  '/$namespace/$repository/tree/$': 'dashboard#how-files-are-shown',
  '/$namespace/$repository/file/$': 'dashboard#how-files-are-shown',
  '/$namespace/$repository/edit/$': 'dashboard#editing-a-file',
  '/$namespace/$repository/new-file': 'dashboard#editing-a-file',
  '/$namespace/$repository/commits': 'repositories#reading',
  '/$namespace/$repository/commit/$sha': 'repositories#commit-statuses',
  '/$namespace/$repository/compare': 'repositories#reading',
  '/$namespace/$repository/branches': 'repositories#pushing',
  '/$namespace/$repository/tags': 'repositories#pushing',
  '/$namespace/$repository/search': 'repositories#reading',
  '/$namespace/$repository/caches': 'data#caches',
  '/$namespace/$repository/jobs': 'jobs',
  '/$namespace/$repository/tests': 'reports#flaky-tests',
  '/$namespace/$repository/runs': 'automation',
  '/$namespace/$repository/runs/$number': 'automation#runs',
  '/$namespace/$repository/large-files': 'large-files',
  '/$namespace/$repository/settings': 'repositories#pushing',
  '/new/repository': 'repositories',
  '/new/job': 'jobs#what-a-job-runs',
  '/new/webhook': 'first-webhook',
  '/new/organization': 'identity#creating-users-organizations-and-members',
  '/settings': 'identity',
  '/settings/tokens': 'identity#credentials',
  '/settings/api-keys': 'identity#credentials',
  '/settings/ssh-keys': 'ssh#keys',
  '/settings/sessions': 'identity#sessions',
  '/settings/server': 'operations',
  '/settings/server/users': 'first-user',
  '/settings/server/organizations': 'first-user',
  '/settings/server/servers': 'operations#several-servers',
  '/settings/server/machines': 'machines',
  '/settings/server/queue': 'jobs#who-runs-next',
  '/settings/server/audit': 'operations#the-audit-log',
};

/** Opens the documentation of the current page, in a new tab, because forms lose their input when they are left. */
export function HelpLink() {
  const route = useRouterState({ select: ({ matches }) => matches.at(-1)?.routeId ?? '' });
  return (
    <a
      href={`/docs/${HELP[route] ?? ''}`.replace(/\/$/, '')}
      target="_blank"
      rel="noopener"
      title="Documentation of this page"
      aria-label="Documentation of this page"
      className="flex h-8 items-center rounded-md px-1.5 text-dim hover:bg-hover hover:text-ink"
    >
      <CircleQuestionMark size={18} aria-hidden />
    </a>
  );
}
