/**
 * The batch API of git-lfs: a client names objects, and is told for each what to do with it.
 *
 * What the answer tells is about this repository alone. An upload is asked for also when the bytes are known from
 * another repository, so nobody learns, or gets, what others have by naming its hash.
 */

import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { AppError, invalid } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import type { Lfs } from './lfs.ts';
import { addressOf, type LfsKey, openForLfs } from './lfs.ts';
import { demandRoomFor, isOid, type LfsObject } from './objects.ts';
import type { LargeFiles } from './store/store.ts';
import { type LfsOperation, type LfsToken, TOKEN_SECONDS } from './tokens.ts';
import { resumablePath } from './tus.ts';

/** Stock clients ask for 100 at once. */
export const MAX_OBJECTS = 1_000;

export type BatchRequest = {
  operation: LfsOperation;
  /** In the client's order; those that are none (`readObject`) are answered with an error of their own. */
  objects: { oid: unknown; size: unknown }[];
  /** Whether the client can resume uploads. */
  isResumable: boolean;
};

type Action = { href: string; header?: Record<string, string>; expires_in?: number };
type Answered = {
  oid: string;
  size: number;
  authenticated?: true;
  actions?: Partial<Record<'download' | 'upload' | 'verify', Action>>;
  error?: { code: number; message: string };
};
export type BatchAnswer = { transfer: 'basic' | 'tus'; objects: Answered[]; hash_algo: 'sha256' };

/**
 * @throws AppError 400 for what is no request of a batch, 409 for another kind of hash, 413 for too many objects
 */
export function readBatch(body: Record<string, unknown>): BatchRequest {
  const { operation, objects, transfers, hash_algo: algorithm = 'sha256' } = body;
  if (operation !== 'download' && operation !== 'upload')
    throw invalid('operation', 'must be "download" or "upload"');
  if (algorithm !== 'sha256')
    throw new AppError('conflict', 'hash_algo: only sha256 is known here', { status: 409 });
  // Every client can do `basic`, whatever else it offers.
  if (transfers !== undefined && !Array.isArray(transfers))
    throw invalid('transfers', 'must be a list');
  if (!Array.isArray(objects) || !objects.every(isRecord))
    throw invalid('objects', 'must be a list of {oid, size}');
  if (objects.length > MAX_OBJECTS)
    throw new AppError('invalid_request', `objects: at most ${MAX_OBJECTS} at once`, {
      status: 413,
    });
  return {
    operation,
    objects: objects.map(({ oid, size }) => ({ oid, size })),
    isResumable: operation === 'upload' && transfers?.includes('tus') === true,
  };
}

/**
 * @param held the token that the viewer has come with: its actions get no other, which would outlive it
 * @throws AppError as `openForLfs`; 403 when the namespace has no room for what is to be uploaded
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
  key: LfsKey,
  { operation, objects, isResumable }: BatchRequest,
  held?: LfsToken,
): Promise<BatchAnswer> {
  const id = await openForLfs(services, viewer, key, operation);
  const read = objects.map(readObject);
  const asked = read.flatMap((one) => ('object' in one ? one.object : []));
  const here = await services.largeFiles.sizes(id, [...new Set(asked.map(({ oid }) => oid))]);
  // They are to be sent again, and have their room.
  const damaged =
    operation === 'upload' && here.size > 0
      ? await services.largeFiles.damaged(id, [...here.keys()])
      : new Set();
  if (operation === 'upload') await demandRoomFor(services, id, toCome(asked, here));
  const access = held ?? newToken(services, viewer, id, operation);
  // By `tus` git-lfs takes an empty object for uploaded before it has asked.
  const transfer = isResumable && asked.every(({ size }) => size > 0) ? 'tus' : 'basic';
  const base = addressOf(services, key);
  const action = (path: string): Action => ({
    href: `${base}/${path}`,
    ...(access && {
      header: { Authorization: `Bearer ${access.token}` },
      expires_in: access.seconds,
    }),
  });
  const answers = read.map((one): Answered => {
    if (!('object' in one)) return one;
    const { oid, size } = one.object;
    const known = here.get(oid);
    if (known !== undefined && known !== size)
      return refused(one.object, 422, `The object ${oid} has ${known} bytes, not ${size}`);
    if (operation === 'upload') {
      // What is here already needs nothing more.
      if (known !== undefined && !damaged.has(oid)) return { oid, size };
      const path = transfer === 'tus' ? resumablePath(one.object) : `objects/${oid}`;
      const actions = { upload: action(path), verify: action('objects/verify') };
      return { oid, size, authenticated: true, actions };
    }
    if (known === undefined)
      return refused(one.object, 404, `The object ${oid} is not in this repository`);
    return { oid, size, authenticated: true, actions: { download: action(`objects/${oid}`) } };
  });
  return { transfer, objects: answers, hash_algo: 'sha256' };
}

/** The anonymous need none for what anybody may read. */
function newToken(
  { lfs }: { lfs: Lfs },
  viewer: Viewer,
  repositoryId: string,
  operation: LfsOperation,
): LfsToken | undefined {
  if (viewer.kind === 'anonymous') return undefined;
  const grant = { repositoryId, credentialId: viewer.credential.id, operation };
  return { token: lfs.tokens.issue(grant), seconds: TOKEN_SECONDS };
}

/** The objects that the repository does not have, each once. */
function toCome(asked: readonly LfsObject[], here: ReadonlyMap<string, number>): LfsObject[] {
  const fresh = asked.filter(({ oid }) => !here.has(oid));
  return [...new Map(fresh.map((one) => [one.oid, one])).values()];
}

function readObject({
  oid,
  size,
}: BatchRequest['objects'][number]): { object: LfsObject } | Answered {
  const shown = {
    oid: String(oid).slice(0, 200),
    size: Number.isSafeInteger(size) ? Number(size) : 0,
  };
  if (!isOid(oid)) return refused(shown, 422, 'oid: must be 64 hexadecimal digits, in lower case');
  if (!Number.isSafeInteger(size) || Number(size) < 0)
    return refused(shown, 422, 'size: must be a whole number of bytes');
  return { object: { oid, size: Number(size) } };
}

function refused({ oid, size }: LfsObject, code: number, message: string): Answered {
  return { oid, size, error: { code, message } };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
