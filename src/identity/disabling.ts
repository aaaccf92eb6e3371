/**
 * Disables and enables users. All credentials of a disabled user are rejected (`authenticate.ts`), sign-in as that user
 * is not possible, and open streams end at the next recheck. No data is removed, so enabling restores everything.
 */

import type { User } from '../../prisma/generated/client.ts';
import { OPERATORS_LOCK } from '../base/advisory-locks.ts';
import { AppError } from '../base/errors.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { resolveUser } from './accounts.ts';
import { recordAudit } from './audit.ts';
import { type Account, demandOperator, type Viewer } from './permissions.ts';

type Deps = { db: Db };

/**
 * For operators. Jobs of the user continue.
 * @throws AppError 401, 403, 404, 409 for the viewer and the last operator
 */
export async function disableUser(
  { db }: Deps,
  viewer: Viewer,
  { username }: { username: string },
): Promise<User> {
  const operator = demandOperator(viewer);
  const { userId, namespaceId } = await resolveUser(db, username);
  return inTransaction(db, async (tx) => {
    await demandNotSelfOrLastOperator(tx, operator, userId);
    return setDisabled(tx, operator, { userId, namespaceId }, new Date());
  });
}

/** For operators. @throws AppError 401, 403, 404 */
export async function enableUser(
  { db }: Deps,
  viewer: Viewer,
  { username }: { username: string },
): Promise<User> {
  const operator = demandOperator(viewer);
  const user = await resolveUser(db, username);
  return inTransaction(db, (tx) => setDisabled(tx, operator, user, null));
}

async function setDisabled(
  tx: Db,
  operator: Account,
  { userId, namespaceId }: { userId: string; namespaceId: string },
  disabledAt: Date | null,
): Promise<User> {
  const { count } = await tx.user.updateMany({
    where: { id: userId, disabledAt: disabledAt ? null : { not: null } },
    data: { disabledAt },
  });
  const user = await tx.user.findUniqueOrThrow({ where: { id: userId } });
  if (count > 0)
    await recordAudit(tx, operator, {
      action: disabledAt ? 'user.disable' : 'user.enable',
      namespaceIds: [namespaceId],
      subject: userId,
      name: user.username,
    });
  return user;
}

/**
 * Holds a lock until the transaction ends, so that two operators cannot disable each other at the same time.
 * @throws AppError 409 for the viewer and the last operator
 */
export async function demandNotSelfOrLastOperator(
  tx: Db,
  operator: Account,
  userId: string,
): Promise<void> {
  if (userId === operator.userId)
    throw new AppError('conflict', 'You cannot disable or delete yourself: ask another operator');
  await tx.$executeRaw`select pg_advisory_xact_lock(hashtext(${OPERATORS_LOCK}))`;
  const others = await tx.user.count({
    where: { operator: true, disabledAt: null, id: { not: userId } },
  });
  if (others === 0)
    throw new AppError('conflict', 'The last operator cannot be disabled or deleted');
}
