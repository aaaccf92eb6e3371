/**
 * Sign-in with an identity provider. Users are identified by issuer and subject, which never change, and not by email
 * address, which may be reassigned. The first sign-in creates the user and the user's namespace.
 */

import { identityLock } from '../../base/advisory-locks.ts';
import type { IssuerConfig } from '../../base/config/oidc.ts';
import { AppError, forbidden } from '../../base/errors.ts';
import { newId } from '../../base/ids.ts';
import { namespaceNameError } from '../../base/names.ts';
import { type Db, inTransaction, violatesUnique } from '../../platform/database/client.ts';
import { insertUser, isEmail } from '../accounts.ts';
import { isOperatorByGroup, whyNotAdmitted } from './admission.ts';
import type { Claims } from './issuers.ts';
import { type Browser, beginSession } from './sessions.ts';

/** Shorter than for token sign-in, because an identity provider cannot revoke a session. */
const SESSION_DAYS = 7;
const MAX_NAME = 39;
/** Candidates for a free name: ada, ada-2, … */
const MAX_NAME_TRIES = 50;

/**
 * Signs in the user with these claims.
 * @returns the secret of the session
 * @throws AppError 403 when the identity may not sign in here, 409 when another user has the email address
 */
export async function signInByIdentity(
  { db }: { db: Db },
  config: IssuerConfig,
  claims: Claims,
  browser: Browser,
): Promise<string> {
  demandAdmitted(config, claims);
  const operator = isOperatorByGroup(config, claims);
  return inTransaction(db, async (tx) => {
    // The lock makes the second of two concurrent first sign-ins wait and find the user.
    await lockIdentity(tx, claims);
    const user =
      (await findKnownUser(tx, claims, operator)) ??
      (await createUserFromClaims(tx, config, claims, operator));
    return beginSession(tx, browser, {
      ...user,
      method: 'oidc',
      expiresAt: new Date(Date.now() + SESSION_DAYS * 86_400_000),
    });
  });
}

/** Locks the identity until the transaction ends, so that it is inserted once. */
export async function lockIdentity(tx: Db, { issuer, subject }: Claims): Promise<void> {
  await tx.$executeRaw`
    select pg_advisory_xact_lock(hashtextextended(${identityLock(issuer, subject)}, 0))`;
}

/** Grants or revokes operator rights by group membership. Operators who are not so by a group stay operators. */
export async function syncOperator(
  tx: Db,
  { id, userId, operator: before }: { id: string; userId: string; operator: boolean },
  operator: boolean,
): Promise<void> {
  if (before === operator) return;
  const others = await tx.identity.count({
    where: { userId, operator: true, id: { not: id } },
  });
  if (operator && others === 0) {
    const user = await tx.user.findUnique({ where: { id: userId }, select: { operator: true } });
    if (user?.operator) return;
  }
  await tx.identity.update({ where: { id }, data: { operator } });
  await tx.user.update({ where: { id: userId }, data: { operator: operator || others > 0 } });
}

/** @throws AppError 403 */
export function demandAdmitted(config: IssuerConfig, claims: Claims): void {
  const why = whyNotAdmitted(config, claims);
  if (why) throw forbidden(why);
}

type SignedIn = { userId: string; username: string; namespaceId: string };

const userColumns = {
  id: true,
  username: true,
  namespace: { select: { id: true } },
} as const;

async function findKnownUser(
  tx: Db,
  { issuer, subject }: Claims,
  operator: boolean,
): Promise<SignedIn | null> {
  const row = await tx.identity.findUnique({
    where: { issuer_subject: { issuer, subject } },
    select: { id: true, operator: true, user: { select: userColumns } },
  });
  if (!row) return null;
  const { id, username, namespace } = row.user;
  await syncOperator(tx, { id: row.id, userId: id, operator: row.operator }, operator);
  return { userId: id, username, namespaceId: namespace?.id ?? '' };
}

/** @throws AppError 403, 409 */
async function createUserFromClaims(
  tx: Db,
  { label }: IssuerConfig,
  { issuer, subject, email, emailVerified, username }: Claims,
  operator: boolean,
): Promise<SignedIn> {
  if (!email || !isEmail(email)) throw forbidden(`${label} did not send your email address`);
  // Otherwise anybody could claim the address of a person who has not signed in here yet.
  if (emailVerified === false)
    throw forbidden(`${label} has not verified the email address ${email}`);
  const data = {
    id: newId('user'),
    username: await chooseFreeName(tx, username ?? email.replace(/@.*/, '')),
    email,
    plan: 'free' as const,
    operator,
  };
  const by = { userId: null, username: label, credential: null };
  const user = await insertUser(tx, by, data).catch((error) => {
    if (!violatesUnique(error, 'email')) throw error;
    throw new AppError(
      'already_exists',
      `Another user of this server has the email address ${email}: ask the operator, or sign in with a token`,
    );
  });
  await tx.identity.create({
    data: { id: newId('idn'), issuer, subject, userId: user.id, operator },
  });
  return { userId: user.id, username: user.username, namespaceId: user.namespace.id };
}

/** A free username, close to the wanted one. */
async function chooseFreeName(tx: Db, wanted: string): Promise<string> {
  const plain = wanted
    .replace(/@.*/, '')
    .normalize('NFKD')
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .slice(0, MAX_NAME - 3)
    .replace(/^-+|-+$/g, '');
  for (let n = 1; n <= MAX_NAME_TRIES; n++) {
    const name = n === 1 ? plain : `${plain || 'user'}-${n}`;
    if (namespaceNameError(name)) continue;
    if (!(await tx.namespace.findUnique({ where: { name }, select: { id: true } }))) return name;
  }
  return `user-${newId('user').slice(-10)}`;
}
