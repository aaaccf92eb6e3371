/** The entries and filters of an audit log, for a namespace and for the server. */
import { useNavigate, useSearch } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { type FragmentOf, graphql, type ResultOf, readFragment } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { formatEnum } from '../../ui/format.ts';
import { RelativeTime } from '../../ui/time.tsx';

export const AuditRow = graphql(`
  fragment AuditRow on AuditEntry {
    id action actor address name namespace subject details timestamp requestId
    credential { kind name }
  }
`);

type Action = ResultOf<typeof AuditRow>['action'];

/** The text between the name of the user and the name of the changed object. */
const PHRASES: Record<Action, string> = {
  ACCESS_TOKEN_CREATE: 'created access token',
  ACCESS_TOKEN_DELETE: 'deleted access token',
  API_KEY_CREATE: 'created API key',
  API_KEY_DELETE: 'deleted API key',
  ARTIFACTS_DELETE: 'deleted artifacts of',
  BRANCH_RULE_DELETE: 'deleted branch rule of',
  BRANCH_RULE_SET: 'set branch rule of',
  BUDGET_CANCEL_JOBS: 'cancelled jobs over the budget of',
  BUDGET_DELETE: 'deleted budget of',
  BUDGET_SET: 'set budget of',
  CACHE_DELETE: 'deleted caches of',
  COMMIT_STATUS_SET: 'reported a check of',
  DEPLOY_KEY_ADD: 'added deploy key',
  DEPLOY_KEY_DELETE: 'deleted deploy key',
  DEVICE_APPROVE: 'approved device',
  IDENTITY_CONNECT: 'connected identity',
  IDENTITY_DELETE: 'deleted identity',
  JOB_CANCEL: 'cancelled job',
  JOB_CREATE: 'created job',
  JOB_DELETE: 'deleted job',
  JOB_KEEP: 'changed the retention of job',
  JOB_RELEASE: 'released held job',
  JOB_RERUN: 'reran job',
  JOB_SHELL: 'opened a shell in job',
  JOB_PORT: 'connected to a port of job',
  JOB_SHELL_CLOSE: 'ended a shell in job',
  JOB_SHELL_END: 'closed a shell in job',
  LARGE_FILE_DELETE: 'deleted large file of',
  LARGE_FILE_LOCK: 'locked large file of',
  LARGE_FILE_UNLOCK: 'unlocked large file of',
  MACHINE_DRAIN: 'drained machine',
  MACHINE_JOIN: 'admitted machine',
  MACHINE_ONLINE: 'heard again from machine',
  MACHINE_REMOVE: 'removed machine',
  MACHINE_RESUME: 'resumed machine',
  MACHINE_SILENT: 'lost contact with machine',
  MEMBER_REMOVE: 'removed member',
  MEMBER_SET: 'set role of',
  ORGANIZATION_CREATE: 'created organization',
  ORGANIZATION_DELETE: 'deleted organization',
  PLAN_SET: 'set plan of',
  REPOSITORY_CHANGE_VISIBILITY: 'changed visibility of',
  REPOSITORY_CREATE: 'created repository',
  REPOSITORY_DELETE: 'deleted repository',
  REPOSITORY_PUSH: 'pushed to',
  REPOSITORY_RENAME: 'renamed repository',
  REPOSITORY_TRANSFER: 'transferred repository',
  REPOSITORY_UPDATE: 'updated repository',
  RETENTION_REMOVE: 'removed old jobs, logs or artifacts of',
  RETENTION_SET: 'set retention of',
  RUN_APPROVE: 'approved run',
  RUN_CANCEL: 'cancelled run',
  RUN_CREATE: 'started run',
  SCHEDULE_CREATE: 'created schedule',
  SCHEDULE_DELETE: 'deleted schedule',
  SECRET_ALLOW: 'allowed secret in',
  SECRET_DELETE: 'deleted secret',
  SECRET_DISALLOW: 'disallowed secret in',
  SECRET_SET: 'set secret',
  SESSION_CREATE: 'signed in with',
  SESSION_DELETE: 'ended',
  SHELL_ACCESS_SET: 'switched shells in jobs on or off for',
  SIGN_IN_LINK_CREATE: 'created sign-in',
  SSH_KEY_ADD: 'added SSH key',
  SSH_KEY_DELETE: 'deleted SSH key',
  USER_CREATE: 'created user',
  USER_DELETE: 'deleted user',
  USER_DISABLE: 'disabled user',
  USER_ENABLE: 'enabled user',
  VARIABLE_DELETE: 'deleted variable',
  VARIABLE_SET: 'set variable',
  WEBHOOK_CREATE: 'created webhook',
  WEBHOOK_DELETE: 'deleted webhook',
  WEBHOOK_REDELIVER: 'redelivered from webhook',
  WEBHOOK_TEST: 'tested webhook',
  WEBHOOK_UPDATE: 'updated webhook',
  WORKER_TOKEN_CREATE: 'created worker token',
  WORKER_TOKEN_DELETE: 'revoked worker token',
};

const ACTIONS = Object.keys(PHRASES) as Action[];

/** Labels for the kinds of credentials that requests came with. */
const CREDENTIAL_LABELS: Record<string, string> = {
  pat: 'access token',
  key: 'API key',
  session: 'browser session',
  ssh: 'SSH key',
  deploy: 'deploy key',
  oidc: 'identity provider',
  job: 'job',
};

/** The filters from the URL. An unknown action is ignored. */
export function useAuditFilter() {
  const { action, actor } = useSearch({ strict: false });
  return { action: ACTIONS.find((each) => each === action), actor: actor || undefined };
}

export function AuditFilters() {
  const { action, actor } = useAuditFilter();
  const [name, setName] = useState(actor ?? '');
  const navigate = useNavigate();
  const setFilter = (change: Record<string, string | undefined>) =>
    navigate({ to: '.', search: (old) => ({ ...old, after: undefined, ...change }) });
  return (
    <form
      className="mb-4 flex flex-wrap items-end gap-3"
      onSubmit={(event: FormEvent) => {
        event.preventDefault();
        void setFilter({ actor: name.trim() || undefined });
      }}
    >
      <Field label="Action" className="w-56">
        <Select
          value={action ?? ''}
          onChange={({ target }) => setFilter({ action: target.value || undefined })}
        >
          <option value="">All</option>
          {ACTIONS.map((each) => (
            <option key={each} value={each}>
              {formatEnum(each)}
            </option>
          ))}
        </Select>
      </Field>
      <Field label="By user" className="w-44">
        <Input value={name} onChange={({ target }) => setName(target.value)} data-search />
      </Field>
      <Button type="submit">Filter</Button>
    </form>
  );
}

export function AuditEntries({ entries }: { entries: readonly FragmentOf<typeof AuditRow>[] }) {
  if (entries.length === 0)
    return <p className="card px-4 py-3 text-sm text-dim">No matching entries.</p>;
  return (
    <ul className="rows">
      {entries.map((each) => {
        const entry = readFragment(AuditRow, each);
        return (
          <li key={entry.id} className="text-sm" data-action={entry.action}>
            <p className="break-words">
              <span className="font-medium">{entry.actor}</span> {PHRASES[entry.action]}{' '}
              <span className="font-medium break-all">{entry.name}</span>
              {entry.namespace && entry.namespace !== entry.name && ` in ${entry.namespace}`}
            </p>
            <p className="break-words text-dim">
              <RelativeTime at={entry.timestamp} />
              {entry.address && ` · from ${entry.address}`}
              {entry.credential &&
                ` · ${CREDENTIAL_LABELS[entry.credential.kind] ?? entry.credential.kind} “${entry.credential.name}”`}
            </p>
            <details className="mt-1">
              <summary
                className="text-dim"
                aria-label={`Details: ${formatEnum(entry.action)} ${entry.name}`}
              >
                Details
              </summary>
              <pre className="mt-1 rounded bg-sunken p-2 text-xs break-all whitespace-pre-wrap">
                {JSON.stringify(
                  { details: entry.details, subject: entry.subject, requestId: entry.requestId },
                  null,
                  2,
                )}
              </pre>
            </details>
          </li>
        );
      })}
    </ul>
  );
}
