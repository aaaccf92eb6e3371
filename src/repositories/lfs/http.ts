/**
 * The API of git-lfs over HTTP: batches, objects and locks of a repository, beside its addresses for git.
 *
 * Errors have the form that git-lfs shows to its user. Everything here is in the database and in storage, so any
 * server answers, whichever has the repository.
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
import { freeing } from '../../platform/storage/streams.ts';
import { allowLongBody, closeSignal, wasAnsweredEarly } from '../../platform/web/connections.ts';
import { shouldLog, toClientError, toErrorResponse } from '../../platform/web/error-response.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { parseBody, readBodyBytes } from '../../platform/web/request-body.ts';
import { forbidRendering, sendObject } from '../../platform/web/send-object.ts';
import { LARGE_DOWNLOAD_PATH, verifyLargeFileLink } from '../browsing/downloads.ts';
import { watchTransferPermission } from '../transfers.ts';
import { answerBatch, readBatch } from './batch.ts';
import type { Lfs } from './lfs.ts';
import { actionOf, openForLfs } from './lfs.ts';
import { AlreadyLocked, type Lock, lockFile, sliceLocks, unlockFile } from './locks.ts';
import { findObject, verifyUpload } from './objects.ts';
import type { LargeFiles } from './store/store.ts';
import { accountOfToken, isLfsToken, type LfsOperation, type LfsToken } from './tokens.ts';
import { readRest, readTarget, TUS_HEADERS, type TusRequest } from './tus.ts';

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
      /** What its sender has shown in place of a credential. */
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
  'uploads/:oid': { head: answerOffset, patch: takeRest },
  locks: { get: listLocks, post: createLock },
  'locks/verify': { post: verifyLocks },
  'locks/:id/unlock': { post: deleteLock },
};

/** `before` refuses requests for reasons that are not of large files, such as bad credentials. */
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
  router.use(errors(services));
  return router;
}

/** Large files by signed link (`download_url`). */
export function largeDownloadsRouter(services: Deps): Router {
  const router = Router();
  router
    .route(LARGE_DOWNLOAD_PATH)
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
    await sendLarge(services, req as unknown as Request, res, { id, oid });
  };
}

/** What no other route takes: a token for the large files of one repository. */
function identifyByToken(services: Deps): RequestHandler {
  return async (req, _res, next) => {
    const token = /^Bearer +(\S+)$/i.exec(req.get('authorization') ?? '')?.[1];
    if (!token || !isLfsToken(token)) return next();
    try {
      const { account, held } = await accountOfToken(services, token);
      req.viewer = { ...account, from: originOf(req) };
      req.lfsToken = held;
    } catch (cause) {
      req.viewer = { kind: 'anonymous', failure: Object.assign(toClientError(cause), { cause }) };
    }
    next();
  };
}

async function batch(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const asked = readBatch(await readJson(req));
  send(res, 200, await answerBatch(services, req.viewer, keyOf(req), asked, req.lfsToken));
}

async function verify(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await open(services, req, 'upload');
  await verifyUpload(services, id, await readJson(req));
  send(res, 200, {});
}

async function upload(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await open(services, req, 'upload');
  const length = req.get('content-length');
  if (length === undefined)
    throw new AppError('invalid_request', 'Content-Length: the size of the object is required', {
      status: 411,
    });
  const givenById = demandAccount(req.viewer).userId;
  const object = { oid: req.params.oid, size: Number(length), givenById };
  const isHere = await receive(services, req, res, id, (body, signal) =>
    services.largeFiles.put(id, object, body, signal),
  );
  if (isHere) res.status(200).end();
}

/** How much of an object need not be sent again. */
async function answerOffset(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await open(services, req, 'upload');
  for (const [name, value] of Object.entries(TUS_HEADERS)) res.setHeader(name, value);
  const object = readTarget(tusOf(req));
  res.setHeader('Upload-Offset', await services.largeFiles.offset(id, object));
  res.setHeader('Upload-Length', object.size);
  res.status(200).end();
}

/** What follows of an object whose beginning is here. */
async function takeRest(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const id = await open(services, req, 'upload');
  for (const [name, value] of Object.entries(TUS_HEADERS)) res.setHeader(name, value);
  const object = { ...readRest(tusOf(req)), givenById: demandAccount(req.viewer).userId };
  const isHere = await receive(services, req, res, id, (body, signal) =>
    services.largeFiles.resume(id, object, body, signal),
  );
  if (isHere) res.status(204).setHeader('Upload-Offset', object.size).end();
}

function tusOf(req: LfsRequest): TusRequest {
  return { oid: req.params.oid, size: req.query.size, header: (name) => req.get(name) };
}

/**
 * Runs `take` with the body when it is its turn, for as long as its sender may push to the repository.
 * @returns false when the client has left: that is no fault, and nobody is there to be answered
 */
async function receive(
  services: Deps,
  req: Request,
  res: Response,
  id: string,
  take: (body: AsyncIterable<Uint8Array>, signal: AbortSignal) => Promise<void>,
): Promise<boolean> {
  allowLongBody(req);
  using _ = watchTransferPermission(services, req, { id, action: actionOf('upload'), output: res });
  const signal = closeSignal(res);
  const body = () => counted(services, 'upload', freeing(req));
  try {
    await measured(services, 'upload', res, () =>
      withRequestSlot(services.lfs, LFS_TRANSFERS, req, res, () => take(body(), signal)),
    );
    return true;
  } catch (error) {
    if (signal.aborted) return false;
    throw error;
  }
}

/** Counts how a transfer ends. */
async function measured(
  { metrics }: Deps,
  direction: Direction,
  res: Response,
  transfer: () => Promise<void>,
): Promise<void> {
  const gone = closeSignal(res);
  const ended = (outcome: TransferOutcome) => metrics.largeFileTransferred(direction, outcome);
  try {
    await transfer();
    // A download whose client leaves ends without an error.
    ended(direction === 'upload' || res.writableFinished ? 'completed' : 'broken_off');
  } catch (error) {
    ended(gone.aborted ? 'broken_off' : shouldLog(error) ? 'failed' : 'refused');
    throw error;
  }
}

async function* counted(
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
  const id = await open(services, req, 'download');
  using _ = watchTransferPermission(services, req, {
    id,
    action: actionOf('download'),
    output: res,
  });
  await sendLarge(services, req, res, { id, oid: req.params.oid });
}

async function sendLarge(
  services: Deps,
  req: Request,
  res: Response,
  { id, oid }: { id: string; oid: string },
): Promise<void> {
  const found = await findObject(services, id, oid);
  res.setHeader('Content-Type', 'application/octet-stream');
  forbidRendering(res);
  const contents = async (range?: ByteRange) =>
    counted(services, 'download', await found.open(range));
  const object = { size: found.size, etag: oid, open: contents };
  // Not of answers without a body.
  await sendObject(req, res, object, (sending) =>
    measured(services, 'download', res, () =>
      withRequestSlot(services.lfs, LFS_TRANSFERS, req, res, sending),
    ),
  );
}

async function createLock(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const repositoryId = await open(services, req, 'upload');
  const { path } = await readJson(req);
  if (typeof path !== 'string') throw invalid('path', 'must be a string');
  const lock = await lockFile(services, req.viewer, { repositoryId, path });
  send(res, 201, { lock: shownLock(lock) });
}

async function listLocks(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const repositoryId = await open(services, req, 'download');
  const { cursor, limit, path, id } = req.query;
  // A parameter that is there twice comes as a list.
  for (const [name, value] of Object.entries({ path, id, limit }))
    if (Array.isArray(value)) throw invalid(name, 'must be given once');
  const filter = { path: path as string | undefined, id: id as string | undefined };
  const range = { ...readRange({ cursor, limit: limit && Number(limit) }), ...filter };
  const { items, hasNextPage } = await sliceLocks(services, repositoryId, range);
  const locks = items.map(({ node }) => shownLock(node));
  send(res, 200, { locks, next_cursor: hasNextPage ? items.at(-1)?.cursor : undefined });
}

/** What a client asks before a push: which locks are its user's, and which are not. */
async function verifyLocks(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const repositoryId = await open(services, req, 'upload');
  const range = readRange(await readJson(req));
  const { items, hasNextPage } = await sliceLocks(services, repositoryId, range);
  const { userId } = demandAccount(req.viewer);
  const isOurs = ({ node }: { node: Lock }) => node.owner.id === userId;
  send(res, 200, {
    ours: items.filter(isOurs).map(({ node }) => shownLock(node)),
    theirs: items.filter((item) => !isOurs(item)).map(({ node }) => shownLock(node)),
    next_cursor: hasNextPage ? items.at(-1)?.cursor : undefined,
  });
}

async function deleteLock(services: Deps, req: LfsRequest, res: Response): Promise<void> {
  const repositoryId = await open(services, req, 'upload');
  const { force = false } = await readJson(req);
  if (typeof force !== 'boolean') throw invalid('force', 'must be true or false');
  const { id } = req.params;
  const lock = await unlockFile(services, req.viewer, { repositoryId, id, force });
  send(res, 200, { lock: shownLock(lock) });
}

function shownLock({ id, path, lockedAt, owner }: Lock) {
  return { id, path, locked_at: lockedAt.toISOString(), owner: { name: owner.username } };
}

/** A client may ask for more than a page has; it then asks for the next one. @throws AppError 400 */
function readRange({ cursor, limit }: { cursor?: unknown; limit?: unknown }): CursorPageRequest {
  const isLeftOut = limit === undefined || limit === '' || limit === 0;
  if (!isLeftOut && (!Number.isSafeInteger(limit) || Number(limit) < 1))
    throw invalid('limit', 'must be a whole number from 1');
  if (cursor !== undefined && typeof cursor !== 'string')
    throw invalid('cursor', 'must be a string');
  return {
    first: isLeftOut ? MAX_FIRST : Math.min(Number(limit), MAX_FIRST),
    after: cursor || undefined,
  };
}

function open(services: Deps, req: LfsRequest, operation: LfsOperation): Promise<string> {
  return openForLfs(services, req.viewer, keyOf(req), operation);
}

function keyOf({ params: { namespace, name } }: LfsRequest) {
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
  // Its actions hold tokens.
  res.setHeader('Cache-Control', 'no-store');
  res.status(status).setHeader('Content-Type', MEDIA_TYPE);
  res.send(Buffer.from(JSON.stringify(body)));
}

/** What a download that is refused late had said of its object already. */
const OF_CONTENT = ['Accept-Ranges', 'Content-Disposition', 'Content-Length', 'ETag'];

/** `message`, `documentation_url` and `request_id`, as git-lfs reads them. */
function errors({ log, urls }: { log: Logger; urls: Urls }): ErrorRequestHandler {
  return (error, req, res, _next) => {
    const shown = toClientError(error);
    if (shouldLog(error) && !wasAnsweredEarly(req))
      log.error({ err: error, req: { id: req.id } }, 'large files over HTTP failed');
    if (res.headersSent) return void res.destroy();
    if (!req.complete) res.setHeader('Connection', 'close');
    const id = req.id;
    const { headers } = toErrorResponse(shown, id);
    for (const name of OF_CONTENT) res.removeHeader(name);
    if (shown.status !== 416) res.removeHeader('Content-Range');
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
    if (shown.status === 401) {
      // As git's own routes: JGit reads the last of these headers only, and can do Basic alone.
      const schemes = ['Bearer realm="loam"', 'Basic realm="loam"'];
      // Clients of git-lfs look for its own first, where a browser would ask for the other.
      res.setHeader('LFS-Authenticate', schemes);
      res.setHeader('WWW-Authenticate', schemes);
    }
    send(res, statusOf(shown), {
      ...(error instanceof AlreadyLocked && { lock: shownLock(error.lock) }),
      message: shown.message,
      documentation_url: `${urls.base}/docs`,
      request_id: id,
    });
  };
}

/** git-lfs takes 403 for missing rights, and has 507 for missing room. */
function statusOf({ code, status }: AppError): number {
  return code === 'quota_exceeded' ? 507 : status;
}
