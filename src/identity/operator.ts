/**
 * Actions of the person who runs the server, without a viewer: the first user, the token in the environment, and tokens
 * for users who lost theirs.
 */
import type { PrismaClient } from '../../prisma/generated/client.ts';
import { FIRST_OPERATOR_LOCK } from '../base/advisory-locks.ts';
import { type Config, ConfigError } from '../base/config/config.ts';
import { newId } from '../base/ids.ts';
import { type Db, inTransaction } from '../platform/database/client.ts';
import { checkTokenName, recordTokenCreation } from './access-tokens.ts';
import { insertUser, resolveUser } from './accounts.ts';
import { SERVER } from './audit.ts';
import { computeLifetime, hashSecret, newToken, toTakenError } from './credentials.ts';

/** Name of the token that the environment variable sets. */
const ENV_TOKEN_NAME = 'LOAM_ADMIN_TOKEN';

/**
 * Runs at each start. Creates the operator unless one exists, and stores the token of `LOAM_ADMIN_TOKEN` for the
 * operator, without expiry, replacing an earlier value. Without the variable, the first start creates a token.
 * @returns the created token, to be shown once
 * @throws ConfigError when the token of the environment is already another credential
 */
export async function seedOperator(
  db: PrismaClient,
  admin: Config['admin'],
): Promise<string | undefined> {
  return db.$transaction(async (tx) => {
    // Two servers on one database may run their first start at the same time.
    await tx.$executeRaw`select pg_advisory_xact_lock(hashtext(${FIRST_OPERATOR_LOCK}))`;
    const operator = await tx.user.findFirst({
      where: { operator: true },
      // Enabled operators first: the token of the environment would be useless for a disabled one.
      orderBy: [{ disabledAt: { sort: 'asc', nulls: 'first' } }, { id: 'asc' }],
      select: { id: true, namespace: { select: { id: true } } },
    });
    const { username } = admin;
    const { id: userId, namespace } =
      operator ??
      (await insertUser(tx, SERVER, {
        id: newId('user'),
        username,
        email: `${username}@localhost`,
        plan: 'unlimited',
        operator: true,
      }));
    const owner = { userId, namespaceId: namespace?.id ?? '' };
    if (admin.token) await upsertEnvToken(tx, owner, admin.token);
    if (admin.token || operator) return undefined;
    return insertToken(tx, owner, { name: 'first' });
  });
}

type Owner = { userId: string; namespaceId: string };

/** Inserts a token of full rights. @returns its secret */
async function insertToken(
  tx: Db,
  { userId, namespaceId }: Owner,
  data: { name: string; createdAt?: Date; expiresAt?: Date },
): Promise<string> {
  const token = newToken();
  const created = await tx.accessToken.create({
    data: { ...data, id: newId('pat'), userId, hash: hashSecret(token) },
  });
  await recordTokenCreation(tx, SERVER, namespaceId, created);
  return token;
}

async function upsertEnvToken(
  tx: Db,
  { userId, namespaceId }: Owner,
  token: string,
): Promise<void> {
  const hash = hashSecret(token);
  const same = await tx.accessToken.findUnique({ where: { hash } });
  if (same) {
    const { scopes, namespaces, repositories, expiresAt } = same;
    const restrictions = scopes.length + namespaces.length + repositories.length;
    if (same.userId === userId && restrictions === 0 && !expiresAt) return;
    throw new ConfigError(
      'LOAM_ADMIN_TOKEN: this token exists already, and it expires, is limited or belongs to another user; set another value',
    );
  }
  const unlimited = { hash, scopes: [], namespaces: [], repositories: [], expiresAt: null };
  const configured = await tx.accessToken.upsert({
    where: { userId_name: { userId, name: ENV_TOKEN_NAME } },
    create: { ...unlimited, id: newId('pat'), userId, name: ENV_TOKEN_NAME },
    update: { ...unlimited, lastUsedAt: null },
  });
  await recordTokenCreation(tx, SERVER, namespaceId, configured);
}

/**
 * Creates a token of full rights for a user, for the person who has access to the machine.
 * `expiresInDays`: 1 to 365; unset: the token does not expire.
 * @throws AppError 400, 404, 409 for a taken name.
 */
export async function issueToken(
  { db }: { db: Db },
  { username, name, expiresInDays }: { username: string; name: string; expiresInDays?: number },
): Promise<string> {
  checkTokenName(name);
  const data = { name, ...(expiresInDays !== undefined && computeLifetime(expiresInDays)) };
  const owner = await resolveUser(db, username);
  return inTransaction(db, (tx) => insertToken(tx, owner, data)).catch((error) => {
    throw toTakenError(error, `${username} already has a token of this name`);
  });
}
