import { expect, test } from 'vitest';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';
import { newId } from '../../src/base/ids.ts';
import { inTransaction } from '../../src/platform/database/client.ts';
import { requireQuota } from '../../src/platform/limits/quotas.ts';
import { startApp } from '../support/harness.ts';

test('the last place is given once, and what a namespace stores is known without counting it', async () => {
  await using app = await startApp({
    config: {
      rateLimits: {
        ...PLAN_LIMITS,
        free: { ...PLAN_LIMITS.free, repositories: 3, storageBytes: 100 },
      },
    },
  });
  await app.user('alice', 'free');
  const { services } = app.app;
  const { db } = services;
  const namespace = await db.namespace.findUniqueOrThrow({ where: { name: 'alice' } });
  const create = (name: string) =>
    inTransaction(db, async (tx) => {
      await requireQuota({ ...services, db: tx }, namespace, 'repositories');
      const id = newId('repo');
      const data = { id, name, nameKey: name, namespaceId: namespace.id, defaultBranch: 'main' };
      return tx.repository.create({ data });
    });

  const tried = await Promise.allSettled(['a', 'b', 'c', 'd', 'e', 'f'].map(create));
  expect(tried.filter(({ status }) => status === 'fulfilled')).toHaveLength(3);
  expect(tried.find(({ status }) => status === 'rejected')).toMatchObject({
    reason: { code: 'quota_exceeded', status: 403 },
  });

  const stored = async (name: string) =>
    (await db.namespace.findUniqueOrThrow({ where: { name } })).storageBytes;
  const [first, second] = await db.repository.findMany({ orderBy: { id: 'asc' } });
  await db.repository.update({ where: { id: first?.id }, data: { sizeBytes: 70 } });
  await db.repository.update({ where: { id: second?.id }, data: { sizeBytes: 20 } });
  expect(await stored('alice')).toBe(90n);
  await requireQuota(services, namespace, 'storageBytes', 10);
  await expect(requireQuota(services, namespace, 'storageBytes', 11)).rejects.toThrow('100 bytes');

  const admin = await db.namespace.findUniqueOrThrow({ where: { name: 'admin' } });
  await db.repository.update({ where: { id: first?.id }, data: { namespaceId: admin.id } });
  await db.repository.delete({ where: { id: second?.id } });
  expect([await stored('alice'), await stored('admin')]).toEqual([0n, 70n]);
});
