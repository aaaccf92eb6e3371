/** Personal access tokens. Each belongs to a user, and only that user can see it. */
import type { Prisma } from '../../prisma/generated/client.ts';
import { invalid, notFound } from '../base/errors.ts';
import { isId, newId } from '../base/ids.ts';
import { type Db, inTransaction } from '../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { resolveNamespace } from './accounts.ts';
import { type Actor, recordAudit } from './audit.ts';
import {
  computeLifetime,
  demandFullRights,
  demandOwn,
  hashSecret,
  newToken,
  resolveCredentialOwner,
  toSearchableName,
  toTakenError,
} from './credentials.ts';
import { demand, hasFullRights, type Scope, type Viewer } from './permissions.ts';

/** Namespaces or repositories that a token can be restricted to. */
const MAX_RESTRICTIONS = 100;

export type AccessToken = {
  id: string;
  name: string;
  userId: string;
  scopes: Scope[];
  /** Names of the only namespaces it works in; empty: all. */
  namespaces: string[];
  /** Ids of the only repositories it works for; empty: all. */
  repositories: string[];
  createdAt: Date;
  expiresAt: Date | null;
  lastUsedAt: Date | null;
};

type Deps = { db: Db };

/**
 * Creates a token for the viewer; an operator may create one for another user.
 *
 * `name`: 1 to 100 characters, unique per user (an expired token keeps its name until it is deleted). It is part of a
 * URL, so `/` and control characters are refused. `expiresInDays`: 1 to 365. `namespaces` (names) and `repositories`
 * (ids), at most 100 each, are stored as ids, so they follow renames.
 * @returns the token and its secret, which is not stored
 * @throws AppError 400, 401, 403, 404 (user, namespace, repository), 409 for a taken name.
 */
export async function createAccessToken(
  { db }: Deps,
  viewer: Viewer,
  input: {
    name: string;
    username?: string | null;
    expiresInDays: number;
    scopes?: readonly Scope[] | null;
    namespaces?: readonly string[] | null;
    repositories?: readonly string[] | null;
  },
): Promise<{ accessToken: AccessToken; token: string }> {
  const account = demandFullRights(viewer);
  checkTokenName(input.name);
  const life = computeLifetime(input.expiresInDays);
  const owner = await resolveCredentialOwner(db, account, input.username);
  const namespaces = await Promise.all(
    checkRestriction('namespaces', input.namespaces).map((name) => resolveNamespace(db, name)),
  );
  const repositories = checkRestriction('repositories', input.repositories);
  await demandReadableRepositories(db, account, repositories);

  const token = newToken();
  const data = {
    id: newId('pat'),
    userId: owner.userId,
    name: input.name,
    hash: hashSecret(token),
    scopes: [...new Set(input.scopes)],
    namespaces: namespaces.map(({ id }) => id),
    repositories,
    ...life,
  };
  const row = await inTransaction(db, async (tx) => {
    const created = await tx.accessToken.create({ data, select: tokenColumns });
    await recordTokenCreation(tx, account, owner.namespaceId, created);
    return created;
  }).catch((error) => {
    throw toTakenError(error, 'name: you already have a token of this name');
  });
  return { accessToken: toAccessToken(row, toNameMap(namespaces)), token };
}

/** A page of the viewer's tokens after a cursor, newest first. @throws AppError 400, 401, 403. */
export async function sliceAccessTokens(
  { db }: Deps,
  viewer: Viewer,
  ofUser: string,
  range: CursorPageRequest,
): Promise<CursorPage<AccessToken>> {
  const { userId } = demandOwn(viewer, ofUser);
  const query = { where: { userId }, select: tokenColumns };
  return readCursorPage(db.accessToken, NEWEST_FIRST, range, query, (rows: TokenRow[]) =>
    toAccessTokens(db, rows),
  );
}

/** All of the viewer's tokens, newest first. @throws AppError 401, 403. */
export async function listAccessTokens({ db }: Deps, viewer: Viewer): Promise<AccessToken[]> {
  const { userId } = demandFullRights(viewer);
  const rows = await db.accessToken.findMany({
    where: { userId },
    orderBy: { id: 'desc' },
    select: tokenColumns,
  });
  return toAccessTokens(db, rows);
}

/** @throws AppError 401, 403, 404. */
export async function getAccessToken(
  { db }: Deps,
  viewer: Viewer,
  name: string,
): Promise<AccessToken> {
  const { userId } = demandFullRights(viewer);
  const row = await db.accessToken.findUnique({
    where: { userId_name: { userId, name: toSearchableName(name) } },
    select: tokenColumns,
  });
  const [token] = await toAccessTokens(db, row ? [row] : []);
  if (!token) throw notFound('Access token');
  return token;
}

/** The viewer's tokens among `ids`; none for a credential without full rights. */
export async function findAccessTokens(
  { db }: Deps,
  viewer: Viewer,
  ids: readonly string[],
): Promise<AccessToken[]> {
  if (viewer.kind === 'anonymous' || !hasFullRights(viewer)) return [];
  const rows = await db.accessToken.findMany({
    where: { id: { in: [...ids] }, userId: viewer.userId },
    select: tokenColumns,
  });
  return toAccessTokens(db, rows);
}

/** The token stops working immediately, even if it is the token of this request. @throws AppError 401, 403, 404. */
export async function deleteAccessToken(
  services: Deps,
  viewer: Viewer,
  name: string,
): Promise<string> {
  const account = demandFullRights(viewer);
  const { id } = await getAccessToken(services, viewer, name);
  await inTransaction(services.db, async (tx) => {
    const { count } = await tx.accessToken.deleteMany({ where: { id } });
    if (count === 0) throw notFound('Access token');
    await recordAudit(tx, account, {
      action: 'access_token.delete',
      namespaceIds: [account.namespace.id],
      subject: id,
      name,
    });
  });
  return id;
}

/** Records the creation of a token in the audit log of its user's namespace. */
export async function recordTokenCreation(
  tx: Db,
  by: Actor,
  namespaceId: string,
  token: Pick<TokenRow, 'id' | 'name' | 'scopes' | 'namespaces' | 'repositories' | 'expiresAt'>,
): Promise<void> {
  const { id, name, scopes, namespaces, repositories, expiresAt } = token;
  await recordAudit(tx, by, {
    action: 'access_token.create',
    namespaceIds: [namespaceId],
    subject: id,
    name,
    details: { scopes, namespaces, repositories, expiresAt: expiresAt?.toISOString() ?? null },
  });
}

const tokenColumns = {
  id: true,
  userId: true,
  name: true,
  scopes: true,
  namespaces: true,
  repositories: true,
  createdAt: true,
  expiresAt: true,
  lastUsedAt: true,
} as const satisfies Prisma.AccessTokenSelect;
type TokenRow = Prisma.AccessTokenGetPayload<{ select: typeof tokenColumns }>;

async function demandReadableRepositories(
  db: Db,
  viewer: Viewer,
  ids: readonly string[],
): Promise<void> {
  if (ids.length === 0) return;
  if (!ids.every((id) => isId('repo', id))) throw notFound('Repository');
  const found = await db.repository.findMany({
    where: { id: { in: [...ids] } },
    select: { id: true, namespaceId: true, visibility: true },
  });
  if (found.length < ids.length) throw notFound('Repository');
  for (const { id, namespaceId, visibility } of found)
    demand(viewer, 'repository.read', { namespaceId, repositoryId: id, visibility });
}

async function toAccessTokens(db: Db, rows: readonly TokenRow[]): Promise<AccessToken[]> {
  const ids = [...new Set(rows.flatMap((row) => row.namespaces))];
  const namespaces = ids.length
    ? await db.namespace.findMany({
        where: { id: { in: ids }, deletedAt: null },
        select: { id: true, name: true },
      })
    : [];
  return rows.map((row) => toAccessToken(row, toNameMap(namespaces)));
}

function toNameMap(namespaces: readonly { id: string; name: string }[]): Map<string, string> {
  return new Map(namespaces.map(({ id, name }) => [id, name]));
}

function toAccessToken(row: TokenRow, names: ReadonlyMap<string, string>): AccessToken {
  return {
    ...row,
    scopes: row.scopes as Scope[],
    namespaces: row.namespaces.flatMap((id) => names.get(id) ?? []),
  };
}

function checkRestriction(field: string, values: readonly string[] | null | undefined): string[] {
  const unique = [...new Set(values)];
  if (unique.length > MAX_RESTRICTIONS)
    throw invalid(field, `must contain at most ${MAX_RESTRICTIONS}`);
  return unique;
}

/** Any script and spaces are allowed, but no characters that change or hide a URL. @throws AppError 400. */
export function checkTokenName(name: string): void {
  const isValid =
    /^[^\p{C}/]{1,100}$/u.test(name) && name.trim() === name && name !== '.' && name !== '..';
  if (!isValid)
    throw invalid(
      'name',
      'must be 1 to 100 characters, without control characters, slashes, or spaces at either end',
    );
}
