/**
 * Checks quotas of namespaces. The limits are those of the plan (plans.ts), even if rate limits are off.
 *
 * No check becomes slower as a namespace grows: repositories, active jobs and webhooks are counted through an index up to the
 * limit, and the database maintains the number of stored bytes (`namespaces.storage_bytes`).
 */

import { Prisma } from '../../../prisma/generated/client.ts';
import type { Plan } from '../../../prisma/generated/enums.ts';
import { quotaLock } from '../../base/advisory-locks.ts';
import type { Config } from '../../base/config/config.ts';
import { PLAN_LIMITS, UNLIMITED } from '../../base/config/plans.ts';
import { AppError } from '../../base/errors.ts';
import type { Db } from '../database/client.ts';
import { runStatement, type Transaction } from '../database/statement.ts';

/** SQL for the bytes that are reserved for pushes and uploads (`storage.ts`) of the namespace whose row is `n`. */
export const RESERVED_BYTES = `(
  (select coalesce(sum(bytes), 0) from storage_reservations where namespace_id = n.id and expires_at > now())
  + (select coalesce(sum(u.size), 0) from large_uploads u join repositories o on o.id = u.repository_id
     where o.namespace_id = n.id and not exists (
       select from large_files f where f.repository_id = u.repository_id and f.oid = u.oid)))`;

type Quota = 'repositories' | 'activeJobs' | 'webhooks' | 'storageBytes';

const QUOTA_NAMES: Record<Exclude<Quota, 'storageBytes'>, string> = {
  repositories: 'repositories',
  activeJobs: 'queued and running jobs',
  webhooks: 'webhooks',
};

/**
 * Must be called in the transaction that adds an object, before its row is written. Objects are counted under an advisory
 * lock that lasts until the commit, so if two requests add the last allowed object, the second is refused. A check of storage
 * takes no lock and may be outside a transaction, because the exact size is known only afterwards.
 *
 * @param adding number of objects, or bytes
 * @throws AppError 403 `quota_exceeded`
 */
export async function requireQuota(
  { db, config }: { config: Config } & { db: Db | Transaction },
  namespace: { id: string; plan: Plan },
  quota: Quota,
  adding = 1,
): Promise<void> {
  const limit = limitOf({ config }, namespace.plan, quota);
  if (limit >= UNLIMITED && quota !== 'storageBytes') return;
  if (quota !== 'storageBytes')
    await runStatement(db, 'select pg_advisory_xact_lock(hashtextextended($1, 0))::text', [
      quotaLock(quota, namespace.id),
    ]);
  const { text, values } = buildUsageSql(quota, namespace.id, limit);
  const [row] = await runStatement<{ used: bigint | string }>(db, text, values);
  const used = Number(row?.used ?? 0);
  if (used + adding <= limit) return;
  if (quota === 'storageBytes') throw storageExceeded(namespace.plan, { limit, used, adding });
  throw new AppError(
    'quota_exceeded',
    `The ${namespace.plan} plan allows ${limit} ${QUOTA_NAMES[quota]} in a namespace`,
  );
}

/** Whether the plan has no limit. Then `requireQuota` runs no query and needs no transaction. */
export function isUnlimited(
  services: { config: Config },
  { plan }: { plan: Plan },
  quota: Exclude<Quota, 'storageBytes'>,
): boolean {
  return limitOf(services, plan, quota) >= UNLIMITED;
}

function limitOf({ config }: { config: Config }, plan: Plan, quota: Quota): number {
  const table = config.rateLimits === 'off' ? PLAN_LIMITS : config.rateLimits;
  return table[plan][quota];
}

/**
 * Checks the storage quota of a namespace whose row the caller has read, and has locked if the result must hold until the
 * commit.
 * @throws AppError 403 `quota_exceeded`
 */
export function requireStorage(
  services: { config: Config },
  namespace: { plan: Plan; storageBytes: bigint },
  adding: number,
): void {
  if (adding <= storageLeft(services, namespace)) return;
  const { plan, storageBytes } = namespace;
  const limit = storageLimit(services, plan);
  throw storageExceeded(plan, { limit, used: Number(storageBytes), adding });
}

/** @param adding null if only this is known: more bytes than remain */
export function storageExceeded(
  plan: Plan,
  { limit, used, adding }: { limit: number; used: number; adding: number | null },
): AppError {
  const needed = adding === null ? 'more than is left' : `${formatSize(adding)} more`;
  return new AppError(
    'quota_exceeded',
    `Storage quota exceeded: the ${plan} plan allows ${formatSize(limit)} in a namespace, ` +
      `${formatSize(used)} are in use or reserved by running uploads, and this request needs ${needed}`,
  );
}

/** Such as `1.5 GiB`. */
function formatSize(bytes: number): string {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  const unit = Math.min(Math.floor(Math.log2(Math.max(1, bytes)) / 10), units.length - 1);
  return `${Number((bytes / 1024 ** unit).toFixed(1)).toLocaleString('en')} ${units[unit]}`;
}

/** Remaining bytes of a namespace. */
export function storageLeft(
  services: { config: Config },
  { plan, storageBytes }: { plan: Plan; storageBytes: bigint },
): number {
  return Math.max(0, storageLimit(services, plan) - Number(storageBytes));
}

/** Bytes that a namespace on this plan may store. */
export function storageLimit(services: { config: Config }, plan: Plan): number {
  return limitOf(services, plan, 'storageBytes');
}

/** Limits of the output of one job: bytes of its log including line ends, lines, and points of metrics. */
export function outputLimits(
  { config }: { config: Config },
  plan: Plan,
): { bytes: number; lines: number; metricPoints: number } {
  const table = config.rateLimits === 'off' ? PLAN_LIMITS : config.rateLimits;
  const { logBytes, logLines, metricPoints } = table[plan];
  return { bytes: logBytes, lines: logLines, metricPoints };
}

function buildUsageSql(quota: Quota, id: string, limit: number): Prisma.Sql {
  switch (quota) {
    case 'storageBytes':
      return Prisma.sql`select storage_bytes + ${Prisma.raw(RESERVED_BYTES)} as used from namespaces n where id = ${id}`;
    case 'repositories':
      return Prisma.sql`select count(*) as used from
        (select from repositories where namespace_id = ${id} limit ${limit}) counted`;
    case 'activeJobs':
      return Prisma.sql`select count(*) as used from
        (select from jobs where namespace_id = ${id} and status in ('queued', 'running')
         limit ${limit}) counted`;
    case 'webhooks':
      // A deleted webhook has no rows here.
      return Prisma.sql`select count(*) as used from
        (select from webhook_namespaces where namespace_id = ${id} limit ${limit}) counted`;
  }
}
