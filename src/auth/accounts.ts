/** Users, organizations and their members. */
import type { Prisma, PrismaClient } from '../../prisma/generated/client.ts';
import type { Config } from '../config.ts';
import { newId } from '../ids.ts';
import { hashSecret, newToken } from './tokens.ts';

/**
 * On the very first start: the operator, its namespace, and one token without expiry.
 * @returns the token when it was made here, so that it can be shown once.
 */
export async function seedOperator(
  db: PrismaClient,
  admin: Config['admin'],
): Promise<string | undefined> {
  return db.$transaction(async (tx) => {
    // Two replicas on one database may both be starting for the first time.
    await tx.$executeRaw`select pg_advisory_xact_lock(hashtext('loam.seedOperator'))`;
    if (await tx.user.findFirst({ where: { operator: true }, select: { id: true } }))
      return undefined;
    const { username } = admin;
    const userId = newId('user');
    await createUserRow(tx, {
      id: userId,
      username,
      email: `${username}@localhost`,
      plan: 'unlimited',
      operator: true,
    });
    const token = admin.token ?? newToken();
    await tx.accessToken.create({
      data: { id: newId('pat'), userId, name: 'first', hash: hashSecret(token) },
    });
    return admin.token ? undefined : token;
  });
}

async function createUserRow(
  tx: Prisma.TransactionClient,
  user: Prisma.UserCreateInput,
): Promise<void> {
  const { id, username: name, plan } = user;
  await tx.user.create({ data: user });
  await tx.namespace.create({ data: { id: newId('ns'), name, kind: 'user', plan, userId: id } });
}
