/**
 * Whether a namespace has room for more (decisions section 6): each number is its plan's, from the table in
 * plans.ts, also where rate limits are off.
 *
 * Nothing here grows with history: repositories, active jobs and webhooks are counted through an index and no further
 * than the limit, storage is a number that the database keeps (`namespaces.storage_bytes`).
 */
import { Prisma } from '../../prisma/generated/client.ts';
import type { Plan } from '../../prisma/generated/enums.ts';
import { runStatement, type Transaction } from '../database/statement.ts';
import { AppError } from '../errors.ts';
import type { Services } from '../services.ts';
import { planLimits, UNLIMITED } from './plans.ts';

export type Quota = 'repositories' | 'activeJobs' | 'webhooks' | 'storageBytes';

const NAMES: Record<Quota, string> = {
  repositories: 'repositories',
  activeJobs: 'queued and running jobs',
  webhooks: 'webhooks',
  storageBytes: 'bytes of storage',
};

/**
 * Call it in the transaction that adds, before the row is written: two requests for the last place then come
 * one after the other, because the count is made under a lock of the namespace that lasts until the commit.
 * Outside a transaction it compares with the present number: enough for storage, whose size is known afterwards.
 *
 * @param adding how many more, or bytes
 * @throws AppError 403 `quota_exceeded`
 */
export async function demandRoom(
  { db, config }: Pick<Services, 'config'> & { db: Services['db'] | Transaction },
  namespace: { id: string; plan: Plan },
  what: Quota,
  adding = 1,
): Promise<void> {
  const limit = limitOf({ config }, namespace.plan, what);
  if (limit >= UNLIMITED && what !== 'storageBytes') return;
  if (what !== 'storageBytes')
    await runStatement(db, 'select pg_advisory_xact_lock(hashtextextended($1, 0))::text', [
      `${what} ${namespace.id}`,
    ]);
  const { text, values } = usage(what, namespace.id, limit);
  const [row] = await runStatement<{ used: bigint | string }>(db, text, values);
  if (Number(row?.used ?? 0) + adding > limit) throw exceeded(namespace.plan, what, limit);
}

/** Whether a plan has no limit for it: `demandRoom` then has nothing to ask, and needs no transaction. */
export function isUnlimited(
  services: Pick<Services, 'config'>,
  { plan }: { plan: Plan },
  what: Exclude<Quota, 'storageBytes'>,
): boolean {
  return limitOf(services, plan, what) >= UNLIMITED;
}

function limitOf({ config }: Pick<Services, 'config'>, plan: Plan, what: Quota): number {
  const table = config.rateLimits === 'off' ? planLimits : config.rateLimits;
  return table[plan][what];
}

/**
 * For whoever has the namespace's row, and its lock if the answer is to hold until the commit.
 * @throws AppError 403 `quota_exceeded`
 */
export function demandStorage(
  services: Pick<Services, 'config'>,
  namespace: { plan: Plan; storageBytes: bigint },
  adding: number,
): void {
  if (adding > storageLeft(services, namespace)) {
    const { plan } = namespace;
    throw exceeded(plan, 'storageBytes', storageLimit(services, plan));
  }
}

function exceeded(plan: Plan, what: Quota, limit: number): AppError {
  const message = `The ${plan} plan allows ${limit} ${NAMES[what]} in a namespace`;
  return new AppError('quota_exceeded', message);
}

/** Bytes that a namespace may still store, for bounding what is on its way in. */
export function storageLeft(
  services: Pick<Services, 'config'>,
  { plan, storageBytes }: { plan: Plan; storageBytes: bigint },
): number {
  return Math.max(0, storageLimit(services, plan) - Number(storageBytes));
}

/** Bytes that a namespace on a plan may store. */
export function storageLimit(services: Pick<Services, 'config'>, plan: Plan): number {
  return limitOf(services, plan, 'storageBytes');
}

/** What the log of one job may hold on a plan: bytes of text with line ends, and lines. */
export function logLimits(
  { config }: Pick<Services, 'config'>,
  plan: Plan,
): { bytes: number; lines: number } {
  const table = config.rateLimits === 'off' ? planLimits : config.rateLimits;
  return { bytes: table[plan].logBytes, lines: table[plan].logLines };
}

function usage(what: Quota, id: string, limit: number): Prisma.Sql {
  switch (what) {
    case 'storageBytes':
      return Prisma.sql`select storage_bytes as used from namespaces where id = ${id}`;
    case 'repositories':
      return Prisma.sql`select count(*) as used from
        (select from repositories where namespace_id = ${id} limit ${limit}) counted`;
    case 'activeJobs':
      return Prisma.sql`select count(*) as used from
        (select from jobs where namespace_id = ${id} and status in ('queued', 'running')
         limit ${limit}) counted`;
    case 'webhooks':
      // A deleted one has no rows here.
      return Prisma.sql`select count(*) as used from
        (select from webhook_namespaces where namespace_id = ${id} limit ${limit}) counted`;
  }
}
