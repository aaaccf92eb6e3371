/**
 * Personal access tokens and API keys: made, listed, read and deleted by the user they act for.
 *
 * A credential can only ever do less than its user: scopes and narrowing take away, and the user's roles are
 * read at each use. Only a credential with full rights manages credentials, or a narrowed one could make
 * itself a wider twin. Deleting takes effect at once everywhere, because nothing caches credentials.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import { type Db, violatesUnique } from '../db.ts';
import { AppError, forbidden, invalid, notFound } from '../errors.ts';
import { isId, newId } from '../ids.ts';
import type { Services } from '../services.ts';
import {
  type Account,
  can,
  demand,
  demandAccount,
  demandOperator,
  hasFullRights,
  type Scope,
  type Viewer,
} from './access.ts';
import { namespaceNamed, userNamed } from './accounts.ts';
import { hashSecret, KEY_NAME, newToken, randomSecret } from './tokens.ts';

const MAX_DAYS = 365;
/** Of namespaces or repositories that a token is narrowed to. */
const MAX_NARROWED = 100;
const DAY_MS = 86_400_000;

export type AccessToken = {
  id: string;
  name: string;
  userId: string;
  /** In the answer that creates it, and never again. */
  token?: string;
  scopes: Scope[];
  /** Names; empty: no narrowing. */
  namespaces: string[];
  /** Ids; empty: no narrowing. */
  repositories: string[];
  createdAt: Date;
  expiresAt: Date | null;
  lastUsedAt: Date | null;
};

export type ApiKey = {
  id: string;
  name: string;
  /** `name$secret`, in the answer that creates it, and never again. */
  key?: string;
  /** The one namespace it works in; null: all of its user's. */
  namespace: string | null;
  scopes: Scope[];
  createdAt: Date;
  expiresAt: Date | null;
  lastUsedAt: Date | null;
};

type Deps = Pick<Services, 'db'>;

/**
 * A token for the viewer, or, by the operator, for the user named.
 *
 * `name`: 1 to 100 characters, unique per user (an expired token keeps its name until it is deleted); it
 * stands in a URL, so no `/` and no control characters. `expiresInDays`: 1 to 365. `namespaces` are names and
 * `repositories` ids, at most 100 each, kept as ids: they follow renames and never widen.
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
): Promise<AccessToken> {
  const account = demandFullRights(viewer);
  checkTokenName(input.name);
  const expiresAt = expiry(input.expiresInDays);
  const userId = await ownerOfToken(db, account, input.username);
  const namespaces = await Promise.all(
    atMost('namespaces', input.namespaces).map((name) => namespaceNamed(db, name)),
  );
  const repositories = atMost('repositories', input.repositories);
  await demandReadable(db, account, repositories);

  const token = newToken();
  const row = await db.accessToken
    .create({
      data: {
        id: newId('pat'),
        userId,
        name: input.name,
        hash: hashSecret(token),
        scopes: [...new Set(input.scopes)],
        namespaces: namespaces.map(({ id }) => id),
        repositories,
        expiresAt,
      },
      select: tokenColumns,
    })
    .catch((error) => {
      throw taken(error, 'You already have a token of this name');
    });
  return { ...toAccessToken(row, namesOf(namespaces)), token };
}

/** The viewer's tokens, newest first. @throws AppError 401, 403. */
export async function listAccessTokens({ db }: Deps, viewer: Viewer): Promise<AccessToken[]> {
  const { userId } = demandFullRights(viewer);
  const rows = await db.accessToken.findMany({
    where: { userId },
    orderBy: { id: 'desc' },
    select: tokenColumns,
  });
  return withNamespaceNames(db, rows);
}

/** @throws AppError 401, 403, 404. */
export async function getAccessToken(
  { db }: Deps,
  viewer: Viewer,
  name: string,
): Promise<AccessToken> {
  const { userId } = demandFullRights(viewer);
  const row = await db.accessToken.findUnique({
    where: { userId_name: { userId, name: searchable(name) } },
    select: tokenColumns,
  });
  const [token] = await withNamespaceNames(db, row ? [row] : []);
  if (!token) throw notFound('Access token');
  return token;
}

/** Those of the ids that are the viewer's own; a credential that may not manage them finds none. */
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
  return withNamespaceNames(db, rows);
}

/** The token stops working at once, also when it is the one in use. @throws AppError 401, 403, 404. */
export async function deleteAccessToken(
  services: Deps,
  viewer: Viewer,
  name: string,
): Promise<string> {
  const { id } = await getAccessToken(services, viewer, name);
  await services.db.accessToken.deleteMany({ where: { id } });
  return id;
}

/**
 * An API key that acts for the viewer, bound to one namespace when one is given: its admins then manage it
 * too, and it loses what its user loses there.
 *
 * `name`: 1 to 100 of `A-Za-z0-9._-` (`$` and `:` divide name from secret), unique on the server.
 * `expiresInDays`: 1 to 365.
 * @throws AppError 400, 401, 403 without `admin` in the namespace, 404, 409 for a taken name.
 */
export async function createApiKey(
  { db }: Deps,
  viewer: Viewer,
  input: {
    name: string;
    namespace?: string | null;
    scopes?: readonly Scope[] | null;
    expiresInDays: number;
  },
): Promise<ApiKey> {
  const { userId } = demandFullRights(viewer);
  checkKeyName(input.name);
  const expiresAt = expiry(input.expiresInDays);
  const namespace = input.namespace ? await namespaceNamed(db, input.namespace) : null;
  if (namespace) demand(viewer, 'namespace.administer', { namespaceId: namespace.id });

  const secret = randomSecret();
  const row = await db.apiKey
    .create({
      data: {
        id: newId('key'),
        userId,
        name: input.name,
        namespaceId: namespace?.id ?? null,
        hash: hashSecret(secret),
        scopes: [...new Set(input.scopes)],
        expiresAt,
      },
      select: keyColumns,
    })
    .catch((error) => {
      throw taken(error, 'A key of this name exists; names are unique on the server');
    });
  return { ...toApiKey(row), key: `${input.name}$${secret}` };
}

/** The viewer's keys, and those bound to namespaces where the viewer is `admin`; newest first. */
export async function listApiKeys({ db }: Deps, viewer: Viewer): Promise<ApiKey[]> {
  const account = demandFullRights(viewer);
  const administered = [...account.roles].flatMap(([id, role]) => (role === 'admin' ? id : []));
  const rows = await db.apiKey.findMany({
    where: {
      OR: [
        { userId: account.userId },
        { namespaceId: { in: [account.namespace.id, ...administered] } },
      ],
    },
    orderBy: { id: 'desc' },
    select: keyColumns,
  });
  return rows.map(toApiKey);
}

/** @throws AppError 401, 403 for another's key, 404. */
export async function getApiKey({ db }: Deps, viewer: Viewer, name: string): Promise<ApiKey> {
  const account = demandFullRights(viewer);
  const row = await db.apiKey.findUnique({
    where: { name: searchable(name) },
    select: keyColumns,
  });
  if (!row) throw notFound('API key');
  if (!manages(account, row)) throw forbidden('This key is not yours');
  return toApiKey(row);
}

/** Those of the ids that the viewer manages. */
export async function findApiKeys(
  { db }: Deps,
  viewer: Viewer,
  ids: readonly string[],
): Promise<ApiKey[]> {
  if (viewer.kind === 'anonymous' || !hasFullRights(viewer)) return [];
  const rows = await db.apiKey.findMany({ where: { id: { in: [...ids] } }, select: keyColumns });
  return rows.filter((row) => manages(viewer, row)).map(toApiKey);
}

/** The key stops working at once. @throws AppError 401, 403, 404. */
export async function deleteApiKey(services: Deps, viewer: Viewer, name: string): Promise<string> {
  const { id } = await getApiKey(services, viewer, name);
  await services.db.apiKey.deleteMany({ where: { id } });
  return id;
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

const keyColumns = {
  id: true,
  userId: true,
  name: true,
  namespaceId: true,
  namespace: { select: { name: true } },
  scopes: true,
  createdAt: true,
  expiresAt: true,
  lastUsedAt: true,
} as const satisfies Prisma.ApiKeySelect;
type KeyRow = Prisma.ApiKeyGetPayload<{ select: typeof keyColumns }>;

function demandFullRights(viewer: Viewer): Account {
  const account = demandAccount(viewer);
  if (hasFullRights(account)) return account;
  throw forbidden('Credentials are managed with a credential of full rights');
}

async function ownerOfToken(db: Db, viewer: Account, username: string | null | undefined) {
  if (username == null || username === viewer.username) return viewer.userId;
  demandOperator(viewer);
  return userNamed(db, username);
}

async function demandReadable(db: Db, viewer: Viewer, ids: readonly string[]): Promise<void> {
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

function manages(account: Account, { userId, namespaceId }: KeyRow): boolean {
  if (userId === account.userId) return true;
  return namespaceId !== null && can(account, 'namespace.administer', { namespaceId });
}

/** One query for all rows' names. */
async function withNamespaceNames(db: Db, rows: readonly TokenRow[]): Promise<AccessToken[]> {
  const ids = [...new Set(rows.flatMap((row) => row.namespaces))];
  const namespaces = ids.length
    ? await db.namespace.findMany({
        where: { id: { in: ids } },
        select: { id: true, name: true },
      })
    : [];
  return rows.map((row) => toAccessToken(row, namesOf(namespaces)));
}

function namesOf(namespaces: readonly { id: string; name: string }[]): Map<string, string> {
  return new Map(namespaces.map(({ id, name }) => [id, name]));
}

function toAccessToken(row: TokenRow, names: ReadonlyMap<string, string>): AccessToken {
  return {
    ...row,
    scopes: row.scopes as Scope[],
    namespaces: row.namespaces.flatMap((id) => names.get(id) ?? []),
  };
}

function toApiKey({ namespace, ...row }: KeyRow): ApiKey {
  return { ...row, scopes: row.scopes as Scope[], namespace: namespace?.name ?? null };
}

function expiry(days: number): Date {
  if (!Number.isInteger(days) || days < 1 || days > MAX_DAYS)
    throw invalid('expiresInDays', `must be from 1 to ${MAX_DAYS}`);
  return new Date(Date.now() + days * DAY_MS);
}

function atMost(field: string, values: readonly string[] | null | undefined): string[] {
  const unique = [...new Set(values)];
  if (unique.length > MAX_NARROWED) throw invalid(field, `at most ${MAX_NARROWED} can be named`);
  return unique;
}

/** Of any script and with spaces, but what it looks like in a URL must be what it is. */
function checkTokenName(name: string): void {
  const fine =
    /^[^\p{C}/]{1,100}$/u.test(name) && name.trim() === name && name !== '.' && name !== '..';
  if (!fine)
    throw invalid(
      'name',
      'must be 1 to 100 characters, without control characters, a slash, or a space at either end',
    );
}

function checkKeyName(name: string): void {
  if (!KEY_NAME.test(name) || name === '.' || name === '..')
    throw invalid('name', 'must be 1 to 100 of A-Z, a-z, 0-9, ".", "_" and "-"');
}

/** PostgreSQL refuses text with a NUL in it; no name has one. */
function searchable(name: string): string {
  return name.includes('\0') ? '' : name;
}

function taken(error: unknown, message: string): unknown {
  return violatesUnique(error) ? new AppError('already_exists', message, { field: 'name' }) : error;
}
