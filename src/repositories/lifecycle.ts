/**
 * Repositories from creation to deletion.
 *
 * The disk follows the database. A repository lies on disk before its row commits and is removed after its
 * row is gone, so whoever finds a row finds the repository; what a kill leaves between is noted beforehand
 * and cleared at the next start (`recovery.ts`).
 */

import type { Prisma } from '../../prisma/generated/client.ts';
import type { Visibility } from '../../prisma/generated/enums.ts';
import type { Config } from '../base/config/config.ts';
import { AppError, invalid, notFound } from '../base/errors.ts';
import { newId } from '../base/ids.ts';
import type { Logger } from '../base/log.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { Begun } from '../git/disk/disk.ts';
import type { Git } from '../git/git.ts';
import { holdNamespace, namespaceNamed } from '../identity/accounts.ts';
import { type AuditAction, record } from '../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import { type Db, inTransaction, violatesUnique } from '../platform/database/client.ts';
import { type EventType, publish } from '../platform/events/outbox.ts';
import { demandRoom } from '../platform/limits/quotas.ts';
import { alignHead, type BegunDefaultBranch, languageOfBranch } from './default-branch.ts';
import { gitignore } from './gitignore.ts';
import { checkBranch, checkDescription, checkName, nameKey } from './names.ts';
import { type PayloadRow, payloadColumns, payloadOf, type RepositoryEventData } from './payload.ts';
import {
  demandRepository,
  lockRepository,
  type RepositoryId,
  type Row,
  type Select,
} from './repositories.ts';

export type CreateInput = {
  namespace: string;
  name: string;
  description: string;
  visibility: Visibility;
  defaultBranch: string;
  autoInit: boolean;
  contentAddressed: boolean;
  gitignoreTemplate?: string | null;
};

/** @throws AppError 400, 401, 403 (right or quota), 404, 409 for a taken name. */
export async function createRepository<S extends Select>(
  services: { db: Db; git: Git; config: Config },
  viewer: Viewer,
  input: CreateInput,
  select: S,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  const namespace = await namespaceNamed(services.db, input.namespace);
  demand(viewer, 'repository.create', { namespaceId: namespace.id });
  const { name, description, visibility, defaultBranch, contentAddressed } = input;
  checkName(name);
  checkDescription(description);
  checkBranch(defaultBranch);
  const files = await firstFiles(input);

  const { disk } = services.git;
  const id = newId('repo');
  const begun = await disk.begin(id, { kind: 'create' });
  let committing = false;
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
    committing = true;
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
      await holdNamespace(tx, namespace.id, 'key share');
      await demandRoom({ ...services, db: tx }, namespace, 'repositories');
      const row = await tx.repository.create({
        data,
        select: { ...select, ...payloadColumns },
        relationLoadStrategy: 'join',
      });
      await announce(tx, 'repository.created', row as unknown as PayloadRow, namespace);
      await record(tx, author, {
        action: 'repository.create',
        namespaceIds: [namespace.id],
        subject: id,
        name,
        details: { visibility },
      });
      return row;
    });
    await begun.done();
    return row as unknown as Row<S>;
  } catch (error) {
    const known = nameTaken(error);
    // Of any other failure of the transaction we cannot know whether it committed; the next start finds out.
    if (!committing || known instanceof AppError)
      await undo(services.git, id, begun).catch(() => {});
    throw known;
  }
}

/** What fails of it is left to the next start. */
async function undo({ disk }: Git, id: string, begun: Begun): Promise<void> {
  await disk.remove(id);
  await begun.done();
}

async function firstFiles({
  autoInit,
  gitignoreTemplate,
}: CreateInput): Promise<Record<string, string> | undefined> {
  if (gitignoreTemplate == null) return autoInit ? {} : undefined;
  if (!autoInit)
    throw invalid(
      'gitignoreTemplate',
      'is part of the first commit, and this repository is made without one',
    );
  return { '.gitignore': await gitignore(gitignoreTemplate) };
}

/** The id stays; the old clone address stops working at once. @throws AppError 400, 401, 403, 404, 409. */
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

/** Needs `admin` on both sides. @throws AppError 400 for the namespace it is in, 401, 403 (right or quota), 404, 409 when the target has the name. */
export async function transferRepository<S extends Select>(
  services: { db: Db; config: Config },
  viewer: Viewer,
  { newNamespace, ...key }: RepositoryId & { newNamespace: string },
  select: S,
): Promise<Row<S>> {
  return change(services, viewer, key, 'repository.transfer', select, async (row, tx) => {
    const owner = await namespaceNamed(tx, newNamespace);
    // Both count what they store, and a transfer the other way must not lock them in the other order.
    await tx.$executeRaw`
      select from namespaces where id in (${owner.id}, ${row.namespaceId}) order by id for no key update`;
    await holdNamespace(tx, owner.id, 'key share');
    demand(viewer, 'repository.create', { namespaceId: owner.id, repositoryId: row.id });
    if (owner.id === row.namespaceId)
      throw invalid('newNamespace', 'is the namespace that the repository is in already');
    await demandRoom({ ...services, db: tx }, owner, 'repositories');
    await demandRoom({ ...services, db: tx }, owner, 'storageBytes', Number(row.sizeBytes));
    const details = { from: row.namespace.name, to: owner.name };
    return { data: { namespaceId: owner.id }, owner, details };
  });
}

export type UpdateInput = RepositoryId & {
  description?: string | null;
  defaultBranch?: string | null;
  branchProtection?: boolean | null;
  secretScanning?: boolean | null;
};

/** Changes what is given. @throws AppError 400, 401, 403, 404 for the repository or the default branch. */
export async function updateRepository<S extends Select>(
  services: { db: Db; git: Git; log: Logger; cluster: Cluster },
  viewer: Viewer,
  { id, namespace, ...changes }: UpdateInput,
  select: S,
): Promise<Row<S>> {
  const { description, defaultBranch } = changes;
  const key = { id, namespace };
  const given = Object.fromEntries(Object.entries(changes).filter(([, value]) => value != null));
  const update = (more: Prisma.RepositoryUncheckedUpdateInput) =>
    change(services, viewer, key, 'repository.update', select, async () => {
      if (description != null) checkDescription(description);
      return { data: { ...given, ...more }, details: given };
    });
  if (defaultBranch == null) return update({});

  checkBranch(defaultBranch);
  await administered(services.db, viewer, key);
  const language = await languageOfBranch(services, id, defaultBranch);
  const note: BegunDefaultBranch = { kind: 'default-branch' };
  const begun = await services.git.disk.begin(id, note);
  // A push that is being recorded has read the former default branch: it finds another number, and measures again.
  const row = await update({ language, records: { increment: 1 } });
  await alignHead(services, id);
  await begun.done();
  return row;
}

/**
 * Removes the record, then the repository with all its data. Its jobs stay, and lead to no repository any more.
 * @throws AppError 401, 403, 404.
 */
export async function deleteRepository(
  services: { db: Db; git: Git; log: Logger },
  viewer: Viewer,
  key: RepositoryId,
): Promise<string> {
  const { disk, objects } = services.git;
  const author = demandAccount(viewer);
  const row = await administered(services.db, viewer, key);
  const begun = await disk.begin(row.id, { kind: 'delete' });
  await leaveJobs(services.db, row.id);
  await inTransaction(services.db, async (tx) => {
    const { count } = await tx.repository.deleteMany({ where: { id: row.id } });
    if (count === 0) throw notFound('Repository');
    const owner = { id: row.namespaceId, name: row.namespace.name };
    await announce(tx, 'repository.deleted', row, owner);
    await record(tx, author, {
      action: 'repository.delete',
      namespaceIds: [owner.id],
      subject: row.id,
      name: row.name,
    });
  }).catch(async (error) => {
    // Somebody else deleted it first, and removes its files.
    if (error instanceof AppError) await begun.done();
    throw error;
  });
  objects.forget(disk.pathOf(row.id));
  try {
    await disk.remove(row.id);
    await begun.done();
  } catch (error) {
    // It is gone for everybody; the next start removes the files that are left.
    services.log.error({ err: error, repository: row.id }, 'the files of a repository are left');
  }
  return row.id;
}

/** Of so many jobs the rows are locked at once, for a tenth of a second. */
const JOBS_AT_ONCE = 1_000;

/**
 * Before the repository goes, because all of its jobs would be changed in the transaction that deletes it: of 300,000 that took
 * longer than a transaction may, and the repository could not be deleted.
 */
async function leaveJobs(db: Db, id: string): Promise<void> {
  for (let left = JOBS_AT_ONCE; left === JOBS_AT_ONCE; )
    left = await db.$executeRaw`
      update jobs set repository_id = null where id = any (array (
        select id from jobs where repository_id = ${id} limit ${JOBS_AT_ONCE} for update skip locked))`;
}

type Administered = Awaited<ReturnType<typeof administered>>;

/** The row that an admin is about to change. @throws AppError 401, 403, 404 */
export function administered(db: Db, viewer: Viewer, key: RepositoryId) {
  return demandRepository(db, viewer, key, 'repository.administer', payloadColumns);
}

type Change = {
  data: Prisma.RepositoryUncheckedUpdateInput;
  /** The new one, when it changes. */
  owner?: { id: string; name: string };
  /** For the audit log. */
  details: Prisma.InputJsonObject;
};

/** What changes a row → the event that says so. */
const EVENT_OF = {
  'repository.rename': 'repository.renamed',
  'repository.change_visibility': 'repository.updated',
  'repository.update': 'repository.updated',
  'repository.transfer': 'repository.transferred',
} as const satisfies Partial<Record<AuditAction, EventType>>;

/** Changes a row as its admin, and says so, in one transaction. */
async function change<S extends Select>(
  { db }: { db: Db },
  viewer: Viewer,
  key: RepositoryId,
  action: keyof typeof EVENT_OF,
  select: S,
  plan: (row: Administered, tx: Prisma.TransactionClient) => Promise<Change>,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  return inTransaction(db, async (tx) => {
    // Others who change or delete it wait, so that the row that is read here is the one that is changed.
    await lockRepository(tx, key.id);
    const row = await administered(tx, viewer, key);
    const planned = await plan(row, tx);
    const { data, owner = { id: row.namespaceId, name: row.namespace.name }, details } = planned;
    const updated = await tx.repository.update({
      where: { id: row.id },
      data: { ...data, updatedAt: new Date() },
      select: { ...select, ...payloadColumns },
      relationLoadStrategy: 'join',
    });
    const changed = updated as unknown as PayloadRow;
    await announce(tx, EVENT_OF[action], changed, owner);
    const namespaceIds = [owner.id, row.namespaceId] as const;
    await record(tx, author, {
      action,
      namespaceIds,
      subject: row.id,
      name: changed.name,
      details,
    });
    return updated as unknown as Row<S>;
  }).catch((error) => {
    throw nameTaken(error);
  });
}

async function announce(
  tx: Prisma.TransactionClient,
  type: EventType,
  row: PayloadRow,
  owner: { id: string; name: string },
): Promise<void> {
  const data: RepositoryEventData = { repository: payloadOf(row, owner.name) };
  await publish(tx, { type, namespaceId: owner.id, subject: row.id, data });
}

function nameTaken(error: unknown): unknown {
  return violatesUnique(error, 'name_key') ? taken() : error;
}

function taken(): AppError {
  const message = 'name: a repository of that name exists in the namespace';
  return new AppError('already_exists', message, { field: 'name' });
}
