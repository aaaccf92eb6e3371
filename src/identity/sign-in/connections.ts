/**
 * Connects further identities to a user, by a sign-in at the identity provider within a session; lists and removes
 * them.
 */

import type { IssuerConfig } from '../../base/config/oidc.ts';
import { AppError, notFound, unauthenticated } from '../../base/errors.ts';
import { isId, newId } from '../../base/ids.ts';
import type { Urls } from '../../base/urls.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../../platform/database/paging.ts';
import { recordAudit } from '../audit.ts';
import { demandFullRights, demandOwn } from '../credentials.ts';
import type { Account, Viewer } from '../permissions.ts';
import { isOperatorByGroup } from './admission.ts';
import { demandAdmitted, lockIdentity, syncOperator } from './identities.ts';
import type { Claims, ConnectingSession, Issuer } from './issuers.ts';
import { endSessions } from './sessions.ts';

export type Identity = {
  id: string;
  issuer: string;
  subject: string;
  createdAt: Date;
  lastUsedAt: Date | null;
};

export type IssuerChoice = {
  name: string;
  label: string;
  issuer: string;
  signInUrl: string;
  /** Null for a viewer without a browser session. */
  connectUrl: string | null;
};

type Deps = { db: Db };

/**
 * Lists the configured identity providers. For a browser session, with the URLs that connect an identity to its user.
 */
export function listIssuers(
  { issuers, urls }: { issuers: readonly Issuer[]; urls: Urls },
  viewer: Viewer,
): IssuerChoice[] {
  const session = currentSession(viewer);
  return issuers.map((provider) => {
    const { name, label, issuer } = provider.config;
    const signInUrl = `${urls.base}/login/${name}`;
    const connectUrl = session && `${signInUrl}?connect=${provider.createTicket(session)}`;
    return { name, label, issuer, signInUrl, connectUrl };
  });
}

function currentSession(viewer: Viewer): ConnectingSession | null {
  if (viewer.kind !== 'account' || viewer.credential.kind !== 'session') return null;
  return { userId: viewer.userId, sessionId: viewer.credential.id };
}

/** Checks that the session is the one that started to connect an identity. @throws AppError 401 */
function demandSameSession(viewer: Viewer, connecting: ConnectingSession): Account {
  const session = currentSession(viewer);
  const isSame =
    session?.sessionId === connecting.sessionId && session.userId === connecting.userId;
  if (viewer.kind === 'account' && isSame) return viewer;
  throw unauthenticated(
    'This browser is no longer signed in with the session that started this: sign in and try again',
  );
}

/** Opens the ticket of a connect URL, which is valid for the session that it was created for. @throws AppError 401 */
export function openConnectTicket(
  issuer: Issuer,
  viewer: Viewer,
  ticket: string,
): ConnectingSession {
  const connecting = issuer.openTicket(ticket);
  demandSameSession(viewer, connecting);
  return connecting;
}

/**
 * Connects an identity to the user of the session that started the sign-in. Idempotent.
 * @throws AppError 401, 403 when the identity may not sign in here, 409 for an identity of another user
 */
export async function connectIdentity(
  { db }: Deps,
  viewer: Viewer,
  {
    config,
    claims,
    connecting,
  }: { config: IssuerConfig; claims: Claims; connecting: ConnectingSession },
): Promise<void> {
  const account = demandFullRights(demandSameSession(viewer, connecting));
  demandAdmitted(config, claims);
  const { userId } = account;
  const { issuer, subject } = claims;
  await inTransaction(db, async (tx) => {
    await lockIdentity(tx, claims);
    const known = await tx.identity.findUnique({
      where: { issuer_subject: { issuer, subject } },
      select: { userId: true },
    });
    if (known?.userId === userId) return;
    if (known)
      throw new AppError(
        'already_exists',
        `This identity of ${config.label} belongs to another user of this server: remove it there first`,
      );
    const id = newId('idn');
    await tx.identity.create({ data: { id, issuer, subject, userId } });
    await syncOperator(tx, { id, userId, operator: false }, isOperatorByGroup(config, claims));
    await recordAudit(tx, account, {
      action: 'identity.connect',
      namespaceIds: [account.namespace.id],
      subject: id,
      name: config.label,
      details: { issuer },
    });
  });
}

/** Returns a page of the viewer's identities, newest first. @throws AppError 400, 401, 403 */
export async function sliceIdentities(
  { db }: Deps,
  viewer: Viewer,
  ofUser: string,
  range: CursorPageRequest,
): Promise<CursorPage<Identity>> {
  const { userId } = demandOwn(viewer, ofUser);
  return readCursorPage<Identity>(db.identity, NEWEST_FIRST, range, {
    where: { userId },
    select: columns,
  });
}

const columns = {
  id: true,
  issuer: true,
  subject: true,
  createdAt: true,
  lastUsedAt: true,
} as const;

/**
 * Removes an identity. Its access tokens are rejected immediately, and the user's other sessions from an identity
 * provider end, because a session does not record its identity.
 * @throws AppError 401, 403, 404, 409 for the last way to sign in
 */
export async function deleteIdentity(
  { db, issuers }: { db: Db; issuers: readonly Issuer[] },
  viewer: Viewer,
  id: string,
): Promise<string> {
  const account = demandFullRights(viewer);
  const { userId } = account;
  await inTransaction(db, async (tx) => {
    // Locks the user, because two concurrent removals could otherwise remove the last two ways to sign in.
    await tx.$executeRaw`select from users where id = ${userId} for update`;
    const row = isId('idn', id) ? await tx.identity.findUnique({ where: { id, userId } }) : null;
    if (!row) throw notFound('Identity');
    await syncOperator(tx, row, false);
    await tx.identity.delete({ where: { id } });
    await demandOtherSignIn(tx, issuers, userId);
    const sessions = await tx.browserSession.findMany({
      where: { userId, method: 'oidc', id: { not: account.credential.id } },
      select: { id: true },
    });
    await recordAudit(tx, account, {
      action: 'identity.delete',
      namespaceIds: [account.namespace.id],
      subject: id,
      name: findIssuerLabel(issuers, row.issuer) ?? row.issuer,
      details: { issuer: row.issuer },
    });
    await endSessions(
      tx,
      account,
      sessions.map((session) => session.id),
    );
  });
  return id;
}

/** @throws AppError 409 */
async function demandOtherSignIn(
  tx: Db,
  issuers: readonly Pick<Issuer, 'config'>[],
  userId: string,
): Promise<void> {
  const others = await tx.identity.count({
    where: { userId, issuer: { in: issuers.map(({ config }) => config.issuer) } },
  });
  if (others > 0) return;
  const tokens = await tx.accessToken.count({
    where: {
      userId,
      scopes: { isEmpty: true },
      namespaces: { isEmpty: true },
      repositories: { isEmpty: true },
      OR: [{ expiresAt: null }, { expiresAt: { gt: new Date() } }],
    },
  });
  if (tokens > 0) return;
  throw new AppError(
    'conflict',
    'This is your last way to sign in: create a personal access token with full rights first',
  );
}

/** Returns the display name of an identity provider; null if it is no longer configured. */
export function findIssuerLabel(
  issuers: readonly Pick<Issuer, 'config'>[],
  address: string,
): string | null {
  return issuers.find(({ config }) => config.issuer === address)?.config.label ?? null;
}
