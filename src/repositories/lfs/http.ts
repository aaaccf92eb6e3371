/**
 * The git-lfs API over HTTP: batches, objects and locks, below the clone URL of a repository.
 *
 * Errors have the format of git-lfs. Any server of a cluster can handle these requests, because they need only the
 * database and the storage, not the repository's folder.
 */

import {
  type ErrorRequestHandler,
  type Request,
  type RequestHandler,
  type Response,
  Router,
} from 'express';
import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { AppError, invalid } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import type { Urls } from '../../base/urls.ts';
import { withRequestSlot } from '../../identity/http/request-slot.ts';
import { originOf } from '../../identity/http/viewer.ts';
import type { LastUsedRecorder } from '../../identity/last-used.ts';
import { demandAccount } from '../../identity/permissions.ts';
import type { Rechecks } from '../../identity/rechecks.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import type { Db } from '../../platform/database/client.ts';
import { type CursorPageRequest, MAX_FIRST } from '../../platform/database/paging.ts';
import { LFS_TRANSFERS } from '../../platform/limits/fair-semaphore.ts';
import type { Direction, Metrics, TransferOutcome } from '../../platform/metrics/metrics.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import type { ByteRange } from '../../platform/storage/storage.ts';
import { freePieces } from '../../platform/storage/streams.ts';
import { allowLongBody, closeSignal, wasAnsweredEarly } from '../../platform/web/connections.ts';
import { shouldLog, toClientError, toErrorResponse } from '../../platform/web/error-response.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { parseBody, readBodyBytes } from '../../platform/web/request-body.ts';
import { downloadTypeOf, forbidRendering, sendObject } from '../../platform/web/send-object.ts';
import { LARGE_FILE_DOWNLOAD_PATH, verifyLargeFileLink } from '../browsing/downloads.ts';
import { watchTransferPermission } from '../transfers.ts';
import { answerBatch, readBatch } from './batch.ts';
import { applyDelta, readDeltaRequest } from './delta.ts';
import { authorizeLfs, gitActionFor, type Lfs } from './lfs.ts';
import { AlreadyLockedError, type Lock, lockFile, readLockPage, unlockFile } from './locks.ts';
import { findObject, verifyUpload } from './objects.ts';
import type { LargeFiles } from './store/store.ts';
import { authenticateToken, isLfsToken, type LfsOperation, type LfsToken } from './tokens.ts';
import { readTusObject, readTusPatch, TUS_HEADERS, type TusRequest } from './tus.ts';

export type Deps = {
  log: Logger;
  urls: Urls;
  signer: Signer;
  pool: pg.Pool;
  usage: LastUsedRecorder;
  lfs: Lfs;
  config: Config;
  db: Db;
  space: DiskSpace;
  largeFiles: LargeFiles;
  rechecks: Rechecks;
  metrics: Metrics;
};

declare global {
  namespace Express {
    interface Request {
      /** The LFS token that authenticated the request. */
      lfsToken?: LfsToken;
    }
  }
}

const MEDIA_TYPE = 'application/vnd.git-lfs+json';

type LfsRequest = Request<{ namespace: string; name: string; oid: string; id: string }>;
type Handler = (services: Deps, req: LfsRequest, res: Response) => Promise<void>;

type Method = 'get' | 'head' | 'patch' | 'post' | 'put';
const ROUTES: Record<string, Partial<Record<Method, Handler>>> = {
  'objects/batch': { post: batch },
  'objects/verify': { post: verify },
  'objects/:oid': { get: download, put: upload },
  'objects/:oid/delta': { post: uploadDelta },
  'uploads/:oid': { head: headUpload, patch: patchUpload },
  locks: { get: listLocks, post: createLock },
  'locks/verify': { post: verifyLocks },
  'locks/:id/unlock': { post: deleteLock },
};

/** @param before handlers that reject requests for general reasons, such as invalid credentials */
export function lfsRouter(services: Deps, before: RequestHandler[]): Router {
  const router = Router();
  for (const [path, handlers] of Object.entries(ROUTES)) {
    const route = router.route(`/:namespace/:name/info/lfs/${path}`);
    for (const [method, handle] of Object.entries(handlers))
      route[method as Method](identifyByToken(services), ...before, (req: Request, res: Response) =>
        handle(services, req as LfsRequest, res),
      );
    route.all(refuseOtherMethods(Object.keys(handlers).map((method) => method.toUpperCase())));
  }
  router.use(handleErrors(services));
  return router;
}

/** Serves large files by signed links (`download_url`). */
export function largeDownloadsRouter(services: Deps): Router {
  const router = Router();
  router
    .route(LARGE_FILE_DOWNLOAD_PATH)
    .get(downloadByLink(services) as RequestHandler)
    .all(refuseOtherMethods(['GET']));
  return router;
}

function downloadByLink(services: Deps): RequestHandler<{ id: string; oid: string; name: string }> {
  return async (req, res) => {
    const { id, oid, name } = req.params;
    verifyLargeFileLink(services, { id, oid, query: req.query });
    res.attachment(name);
    res.setHeader('Cache-Control', 'private, max-age=900');
    await sendLargeFile(services, req as unknown as Request, res, { id, oid, name });
  };
}

/** LFS tokens are accepted on these routes only. */
function identifyByToken(services: Deps): RequestHandler {
  return async (req, _res, next) => {
    const token = /^Bearer +(\S+)$/i.exec(req.get('authorization') ?? '')?.[1];
    if (!token || !isLfsToken(token)) return next();
    try {
      const { account, lfsToken } = await authenticateToken(services, token);
      req.viewer = { ...account, from: originOf(req) };
      req.lfsToken = lfsToken;
    } catch (cause) {
      req.viewer = { kind: 'anonymous', failure: Object.assign(toClientError(cause), { cause }) };
    }
    next();
  };
}

async function batch(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const asked = readBatch(await readJson(req));
  const repository = repositoryNameOf(req);
  send(res, 200, await answerBatch(services, req.viewer, repository, asked, req.lfsToken));
}

async function verify(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await authorize(services, req, 'upload');
  await verifyUpload(services, id, await readJson(req));
  send(res, 200, {});
}

async function upload(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await authorize(services, req, 'upload');
  const length = req.get('content-length');
  if (length === undefined)
    throw new AppError('invalid_request', 'Content-Length is required: the size of the object', {
      status: 411,
    });
  const givenById = demandAccount(req.viewer).userId;
  const object = { oid: req.params.oid, size: Number(length), givenById };
  const isHere = await receive(services, req, res, id, (body, signal) =>
    services.largeFiles.put(id, object, body, signal),
  );
  if (isHere) res.status(200).end();
}

/** Receives a new version of an object that the repository has. */
async function uploadDelta(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await authorize(services, req, 'upload');
  const { oid } = req.params;
  const { size, base: baseOid } = req.query;
  const contentType = req.get('content-type');
  const request = readDeltaRequest({ oid, size, base: baseOid, contentType });
  const base = await findObject(services, id, request.base);
  const givenById = demandAccount(req.viewer).userId;
  const object = { ...request.object, givenById };
  const isHere = await receive(services, req, res, id, (body, signal) =>
    services.largeFiles.put(id, object, applyDelta(body, base, object.size), signal),
  );
  if (isHere) res.status(200).end();
}

/** tus: returns how many bytes of an object are stored. */
async function headUpload(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await authorize(services, req, 'upload');
  for (const [name, value] of Object.entries(TUS_HEADERS)) res.setHeader(name, value);
  const object = readTusObject(toTusRequest(req));
  res.setHeader('Upload-Offset', await services.largeFiles.offset(id, object));
  res.setHeader('Upload-Length', object.size);
  res.status(200).end();
}

/** tus: receives the rest of an object. */
async function patchUpload(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await authorize(services, req, 'upload');
  for (const [name, value] of Object.entries(TUS_HEADERS)) res.setHeader(name, value);
  const givenById = demandAccount(req.viewer).userId;
  const object = { ...readTusPatch(toTusRequest(req)), givenById };
  const isHere = await receive(services, req, res, id, (body, signal) =>
    services.largeFiles.resume(id, object, body, signal),
  );
  if (isHere) res.status(204).setHeader('Upload-Offset', object.size).end();
}

function toTusRequest(req: LfsRequest): TusRequest {
  return { oid: req.params.oid, size: req.query.size, header: (name) => req.get(name) };
}

/**
 * Passes the body to `store` when a transfer slot is free. Aborts when the viewer loses the right to push.
 * @returns false if the client has disconnected, so that no response is needed
 */
async function receive(
  services: Deps,
  req: Request,
  res: Response,
  id: string,
  store: (body: AsyncIterable<Uint8Array>, signal: AbortSignal) => Promise<void>,
): Promise<boolean> {
  allowLongBody(req);
  using _ = watchTransferPermission(services, req, {
    id,
    action: gitActionFor('upload'),
    cutOff: (error) => handleErrors(services)(error, req, res, () => {}),
  });
  const signal = closeSignal(res);
  const body = () => countBytes(services, 'upload', freePieces(req));
  try {
    await countOutcome(services, 'upload', res, () =>
      withRequestSlot(services.lfs, LFS_TRANSFERS, req, res, () => store(body(), signal)),
    );
    return true;
  } catch (error) {
    if (signal.aborted) return false;
    throw error;
  }
}

/** Counts the outcome of a transfer in the metrics. */
async function countOutcome(
  { metrics }: Deps,
  direction: Direction,
  res: Response,
  transfer: () => Promise<void>,
): Promise<void> {
  const gone = closeSignal(res);
  const ended = (outcome: TransferOutcome) => metrics.largeFileTransferred(direction, outcome);
  try {
    await transfer();
    // A download does not fail when its client disconnects.
    ended(direction === 'upload' || res.writableFinished ? 'completed' : 'broken_off');
  } catch (error) {
    ended(gone.aborted ? 'broken_off' : shouldLog(error) ? 'failed' : 'refused');
    throw error;
  }
}

async function* countBytes(
  { metrics }: Deps,
  direction: Direction,
  pieces: AsyncIterable<Uint8Array>,
): AsyncGenerator<Uint8Array> {
  for await (const piece of pieces) {
    metrics.largeFileBytes(direction, piece.length);
    yield piece;
  }
}

async function download(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await authorize(services, req, 'download');
  using _ = watchTransferPermission(services, req, {
    id,
    action: gitActionFor('download'),
    cutOff: (error) => handleErrors(services)(error, req, res, () => {}),
  });
  await sendLargeFile(services, req, res, { id, oid: req.params.oid });
}

async function sendLargeFile(
  services: Deps,
  req: Request,
  res: Response,
  { id, oid, name = '' }: { id: string; oid: string; name?: string },
): Promise<void> {
  const found = await findObject(services, id, oid);
  res.setHeader('Content-Type', downloadTypeOf(name));
  forbidRendering(res);
  const contents = async (range?: ByteRange) =>
    countBytes(services, 'download', await found.open(range));
  const object = { size: found.size, etag: oid, open: contents };
  // Responses without a body (HEAD, 304) need no slot and are not counted.
  await sendObject(req, res, object, (sending) =>
    countOutcome(services, 'download', res, () =>
      withRequestSlot(services.lfs, LFS_TRANSFERS, req, res, sending),
    ),
  );
}

async function createLock(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const repositoryId = await authorize(services, req, 'upload');
  const { path } = await readJson(req);
  if (typeof path !== 'string') throw invalid('path', 'must be a string');
  const lock = await lockFile(services, req.viewer, { repositoryId, path });
  send(res, 201, { lock: toLockJson(lock) });
}

async function listLocks(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const repositoryId = await authorize(services, req, 'download');
  const { cursor, limit, path, id } = req.query;
  // Express parses a repeated parameter into a list.
  for (const [name, value] of Object.entries({ path, id, limit }))
    if (Array.isArray(value)) throw invalid(name, 'must be given once');
  const filter = { path: path as string | undefined, id: id as string | undefined };
  const range = { ...readRange({ cursor, limit: limit && Number(limit) }), ...filter };
  const { items, hasNextPage } = await readLockPage(services, repositoryId, range);
  const locks = items.map(({ node }) => toLockJson(node));
  send(res, 200, { locks, next_cursor: hasNextPage ? items.at(-1)?.cursor : undefined });
}

/** git-lfs calls this before a push to find out which locks belong to its user. */
async function verifyLocks(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const repositoryId = await authorize(services, req, 'upload');
  const range = readRange(await readJson(req));
  const { items, hasNextPage } = await readLockPage(services, repositoryId, range);
  const { userId } = demandAccount(req.viewer);
  const isOurs = ({ node }: { node: Lock }) => node.owner.id === userId;
  send(res, 200, {
    ours: items.filter(isOurs).map(({ node }) => toLockJson(node)),
    theirs: items.filter((item) => !isOurs(item)).map(({ node }) => toLockJson(node)),
    next_cursor: hasNextPage ? items.at(-1)?.cursor : undefined,
  });
}

async function deleteLock(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const repositoryId = await authorize(services, req, 'upload');
  const { force = false } = await readJson(req);
  if (typeof force !== 'boolean') throw invalid('force', 'must be true or false');
  const { id } = req.params;
  const lock = await unlockFile(services, req.viewer, { repositoryId, id, force });
  send(res, 200, { lock: toLockJson(lock) });
}

function toLockJson({ id, path, lockedAt, owner }: Lock) {
  return { id, path, locked_at: lockedAt.toISOString(), owner: { name: owner.username } };
}

/** A `limit` above the maximum is reduced to it: clients then request the next page. @throws AppError 400 */
function readRange({ cursor, limit }: { cursor?: unknown; limit?: unknown }): CursorPageRequest {
  const isLeftOut = limit === undefined || limit === '' || limit === 0;
  if (!isLeftOut && (!Number.isSafeInteger(limit) || Number(limit) < 1))
    throw invalid('limit', 'must be a positive integer');
  if (cursor !== undefined && typeof cursor !== 'string')
    throw invalid('cursor', 'must be a string');
  return {
    first: isLeftOut ? MAX_FIRST : Math.min(Number(limit), MAX_FIRST),
    after: cursor || undefined,
  };
}

function authorize(services: Deps, req: LfsRequest, operation: LfsOperation): Promise<string> {
  return authorizeLfs(services, req.viewer, repositoryNameOf(req), operation);
}

function repositoryNameOf({ params: { namespace, name } }: LfsRequest) {
  return { namespace, name: name.replace(/\.git$/, '') };
}

/** @throws AppError 400 */
async function readJson(req: Request): Promise<Record<string, unknown>> {
  const type = req.get('content-type') ?? '';
  if (!/^application\/(vnd\.git-lfs\+)?json\s*(;|$)/i.test(type))
    throw invalid(null, `The body must be ${MEDIA_TYPE}`);
  const body = parseBody((await readBodyBytes(req)).toString('utf8'));
  if (typeof body !== 'object' || body === null || Array.isArray(body))
    throw invalid(null, 'The body must be an object');
  return body as Record<string, unknown>;
}

function send(res: Response, status: number, body: object): void {
  // The actions of a batch contain tokens.
  res.setHeader('Cache-Control', 'no-store');
  res.status(status).setHeader('Content-Type', MEDIA_TYPE);
  res.send(Buffer.from(JSON.stringify(body)));
}

/** Headers of a download that fails after they were set. */
const CONTENT_HEADERS = ['Accept-Ranges', 'Content-Disposition', 'Content-Length', 'ETag'];

/** Sends errors as `message`, `documentation_url` and `request_id`, as git-lfs expects. */
function handleErrors({ log, urls }: { log: Logger; urls: Urls }): ErrorRequestHandler {
  return (error, req, res, _next) => {
    const shown = toClientError(error);
    if (shouldLog(error) && !wasAnsweredEarly(req))
      log.error({ err: error, req: { id: req.id } }, 'a git-lfs request failed');
    if (res.headersSent) return void res.destroy();
    if (!req.complete) res.setHeader('Connection', 'close');
    const id = req.id;
    const { headers } = toErrorResponse(shown, id);
    for (const name of CONTENT_HEADERS) res.removeHeader(name);
    if (shown.status !== 416) res.removeHeader('Content-Range');
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
    if (shown.status === 401) {
      // Basic last, as on the git routes: JGit reads only the last header, and supports only Basic.
      const schemes = ['Bearer realm="loam"', 'Basic realm="loam"'];
      // git-lfs prefers `LFS-Authenticate`, because browsers prompt for credentials at the other header.
      res.setHeader('LFS-Authenticate', schemes);
      res.setHeader('WWW-Authenticate', schemes);
    }
    send(res, statusOf(shown), {
      ...(error instanceof AlreadyLockedError && { lock: toLockJson(error.lock) }),
      message: shown.message,
      documentation_url: `${urls.base}/docs/large-files`,
      request_id: id,
    });
  };
}

/** git-lfs interprets 403 as missing rights, and 507 as missing storage. */
function statusOf({ code, status }: AppError): number {
  return code === 'quota_exceeded' ? 507 : status;
}
