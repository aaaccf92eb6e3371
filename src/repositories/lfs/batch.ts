/**
 * The batch API of git-lfs: the client lists objects, and the response contains the actions for each.
 *
 * A response depends on this repository alone. It requests an upload even if another repository has the object, so that
 * a hash neither reveals nor grants access to objects of other repositories.
 */

import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { AppError, invalid } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import { DELTA_TRANSFER } from './delta.ts';
import { authorizeLfs, type Lfs, type LfsRepositoryName, lfsUrl } from './lfs.ts';
import { isOid, type LfsObject, requireStorageFor } from './objects.ts';
import type { LargeFiles } from './store/store.ts';
import { type LfsOperation, type LfsToken, TOKEN_SECONDS } from './tokens.ts';
import { tusUploadPath } from './tus.ts';

/** Stock clients send 100. */
const MAX_OBJECTS = 1_000;

type BatchRequest = {
  operation: LfsOperation;
  /** In the client's order. Invalid objects get an error each (`readObject`). */
  objects: { oid: unknown; size: unknown }[];
  /** What the client can do besides `basic`: send deltas, or else resume uploads. */
  transfer: 'basic' | 'tus' | typeof DELTA_TRANSFER;
};

type Action = { href: string; header?: Record<string, string>; expires_in?: number };
type ObjectAnswer = {
  oid: string;
  size: number;
  authenticated?: true;
  actions?: Partial<Record<'download' | 'upload' | 'verify', Action>>;
  error?: { code: number; message: string };
};
type BatchAnswer = {
  transfer: BatchRequest['transfer'];
  objects: ObjectAnswer[];
  hash_algo: 'sha256';
};

/** @throws AppError 400 for an invalid request, 409 for an unsupported hash algorithm, 413 for too many objects */
export function readBatch(body: Record<string, unknown>): BatchRequest {
  const { operation, objects, transfers, hash_algo: algorithm = 'sha256' } = body;
  if (operation !== 'download' && operation !== 'upload')
    throw invalid('operation', 'must be "download" or "upload"');
  if (algorithm !== 'sha256')
    throw new AppError('conflict', 'hash_algo: must be sha256', { status: 409 });
  // Every client supports `basic`, whether or not the list contains it.
  if (transfers !== undefined && !Array.isArray(transfers))
    throw invalid('transfers', 'must be a list');
  if (!Array.isArray(objects) || !objects.every(isRecord))
    throw invalid('objects', 'must be a list of {oid, size}');
  if (objects.length > MAX_OBJECTS)
    throw new AppError('invalid_request', `objects: must be at most ${MAX_OBJECTS}`, {
      status: 413,
    });
  return {
    operation,
    objects: objects.map(({ oid, size }) => ({ oid, size })),
    transfer: operation === 'upload' ? chooseTransfer(transfers ?? []) : 'basic',
  };
}

function chooseTransfer(offered: readonly unknown[]): BatchRequest['transfer'] {
  if (offered.includes(DELTA_TRANSFER)) return DELTA_TRANSFER;
  return offered.includes('tus') ? 'tus' : 'basic';
}

/**
 * @param lfsToken the token that authenticated the request. The actions get the same token, because a new one would live
 * longer
 * @throws AppError as `authorizeLfs`; 403 if the namespace has too little storage left for the uploads
 */
export async function answerBatch(
  services: {
    db: Db;
    pool: pg.Pool;
    space: DiskSpace;
    urls: Urls;
    lfs: Lfs;
    largeFiles: LargeFiles;
    config: Config;
  },
  viewer: Viewer,
  key: LfsRepositoryName,
  { operation, objects, transfer: chosen }: BatchRequest,
  lfsToken?: LfsToken,
): Promise<BatchAnswer> {
  const id = await authorizeLfs(services, viewer, key, operation);
  const read = objects.map(readObject);
  const requested = read.flatMap((one) => ('object' in one ? one.object : []));
  const stored = await services.largeFiles.sizes(id, [...new Set(requested.map(({ oid }) => oid))]);
  // Damaged objects are requested again. Their storage is counted already.
  const damaged =
    operation === 'upload' && stored.size > 0
      ? await services.largeFiles.damaged(id, [...stored.keys()])
      : new Set();
  if (operation === 'upload') await requireStorageFor(services, id, findMissing(requested, stored));
  const access = lfsToken ?? issueToken(services, viewer, id, operation);
  // With `tus`, git-lfs treats an empty object as uploaded without sending a request.
  const hasEmpty = requested.some(({ size }) => size === 0);
  const transfer = chosen === 'tus' && hasEmpty ? 'basic' : chosen;
  const base = lfsUrl(services, key);
  const action = (path: string): Action => ({
    href: `${base}/${path}`,
    ...(access && {
      header: { Authorization: `Bearer ${access.token}` },
      expires_in: access.seconds,
    }),
  });
  const answers = read.map((one): ObjectAnswer => {
    if (!('object' in one)) return one;
    const { oid, size } = one.object;
    const storedSize = stored.get(oid);
    if (storedSize !== undefined && storedSize !== size)
      return refuseObject(
        one.object,
        422,
        `The object ${oid} has ${storedSize} bytes, not ${size}`,
      );
    if (operation === 'upload') {
      // No actions: the repository has the object.
      if (storedSize !== undefined && !damaged.has(oid)) return { oid, size };
      const path = transfer === 'tus' ? tusUploadPath(one.object) : `objects/${oid}`;
      const actions = { upload: action(path), verify: action('objects/verify') };
      return { oid, size, authenticated: true, actions };
    }
    if (storedSize === undefined)
      return refuseObject(one.object, 404, `The object ${oid} is not in this repository`);
    return { oid, size, authenticated: true, actions: { download: action(`objects/${oid}`) } };
  });
  return { transfer, objects: answers, hash_algo: 'sha256' };
}

/** Anonymous viewers can only read public repositories, which needs no token. */
function issueToken(
  { lfs }: { lfs: Lfs },
  viewer: Viewer,
  repositoryId: string,
  operation: LfsOperation,
): LfsToken | undefined {
  if (viewer.kind === 'anonymous') return undefined;
  const grant = { repositoryId, credentialId: viewer.credential.id, operation };
  return { token: lfs.tokens.issue(grant), seconds: TOKEN_SECONDS };
}

/** Returns the objects that the repository does not have, without duplicates. */
function findMissing(
  requested: readonly LfsObject[],
  stored: ReadonlyMap<string, number>,
): LfsObject[] {
  const missing = requested.filter(({ oid }) => !stored.has(oid));
  return [...new Map(missing.map((object) => [object.oid, object])).values()];
}

function readObject({
  oid,
  size,
}: BatchRequest['objects'][number]): { object: LfsObject } | ObjectAnswer {
  const identification = {
    oid: String(oid).slice(0, 200),
    size: Number.isSafeInteger(size) ? Number(size) : 0,
  };
  if (!isOid(oid))
    return refuseObject(identification, 422, 'oid: must be 64 lowercase hexadecimal digits');
  if (!Number.isSafeInteger(size) || Number(size) < 0)
    return refuseObject(identification, 422, 'size: must be a whole number of bytes');
  return { object: { oid, size: Number(size) } };
}

function refuseObject({ oid, size }: LfsObject, code: number, message: string): ObjectAnswer {
  return { oid, size, error: { code, message } };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
