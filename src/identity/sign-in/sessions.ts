/**
 * Browser sessions. Each session is a row, so that it can be listed and ended. The browser has the secret in a cookie,
 * and only its hash is stored. A session has the full rights of its user.
 */

import type pg from 'pg';
import { forbidden, notFound } from '../../base/errors.ts';
import { isId, newId } from '../../base/ids.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../../platform/database/paging.ts';
import { recordAudit } from '../audit.ts';
import {
  type AuthenticateDeps,
  authenticate,
  disabledUserError,
  SESSION_IDLE,
} from '../authenticate.ts';
import { demandFullRights, demandOwn, hashSecret, randomSecret } from '../credentials.ts';
import { type Account, hasFullRights, type Viewer } from '../permissions.ts';

/** Maximum lifetime since sign-in; unused sessions end sooner (`SESSION_IDLE` in `authenticate.ts`). */
export const SESSION_DAYS = 30;
const DAY_MS = 86_400_000;
/** Per user; above it, the least recently used session ends. */
const MAX_SESSIONS = 50;
const MAX_USER_AGENT = 300;

export type BrowserSession = {
  id: string;
  userId: string;
  method: string;
  userAgent: string;
  address: string | null;
  createdAt: Date;
  expiresAt: Date;
  lastUsedAt: Date;
};

export type Browser = { userAgent: string; address: string | null; requestId: string };

type SignedIn = {
  userId: string;
  username: string;
  namespaceId: string;
  method: 'token' | 'link' | 'oidc';
  accessTokenId?: string;
  /** Expiry of the token or identity that was used to sign in; unset: none. */
  expiresAt?: Date | null;
};

type Deps = { db: Db };

/**
 * Signs in with a personal access token. The session ends when the token expires or is deleted.
 * @returns the secret of the session
 * @throws AppError 401, 403 for a limited token, because the session would have more rights
 */
export async function signInByToken(
  services: AuthenticateDeps & { db: Db },
  token: string,
  browser: Browser,
): Promise<string> {
  const viewer = await authenticate(services, { kind: 'pat', token });
  if (viewer.kind === 'anonymous') throw viewer.failure;
  if (viewer.credential.kind !== 'pat' || !hasFullRights(viewer))
    throw forbidden('This token is limited: sign in with a token that has full rights');
  const { id } = viewer.credential;
  const row = await services.db.accessToken.findUnique({
    where: { id },
    select: { expiresAt: true },
  });
  const { userId, username, namespace } = viewer;
  return inTransaction(services.db, (tx) =>
    beginSession(tx, browser, {
      userId,
      username,
      namespaceId: namespace.id,
      method: 'token',
      accessTokenId: id,
      expiresAt: row?.expiresAt,
    }),
  );
}

/** @returns the secret of the session @throws AppError 401 for a disabled user */
export async function beginSession(
  tx: Db,
  { userAgent, address, requestId }: Browser,
  { userId, username, namespaceId, method, accessTokenId, expiresAt }: SignedIn,
): Promise<string> {
  const where = { id: userId, disabledAt: null };
  if ((await tx.user.count({ where })) === 0) throw disabledUserError(username);
  const secret = randomSecret();
  const latest = new Date(Date.now() + SESSION_DAYS * DAY_MS);
  const data = {
    id: newId('ses'),
    userId,
    method,
    accessTokenId,
    address,
    hash: hashSecret(secret),
    userAgent: userAgent.slice(0, MAX_USER_AGENT),
    expiresAt: expiresAt && expiresAt < latest ? expiresAt : latest,
  };
  const created = await tx.browserSession.create({ data, select: { id: true } });
  await tx.$executeRaw`
    delete from browser_sessions where id in (
      select id from browser_sessions where user_id = ${userId} and id <> ${created.id}
      order by last_used_at desc offset ${MAX_SESSIONS - 1})`;
  await recordAudit(
    tx,
    { userId, username, credential: null, from: { address, requestId } },
    {
      action: 'session.create',
      namespaceIds: [namespaceId],
      subject: created.id,
      name: method,
    },
  );
  return secret;
}

/** A page of the viewer's sessions after a cursor, newest first. @throws AppError 400, 401, 403 */
export async function sliceSessions(
  { db }: Deps,
  viewer: Viewer,
  ofUser: string,
  range: CursorPageRequest,
): Promise<CursorPage<BrowserSession>> {
  const { userId } = demandOwn(viewer, ofUser);
  const query = { where: { userId, expiresAt: { gt: new Date() } }, select: columns };
  return readCursorPage<BrowserSession>(db.browserSession, NEWEST_FIRST, range, query);
}

/** The viewer's sessions among `ids`. */
export async function findSessions(
  { db }: Deps,
  viewer: Viewer,
  ids: readonly string[],
): Promise<BrowserSession[]> {
  if (viewer.kind === 'anonymous' || !hasFullRights(viewer)) return [];
  return db.browserSession.findMany({
    where: { id: { in: [...ids] }, userId: viewer.userId },
    select: columns,
  });
}

/** The session ends immediately, also in open streams. @throws AppError 401, 403, 404 */
export async function deleteSession({ db }: Deps, viewer: Viewer, id: string): Promise<string> {
  const account = demandFullRights(viewer);
  if (!isId('ses', id) || (await endSessions(db, account, [id])).length === 0)
    throw notFound('Session');
  return id;
}

/** Ends all sessions of the viewer, or all other sessions. @returns their ids @throws AppError 401, 403 */
export async function deleteSessions(
  { db }: Deps,
  viewer: Viewer,
  { keepCurrent }: { keepCurrent: boolean },
): Promise<string[]> {
  const account = demandFullRights(viewer);
  const rows = await db.browserSession.findMany({
    where: { userId: account.userId, ...(keepCurrent && { id: { not: account.credential.id } }) },
    select: { id: true },
  });
  return endSessions(
    db,
    account,
    rows.map(({ id }) => id),
  );
}

/** Ends the sessions of the account among `ids`. @returns the ids of the ended sessions */
export async function endSessions(
  db: Db,
  account: Account,
  ids: readonly string[],
): Promise<string[]> {
  return inTransaction(db, async (tx) => {
    const ended: string[] = [];
    for (const id of ids) {
      const where = { id, userId: account.userId };
      const { count } = await tx.browserSession.deleteMany({ where });
      if (count === 0) continue;
      ended.push(id);
      await recordAudit(tx, account, {
        action: 'session.delete',
        namespaceIds: [account.namespace.id],
        subject: id,
        name: 'session',
      });
    }
    return ended;
  });
}

const columns = {
  id: true,
  userId: true,
  method: true,
  userAgent: true,
  address: true,
  createdAt: true,
  expiresAt: true,
  lastUsedAt: true,
} as const;

/** For `maintenance.ts`. @returns whether there may be more */
export async function removeOldSessions({ pool }: { pool: pg.Pool }): Promise<boolean> {
  await pool.query(
    `delete from browser_sessions where expires_at < now() or last_used_at < now() - ${SESSION_IDLE}`,
  );
  await pool.query(`delete from sign_in_links where expires_at < now()`);
  return false;
}
