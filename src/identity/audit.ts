/**
 * The audit log: who changed what, from where, and with which credential.
 *
 * A domain function writes the entry in the transaction of the change, so neither exists without the other. Requests
 * that are rejected or change nothing leave no entry. Actions of the server itself (a job that ends) are events, not
 * entries.
 */

import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import { newId } from '../base/ids.ts';
import type { Db } from '../platform/database/client.ts';
import { toColumnName } from '../platform/database/keyset.ts';
import type { StatementParts } from '../platform/database/statement.ts';

/** Action → its description in GraphQL. */
export const AUDIT_ACTIONS = {
  'user.create': 'A user was created.',
  'user.disable': 'A user was disabled: their credentials are refused.',
  'user.enable': 'A disabled user was enabled again.',
  'user.delete': 'A user was deleted, with the namespace of the same name.',
  'organization.create': 'An organization was created.',
  'organization.delete': 'An organization was deleted.',
  'plan.set': 'The plan of a namespace was changed.',
  'member.set': 'A member was added, or the role of a member was changed.',
  'member.remove': 'A member was removed.',
  'access_token.create': 'A personal access token was created.',
  'access_token.delete': 'A personal access token was deleted.',
  'api_key.create': 'An API key was created.',
  'api_key.delete': 'An API key was deleted.',
  'ssh_key.add': 'An SSH key was added.',
  'ssh_key.delete': 'An SSH key was deleted.',
  'session.create': 'A user signed in with a browser.',
  'session.delete': 'A user was signed out of a browser.',
  'sign_in_link.create': 'A single-use sign-in link was created.',
  'identity.connect': 'A user connected an identity of an identity provider, for signing in.',
  'identity.delete': 'A user removed an identity that was used for signing in.',
  'device.approve': 'A user approved the code of a program, which is now signed in as the user.',
  'deploy_key.add': 'A deploy key was added to a repository.',
  'deploy_key.delete': 'A deploy key of a repository was deleted.',
  'repository.create': 'A repository was created.',
  'repository.rename': 'A repository was renamed.',
  'repository.change_visibility': 'The visibility of a repository was changed.',
  'repository.update': 'The description or the settings of a repository were changed.',
  'repository.transfer':
    'A repository was transferred to another namespace; both namespaces have the entry.',
  'repository.push': 'A repository was pushed to.',
  'branch_rule.set': 'A branch rule of a repository was created or changed.',
  'branch_rule.delete': 'A branch rule of a repository was deleted.',
  'commit_status.set': 'The status of a check of a commit was reported.',
  'secret.allow': 'A pusher allowed a secret that secret scanning had refused.',
  'secret.disallow': 'An allowed secret is refused again.',
  'cache.delete': 'Caches of a repository were deleted.',
  'secret.set': 'A secret of a namespace or a repository was created or changed.',
  'secret.delete': 'A secret of a namespace or a repository was deleted.',
  'variable.set': 'A variable of a namespace or a repository was created or changed.',
  'variable.delete': 'A variable of a namespace or a repository was deleted.',
  'repository.delete': 'A repository was deleted.',
  'large_file.lock': 'A file was locked: only the owner of the lock may push changes to it.',
  'large_file.unlock': 'A file was unlocked, by the owner of the lock or by an admin.',
  'large_file.delete': 'Large files were deleted from a repository.',
  'job.create': 'A job was created.',
  'job.rerun': 'A job was created with the settings of another job.',
  'job.cancel': 'A job was cancelled.',
  'job.release': 'The held sandbox of a failed job was released.',
  'job.delete': 'The record of a job was deleted.',
  'job.keep': 'A job got or lost the label that exempts it from retention.',
  'retention.set': 'The retention of jobs, logs and artifacts of a namespace was changed.',
  'retention.remove':
    'The server removed old jobs, logs or artifacts of a namespace, up to a hundred for each entry.',
  'job.shell': 'A shell or command was started in a running job.',
  'job.shell_end': 'A shell or command in a job has ended.',
  'job.shell_close': 'A user ended an open shell or command in a job.',
  'shell_access.set': 'Shells in the jobs of a namespace were switched on or off.',
  'job.port':
    'A user opened a port of a running job in the browser, or connected to it; connections once an hour for each user and port.',
  'run.create': 'A run of jobs was started: by a push, a schedule, or a user.',
  'run.approve': 'A run was approved, and its jobs were created.',
  'run.cancel': 'The jobs of a run were cancelled.',
  'schedule.create': 'A schedule of a repository was created.',
  'schedule.delete': 'A schedule of a repository was deleted.',
  'artifacts.delete': 'Artifacts of a deleted job were deleted.',
  'budget.set': 'The budget of a namespace was created or changed.',
  'budget.delete': 'The budget of a namespace was deleted.',
  'budget.cancel_jobs':
    'The server cancelled jobs because the budget of their namespace was reached.',
  'worker_token.create': 'A token with which machines join was created.',
  'worker_token.delete':
    'A worker token was revoked, and the machines that had joined with it were removed.',
  'machine.join': 'A machine joined with a worker token.',
  'machine.drain': 'A machine was asked to take no more jobs.',
  'machine.resume': 'A machine that was drained takes jobs again.',
  'machine.remove': 'A machine was removed.',
  'machine.silent': 'The server recorded that a machine does not report.',
  'machine.online': 'A silent machine reports again.',
  'webhook.create': 'A webhook was created; each of its namespaces has the entry.',
  'webhook.update': 'A webhook was changed; each of its namespaces has the entry.',
  'webhook.delete': 'A webhook was deleted; each of its namespaces has the entry.',
  'webhook.test': 'A ping was sent to a webhook.',
  'webhook.redeliver': 'A delivery was sent to a webhook again.',
} as const;
export type AuditAction = keyof typeof AUDIT_ACTIONS;

/** The origin of a request. */
export type Origin = { address: string | null; requestId: string };

/**
 * A personal access token, an API key, an SSH key of a user, a deploy key, a browser session, an access token of an
 * identity provider, or the token of a job, whose id is that of the attempt; `schedule` stands for the owner of a schedule.
 */
export type CredentialKind =
  | 'pat'
  | 'key'
  | 'ssh'
  | 'deploy'
  | 'session'
  | 'oidc'
  | 'job'
  | 'schedule';

/** Who made a change. The account of a request is an actor. */
export type Actor = {
  userId: string | null;
  username: string;
  credential: { kind: CredentialKind; id: string; name: string } | null;
  from?: Origin;
};

/** For changes on the server's machine: at its start, or by a command. */
export const SERVER: Actor = { userId: null, username: 'server', credential: null };

/** Copies an actor as plain data, for use after the request. */
export function copyActor({ userId, username, credential, from }: Actor): Actor {
  return { userId, username, credential, ...(from && { from }) };
}

export type AuditedChange = {
  action: AuditAction;
  /** Namespaces whose admins see the entry: at least one, and first the namespace of the changed object. */
  namespaceIds: readonly string[];
  /** The id of the changed object, and its name after the change. */
  subject: string;
  name: string;
  /** Small values, and never a secret, a token, a job's command or environment; of a shell in a job its command. */
  details?: Prisma.InputJsonObject;
};

export type ChangeBy = AuditedChange & { by: Actor };

/** Writes the entry of one change. */
export async function recordAudit(tx: Db, by: Actor, change: AuditedChange): Promise<void> {
  await recordAudits(tx, [{ by, ...change }]);
}

/** Writes the entries of several changes in one statement. */
export async function recordAudits(tx: Db, changes: readonly ChangeBy[]) {
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

/** Adds the entries to the statement that makes the changes. Its text does not depend on the number of changes. */
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

const BATCH = 1_000;

/**
 * Removes a batch of entries older than `days`. Ids sort by time, so the primary key finds the oldest entries.
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
