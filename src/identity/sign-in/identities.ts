/**
 * Users as issuers of identities know them: by issuer and subject, which never change, and not by an address, which may be
 * given to somebody else. A first sign-in makes the user and their namespace.
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

/** An issuer cannot take a session back, so it ends sooner than one by a token. */
const SESSION_DAYS = 7;
const MAX_NAME = 39;
/** Names that are tried: ada, ada-2, … */
const MAX_NAME_TRIES = 50;

/**
 * Signs in whom an issuer has named.
 * @returns the secret of the session
 * @throws AppError 403 for who may not sign in here, 409 where another user has the address
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
    // Of one that signs in twice at once the second waits for the first, and finds the user.
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

/** Until the transaction ends nobody else makes this identity known. */
export async function lockIdentity(tx: Db, { issuer, subject }: Claims): Promise<void> {
  await tx.$executeRaw`
    select pg_advisory_xact_lock(hashtextextended(${identityLock(issuer, subject)}, 0))`;
}

/** What a group gave, leaving it takes away; who is operator without any is so for ever. */
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
  if (!email || !isEmail(email)) throw forbidden(`${label} does not say what your address is`);
  // Else anybody could take the address of somebody who has not signed in here yet.
  if (emailVerified === false)
    throw forbidden(`${label} has not confirmed that the address ${email} is yours`);
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
      `Another user here has the address ${email}: ask the operator, or sign in with a token`,
    );
  });
  await tx.identity.create({
    data: { id: newId('idn'), issuer, subject, userId: user.id, operator },
  });
  return { userId: user.id, username: user.username, namespaceId: user.namespace.id };
}

/** One that may be taken, as near to what somebody calls themselves as can be. */
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
