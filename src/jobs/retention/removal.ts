/** Removes the jobs and the kept artifacts of deleted namespaces (see `../../identity/deletion.ts`). */
import type { Db } from '../../platform/database/client.ts';
import { inTransaction } from '../../platform/database/client.ts';
import { detachArtifacts } from '../artifacts/kept.ts';

const BATCH = 100;

/**
 * Removes a batch of jobs and marks a batch of kept artifacts; other maintenance tasks remove the artifacts and the logs. A job
 * that is queued or running, or whose artifacts are still being stored, is removed after its attempt has ended.
 * @returns whether there may be more to remove
 */
export async function removeJobsOfDeleted({ db }: { db: Db }): Promise<boolean> {
  const jobs = await db.$queryRaw<{ id: string }[]>`
    select job.id from namespaces n cross join lateral (
      select id from jobs where namespace_id = n.id and status not in ('queued', 'running')
        and not exists (select from job_attempts where job_id = jobs.id and ended_at is null)
      limit ${BATCH}
    ) job where n.deleted_at is not null limit ${BATCH}`;
  for (const { id } of jobs)
    await inTransaction(db, async (tx) => {
      // Another server may have removed the job.
      if ((await tx.$executeRaw`select from jobs where id = ${id} for update`) === 0) return;
      await detachArtifacts(tx, [id], true);
      await tx.job.deleteMany({ where: { id } });
    });
  const marked = await db.$executeRaw`
    update kept_artifacts set removing = true where id = any (array (
      select kept.id from namespaces n cross join lateral (
        select id from kept_artifacts where namespace_id = n.id and not removing limit ${BATCH}
      ) kept where n.deleted_at is not null limit ${BATCH}))`;
  return jobs.length === BATCH || marked === BATCH;
}
