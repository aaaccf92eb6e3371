/** API keys for programs. Admins of a namespace also manage the keys that are bound to it. */
import type { Prisma } from '../../prisma/generated/client.ts';
import { forbidden, invalid, notFound } from '../base/errors.ts';
import { newId } from '../base/ids.ts';
import { type Db, inTransaction } from '../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { resolveNamespace } from './accounts.ts';
import { recordAudit } from './audit.ts';
import {
  API_KEY_NAME,
  computeLifetime,
  demandFullRights,
  demandOwn,
  hashSecret,
  randomSecret,
  toSearchableName,
  toTakenError,
} from './credentials.ts';
import {
  type Account,
  can,
  demand,
  hasFullRights,
  type Scope,
  type Viewer,
} from './permissions.ts';

export type ApiKey = {
  id: string;
  name: string;
  /** Name of the only namespace that the key works in; null for all namespaces of its user. */
  namespace: string | null;
  scopes: Scope[];
  createdAt: Date;
  expiresAt: Date | null;
  lastUsedAt: Date | null;
};

type Deps = { db: Db };

/**
 * Creates an API key that acts for the viewer. A key that is bound to a namespace is also managed by its admins, and
 * loses the rights that its user loses there.
 *
 * `name`: 1 to 100 of `A-Za-z0-9._-` (`$` and `:` divide name from secret), unique on the server.
 * `expiresInDays`: 1 to 365.
 * @returns the key and `name$secret`, which is not stored
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
): Promise<{ apiKey: ApiKey; key: string }> {
  const account = demandFullRights(viewer);
  checkKeyName(input.name);
  const life = computeLifetime(input.expiresInDays);
  const namespace = input.namespace ? await resolveNamespace(db, input.namespace) : null;
  if (namespace) demand(viewer, 'namespace.administer', { namespaceId: namespace.id });

  const secret = randomSecret();
  const scopes = [...new Set(input.scopes)];
  const data = {
    id: newId('key'),
    userId: account.userId,
    name: input.name,
    namespaceId: namespace?.id ?? null,
    hash: hashSecret(secret),
    scopes,
    ...life,
  };
  const row = await inTransaction(db, async (tx) => {
    const created = await tx.apiKey.create({ data, select: keyColumns });
    await recordAudit(tx, account, {
      action: 'api_key.create',
      namespaceIds: [namespace?.id ?? account.namespace.id],
      subject: created.id,
      name: created.name,
      details: { scopes, expiresAt: life.expiresAt.toISOString() },
    });
    return created;
  }).catch((error) => {
    throw toTakenError(error, 'name: a key of this name exists; names are unique on the server');
  });
  return { apiKey: toApiKey(row), key: `${input.name}$${secret}` };
}

/** Returns a page of the keys by cursor. @throws AppError 400, 401, 403 */
export async function sliceApiKeys(
  { db }: Deps,
  viewer: Viewer,
  ofUser: string,
  range: CursorPageRequest,
): Promise<CursorPage<ApiKey>> {
  const where = whereManagedBy(demandOwn(viewer, ofUser));
  const query = { where, select: keyColumns };
  return readCursorPage(db.apiKey, NEWEST_FIRST, range, query, (rows: KeyRow[]) =>
    rows.map(toApiKey),
  );
}

/** Lists the viewer's keys and the keys bound to namespaces where the viewer is `admin`, newest first. */
export async function listApiKeys({ db }: Deps, viewer: Viewer): Promise<ApiKey[]> {
  const rows = await db.apiKey.findMany({
    where: whereManagedBy(demandFullRights(viewer)),
    orderBy: { id: 'desc' },
    select: keyColumns,
  });
  return rows.map(toApiKey);
}

/** Returns the rule of `manages` as a query condition. */
function whereManagedBy({ userId, namespace, roles }: Account): Prisma.ApiKeyWhereInput {
  const administered = [...roles].flatMap(([id, role]) => (role === 'admin' ? id : []));
  return { OR: [{ userId }, { namespaceId: { in: [namespace.id, ...administered] } }] };
}

/** @throws AppError 401, 403 for a key that the viewer does not manage, 404. */
export async function getApiKey({ db }: Deps, viewer: Viewer, name: string): Promise<ApiKey> {
  return toApiKey(await getManagedKey(db, demandFullRights(viewer), name));
}

async function getManagedKey(db: Db, account: Account, name: string): Promise<KeyRow> {
  const row = await db.apiKey.findUnique({
    where: { name: toSearchableName(name) },
    select: keyColumns,
  });
  if (!row) throw notFound('API key');
  if (!manages(account, row)) throw forbidden('You do not manage this API key');
  return row;
}

/** Returns the keys among `ids` that the viewer manages. */
export async function findApiKeys(
  { db }: Deps,
  viewer: Viewer,
  ids: readonly string[],
): Promise<ApiKey[]> {
  if (viewer.kind === 'anonymous' || !hasFullRights(viewer)) return [];
  const rows = await db.apiKey.findMany({ where: { id: { in: [...ids] } }, select: keyColumns });
  return rows.filter((row) => manages(viewer, row)).map(toApiKey);
}

/** The key stops working immediately. @throws AppError 401, 403, 404. */
export async function deleteApiKey({ db }: Deps, viewer: Viewer, name: string): Promise<string> {
  const account = demandFullRights(viewer);
  const { id, namespaceId } = await getManagedKey(db, account, name);
  return inTransaction(db, async (tx) => {
    const { count } = await tx.apiKey.deleteMany({ where: { id } });
    if (count === 0) throw notFound('API key');
    await recordAudit(tx, account, {
      action: 'api_key.delete',
      // Only its user can delete a key that is not bound to a namespace.
      namespaceIds: [namespaceId ?? account.namespace.id],
      subject: id,
      name,
    });
    return id;
  });
}

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

function manages(account: Account, { userId, namespaceId }: KeyRow): boolean {
  if (userId === account.userId) return true;
  return namespaceId !== null && can(account, 'namespace.administer', { namespaceId });
}

function toApiKey({ namespace, ...row }: KeyRow): ApiKey {
  return { ...row, scopes: row.scopes as Scope[], namespace: namespace?.name ?? null };
}

function checkKeyName(name: string): void {
  if (!API_KEY_NAME.test(name) || name === '.' || name === '..')
    throw invalid('name', 'must be 1 to 100 characters from A-Z, a-z, 0-9, ".", "_" and "-"');
}
