/**
 * What is done for who runs the server, without a viewer to ask: the first user, the token of the environment,
 * and a token for somebody who has lost theirs.
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

/** The name of the token that `LOAM_ADMIN_TOKEN` gives. */
const ENV_TOKEN_NAME = 'LOAM_ADMIN_TOKEN';

/**
 * At each start: the operator and its namespace, unless there is one, and the token of the environment, valid
 * for the operator and without expiry. A changed one replaces the one before. Without it, the first start makes
 * a token.
 * @returns the token that was made, so that it can be shown once.
 * @throws ConfigError when the environment's token is already another credential.
 */
export async function seedOperator(
  db: PrismaClient,
  admin: Config['admin'],
): Promise<string | undefined> {
  return db.$transaction(async (tx) => {
    // Two replicas on one database may both be starting for the first time.
    await tx.$executeRaw`select pg_advisory_xact_lock(hashtext(${FIRST_OPERATOR_LOCK}))`;
    const operator = await tx.user.findFirst({
      where: { operator: true },
      // The token of the environment would do nothing for one who is disabled.
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

/** A token of full rights. @returns its secret */
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
    const narrowed = scopes.length + namespaces.length + repositories.length > 0;
    if (same.userId === userId && !narrowed && !expiresAt) return;
    throw new ConfigError(
      'LOAM_ADMIN_TOKEN: this is a token already that expires, is narrowed or belongs to another user',
    );
  }
  const whole = { hash, scopes: [], namespaces: [], repositories: [], expiresAt: null };
  const configured = await tx.accessToken.upsert({
    where: { userId_name: { userId, name: ENV_TOKEN_NAME } },
    create: { ...whole, id: newId('pat'), userId, name: ENV_TOKEN_NAME },
    update: { ...whole, lastUsedAt: null },
  });
  await recordTokenCreation(tx, SERVER, namespaceId, configured);
}

/**
 * A token of full rights for a user, made by who holds the machine.
 * `expiresInDays`: 1 to 365; unset: it does not expire, as the first one.
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
