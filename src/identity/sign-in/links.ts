/** Single-use sign-in links: for the first user, new users, and users without a token. */

import { unauthenticated } from '../../base/errors.ts';
import { newId } from '../../base/ids.ts';
import type { Urls } from '../../base/urls.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { resolveUser } from '../accounts.ts';
import { type Actor, recordAudit, SERVER } from '../audit.ts';
import {
  demandFullRights,
  hashSecret,
  randomSecret,
  resolveCredentialOwner,
} from '../credentials.ts';
import type { Viewer } from '../permissions.ts';
import { type Browser, beginSession } from './sessions.ts';

/** Long enough to send the link to a person. */
const LINK_HOURS = 24;

export type SignInLink = {
  url: string;
  expiresAt: Date;
};

type Deps = { db: Db };

/** Creates a link for the viewer; an operator may create one for another user. @throws AppError 401, 403, 404 */
export async function createSignInLink(
  { db, urls }: { db: Db; urls: Urls },
  viewer: Viewer,
  username?: string | null,
): Promise<SignInLink> {
  const account = demandFullRights(viewer);
  const owner = await resolveCredentialOwner(db, account, username);
  return inTransaction(db, (tx) => insertLink(tx, account, owner, urls.base));
}

/** Creates a link for the person who has access to the machine. @throws AppError 404 */
export async function issueSignInLink(
  { db }: Deps,
  username: string,
  base: string,
): Promise<SignInLink> {
  const owner = await resolveUser(db, username);
  return inTransaction(db, (tx) => insertLink(tx, SERVER, owner, base));
}

async function insertLink(
  tx: Db,
  by: Actor,
  { userId, namespaceId }: { userId: string; namespaceId: string },
  base: string,
): Promise<SignInLink> {
  const secret = randomSecret();
  const expiresAt = new Date(Date.now() + LINK_HOURS * 3_600_000);
  const id = newId('sil');
  await tx.signInLink.create({ data: { id, userId, hash: hashSecret(secret), expiresAt } });
  await recordAudit(tx, by, {
    action: 'sign_in_link.create',
    namespaceIds: [namespaceId],
    subject: id,
    name: 'link',
    details: { expiresAt: expiresAt.toISOString() },
  });
  return { url: `${base}/login/link?secret=${secret}`, expiresAt };
}

/** @returns the username; null when the link was used or has expired */
export async function findLinkUser({ db }: Deps, secret: string): Promise<string | null> {
  const row = await db.signInLink.findUnique({
    where: { hash: hashSecret(secret), expiresAt: { gt: new Date() } },
    select: { user: { select: { username: true } } },
  });
  return row?.user.username ?? null;
}

/**
 * Signs in by a link, which can be used once.
 * @returns the secret of the session
 * @throws AppError 401 if the link was used or has expired
 */
export async function signInByLink(
  { db }: Deps,
  secret: string,
  browser: Browser,
): Promise<string> {
  return inTransaction(db, async (tx) => {
    const where = { hash: hashSecret(secret), expiresAt: { gt: new Date() } };
    const row = await tx.signInLink.findUnique({
      where,
      select: {
        id: true,
        user: { select: { id: true, username: true, namespace: { select: { id: true } } } },
      },
    });
    // Of concurrent requests, the one that deletes the row is signed in.
    const used = row && (await tx.signInLink.deleteMany({ where: { id: row.id } })).count === 1;
    if (!used || !row.user.namespace)
      throw unauthenticated('This sign-in link has been used or has expired');
    const { id: userId, username, namespace } = row.user;
    const signedIn = { userId, username, namespaceId: namespace.id, method: 'link' as const };
    return beginSession(tx, browser, signedIn);
  });
}
