/** Addresses that sign a user in once: for the first user, for a new one, for one who has no token any more. */

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

/** Long enough to be sent to somebody. */
const LINK_HOURS = 24;

export type SignInLink = {
  /** The whole address. */
  url: string;
  expiresAt: Date;
};

type Deps = { db: Db };

/** One for the viewer, or, by the operator, for the user named. @throws AppError 401, 403, 404 */
export async function createSignInLink(
  { db, urls }: { db: Db; urls: Urls },
  viewer: Viewer,
  username?: string | null,
): Promise<SignInLink> {
  const account = demandFullRights(viewer);
  const owner = await resolveCredentialOwner(db, account, username);
  return inTransaction(db, (tx) => insertLink(tx, account, owner, urls.base));
}

/** One that who holds the machine makes. @throws AppError 404 */
export async function issueSignInLink(
  { db }: Deps,
  username: string,
  base: string,
): Promise<SignInLink> {
  const owner = await resolveUser(db, username);
  return inTransaction(db, (tx) => insertLink(tx, SERVER, owner, base));
}

export async function insertLink(
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

/** Whom it signs in; null: it was used, or is too old. */
export async function findLinkUser({ db }: Deps, secret: string): Promise<string | null> {
  const row = await db.signInLink.findUnique({
    where: { hash: hashSecret(secret), expiresAt: { gt: new Date() } },
    select: { user: { select: { username: true } } },
  });
  return row?.user.username ?? null;
}

/** Uses it up. @returns the secret of the session @throws AppError 401 when it was used, or is too old */
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
    // Whoever deletes the row is the one that it signs in.
    const used = row && (await tx.signInLink.deleteMany({ where: { id: row.id } })).count === 1;
    if (!used || !row.user.namespace)
      throw unauthenticated('This address was used already, or is too old');
    const { id: userId, username, namespace } = row.user;
    const signedIn = { userId, username, namespaceId: namespace.id, method: 'link' as const };
    return beginSession(tx, browser, signedIn);
  });
}
