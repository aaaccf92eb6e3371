/**
 * The audit log: who changed what, from where and by which credential.
 *
 * A domain function writes its entry in the transaction of its change, so neither exists without the other. What was
 * refused, and what changed nothing, leaves none. What the server does by itself (a job that ends) is no entry: it is
 * an event.
 */

import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import { newId } from '../base/ids.ts';
import { toColumnName } from '../platform/database/keyset.ts';
import type { StatementParts } from '../platform/database/statement.ts';

/** Action → what was done. */
export const AUDIT_ACTIONS = {
  'user.create': 'A user was created.',
  'user.disable': 'A user was disabled: their credentials are refused.',
  'user.enable': 'A user who was disabled was enabled again.',
  'user.delete': 'A user was deleted, with the namespace of the same name.',
  'organization.create': 'An organization was created.',
  'organization.delete': 'An organization was deleted.',
  'plan.set': 'A namespace got another plan.',
  'member.set': 'A user was made a member, or got another role.',
  'member.remove': 'A user is no member any more.',
  'access_token.create': 'A personal access token was made.',
  'access_token.delete': 'A personal access token was deleted.',
  'api_key.create': 'An API key was made.',
  'api_key.delete': 'An API key was deleted.',
  'ssh_key.add': 'An SSH key was added.',
  'ssh_key.delete': 'An SSH key was deleted.',
  'session.create': 'A user signed in with a browser.',
  'session.delete': 'A user was signed out of a browser.',
  'sign_in_link.create': 'An address that signs a user in once was made.',
  'identity.connect': 'A user connected an identity of an issuer, to sign in by it.',
  'identity.delete': 'A user took an identity away, by which they had signed in.',
  'device.approve': 'A user let a program sign in as them, which had shown a code.',
  'deploy_key.add': 'A deploy key was added to a repository.',
  'deploy_key.delete': 'A deploy key of a repository was deleted.',
  'repository.create': 'A repository was created.',
  'repository.rename': 'A repository was renamed.',
  'repository.change_visibility': 'The visibility of a repository was changed.',
  'repository.update': 'The description or the settings of a repository were changed.',
  'repository.transfer': 'A repository was given to another namespace; both have the entry.',
  'repository.push': 'A repository was pushed to.',
  'branch_rule.set': 'A rule for the branches of a repository was made or changed.',
  'branch_rule.delete': 'A rule for the branches of a repository was deleted.',
  'secret.allow':
    'A secret was pushed that secret scanning had refused: the pusher declared that it may be there.',
  'secret.disallow': 'A secret that was allowed is refused again.',
  'repository.delete': 'A repository was deleted.',
  'large_file.lock': 'A file was locked, so that its owner alone may push changes of it.',
  'large_file.unlock': 'The lock of a file was ended, by its owner or by an administrator.',
  'large_file.delete': 'Large files were deleted from a repository.',
  'job.create': 'A job was created.',
  'job.rerun': 'A job was created with the settings of another.',
  'job.cancel': 'A job was stopped.',
  'job.delete': 'The record of a job was deleted.',
  'artifacts.delete': 'Artifacts that had outlived their job were deleted.',
  'webhook.create': 'A webhook was created; each of its namespaces has the entry.',
  'webhook.update': 'A webhook was changed; each of its namespaces has the entry.',
  'webhook.delete': 'A webhook was deleted; each of its namespaces has the entry.',
  'webhook.test': 'A ping was sent to a webhook.',
  'webhook.redeliver': 'A message was sent to a webhook again.',
} as const;
export type AuditAction = keyof typeof AUDIT_ACTIONS;

/** Where a request came from. */
export type Origin = { address: string | null; requestId: string };

/**
 * A personal access token, an API key, over SSH the key of a user or a deploy key, the session of a browser, and an
 * access token of an issuer of identities.
 */
export type CredentialKind = 'pat' | 'key' | 'ssh' | 'deploy' | 'session' | 'oidc';

/** Who did it; the account of a request is one. */
export type Actor = {
  userId: string | null;
  username: string;
  credential: { kind: CredentialKind; id: string; name: string } | null;
  from?: Origin;
};

/** For what is done on the server's machine: at its start, or by a command. */
export const SERVER: Actor = { userId: null, username: 'server', credential: null };

/** An actor as plain data, for a note that outlives the request. */
export function copyActor({ userId, username, credential, from }: Actor): Actor {
  return { userId, username, credential, ...(from && { from }) };
}

export type AuditedChange = {
  action: AuditAction;
  /** Those whose administrators are to see it: at least one, and first the one that it is of. */
  namespaceIds: readonly string[];
  /** The id of what was changed, and its name after the change. */
  subject: string;
  name: string;
  /** Small and plain: never a secret, a token, a job's command or its environment. */
  details?: Prisma.InputJsonObject;
};

type ChangeBy = AuditedChange & { by: Actor };

type Tx = Pick<Prisma.TransactionClient, 'auditEntry'>;

/** Writes the entry of one change, in one statement. */
export async function recordAudit(tx: Tx, by: Actor, change: AuditedChange): Promise<void> {
  await recordAudits(tx, [{ by, ...change }]);
}

/** Writes an entry for each change, in one statement. */
export async function recordAudits(tx: Tx, changes: readonly ChangeBy[]) {
  const rows = changes.flatMap(toEntries);
  if (rows.length > 0) await tx.auditEntry.createMany({ data: rows });
}

const COLUMN_TYPES = {
  id: 'text',
  namespaceId: 'text',
  main: 'bool',
  action: 'text',
  subject: 'text',
  name: 'text',
  details: 'jsonb',
  actorId: 'text',
  actor: 'text',
  credentialKind: 'text',
  credentialId: 'text',
  credentialName: 'text',
  address: 'text',
  requestId: 'text',
} as const satisfies Record<keyof Entry, string>;

const COLUMNS = Object.keys(COLUMN_TYPES).map(toColumnName);
const RECORD_COLUMNS = Object.entries(COLUMN_TYPES).map(([field, type]) => `"${field}" ${type}`);

/** Writes them as a part of the statement that makes the changes, whose text is the same for any number of them. */
export function addAuditToStatement(
  { parts, parameter }: StatementParts,
  changes: readonly ChangeBy[],
): void {
  const rows = changes.flatMap(toEntries);
  const listed = parameter(JSON.stringify(rows), 'jsonb');
  parts.push(`audited as (insert into audit_entries (${COLUMNS})
    select entry.* from jsonb_to_recordset(${listed}) as entry (${RECORD_COLUMNS}))`);
}

type Entry = ReturnType<typeof toEntries>[number];

function toEntries({ by, namespaceIds, action, subject, name, details = {} }: ChangeBy) {
  const entry = {
    id: newId('aud'),
    action,
    subject,
    name,
    details,
    actorId: by.userId,
    actor: by.username,
    credentialKind: by.credential?.kind ?? null,
    credentialId: by.credential?.id ?? null,
    credentialName: by.credential?.name ?? null,
    address: by.from?.address ?? null,
    requestId: by.from?.requestId ?? null,
  };
  const ids = [...new Set(namespaceIds)];
  if (ids.length === 0) throw new Error(`${action} of ${subject} concerns no namespace`);
  return ids.map((namespaceId, at) => ({ ...entry, namespaceId, main: at === 0 }));
}

/** For how long the audit log is kept. */
const BATCH = 1_000;

/**
 * Removes a batch of the entries that are older than `days`. Ids sort by time, so the oldest are found along the key.
 * @returns whether there may be more
 */
export async function removeOldEntries(
  { pool }: { pool: pg.Pool },
  days: number,
): Promise<boolean> {
  const { rowCount } = await pool.query(
    `delete from audit_entries where (id, namespace_id) in (
       select id, namespace_id from (
         select id, namespace_id, created_at from audit_entries order by id, namespace_id limit ${BATCH}
       ) oldest
       where created_at < now() - make_interval(days => $1))`,
    [days],
  );
  return rowCount === BATCH;
}
