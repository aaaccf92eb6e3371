/**
 * Kept artifacts are the artifacts of deleted jobs. They keep their URL, count as storage, and stay until a user deletes them.
 * Files and rows cannot be deleted in one transaction. So the row is first marked for removal (`removing`), which hides it;
 * then the files are removed, and then the row, with its share of the storage. If a server is killed in between, maintenance
 * finds the marked row and continues.
 */

import type { Prisma } from '../../../prisma/generated/client.ts';
import { notFound } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import { recordAudit } from '../../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction } from '../../platform/database/client.ts';
import { readCursorPage, type Sorting } from '../../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../../platform/database/paging.ts';
import { runStatement, type Transaction } from '../../platform/database/statement.ts';
import type { Storage } from '../../platform/storage/storage.ts';
import { KEEP_LABEL } from '../record/labels.ts';
import { visibleTo } from '../record/visibility.ts';
import { removeArtifacts } from './store.ts';

const keptColumns = {
  /** The id of the job. */
  id: true,
  name: true,
  namespaceId: true,
  namespace: { select: { name: true } },
  outputPath: true,
  sizeBytes: true,
  files: true,
  artifactsOf: true,
  deletedAt: true,
} as const satisfies Prisma.KeptArtifactsSelect;
export type KeptArtifacts = Prisma.KeptArtifactsGetPayload<{ select: typeof keptColumns }>;

const NEWEST: Sorting = { name: 'deleted_at', column: 'deletedAt', type: 'time', order: 'desc' };

/**
 * The condition for artifacts that are kept or may still be stored: while the last attempt of a deleted job is open, the row is
 * marked and its size is 0.
 */
export const IS_KEPT = '(not removing or size_bytes = 0)';

/**
 * Inserts a row for the artifacts of each job that has any. Call it before the rows of the jobs are deleted, in the same
 * transaction. If the last attempt may still store artifacts, the size is 0 and the row is marked, which hides it until they are
 * stored (`recordLateArtifacts`).
 * @param removing whether to mark the artifacts for removal
 */
export async function detachArtifacts(
  tx: Transaction,
  jobIds: readonly string[],
  removing: boolean,
): Promise<void> {
  await runStatement(tx, DETACH, [jobIds, removing]);
}

const DETACH = `
  insert into kept_artifacts
    (id, namespace_id, name, created_by_id, repository_id, output_path, size_bytes, files,
      artifacts_of, removing, exempt)
  select id, namespace_id, name, created_by_id, repository_id, coalesce(output_path, ''), coalesce(artifact_bytes, 0),
    coalesce(artifact_files, 0), artifacts_of, $2::bool or artifact_bytes is null,
    exists (select from job_labels where job_id = j.id and key = '${KEEP_LABEL}')
  from jobs j where id = any ($1::text[]) and (artifact_bytes is not null or (not $2::bool and output_path is not null
    and exists (select from job_attempts where job_id = j.id and started_at is not null and ended_at is null)))`;

/**
 * Records the artifacts that the last attempt of a job stored after the job was deleted.
 * @param stored null if the attempt stored nothing
 * @returns whether the artifacts are kept
 */
export async function recordLateArtifacts(
  { db }: { db: Db },
  jobId: string,
  stored: { artifactFiles: number; artifactBytes: bigint; artifactsOf: string } | null,
): Promise<boolean> {
  if (!stored) {
    await db.keptArtifacts.deleteMany({ where: { id: jobId, removing: true, sizeBytes: 0 } });
    return false;
  }
  return inTransaction(db, async (tx) => {
    // Deleted and inserted again, because the trigger that counts storage does not handle updates.
    const [row] = await tx.keptArtifacts.findMany({ where: { id: jobId } });
    const { count } = await tx.keptArtifacts.deleteMany({
      where: { id: jobId, OR: [{ removing: false }, { sizeBytes: 0 }] },
    });
    if (!row || count === 0) return false;
    const { artifactFiles: files, artifactBytes: sizeBytes, artifactsOf } = stored;
    await tx.keptArtifacts.create({
      data: { ...row, files, sizeBytes, artifactsOf, removing: false },
    });
    return true;
  });
}

/** Lists the kept artifacts of a namespace that the viewer may see, latest deletion first. @throws AppError 400 */
export async function listKeptArtifacts(
  { db }: { db: Db },
  viewer: Viewer,
  { namespaceId, ...range }: CursorPageRequest & { namespaceId: string },
): Promise<CursorPage<KeptArtifacts>> {
  // A viewer who may see a job may see its artifacts. The condition only uses columns that both tables have.
  const visible = visibleTo(viewer) as Prisma.KeptArtifactsWhereInput;
  const where: Prisma.KeptArtifactsWhereInput = { namespaceId, removing: false, AND: [visible] };
  return readCursorPage(db.keptArtifacts, NEWEST, range, { where, select: keptColumns });
}

/**
 * Deletes kept artifacts permanently. It requires the permission to delete their job.
 * @param id the id of the job
 * @throws AppError 401, 403, 404
 */
export async function deleteKeptArtifacts(
  services: { db: Db; storage: Storage },
  viewer: Viewer,
  id: string,
): Promise<string> {
  const author = demandAccount(viewer);
  const row =
    isId('job', id) &&
    (await services.db.keptArtifacts.findUnique({
      where: { id, removing: false },
      select: { name: true, namespaceId: true, repositoryId: true, createdById: true },
    }));
  if (!row) throw notFound('Artifacts');
  demand(viewer, row.createdById === author.userId ? 'job.deleteOwn' : 'job.deleteAny', row);
  await inTransaction(services.db, async (tx) => {
    const { count } = await tx.keptArtifacts.updateMany({
      where: { id, removing: false },
      data: { removing: true },
    });
    if (count === 0) throw notFound('Artifacts');
    await recordAudit(tx, author, {
      action: 'artifacts.delete',
      namespaceIds: [row.namespaceId],
      subject: id,
      name: row.name,
    });
  });
  await removeMarked(services, { id, namespaceId: row.namespaceId });
  return id;
}

/** Removes the files of a marked row, and then the row. */
export async function removeMarked(
  services: { db: Db; storage: Storage },
  { id, namespaceId }: { id: string; namespaceId: string },
): Promise<void> {
  await removeArtifacts(services, { namespaceId, jobId: id });
  await services.db.keptArtifacts.deleteMany({ where: { id, removing: true } });
}

const BATCH = 100;

/**
 * Continues interrupted removals, and removes the rows of attempts that did not store artifacts within a day, because their
 * server was killed.
 * @returns whether there may be more rows to remove
 */
export async function removeMarkedLeftovers(services: {
  db: Db;
  storage: Storage;
}): Promise<boolean> {
  // Plain SQL, because PostgreSQL uses the partial index only if the condition is a literal, not a parameter.
  const rows = await services.db.$queryRaw<{ id: string; namespaceId: string }[]>`
    select id, namespace_id as "namespaceId" from kept_artifacts
    where removing and (size_bytes > 0 or deleted_at < now() - interval '1 day') order by id limit ${BATCH}`;
  for (const row of rows) await removeMarked(services, row);
  return rows.length === BATCH;
}
