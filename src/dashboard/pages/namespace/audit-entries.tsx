/** Entries of an audit log, of a namespace or of the server, with their filters. */
import { useNavigate, useSearch } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { type FragmentOf, graphql, readFragment } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { words } from '../../ui/format.ts';
import { Ago } from '../../ui/time.tsx';

export const AuditRow = graphql(`
  fragment AuditRow on AuditEntry {
    id action actor address name namespace subject details timestamp requestId
    credential { kind name }
  }
`);

const ACTIONS = [
  'ACCESS_TOKEN_CREATE',
  'ACCESS_TOKEN_DELETE',
  'API_KEY_CREATE',
  'API_KEY_DELETE',
  'ARTIFACTS_DELETE',
  'BRANCH_RULE_DELETE',
  'BRANCH_RULE_SET',
  'DEPLOY_KEY_ADD',
  'DEPLOY_KEY_DELETE',
  'IDENTITY_CONNECT',
  'IDENTITY_DELETE',
  'JOB_CANCEL',
  'JOB_CREATE',
  'JOB_DELETE',
  'JOB_RERUN',
  'LARGE_FILE_DELETE',
  'LARGE_FILE_LOCK',
  'LARGE_FILE_UNLOCK',
  'MEMBER_REMOVE',
  'MEMBER_SET',
  'ORGANIZATION_CREATE',
  'PLAN_SET',
  'REPOSITORY_CHANGE_VISIBILITY',
  'REPOSITORY_CREATE',
  'REPOSITORY_DELETE',
  'REPOSITORY_PUSH',
  'REPOSITORY_RENAME',
  'REPOSITORY_TRANSFER',
  'REPOSITORY_UPDATE',
  'SECRET_ALLOW',
  'SECRET_DISALLOW',
  'SESSION_CREATE',
  'SESSION_DELETE',
  'SIGN_IN_LINK_CREATE',
  'SSH_KEY_ADD',
  'SSH_KEY_DELETE',
  'USER_CREATE',
  'WEBHOOK_CREATE',
  'WEBHOOK_DELETE',
  'WEBHOOK_REDELIVER',
  'WEBHOOK_TEST',
  'WEBHOOK_UPDATE',
] as const;

/** How people call the credentials that requests came with. */
const CREDENTIALS: Record<string, string> = {
  pat: 'access token',
  api_key: 'API key',
  session: 'browser session',
  ssh_key: 'SSH key',
  deploy_key: 'deploy key',
};

/** `JOB_CREATE` is `created job`: who did it stands before, and what it is called after. */
function inWords(action: string): string {
  const { verb, of } = /^(?<of>.+)_(?<verb>[A-Z]+)$/.exec(action)?.groups ?? {};
  const past = PAST[verb ?? ''];
  return past && of ? `${past} ${words(of)}` : words(action);
}

const PAST: Record<string, string> = {
  ADD: 'added',
  ALLOW: 'allowed',
  CANCEL: 'cancelled',
  CONNECT: 'connected',
  CREATE: 'created',
  DELETE: 'deleted',
  DISALLOW: 'disallowed',
  LOCK: 'locked',
  PUSH: 'pushed to',
  REDELIVER: 'redelivered',
  REMOVE: 'removed',
  RENAME: 'renamed',
  RERUN: 'reran',
  SET: 'set',
  TEST: 'tested',
  TRANSFER: 'transferred',
  UNLOCK: 'unlocked',
  UPDATE: 'updated',
};

/** What the address says of the filters; an action that there is none of is none. */
export function useAuditFilter() {
  const { action, actor } = useSearch({ strict: false });
  return { action: ACTIONS.find((each) => each === action), actor: actor || undefined };
}

export function AuditFilters() {
  const { action, actor } = useAuditFilter();
  const [name, setName] = useState(actor ?? '');
  const go = useNavigate();
  const set = (change: Record<string, string | undefined>) =>
    go({ to: '.', search: (old) => ({ ...old, after: undefined, ...change }) });
  return (
    <form
      className="mb-4 flex flex-wrap items-end gap-3"
      onSubmit={(event: FormEvent) => {
        event.preventDefault();
        void set({ actor: name.trim() || undefined });
      }}
    >
      <Field label="Action" className="w-56">
        <Select
          value={action ?? ''}
          onChange={({ target }) => set({ action: target.value || undefined })}
        >
          <option value="">All</option>
          {ACTIONS.map((each) => (
            <option key={each} value={each}>
              {words(each)}
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
              <span className="font-medium">{entry.actor}</span> {inWords(entry.action)}{' '}
              <span className="font-medium break-all">{entry.name}</span>
              {entry.namespace && entry.namespace !== entry.name && ` in ${entry.namespace}`}
            </p>
            <p className="break-words text-dim">
              <Ago at={entry.timestamp} />
              {entry.address && ` · from ${entry.address}`}
              {entry.credential &&
                ` · ${CREDENTIALS[entry.credential.kind] ?? entry.credential.kind} “${entry.credential.name}”`}
            </p>
            <details className="mt-1">
              <summary
                className="text-dim"
                aria-label={`Details: ${words(entry.action)} ${entry.name}`}
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
