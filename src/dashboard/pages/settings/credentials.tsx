/** Shared by the pages of access tokens, API keys and SSH keys: the list with its dialogs, and the expiry field. */
import { type ReactNode, useState } from 'react';
import type { Problem } from '../../graphql/client.ts';
import { Button } from '../../ui/button.tsx';
import { OneTimeSecret } from '../../ui/copy.tsx';
import { Confirm, Dialog } from '../../ui/dialog.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { Load, type QueryResult } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { CursorPagination } from '../../ui/paging.tsx';
import { quoteForShell } from '../../ui/shell.ts';
import { TerminalBox } from '../../ui/terminal-box.tsx';
import { formatExactTime, RelativeTime, useUnixSeconds } from '../../ui/time.tsx';
import { SettingsFrame } from './frame.tsx';

type Dates = { createdAt: string; lastUsedAt: string | null; expiresAt?: string | null };
type CredentialConnection<Credential> = {
  nodes: readonly Credential[];
  pageInfo: { hasNextPage: boolean; endCursor: string | null };
  totalCount: number;
};

/** Lists the viewer's credentials of one kind, with dialogs to add and to delete them. */
export function CredentialsPage<Data, Credential extends Dates & { id: string }>({
  title,
  about,
  noun,
  addLabel,
  asked,
  of,
  nameOf,
  details,
  empty,
  form,
  warning,
  remove,
}: {
  title: string;
  about: string;
  /** The kind within a sentence: `token`. */
  noun: string;
  addLabel: string;
  asked: QueryResult<Data>;
  of: (data: Data) => CredentialConnection<Credential> | null | undefined;
  nameOf: (credential: Credential) => string;
  details: (credential: Credential) => ReactNode;
  /** Shown in place of an empty list. */
  empty: (addButton: ReactNode) => ReactNode;
  form: (onClose: () => void) => ReactNode;
  /** In the delete dialog: the consequences. */
  warning: ReactNode;
  remove: (credential: Credential) => Promise<{ problem?: Problem }>;
}) {
  const [adding, setAdding] = useState(false);
  const [deleting, setDeleting] = useState<Credential | null>(null);
  const addButton = (
    <Button look="primary" onClick={() => setAdding(true)}>
      {addLabel}
    </Button>
  );
  return (
    <SettingsFrame title={title} about={about} actions={addButton}>
      <Load asked={asked} of={of} what="list">
        {({ nodes, pageInfo, totalCount }) =>
          totalCount === 0 ? (
            empty(addButton)
          ) : (
            <>
              <ul className="rows">
                {nodes.map((each) => (
                  <li key={each.id} className="flex flex-wrap items-start gap-x-4 gap-y-2">
                    <div className="min-w-0 flex-1 basis-64 space-y-1">
                      <p className="font-medium break-all">{nameOf(each)}</p>
                      {details(each)}
                      <Times {...each} />
                    </div>
                    <Button
                      look="danger"
                      aria-label={`Delete ${nameOf(each)}`}
                      onClick={() => setDeleting(each)}
                    >
                      Delete
                    </Button>
                  </li>
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} total={totalCount} />
            </>
          )
        }
      </Load>
      {adding && form(() => setAdding(false))}
      {deleting && (
        <Confirm
          title={`Delete the ${noun} ${nameOf(deleting)}?`}
          verb={`Delete ${noun}`}
          onClose={() => setDeleting(null)}
          act={async () => {
            const { problem } = await remove(deleting);
            if (!problem) notify(`The ${noun} ${nameOf(deleting)} was deleted.`);
            return problem;
          }}
        >
          {warning}
        </Confirm>
      )}
    </SettingsFrame>
  );
}

/** When a credential was created and last used, and when it expires; a warning colour in its last 7 days. */
function Times({ createdAt, lastUsedAt, expiresAt }: Dates) {
  const now = useUnixSeconds();
  const secondsLeft = expiresAt ? Date.parse(expiresAt) / 1_000 - now : Number.POSITIVE_INFINITY;
  return (
    <p className="text-sm text-dim">
      created <RelativeTime at={createdAt} /> · {lastUsedAt ? 'last used ' : 'never used'}
      {lastUsedAt && <RelativeTime at={lastUsedAt} />}
      {expiresAt !== undefined && ' · '}
      {expiresAt === null && 'no expiry'}
      {expiresAt && (
        <span
          className={
            secondsLeft <= 0 ? 'text-bad' : secondsLeft < 7 * 86_400 ? 'text-warn' : undefined
          }
        >
          {secondsLeft <= 0 ? 'expired' : 'expires'} <RelativeTime at={expiresAt} />
        </span>
      )}
    </p>
  );
}

const SUGGESTED_DAYS = ['7', '30', '90', '365'];

/** Lets the user choose in how many days a credential expires: a suggestion, or any number from 1 to 365. */
export function ExpiryField({
  days,
  onChange,
  problem,
}: {
  days: string;
  onChange: (days: string) => void;
  problem: string | null;
}) {
  const [isCustom, setCustom] = useState(false);
  const count = Number(days);
  const isValid = Number.isInteger(count) && count >= 1 && count <= 365;
  const hint = isValid
    ? `Until ${formatExactTime(new Date(Date.now() + count * 86_400_000).toISOString())}`
    : '1 to 365 days';
  return (
    <div className="grid gap-3 sm:grid-cols-2">
      <Field
        label="Expires after"
        problem={isCustom ? null : problem}
        hint={isCustom ? null : hint}
      >
        <Select
          value={isCustom ? 'custom' : days}
          onChange={({ target }) => {
            setCustom(target.value === 'custom');
            if (target.value !== 'custom') onChange(target.value);
          }}
        >
          {SUGGESTED_DAYS.map((each) => (
            <option key={each} value={each}>
              {each} days
            </option>
          ))}
          <option value="custom">Custom</option>
        </Select>
      </Field>
      {isCustom && (
        <Field label="Days" problem={problem} hint={hint}>
          <Input
            type="number"
            min={1}
            max={365}
            required
            value={days}
            onChange={({ target }) => onChange(target.value)}
          />
        </Field>
      )}
    </div>
  );
}

/** Shows a new secret, which the server returns only once. */
export function CreatedDialog({
  title,
  label,
  secret,
  curl,
  note,
  onClose,
}: {
  title: string;
  label: string;
  secret: string;
  /** Lines for a shell that try the secret with curl. */
  curl: string;
  note?: string;
  onClose: () => void;
}) {
  return (
    <Dialog title={title} onClose={onClose}>
      <div className="space-y-4">
        <OneTimeSecret label={label} value={secret} />
        <p className="text-sm">Try it in a terminal:</p>
        <TerminalBox
          texts={[
            {
              client: 'loam',
              text: `export LOAM_URL=${location.origin}\nexport LOAM_TOKEN=${quoteForShell(secret)}\nloam whoami`,
            },
            { client: 'curl', text: curl, hint: null },
          ]}
        />
        {note && <p className="text-sm text-dim">{note}</p>}
        <div className="flex justify-end">
          <Button look="primary" onClick={onClose}>
            I have copied it
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
