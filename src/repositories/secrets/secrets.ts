/**
 * Secrets and variables of namespaces and repositories, for the jobs that name them. Values of secrets are write-only: only an
 * attempt of a job gets them (`access.ts`). Admins manage them; members who may create jobs see their names.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { StoredKind } from '../../../prisma/generated/enums.ts';
import { AppError, invalid, notFound } from '../../base/errors.ts';
import { newId } from '../../base/ids.ts';
import { lockNamespace, resolveNamespace } from '../../identity/accounts.ts';
import { recordAudit } from '../../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Sealer } from '../../platform/crypto/keys.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { readCursorPage, type Sorting } from '../../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../../platform/database/paging.ts';
import { demandRepository, getRepository, lockRepository } from '../repositories.ts';
import { checkRefs, checkValue, checkValueName, isValueName, VALUE_RULES } from './rules.ts';

export { demandValues, type JobOrigin, type JobValues, readValues } from './access.ts';
export { VALUE_RULES } from './rules.ts';

type Deps = { db: Db; pool: pg.Pool };

const sharedColumns = {
  id: true,
  name: true,
  updatedBy: true,
  createdAt: true,
  updatedAt: true,
  lastUsedAt: true,
} as const satisfies Prisma.StoredValueSelect;
/** Without `sealed`: nothing that is shown to anyone reads it. */
const secretColumns = { ...sharedColumns, refs: true } as const;
const variableColumns = { ...sharedColumns, value: true } as const;

export type Secret = Prisma.StoredValueGetPayload<{ select: typeof secretColumns }>;
export type Variable = Omit<
  Prisma.StoredValueGetPayload<{ select: typeof variableColumns }>,
  'value'
> & { value: string };

const BY_NAME: Sorting = { name: 'name', column: 'name', type: 'text', order: 'asc' };

/** An owner that was read as part of another query. */
type OwnerRow = { id: string; namespaceId?: string };

/** Lists secrets of a namespace or repository by name. @throws AppError 400, 401, 403 */
export function sliceSecrets(
  { db }: Deps,
  viewer: Viewer,
  owner: OwnerRow,
  range: CursorPageRequest,
): Promise<CursorPage<Secret>> {
  const where = { kind: 'secret', ...demandList(viewer, owner) };
  return readCursorPage(db.storedValue, BY_NAME, range, { where, select: secretColumns });
}

/** Lists variables of a namespace or repository by name. @throws AppError 400, 401, 403 */
export function sliceVariables(
  { db }: Deps,
  viewer: Viewer,
  owner: OwnerRow,
  range: CursorPageRequest,
): Promise<CursorPage<Variable>> {
  const where = { kind: 'variable', ...demandList(viewer, owner) };
  return readCursorPage(db.storedValue, BY_NAME, range, { where, select: variableColumns });
}

/** @returns the condition for the rows of the owner */
function demandList(viewer: Viewer, { id, namespaceId }: OwnerRow): Prisma.StoredValueWhereInput {
  const isRepository = namespaceId !== undefined;
  demand(
    viewer,
    'secret.list',
    isRepository ? { namespaceId, repositoryId: id } : { namespaceId: id },
  );
  return isRepository ? { repositoryId: id } : { namespaceId: id };
}

/** Names a secret or variable. Without `repository`, it belongs to the namespace itself. */
type Key = { namespace: string; repository?: string | null; name: string };

type SecretInput = Key & {
  /** Left out: the value of an existing secret stays. */
  value?: string | null;
  /** Left out: those of an existing secret stay, and a new one is for protected branches. */
  refs?: readonly string[] | null;
};

/**
 * Creates or changes a secret. Attempts that have started keep the values that they got.
 * @throws AppError 400, 401, 403, 404 for the namespace or repository, 409 if the owner has too many secrets
 */
export function setSecret(
  services: Deps & { storedSecretSealer: Sealer },
  viewer: Viewer,
  { value, refs, ...key }: SecretInput,
): Promise<Secret> {
  return change(services, viewer, key, async (tx, owner, author) => {
    checkValueName(key.name);
    if (value === '') throw invalid('value', 'must not be empty');
    if (value != null) checkValue(key.name, value);
    const checkedRefs = refs == null ? undefined : checkRefs(refs);
    const existing = await findExisting(tx, 'secret', owner, key.name);
    if (!existing && value == null) throw invalid('value', 'is required for a new secret');
    const id = existing?.id ?? newId('sec');
    const data = {
      ...(value != null && { sealed: services.storedSecretSealer.seal(id, value) }),
      ...(checkedRefs && { refs: checkedRefs }),
    };
    const secret = await write(
      tx,
      { kind: 'secret', owner, id, name: key.name, isNew: !existing },
      author,
      data,
    );
    await recordAudit(tx, author, {
      action: 'secret.set',
      namespaceIds: [owner.namespaceId],
      subject: id,
      name: key.name,
      details: {
        repository: owner.repositoryName,
        isNew: !existing,
        hasNewValue: value != null,
        refs: secret.refs,
      },
    });
    return secret;
  });
}

/**
 * Creates or changes a variable.
 * @throws AppError 400, 401, 403, 404 for the namespace or repository, 409 if the owner has too many variables
 */
export function setVariable(
  services: Deps,
  viewer: Viewer,
  { value, ...key }: Key & { value: string },
): Promise<Variable> {
  return change(services, viewer, key, async (tx, owner, author) => {
    checkValueName(key.name);
    checkValue(key.name, value);
    const existing = await findExisting(tx, 'variable', owner, key.name);
    const id = existing?.id ?? newId('var');
    const row = { kind: 'variable', owner, id, name: key.name, isNew: !existing } as const;
    const variable = await write(tx, row, author, { value });
    await recordAudit(tx, author, {
      action: 'variable.set',
      namespaceIds: [owner.namespaceId],
      subject: id,
      name: key.name,
      details: { repository: owner.repositoryName, isNew: !existing },
    });
    return { ...variable, value };
  });
}

/** @returns the id of the deleted secret @throws AppError 401, 403, 404 */
export function deleteSecret(services: Deps, viewer: Viewer, key: Key): Promise<string> {
  return remove(services, viewer, 'secret', key);
}

/** @returns the id of the deleted variable @throws AppError 401, 403, 404 */
export function deleteVariable(services: Deps, viewer: Viewer, key: Key): Promise<string> {
  return remove(services, viewer, 'variable', key);
}

async function remove(services: Deps, viewer: Viewer, kind: StoredKind, key: Key): Promise<string> {
  return change(services, viewer, key, async (tx, owner, author) => {
    const existing = isValueName(key.name) && (await findExisting(tx, kind, owner, key.name));
    if (!existing) throw notFound(kind === 'secret' ? 'Secret' : 'Variable', key.name);
    await tx.storedValue.delete({ where: { id: existing.id }, select: { id: true } });
    await recordAudit(tx, author, {
      action: `${kind}.delete`,
      namespaceIds: [owner.namespaceId],
      subject: existing.id,
      name: key.name,
      details: { repository: owner.repositoryName },
    });
    return existing.id;
  });
}

type Author = ReturnType<typeof demandAccount>;
type Owner = {
  namespaceId: string;
  repositoryName: string | null;
  /** The columns that name the owner in a row. */
  columns: { namespaceId: string } | { repositoryId: string };
};

/** Runs a change in a transaction that locks the owner, after checking that the viewer may manage what it owns. */
async function change<T>(
  { db, pool }: Deps,
  viewer: Viewer,
  { namespace, repository }: Key,
  work: (tx: Db, owner: Owner, author: Author) => Promise<T>,
): Promise<T> {
  const author = demandAccount(viewer);
  if (repository == null) {
    const { id } = await resolveNamespace(pool, namespace);
    demand(viewer, 'secret.administer', { namespaceId: id });
    return inTransaction(db, async (tx) => {
      await lockNamespace(tx, id, 'no key update');
      const owner = { namespaceId: id, repositoryName: null, columns: { namespaceId: id } };
      return work(tx, owner, author);
    });
  }
  const { id } = await getRepository({ db, pool }, viewer, { namespace, name: repository }, {});
  return inTransaction(db, async (tx) => {
    await lockRepository(tx, id);
    const columns = { name: true } as const;
    const row = await demandRepository(tx, viewer, { id }, 'secret.administer', columns);
    const { namespaceId, name } = row;
    return work(tx, { namespaceId, repositoryName: name, columns: { repositoryId: id } }, author);
  });
}

function findExisting(
  tx: Db,
  kind: StoredKind,
  { columns }: Owner,
  name: string,
): Promise<{ id: string } | null> {
  return tx.storedValue.findFirst({ where: { kind, name, ...columns }, select: { id: true } });
}

type RowKey = { kind: StoredKind; owner: Owner; id: string; name: string; isNew: boolean };

/** Inserts or updates a row. The lock of the owner keeps another change of the same name away. */
async function write(
  tx: Db,
  { kind, owner, id, name, isNew }: RowKey,
  { username }: Author,
  data: { sealed?: Uint8Array<ArrayBuffer>; refs?: string[]; value?: string },
): Promise<Secret> {
  const set = { ...data, updatedBy: username, updatedAt: new Date() };
  const select = secretColumns;
  if (!isNew) return tx.storedValue.update({ where: { id }, data: set, select });
  const row = await tx.storedValue.create({
    data: { id, kind, name, ...owner.columns, ...set },
    select,
  });
  const { maxEntries } = VALUE_RULES;
  if ((await tx.storedValue.count({ where: { kind, ...owner.columns } })) > maxEntries)
    throw new AppError(
      'conflict',
      `A namespace or repository may have at most ${maxEntries} ${kind}s: delete one first`,
    );
  return row;
}
