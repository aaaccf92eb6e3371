/**
 * Worker tokens: a machine joins with one, and then has a secret of its own (`machines.ts`). A token of a namespace belongs to
 * its admins, any other to the operators. Revoking a token also removes the machines that joined with it.
 */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Config } from '../../base/config/config.ts';
import { invalid, notFound } from '../../base/errors.ts';
import { isId, newId } from '../../base/ids.ts';
import { checkTokenName } from '../../identity/access-tokens.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { recordAudit } from '../../identity/audit.ts';
import {
  computeLifetime,
  demandFullRights,
  hashSecret,
  newToken,
} from '../../identity/credentials.ts';
import type { Viewer } from '../../identity/permissions.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { notifyReaders } from '../../platform/events/outbox.ts';
import { checkLabels, type Label } from '../record/labels.ts';
import { demandAdministration, whereReachable } from './access.ts';
import { publishMachineEvent, recordedColumns } from './events.ts';

const WORKER_TOKEN_PREFIX = 'loam_worker_';

export type WorkerToken = {
  id: string;
  name: string;
  /** Name of the namespace whose jobs alone its machines run; null: all. */
  namespace: string | null;
  /** Empty: all. */
  regions: string[];
  labels: Label[];
  createdBy: string;
  createdAt: Date;
  /** Limits joining only: machines that have joined stay. */
  expiresAt: Date | null;
  /** When a machine last joined with it. */
  lastUsedAt: Date | null;
  /** Names of the machines that joined with it. */
  machines: string[];
};

type Deps = { db: Db };

/**
 * `name`: 1 to 100 characters, for people. `expiresInDays`: 1 to 365; unset: it does not expire.
 * @returns the token and its secret, which is not stored
 * @throws AppError 400, 401, 403, 404
 */
export async function createWorkerToken(
  { db, config }: Deps & { config: Pick<Config, 'hardware'> },
  viewer: Viewer,
  input: {
    name: string;
    namespace?: string | null;
    regions?: readonly string[] | null;
    labels?: readonly Label[] | null;
    expiresInDays?: number | null;
  },
): Promise<{ workerToken: WorkerToken; token: string }> {
  const author = demandFullRights(viewer);
  const namespace = input.namespace == null ? null : await resolveNamespace(db, input.namespace);
  const namespaceId = namespace?.id ?? null;
  demandAdministration(viewer, { namespaceId });
  checkTokenName(input.name);
  const regions = checkRegions(input.regions ?? [], config.hardware.current.regions);
  const labels = checkLabels(input.labels ?? []);
  const life = input.expiresInDays == null ? {} : computeLifetime(input.expiresInDays);

  const token = newToken(WORKER_TOKEN_PREFIX);
  const auditNamespaceId = namespaceId ?? author.namespace.id;
  const row = await inTransaction(db, async (tx) => {
    const created = await tx.workerToken.create({
      data: {
        id: newId('wtk'),
        name: input.name,
        tokenHash: hashSecret(token),
        namespaceId,
        auditNamespaceId,
        regions,
        labels,
        createdBy: author.username,
        ...life,
      },
      select: tokenColumns,
    });
    await recordAudit(tx, author, {
      action: 'worker_token.create',
      namespaceIds: [auditNamespaceId],
      subject: created.id,
      name: created.name,
      details: { regions, expiresAt: created.expiresAt?.toISOString() ?? null },
    });
    return created;
  });
  return { workerToken: toWorkerToken(row), token };
}

/**
 * Lists the tokens that the viewer administers, newest first. @param namespace name of the only namespace
 * @throws AppError 401, 403, 404
 */
export async function listWorkerTokens(
  { db }: Deps,
  viewer: Viewer,
  namespace?: string | null,
): Promise<WorkerToken[]> {
  demandFullRights(viewer);
  const rows = await db.workerToken.findMany({
    where: await whereReachable(db, viewer, 'machine.administer', namespace),
    orderBy: { id: 'desc' },
    select: tokenColumns,
  });
  return rows.map(toWorkerToken);
}

/**
 * Revokes the token and removes the machines that joined with it: they are refused at once, so their running jobs are lost.
 * @throws AppError 401, 403, 404
 */
export async function revokeWorkerToken({ db }: Deps, viewer: Viewer, id: string): Promise<string> {
  const author = demandFullRights(viewer);
  const row = isId('wtk', id)
    ? await db.workerToken.findUnique({ where: { id }, select: { ...tokenColumns, ...OWNERS } })
    : null;
  if (!row) throw notFound('Worker token');
  demandAdministration(viewer, row);
  await inTransaction(db, async (tx) => {
    // Machines that are joining lock the row, too.
    await tx.$queryRaw`select from worker_tokens where id = ${id} for update`;
    await tx.$queryRaw`select from machines where token_id = ${id} for update`;
    const machines = await tx.joinedMachine.findMany({
      where: { tokenId: id },
      select: recordedColumns,
    });
    const { count } = await tx.workerToken.deleteMany({ where: { id } });
    if (count === 0) throw notFound('Worker token');
    await recordAudit(tx, author, {
      action: 'worker_token.delete',
      namespaceIds: [row.auditNamespaceId],
      subject: id,
      name: row.name,
      details: { machines: machines.map(({ name }) => name) },
    });
    for (const machine of machines) await publishMachineEvent(tx, machine, 'machine.remove');
    await notifyReaders(tx, 'machines');
  });
  return id;
}

/** The token with this secret, if machines can still join with it. Locks its row, so that it is not revoked meanwhile. */
export async function takeWorkerToken(tx: Db, token: string) {
  const tokenHash = hashSecret(token);
  const usable = { tokenHash, OR: [{ expiresAt: null }, { expiresAt: { gt: new Date() } }] };
  const { count } = await tx.workerToken.updateMany({
    where: usable,
    data: { lastUsedAt: new Date() },
  });
  return count === 0 ? null : tx.workerToken.findUnique({ where: { tokenHash } });
}

function checkRegions(regions: readonly string[], known: readonly string[]): string[] {
  const unknown = regions.find((region) => !known.includes(region));
  if (unknown !== undefined)
    throw invalid('regions', `must be of ${known.join(', ')} (got ${unknown})`);
  return [...new Set(regions)];
}

const OWNERS = { namespaceId: true, auditNamespaceId: true } as const;
const tokenColumns = {
  id: true,
  name: true,
  namespace: { select: { name: true } },
  regions: true,
  labels: true,
  createdBy: true,
  createdAt: true,
  expiresAt: true,
  lastUsedAt: true,
  machines: { select: { name: true }, orderBy: { name: 'asc' } },
} as const satisfies Prisma.WorkerTokenSelect;
type TokenRow = Prisma.WorkerTokenGetPayload<{ select: typeof tokenColumns }>;

function toWorkerToken({ namespace, labels, machines, ...row }: TokenRow): WorkerToken {
  return {
    ...row,
    namespace: namespace?.name ?? null,
    labels: labels as Label[],
    machines: machines.map(({ name }) => name),
  };
}
