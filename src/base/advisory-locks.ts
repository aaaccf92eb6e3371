/**
 * All advisory locks in the database, in one file so that no two mechanisms share a lock by accident. The key of a lock is a
 * number, or a text that is hashed in the statement by `hashtext(text)` or `hashtextextended(text, 0)`. Keys must not change
 * between versions: servers of two versions run side by side during an update.
 */
import { createHash } from 'node:crypto';

/* Numbers. */

/** Migrations run one at a time. It is the lock of Prisma Migrate, so `prisma migrate deploy` is excluded too. */
export const MIGRATION_LOCK = 72_707_369;
/** Servers register one at a time, so that each compares its configuration with the servers before it. */
export const SERVER_REGISTRATION_LOCK = 72_707_371;
/** Held by the one server that turns events into webhook deliveries. */
export const WEBHOOK_DISPATCH_LOCK = 72_707_373;
/** Held in each transaction that draws the consequences of changed jobs, so one server at a time does it. */
export const JOB_CHANGES_LOCK = 72_707_374;
/** Workers claim jobs one at a time: concurrent claims would read the queue in the same order and compete for its head. */
export const JOB_CLAIM_LOCK = 465_825_750_385;

/** Held by the server that uses the data folder with this id, wherever the folder is mounted. */
export function dataFolderLock(serverId: string): bigint {
  return createHash('sha256').update(`${serverId}\n`).digest().readBigInt64BE();
}

/* Texts for `hashtext`. */

/** Only one of several servers that start for the first time creates the operator. */
export const FIRST_OPERATOR_LOCK = 'loam.seedOperator';
/** Operators are disabled or deleted one at a time, so that one always remains. */
export const OPERATORS_LOCK = 'loam.operators';

/* Texts for `hashtextextended`. */

/** One server at a time removes unreferenced large files. */
export const LARGE_FILE_SWEEP_LOCK = 'sweep of large files';

/** One server at a time creates and removes the keys of identity tokens. */
export const SIGNING_KEYS_LOCK = 'keys of identity tokens';

/** Device requests of one address are counted one at a time. */
export const deviceRequestLock = (address: string | null) => `loam.device ${address}`;
/** An identity of an issuer is linked to a user by one sign-in at a time. */
export const identityLock = (issuer: string, subject: string) =>
  `loam.identity ${issuer} ${subject}`;
/** SSH keys of one owner are counted one at a time. */
export const sshKeysLock = (ownerId: string) => `sshKeys ${ownerId}`;
/** Objects of one kind, or stored bytes, of a namespace are compared with its quota one at a time. */
export const quotaLock = (quota: string, namespaceId: string) => `${quota} ${namespaceId}`;
