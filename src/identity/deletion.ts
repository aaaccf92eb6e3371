/**
 * Deletes organizations and users. Repositories and unfinished jobs must be gone first, so no data of value is lost.
 *
 * One transaction frees the name of a namespace and removes all access to it. Its finished jobs with logs and artifacts
 * are removed in the background (`../jobs/retention/removal.ts`), and then its row. Audit entries stay.
 */
import type pg from 'pg';
import { AppError, notFound } from '../base/errors.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { notifyReaders } from '../platform/events/outbox.ts';
import { resolveNamespace, resolveUser } from './accounts.ts';
import { recordAudit } from './audit.ts';
import { demandNotSelfOrLastOperator } from './disabling.ts';
import { demand, demandAccount, demandOperator, type Viewer } from './permissions.ts';

type Deps = { db: Db };

/**
 * Deletes an organization, for its admins and operators.
 * @returns the id of the deleted namespace
 * @throws AppError 401, 403, 404, 409 for the namespace of a user, and while the namespace is not empty
 */
export async function deleteOrganization(
  { db }: Deps,
  viewer: Viewer,
  { name }: { name: string },
): Promise<string> {
  const author = demandAccount(viewer);
  const namespace = await resolveNamespace(db, name);
  demand(viewer, 'namespace.administer', { namespaceId: namespace.id });
  if (namespace.kind === 'user')
    throw new AppError('conflict', 'This is the namespace of a user: delete the user instead');
  await inTransaction(db, async (tx) => {
    await deleteNamespace(tx, namespace);
    await recordAudit(tx, author, {
      action: 'organization.delete',
      namespaceIds: [namespace.id],
      subject: namespace.id,
      name: namespace.name,
    });
  });
  return namespace.id;
}

/**
 * Deletes a user, for operators.
 * @returns the id of the deleted user
 * @throws AppError 401, 403, 404, 409 for the viewer, the last operator, the last admin of an organization, and while
 * the
 *   user's namespace is not empty
 */
export async function deleteUser(
  { db }: Deps,
  viewer: Viewer,
  { username }: { username: string },
): Promise<string> {
  const operator = demandOperator(viewer);
  const { userId, namespaceId } = await resolveUser(db, username);
  const name = username.toLowerCase();
  const demandDeletable = async (tx: Db) => {
    await demandNotSelfOrLastOperator(tx, operator, userId);
    await demandNotLastAdmin(tx, userId);
    await demandEmpty(tx, { id: namespaceId, name });
  };
  await inTransaction(db, demandDeletable);
  await removeAsJobCreator(db, userId);
  await inTransaction(db, async (tx) => {
    await demandDeletable(tx);
    await deleteNamespace(tx, { id: namespaceId, name });
    // Cascades to credentials, sessions, identities, memberships and file locks.
    await tx.user.delete({ where: { id: userId } });
    await recordAudit(tx, operator, {
      action: 'user.delete',
      namespaceIds: [namespaceId],
      subject: userId,
      name,
    });
  });
  return userId;
}

/** Marks a namespace as deleted, and frees its name. @throws AppError 404, 409 while the namespace is not empty */
async function deleteNamespace(tx: Db, namespace: { id: string; name: string }): Promise<void> {
  const { id } = namespace;
  // Transactions that add a repository or a member lock the row too (`lockNamespace`), and see `deleted_at` afterwards.
  const locked = await tx.$executeRaw`
    select from namespaces where id = ${id} and deleted_at is null for update`;
  if (locked === 0) throw notFound('Namespace');
  await demandEmpty(tx, namespace);
  await tx.member.deleteMany({ where: { namespaceId: id } });
  await tx.apiKey.deleteMany({ where: { namespaceId: id } });
  // With the machines that joined with them.
  await tx.workerToken.deleteMany({ where: { namespaceId: id } });
  await tx.storedValue.deleteMany({ where: { namespaceId: id } });
  await removeFromWebhooks(tx, id);
  const data = { name: id, userId: null, deletedAt: new Date() };
  await tx.namespace.update({ where: { id }, data });
}

/** @throws AppError 409 */
async function demandEmpty(
  tx: Db,
  { id: namespaceId, name }: { id: string; name: string },
): Promise<void> {
  const repositories = await tx.repository.count({ where: { namespaceId } });
  const jobs = await tx.job.count({
    where: { namespaceId, status: { in: ['queued', 'running'] } },
  });
  const remaining = [
    ...(repositories > 0 ? [`repositories: ${repositories}`] : []),
    ...(jobs > 0 ? [`unfinished jobs: ${jobs}`] : []),
  ];
  if (remaining.length > 0)
    throw new AppError(
      'conflict',
      `${name} is not empty (${remaining.join(', ')}): delete or transfer its repositories and cancel its jobs first`,
    );
}

/** Deletes webhooks without another namespace (`webhooks/retention.ts` removes their rows). */
async function removeFromWebhooks(tx: Db, namespaceId: string): Promise<void> {
  const rows = await tx.$queryRaw<{ id: string }[]>`
    select w.id from webhooks w join webhook_namespaces n on n.webhook_id = w.id
    where n.namespace_id = ${namespaceId} order by w.id for update of w`;
  const ids = rows.map(({ id }) => id);
  await tx.webhookNamespace.deleteMany({ where: { namespaceId } });
  await tx.webhook.updateMany({
    where: { id: { in: ids }, namespaces: { none: {} } },
    data: { deletedAt: new Date() },
  });
  // The namespace that the sender counts a webhook for must be one of its namespaces.
  await tx.$executeRaw`
    update webhook_queues q set namespace_id = n.namespace_id
    from (
      select webhook_id, min(namespace_id) as namespace_id from webhook_namespaces
      where webhook_id = any(${ids}) group by webhook_id
    ) n where n.webhook_id = q.webhook_id and q.namespace_id = ${namespaceId}`;
  for (const id of ids) await notifyReaders(tx, `webhook:${id}`);
}

/** @throws AppError 409 naming the organizations that would have no admin left */
async function demandNotLastAdmin(tx: Db, userId: string): Promise<void> {
  const alone = await tx.namespace.findMany({
    where: {
      kind: 'organization',
      members: {
        some: { userId, role: 'admin' },
        none: { userId: { not: userId }, role: 'admin', user: { disabledAt: null } },
      },
    },
    orderBy: { name: 'asc' },
    select: { name: true },
  });
  if (alone.length > 0)
    throw new AppError(
      'conflict',
      `The user is the last admin of ${alone.map(({ name }) => name).join(', ')}: make another member an admin first`,
    );
}

/** Rows of jobs that are locked at a time. */
const JOB_BATCH = 1_000;

/**
 * Clears `created_by_id` in batches before the user is deleted, because the deletion would otherwise update all the
 * user's jobs in one transaction. Runs per namespace, because the index starts with the namespace.
 */
async function removeAsJobCreator(db: Db, userId: string): Promise<void> {
  for (let left = JOB_BATCH; left === JOB_BATCH; )
    left = await db.$executeRaw`
      update jobs set created_by_id = null where id = any (array (
        select job.id from namespaces n cross join lateral (
          select id from jobs where namespace_id = n.id and created_by_id = ${userId}
          limit ${JOB_BATCH} for update skip locked
        ) job limit ${JOB_BATCH}))`;
}

/**
 * For `maintenance.ts`: removes the rows of deleted namespaces without repositories, jobs, artifacts and
 * checkpoints, and their counters.
 * @returns whether there may be more
 */
export async function removeDeletedNamespaces({ pool }: { pool: pg.Pool }): Promise<boolean> {
  await pool.query(`
    with gone as (
      delete from namespaces n where deleted_at is not null
        and not exists (select from repositories where namespace_id = n.id)
        and not exists (select from jobs where namespace_id = n.id)
        and not exists (select from kept_artifacts where namespace_id = n.id)
        and not exists (select from checkpoints where namespace_id = n.id)
      returning id)
    delete from list_counts where namespace_id in (select id from gone)`);
  return false;
}
