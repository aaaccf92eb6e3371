/**
 * Keys for git over SSH. A user's key has the user's full rights. A deploy key works for one repository, with the
 * rights of the user who added it, limited to reading, or to reading and pushing.
 *
 * A key can be registered only once, because it alone identifies the account or repository at sign-in.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import { sshKeysLock } from '../base/advisory-locks.ts';
import { AppError, invalid, notFound } from '../base/errors.ts';
import { isId, newId } from '../base/ids.ts';
import { fingerprintOf, isKeyType, readWireKey } from '../platform/crypto/ssh-keys.ts';
import { type Db, inTransaction } from '../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { recordAudit } from './audit.ts';
import { demandFullRights, demandOwn, toTakenError } from './credentials.ts';
import { type Account, can, demand, hasFullRights, type Viewer } from './permissions.ts';

export type SshKey = {
  id: string;
  title: string;
  /** `<type> <base64>`. */
  publicKey: string;
  /** `SHA256:…`. */
  fingerprint: string;
  createdAt: Date;
  lastUsedAt: Date | null;
};
export type DeployKey = SshKey & { write: boolean; repositoryId: string };

type Deps = { db: Db };

/** SSH keys per user, and deploy keys per repository. */
const MAX_KEYS_PER_OWNER = 100;

const KEY_IN_USE =
  'key: this key is already in use; a key can belong to one account, or be a deploy key of one repository';

/**
 * Adds a key of the viewer. `title`: 1 to 100 characters; empty: the comment of the key.
 * @throws AppError 400, 401, 403, 409 for a key that is in use, and at the maximum number of keys
 */
export async function addSshKey(
  { db }: Deps,
  viewer: Viewer,
  input: { title: string; key: string },
): Promise<SshKey> {
  const account = demandFullRights(viewer);
  const { fingerprint, ...named } = checkKeyInput(input);
  const data = { id: newId('ssh'), userId: account.userId, fingerprint, ...named };
  return inTransaction(db, async (tx) => {
    const where = { userId: account.userId, repositoryId: null };
    await demandBelowLimit(
      tx,
      where,
      account.userId,
      `A user can have at most ${MAX_KEYS_PER_OWNER} SSH keys`,
    );
    const created = await tx.sshKey.create({ data, select: keyColumns });
    await recordAudit(tx, account, {
      action: 'ssh_key.add',
      namespaceIds: [account.namespace.id],
      subject: created.id,
      name: created.title,
      details: { fingerprint },
    });
    return created;
  }).catch((error) => {
    throw toTakenError(error, KEY_IN_USE, 'key');
  });
}

/** The key stops working immediately, also in open connections. @throws AppError 401, 403, 404 */
export async function deleteSshKey({ db }: Deps, viewer: Viewer, id: string): Promise<string> {
  const account = demandFullRights(viewer);
  const where = { id, userId: account.userId, repositoryId: null };
  const row = isId('ssh', id) ? await db.sshKey.findFirst({ where, select: keyColumns }) : null;
  if (!row) throw notFound('SSH key');
  await inTransaction(db, async (tx) => {
    const { count } = await tx.sshKey.deleteMany({ where: { id } });
    if (count === 0) throw notFound('SSH key');
    await recordAudit(tx, account, {
      action: 'ssh_key.delete',
      namespaceIds: [account.namespace.id],
      subject: id,
      name: row.title,
      details: { fingerprint: row.fingerprint },
    });
  });
  return id;
}

/** A page of the viewer's keys after a cursor, newest first. @throws AppError 400, 401, 403 */
export async function sliceSshKeys(
  { db }: Deps,
  viewer: Viewer,
  ofUser: string,
  range: CursorPageRequest,
): Promise<CursorPage<SshKey>> {
  const { userId } = demandOwn(viewer, ofUser);
  const query = { where: { userId, repositoryId: null }, select: keyColumns };
  return readCursorPage<SshKey>(db.sshKey, NEWEST_FIRST, range, query);
}

/** The viewer's keys among `ids`. */
export async function findSshKeys(
  { db }: Deps,
  viewer: Viewer,
  ids: readonly string[],
): Promise<SshKey[]> {
  if (viewer.kind === 'anonymous' || !hasFullRights(viewer)) return [];
  return db.sshKey.findMany({
    where: { id: { in: [...ids] }, userId: viewer.userId, repositoryId: null },
    select: keyColumns,
  });
}

/**
 * Adds a key for one repository, which the viewer must administer.
 * @throws AppError 400, 401, 403, 404, 409 for a key that is in use, and at the maximum number of keys
 */
export async function addDeployKey(
  { db }: Deps,
  viewer: Viewer,
  input: { repositoryId: string; title: string; key: string; write: boolean },
): Promise<DeployKey> {
  const { account, namespaceId } = await demandAdministeredRepository(
    db,
    viewer,
    input.repositoryId,
  );
  const { repositoryId, write } = input;
  const { fingerprint, ...named } = checkKeyInput(input);
  const { userId } = account;
  const data = { id: newId('deploy'), userId, repositoryId, write, fingerprint, ...named };
  return inTransaction(db, async (tx) => {
    const limit = `A repository can have at most ${MAX_KEYS_PER_OWNER} deploy keys`;
    await demandBelowLimit(tx, { repositoryId }, repositoryId, limit);
    const created = await tx.sshKey.create({ data, select: deployColumns });
    await recordAudit(tx, account, {
      action: 'deploy_key.add',
      namespaceIds: [namespaceId],
      subject: created.id,
      name: created.title,
      details: { repositoryId, fingerprint, write },
    });
    return toDeployKey(created);
  }).catch((error) => {
    throw toTakenError(error, KEY_IN_USE, 'key');
  });
}

/** The key stops working immediately, also in open connections. @throws AppError 401, 403, 404 */
export async function deleteDeployKey({ db }: Deps, viewer: Viewer, id: string): Promise<string> {
  demandFullRights(viewer);
  const row = isId('deploy', id)
    ? await db.sshKey.findUnique({ where: { id }, select: deployColumns })
    : null;
  if (!row?.repositoryId) throw notFound('Deploy key');
  const { repositoryId } = row;
  const { account, namespaceId } = await demandAdministeredRepository(db, viewer, repositoryId);
  await inTransaction(db, async (tx) => {
    const { count } = await tx.sshKey.deleteMany({ where: { id } });
    if (count === 0) throw notFound('Deploy key');
    await recordAudit(tx, account, {
      action: 'deploy_key.delete',
      namespaceIds: [namespaceId],
      subject: id,
      name: row.title,
      details: { repositoryId, fingerprint: row.fingerprint },
    });
  });
  return id;
}

/** A page of a repository's deploy keys after a cursor, newest first. @throws AppError 400, 401, 403, 404 */
export async function sliceDeployKeys(
  { db }: Deps,
  viewer: Viewer,
  repositoryId: string,
  range: CursorPageRequest,
): Promise<CursorPage<DeployKey>> {
  await demandAdministeredRepository(db, viewer, repositoryId);
  const query = { where: { repositoryId }, select: deployColumns };
  return readCursorPage(db.sshKey, NEWEST_FIRST, range, query, (rows: DeployRow[]) =>
    rows.map(toDeployKey),
  );
}

/** The deploy keys among `ids` whose repositories the viewer administers. */
export async function findDeployKeys(
  { db }: Deps,
  viewer: Viewer,
  ids: readonly string[],
): Promise<DeployKey[]> {
  if (viewer.kind === 'anonymous' || !hasFullRights(viewer)) return [];
  const rows = await db.sshKey.findMany({
    where: { id: { in: [...ids] }, repositoryId: { not: null } },
    select: { ...deployColumns, repository: { select: { namespaceId: true } } },
  });
  return rows.flatMap(({ repository, ...row }) =>
    repository &&
    can(viewer, 'repository.administer', { ...repository, repositoryId: row.repositoryId })
      ? toDeployKey(row)
      : [],
  );
}

const keyColumns = {
  id: true,
  title: true,
  publicKey: true,
  fingerprint: true,
  createdAt: true,
  lastUsedAt: true,
} as const satisfies Prisma.SshKeySelect;
const deployColumns = { ...keyColumns, write: true, repositoryId: true } as const;
type DeployRow = Prisma.SshKeyGetPayload<{ select: typeof deployColumns }>;

function toDeployKey({ repositoryId, ...row }: DeployRow): DeployKey {
  return { ...row, repositoryId: repositoryId ?? '' };
}

/**
 * Counts under a lock that lasts until the commit, so that concurrent additions cannot exceed the limit.
 * @throws AppError 409
 */
async function demandBelowLimit(
  tx: Db,
  where: Prisma.SshKeyWhereInput,
  ownerId: string,
  limit: string,
): Promise<void> {
  await tx.$executeRaw`
    select pg_advisory_xact_lock(hashtextextended(${sshKeysLock(ownerId)}, 0))`;
  if ((await tx.sshKey.count({ where })) >= MAX_KEYS_PER_OWNER)
    throw new AppError('conflict', limit);
}

/** @returns the columns to store. @throws AppError 400 */
function checkKeyInput({ title, key }: { title: string; key: string }) {
  const { text, fingerprint, comment } = parsePublicKey(key);
  const name = title || comment.slice(0, 100);
  if (!/^[^\p{C}]{1,100}$/u.test(name) || name.trim() !== name)
    throw invalid(
      'title',
      'must be 1 to 100 characters, without control characters, or spaces at either end',
    );
  return { title: name, publicKey: text, fingerprint };
}

/** @throws AppError 401, 403, 404 */
async function demandAdministeredRepository(
  db: Db,
  viewer: Viewer,
  repositoryId: string,
): Promise<{ account: Account; namespaceId: string }> {
  const account = demandFullRights(viewer);
  const select = { namespaceId: true, visibility: true };
  const row = isId('repo', repositoryId)
    ? await db.repository.findUnique({ where: { id: repositoryId }, select })
    : null;
  if (!row) throw notFound('Repository');
  demand(viewer, 'repository.administer', { namespaceId: row.namespaceId, repositoryId });
  return { account, namespaceId: row.namespaceId };
}

/** An SSH public key, which `ssh-keygen` writes as `<type> <base64> <comment>`. */
type PublicKey = {
  type: string;
  /** `<type> <base64>`, the canonical form of the key. */
  text: string;
  /** `SHA256:…`, as `ssh-keygen -l` shows it. */
  fingerprint: string;
  comment: string;
};

const MAX_PUBLIC_KEY = 16_384;

/** @throws AppError 400 naming `key` */
export function parsePublicKey(given: string): PublicKey {
  const text = given.trim();
  if (text.includes('PRIVATE KEY'))
    throw invalid(
      'key',
      'this is a private key, which must stay secret: create a new key pair, and send the public key (the file that ends in .pub)',
    );
  if (text.length > MAX_PUBLIC_KEY || /[\r\n\0]/.test(text))
    throw invalid('key', 'must be one line: the content of the .pub file');
  const [type = '', encoded = '', ...comment] = text.split(/[ \t]+/);
  if (!isKeyType(type)) throw invalid('key', whyNotType(type));
  const bytes = Buffer.from(encoded, 'base64');
  // Node's decoder skips invalid characters.
  if (bytes.length === 0 || bytes.toString('base64') !== encoded)
    throw invalid('key', 'the part after the type is not valid base64; the key may be cut off');
  try {
    if (readWireKey(bytes).type !== type) throw new Error('contains another type');
  } catch (error) {
    const { message } = error as Error;
    throw invalid('key', `is not a valid key of type ${type}: it ${message}`);
  }
  return {
    type,
    text: `${type} ${encoded}`,
    fingerprint: fingerprintOf(bytes),
    comment: comment.join(' '),
  };
}

function whyNotType(type: string): string {
  const supported = 'use an Ed25519, ECDSA or RSA key, for example from ssh-keygen -t ed25519';
  if (type === 'ssh-dss') return `DSA keys are too weak; ${supported}`;
  // The signer of a certificate defines what it may do.
  if (type.includes('-cert-')) return 'is a certificate; send the public key itself';
  return `must begin with a supported key type; ${supported}`;
}
