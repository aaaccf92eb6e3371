/**
 * Creates, changes and deletes repositories.
 *
 * The disk follows the database: the folder is created before the row commits and removed after the row is deleted, so
 * every row has a folder. A note of the operation is on disk first, and the next start cleans up after a kill
 * (`recovery.ts`).
 */

import type { Prisma } from '../../prisma/generated/client.ts';
import type { Visibility } from '../../prisma/generated/enums.ts';
import type { Config } from '../base/config/config.ts';
import { AppError, invalid, notFound } from '../base/errors.ts';
import { newId } from '../base/ids.ts';
import type { Logger } from '../base/log.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { PendingOperation } from '../git/disk/disk.ts';
import type { Git } from '../git/git.ts';
import { REF_PREFIX } from '../git/objects/refs.ts';
import { ZERO_ID } from '../git/transport/hooks.ts';
import { lockNamespace, resolveNamespace } from '../identity/accounts.ts';
import { type AuditAction, copyActor, recordAudit } from '../identity/audit.ts';
import { can, demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import { type Db, inTransaction, violatesUnique } from '../platform/database/client.ts';
import { type EventType, publish } from '../platform/events/outbox.ts';
import { requireQuota } from '../platform/limits/quotas.ts';
import { type DefaultBranchNote, detectBranchLanguage, syncHead } from './default-branch.ts';
import { readGitignoreTemplate } from './gitignore.ts';
import { checkBranch, checkDescription, checkName, nameKey } from './names.ts';
import { type PayloadRow, payloadColumns, payloadOf, type RepositoryEventData } from './payload.ts';
import {
  accessTarget,
  demandRepository,
  lockRepository,
  type RepositoryId,
  type Row,
  type Select,
} from './repositories.ts';

type CreateInput = {
  namespace: string;
  name: string;
  description: string;
  visibility: Visibility;
  defaultBranch: string;
  autoInit: boolean;
  contentAddressed: boolean;
  gitignoreTemplate?: string | null;
};

/** @throws AppError 400, 401, 403 (permission or quota), 404, 409 if the name is taken. */
export async function createRepository<S extends Select>(
  services: { db: Db; git: Git; config: Config },
  viewer: Viewer,
  input: CreateInput,
  select: S,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  const namespace = await resolveNamespace(services.db, input.namespace);
  demand(viewer, 'repository.create', { namespaceId: namespace.id });
  const { name, description, visibility, defaultBranch, contentAddressed } = input;
  checkName(name);
  checkDescription(description);
  checkBranch(defaultBranch);
  const files = await initialFiles(input);

  const { disk } = services.git;
  const id = newId('repo');
  const operation = await disk.beginOperation(id, { kind: 'create' });
  let mayHaveCommitted = false;
  try {
    await disk.create(
      id,
      defaultBranch,
      files && {
        message: 'Initial commit',
        author: { name: author.username, email: author.email },
        files,
      },
    );
    mayHaveCommitted = true;
    const row = await inTransaction(services.db, async (tx) => {
      const data = {
        id,
        namespaceId: namespace.id,
        name,
        nameKey: nameKey(name),
        description,
        visibility,
        defaultBranch,
        contentAddressed,
        branchCount: files ? 1 : 0,
      };
      await lockNamespace(tx, namespace.id, 'key share');
      await requireQuota({ ...services, db: tx }, namespace, 'repositories');
      const row = await tx.repository.create({
        data,
        select: { ...select, ...payloadColumns },
        relationLoadStrategy: 'join',
      });
      await publishEvent(tx, 'repository.created', row as unknown as PayloadRow, namespace);
      await recordAudit(tx, author, {
        action: 'repository.create',
        namespaceIds: [namespace.id],
        subject: id,
        name,
        details: { visibility },
      });
      return row;
    });
    await operation.finish();
    return row as unknown as Row<S>;
  } catch (error) {
    const translated = translateNameConflict(error);
    // After any other failure, the transaction may have committed, which the next start checks.
    if (!mayHaveCommitted || translated instanceof AppError)
      await undo(services.git, id, operation).catch(() => {});
    throw translated;
  }
}

/** The caller ignores errors, because the next start cleans up. */
async function undo({ disk }: Git, id: string, operation: PendingOperation): Promise<void> {
  await disk.remove(id);
  await operation.finish();
}

async function initialFiles({
  autoInit,
  gitignoreTemplate,
}: CreateInput): Promise<Record<string, string> | undefined> {
  if (gitignoreTemplate == null) return autoInit ? {} : undefined;
  if (!autoInit)
    throw invalid(
      'gitignoreTemplate',
      'needs a first commit: set autoInit to true, or leave gitignoreTemplate out',
    );
  return { '.gitignore': await readGitignoreTemplate(gitignoreTemplate) };
}

/** The id stays; the old clone URL stops working immediately. @throws AppError 400, 401, 403, 404, 409. */
export async function renameRepository<S extends Select>(
  services: { db: Db },
  viewer: Viewer,
  { name, ...key }: RepositoryId & { name: string },
  select: S,
): Promise<Row<S>> {
  return change(services, viewer, key, 'repository.rename', select, async (row) => {
    checkName(name);
    return { data: { name, nameKey: nameKey(name) }, details: { from: row.name, to: name } };
  });
}

/** @throws AppError 401, 403, 404. */
export async function changeVisibility<S extends Select>(
  services: { db: Db },
  viewer: Viewer,
  { visibility, ...key }: RepositoryId & { visibility: Visibility },
  select: S,
): Promise<Row<S>> {
  return change(services, viewer, key, 'repository.change_visibility', select, async (row) => ({
    data: { visibility },
    details: { from: row.visibility, to: visibility },
  }));
}

/**
 * Requires `admin` in both namespaces.
 * @throws AppError 400 if the repository is already in that namespace, 401, 403 (permission or quota), 404, 409 if the
 *   target namespace has a repository of that name.
 */
export async function transferRepository<S extends Select>(
  services: { db: Db; config: Config },
  viewer: Viewer,
  { newNamespace, ...key }: RepositoryId & { newNamespace: string },
  select: S,
): Promise<Row<S>> {
  return change(services, viewer, key, 'repository.transfer', select, async (row, tx) => {
    const owner = await resolveNamespace(tx, newNamespace);
    // Both namespaces track their storage. Locking in id order prevents a deadlock with a transfer in the opposite
    // direction.
    await tx.$executeRaw`
      select from namespaces where id in (${owner.id}, ${row.namespaceId}) order by id for no key update`;
    await lockNamespace(tx, owner.id, 'key share');
    demand(viewer, 'repository.create', { namespaceId: owner.id, repositoryId: row.id });
    if (owner.id === row.namespaceId)
      throw invalid('newNamespace', 'must differ from the current namespace of the repository');
    await requireQuota({ ...services, db: tx }, owner, 'repositories');
    await requireQuota({ ...services, db: tx }, owner, 'storageBytes', Number(row.sizeBytes));
    const details = { from: row.namespace.name, to: owner.name };
    return { data: { namespaceId: owner.id }, owner, details };
  });
}

type UpdateInput = RepositoryId & {
  description?: string | null;
  defaultBranch?: string | null;
  branchProtection?: boolean | null;
  secretScanning?: boolean | null;
};

/** Changes the fields that are set. @throws AppError 400, 401, 403, 404 for the repository or the default branch. */
export async function updateRepository<S extends Select>(
  services: { db: Db; git: Git; log: Logger; cluster: Cluster },
  viewer: Viewer,
  { id, namespace, ...changes }: UpdateInput,
  select: S,
): Promise<Row<S>> {
  const { description, defaultBranch } = changes;
  const key = { id, namespace };
  const changedFields = Object.fromEntries(
    Object.entries(changes).filter(([, value]) => value != null),
  );
  const update = (more: Prisma.RepositoryUncheckedUpdateInput) =>
    change(services, viewer, key, 'repository.update', select, async () => {
      if (description != null) checkDescription(description);
      return { data: { ...changedFields, ...more }, details: changedFields };
    });
  if (defaultBranch == null) return update({});

  checkBranch(defaultBranch);
  const target = accessTarget(await demandAdminAccess(services.db, viewer, key));
  const language = await detectBranchLanguage(services, id, defaultBranch);
  const note: DefaultBranchNote = { kind: 'default-branch' };
  const operation = await services.git.disk.beginOperation(id, note);
  // A push that is being recorded may have read the previous default branch. Incrementing `records` makes it measure
  // again.
  const row = await update({ language, records: { increment: 1 } });
  const by = demandAccount(viewer);
  const ref = REF_PREFIX.branch + defaultBranch;
  // The schedules are those of the file on the new default branch.
  await services.db.runTrigger.create({
    data: {
      id: newId('evt'),
      repositoryId: id,
      ref,
      before: ZERO_ID,
      after: ref,
      startsRun: false,
      mayCreateJobs: by.credential.kind !== 'job' && can(by, 'job.create', target),
      actor: copyActor(by),
    },
  });
  await syncHead(services, id);
  await operation.finish();
  return row;
}

/**
 * Deletes the row, then the folder with all data. Jobs of the repository stay, without a link to it.
 * @throws AppError 401, 403, 404.
 */
export async function deleteRepository(
  services: { db: Db; git: Git; log: Logger },
  viewer: Viewer,
  key: RepositoryId,
): Promise<string> {
  const { disk, objects } = services.git;
  const author = demandAccount(viewer);
  const row = await demandAdminAccess(services.db, viewer, key);
  const operation = await disk.beginOperation(row.id, { kind: 'delete' });
  await detachJobs(services.db, row.id);
  await inTransaction(services.db, async (tx) => {
    const { count } = await tx.repository.deleteMany({ where: { id: row.id } });
    if (count === 0) throw notFound('Repository');
    const owner = { id: row.namespaceId, name: row.namespace.name };
    await publishEvent(tx, 'repository.deleted', row, owner);
    await recordAudit(tx, author, {
      action: 'repository.delete',
      namespaceIds: [owner.id],
      subject: row.id,
      name: row.name,
    });
  }).catch(async (error) => {
    // A concurrent request deleted the repository, and removes its files.
    if (error instanceof AppError) await operation.finish();
    throw error;
  });
  objects.endIdle(disk.pathOf(row.id));
  try {
    await disk.remove(row.id);
    await operation.finish();
  } catch (error) {
    // The row is deleted, so the request succeeds. The next start removes the remaining files.
    services.log.error(
      { err: error, repository: row.id },
      'could not remove the files of a deleted repository; the next start retries',
    );
  }
  return row.id;
}

/** Jobs per statement; their rows are locked for about 0.1 s. */
const JOB_BATCH = 1_000;

/**
 * Detaches the jobs in batches before the repository is deleted. The deleting transaction would otherwise update all of
 * them: with 300,000 jobs it exceeded the transaction timeout, and the repository could not be deleted.
 */
async function detachJobs(db: Db, id: string): Promise<void> {
  for (let detached = JOB_BATCH; detached === JOB_BATCH; )
    detached = await db.$executeRaw`
      update jobs set repository_id = null where id = any (array (
        select id from jobs where repository_id = ${id} limit ${JOB_BATCH} for update skip locked))`;
}

type AdminRow = Awaited<ReturnType<typeof demandAdminAccess>>;

/** Reads the row of a repository that its admin is about to change. @throws AppError 401, 403, 404 */
export function demandAdminAccess(db: Db, viewer: Viewer, key: RepositoryId) {
  return demandRepository(db, viewer, key, 'repository.administer', payloadColumns);
}

type Change = {
  data: Prisma.RepositoryUncheckedUpdateInput;
  /** The new owner, if it changes. */
  owner?: { id: string; name: string };
  /** For the audit log. */
  details: Prisma.InputJsonObject;
};

/** Audit action → event that the change publishes. */
const EVENT_OF = {
  'repository.rename': 'repository.renamed',
  'repository.change_visibility': 'repository.updated',
  'repository.update': 'repository.updated',
  'repository.transfer': 'repository.transferred',
} as const satisfies Partial<Record<AuditAction, EventType>>;

/** Changes a row as its admin, publishes the event and writes the audit entry, in one transaction. */
async function change<S extends Select>(
  { db }: { db: Db },
  viewer: Viewer,
  key: RepositoryId,
  action: keyof typeof EVENT_OF,
  select: S,
  plan: (row: AdminRow, tx: Db) => Promise<Change>,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  return inTransaction(db, async (tx) => {
    // The lock makes concurrent changes and deletions wait, so the row that is read is the row that is changed.
    await lockRepository(tx, key.id);
    const row = await demandAdminAccess(tx, viewer, key);
    const planned = await plan(row, tx);
    const { data, owner = { id: row.namespaceId, name: row.namespace.name }, details } = planned;
    const updated = await tx.repository.update({
      where: { id: row.id },
      data: { ...data, updatedAt: new Date() },
      select: { ...select, ...payloadColumns },
      relationLoadStrategy: 'join',
    });
    const changed = updated as unknown as PayloadRow;
    await publishEvent(tx, EVENT_OF[action], changed, owner);
    const namespaceIds = [owner.id, row.namespaceId] as const;
    await recordAudit(tx, author, {
      action,
      namespaceIds,
      subject: row.id,
      name: changed.name,
      details,
    });
    return updated as unknown as Row<S>;
  }).catch((error) => {
    throw translateNameConflict(error);
  });
}

async function publishEvent(
  tx: Db,
  type: EventType,
  row: PayloadRow,
  owner: { id: string; name: string },
): Promise<void> {
  const data: RepositoryEventData = { repository: payloadOf(row, owner.name) };
  await publish(tx, { type, namespaceId: owner.id, subject: row.id, data });
}

function translateNameConflict(error: unknown): unknown {
  return violatesUnique(error, 'name_key') ? nameTaken() : error;
}

function nameTaken(): AppError {
  const message = 'name: a repository of that name exists in the namespace';
  return new AppError('already_exists', message, { field: 'name' });
}
