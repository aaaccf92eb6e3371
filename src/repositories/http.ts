/**
 * Git's smart HTTP protocol, downloads by signed link, and badges.
 *
 * Paths work with and without `.git`. Errors are plain text, which git shows to its user.
 */

import { hash } from 'node:crypto';
import { type Duplex, finished, type Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import {
  type ErrorRequestHandler,
  type Request,
  type RequestHandler,
  type Response,
  Router,
} from 'express';
import { type AppError, busy, forbidden, invalid, notFound } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import { forward } from '../cluster/forward.ts';
import { GitError } from '../git/processes/run.ts';
import { GIT_SERVICES, type GitRun, type GitService } from '../git/transport/git-services.ts';
import { RequestLimit, RequestTooLong } from '../git/transport/requests.ts';
import { advertise, uploadPack } from '../git/transport/transport.ts';
import { withRequestSlot } from '../identity/http/request-slot.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import { GIT_TRANSFERS } from '../platform/limits/fair-semaphore.ts';
import type { GitExit } from '../platform/processes/git-started.ts';
import type { ByteRange } from '../platform/storage/storage.ts';
import { allowLongBody, wasAnsweredEarly } from '../platform/web/connections.ts';
import { shouldLog, toClientError, toErrorResponse } from '../platform/web/error-response.ts';
import { refuseOtherMethods } from '../platform/web/methods.ts';
import {
  downloadTypeOf,
  etagMatches,
  forbidRendering,
  sendObject,
} from '../platform/web/send-object.ts';
import { drawBadge } from './badge.ts';
import { ARCHIVE_PATH, sendArchive, verifyArchiveLink } from './browsing/archives.ts';
import {
  BLOB_DOWNLOAD_PATH,
  type DownloadLink,
  findBlobDownload,
  verifyBlobLink,
} from './browsing/downloads.ts';
import { withRepositoryFolder } from './folder.ts';
import { authorizeGit } from './repositories.ts';
import { findBranchState } from './statuses.ts';
import {
  gitActionOf,
  prepareReceive,
  type Deps as TransferDeps,
  watchTransferPermission,
} from './transfers.ts';

export type Deps = TransferDeps & { rechecks: Rechecks; signer: Signer };

type Handler = (services: Deps, req: GitRequest, res: Response) => Promise<void>;
type GitRequest = Request<{ namespace: string; name: string }>;

const ROUTES = [
  ['get', 'info/refs', serveInfoRefs],
  ['post', 'git-upload-pack', serveFetch],
  ['post', 'git-receive-pack', servePush],
] as const satisfies readonly (readonly ['get' | 'post', string, Handler])[];

/**
 * Routes for git and for downloads. The handlers `before` run first and may reject the request, for example for bad
 * credentials. Git gets these errors as plain text too.
 */
export function gitRouter(services: Deps, before: RequestHandler[]): Router {
  const router = Router();
  for (const [method, path, handle] of ROUTES) {
    const route = router.route(`/:namespace/:name/${path}`);
    route[method](...before, (req: Request, res: Response) =>
      handle(services, req as GitRequest, res),
    );
    route.all(refuseOtherMethods([method.toUpperCase()]));
  }
  router.use(plainTextErrors(services));
  return router;
}

export function downloadsRouter(services: Deps): Router {
  const router = Router();
  router
    .route(BLOB_DOWNLOAD_PATH)
    .get(serveDownload(services) as RequestHandler)
    .all(refuseOtherMethods(['GET']));
  router
    .route(ARCHIVE_PATH)
    .get(serveArchive(services) as RequestHandler)
    .all(refuseOtherMethods(['GET']));
  return router;
}

/** @param countRequest applies the rate limit, because each badge reads the repository */
export function badgeRouter(services: Deps, countRequest: RequestHandler): Router {
  const router = Router({ caseSensitive: true, strict: true });
  router
    .route('/:namespace/:name/-/badge.svg')
    .get(countRequest, serveBadge(services) as RequestHandler)
    .all(refuseOtherMethods(['GET']));
  return router;
}

async function serveInfoRefs(services: Deps, req: GitRequest, res: Response): Promise<void> {
  const service = GIT_SERVICES.find((name) => name === req.query.service);
  if (!service)
    throw forbidden('This server supports only the smart HTTP protocol; use git 1.6.6 or newer');
  const id = await authorize(services, req, service);
  if (await forwardIfRemote(services, req, res, id)) return;
  sendHeaders(res, `application/x-${service}-advertisement`);
  await runGit(services, req, res, id, (gitRun) => advertise(service, gitRun, res));
}

async function serveFetch(services: Deps, req: GitRequest, res: Response): Promise<void> {
  const id = await authorize(services, req, 'git-upload-pack');
  if (await forwardIfRemote(services, req, res, id)) return;
  const input = readBody(req, 'git-upload-pack');
  using _ = watchTransferPermission(services, req, {
    id,
    action: 'repository.read',
    cutOff: respondWithError(services, req, res),
  });
  sendHeaders(res, 'application/x-git-upload-pack-result');
  await runGit(services, req, res, id, (gitRun) => uploadPack(gitRun, input, res), input);
}

async function servePush(services: Deps, req: GitRequest, res: Response): Promise<void> {
  const id = await authorize(services, req, 'git-receive-pack');
  if (await forwardIfRemote(services, req, res, id)) return;
  const input = readBody(req, 'git-receive-pack');
  using permissionWatch = watchTransferPermission(services, req, {
    id,
    action: 'repository.push',
    cutOff: respondWithError(services, req, res),
  });
  const push = { id, requestId: req.id, permissionWatch, input, output: res };
  const receive = await prepareReceive(services, req, push);
  sendHeaders(res, 'application/x-git-receive-pack-result');
  await runGit(services, req, res, id, receive, input);
}

/** Forwards the request if a different server has the repository. @returns whether it did */
function forwardIfRemote(
  services: Deps,
  req: Request,
  res: Response,
  id: string,
): Promise<boolean> {
  if (req.forwarded) return Promise.resolve(false);
  allowLongBody(req);
  return forward(services, id, req, res);
}

function authorize(services: Deps, req: GitRequest, service: GitService): Promise<string> {
  const { namespace, name } = req.params;
  const key = { namespace, name: name.replace(/\.git$/, '') };
  return authorizeGit(services, req.viewer, key, gitActionOf(service));
}

/**
 * Runs git for a request; a stopping server waits for the end. Git reports most failures to the client in the protocol
 * itself; the remaining ones it prints to standard error.
 */
async function runGit(
  services: Deps,
  req: GitRequest,
  res: Response,
  id: string,
  serve: (gitRun: GitRun) => Promise<GitExit>,
  input?: Readable,
): Promise<void> {
  const protocol = req.get('git-protocol');
  const run = (dir: string) =>
    services.git.tasks.run(async (signal) => {
      const ending = await serve({ dir, protocol, signal });
      if (input?.errored && !res.headersSent) throw unreadableBody(input.errored);
      if (signal.aborted && !res.headersSent) throw busy('The server is shutting down; try again');
      if (ending.code !== 0 && !res.headersSent)
        throw toGitRequestError(new GitError('over HTTP', ending), dir);
    });
  const transfer = () => withRepositoryFolder(services, id, run);
  await withRequestSlot(services.git, GIT_TRANSFERS, req, res, transfer);
  res.end();
}

function unreadableBody(error: Error): AppError {
  const isKnown = error instanceof RequestTooLong;
  return invalid(null, isKnown ? error.message : 'The request body is malformed or incomplete');
}

/**
 * An error of git about a malformed request is a client error. If git was killed, or its message names the server's
 * folder, it is a server error.
 */
function toGitRequestError(error: GitError, dir: string): Error {
  const { signal, stderr } = error;
  const malformed = 'The request is not a valid git request';
  if (signal === 'SIGABRT') return invalid(null, malformed);
  if (signal || stderr.includes(dir)) return error;
  return invalid(null, stderr.replace(/^fatal: /, '') || malformed);
}

/** Returns the decompressed request body. @throws AppError 400 */
function readBody(req: Request, service: GitService): Readable {
  const type = req.get('content-type');
  if (type !== `application/x-${service}-request`)
    throw invalid(null, `Content-Type must be application/x-${service}-request`);
  allowLongBody(req);
  const encoding = req.get('content-encoding') ?? 'identity';
  const limit = new RequestLimit(service);
  if (encoding === 'identity') return pipeBody(req, [limit]);
  if (encoding !== 'gzip' && encoding !== 'x-gzip')
    throw invalid(null, 'Content-Encoding must be identity or gzip');
  return pipeBody(req, [createGunzip(), limit]);
}

/**
 * Pipes the request body through the stages. A failing stage leaves the request itself open: `pipeline` would destroy
 * the connection before the response is sent. The rest of the body is discarded as it arrives.
 */
function pipeBody(req: Request, stages: [Duplex, ...Duplex[]]): Readable {
  let last: Readable = req;
  for (const stage of stages) {
    // A truncated body, or one that is not gzip, ends the stream; git then reports what is missing.
    last.on('error', (error) => stage.destroy(error));
    last = last.pipe(stage);
  }
  last.on('error', () => {});
  const [first] = stages;
  last.once('close', () => {
    if (last.readableEnded) return;
    req.unpipe(first);
    req.resume();
    for (const stage of stages) stage.destroy();
  });
  // Handles clients that disconnect early, or have already done so. `pipe` does not forward errors between stages.
  finished(req, { writable: false }, (error) => {
    if (error) first.destroy(error);
  });
  return last;
}

function sendHeaders(res: Response, type: string): void {
  res.status(200).setHeader('Content-Type', type);
  res.setHeader('Cache-Control', 'no-cache, max-age=0, must-revalidate');
}

function respondWithError(services: Deps, req: Request, res: Response): (error: AppError) => void {
  return (error) => plainTextErrors(services)(error, req, res, () => {});
}

function plainTextErrors({ log }: { log: Logger }): ErrorRequestHandler {
  return (error, req, res, _next) => {
    const shown = toClientError(error);
    if (shouldLog(error) && !wasAnsweredEarly(req))
      log.error({ err: error, req: { id: req.id } }, 'git over HTTP failed');
    if (res.headersSent) return void res.destroy();
    // The rest of the body will not be read, so the connection is closed.
    if (!req.complete) res.setHeader('Connection', 'close');
    const { status, headers } = toErrorResponse(shown, req.id);
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
    // Most git clients support only Basic, and give up if it is not offered. JGit reads only the last of these headers.
    if (status === 401)
      res.setHeader('WWW-Authenticate', ['Bearer realm="loam"', 'Basic realm="loam"']);
    res.removeHeader('Cache-Control');
    res.status(status).type('text/plain').send(`${shown.message}\n`);
  };
}

function serveDownload(services: Deps): RequestHandler<{ id: string; oid: string; name: string }> {
  return async (req, res) => {
    const { id, oid, name } = req.params;
    const link: DownloadLink = { id, oid, query: req.query };
    verifyBlobLink(services, link);
    if (await forwardIfRemote(services, req as unknown as Request, res, id)) return;
    const found = await findBlobDownload(services, link);
    setDownloadHeaders(res, name, downloadTypeOf(name));
    const contents = (range?: ByteRange) => found.open(range);
    const object = { size: found.size, etag: oid, open: contents };
    await sendObject(req, res, object, (send) =>
      withRequestSlot(services.git, GIT_TRANSFERS, req, res, send),
    );
  };
}

function setDownloadHeaders(res: Response, name: string, type: string): void {
  res.attachment(name);
  res.setHeader('Content-Type', type);
  forbidRendering(res);
  res.setHeader('Cache-Control', 'private, max-age=900');
}

const ARCHIVE_TYPES = { 'tar.gz': 'application/gzip', zip: 'application/zip' } as const;

/** The archive is created while it is sent, so it has neither a length nor ranges. */
function serveArchive(
  services: Deps,
): RequestHandler<{ id: string; commit: string; name: string }> {
  return async (req, res) => {
    const { id, commit, name } = req.params;
    const { format, folder } = verifyArchiveLink(services, { id, commit, name, query: req.query });
    if (await forwardIfRemote(services, req as unknown as Request, res, id)) return;
    allowLongBody(req as unknown as Request);
    const send = (dir: string) =>
      services.git.tasks.run(async (signal) => {
        if (signal.aborted) throw busy('The server is shutting down; try again');
        setDownloadHeaders(res, name, ARCHIVE_TYPES[format]);
        if (req.method === 'HEAD') return void res.end();
        const of = { dir, commit, format, folder, signal };
        if (await sendArchive(services, id, of, res)) return void res.end();
        if (!res.headersSent) throw notFound('Commit');
        // Destroy the connection, so that a truncated archive does not look complete.
        res.destroy();
      });
    await withRequestSlot(services.git, GIT_TRANSFERS, req as unknown as Request, res, () =>
      withRepositoryFolder(services, id, send),
    );
  };
}

function serveBadge(services: Deps): RequestHandler<{ namespace: string; name: string }> {
  return async (req, res) => {
    const { namespace, name } = req.params;
    const branch = readQuery(req.query, 'branch');
    const context = readQuery(req.query, 'job');
    const key = { namespace, name, branch, context };
    const { state, isPublic } = await findBranchState(services, req.viewer, key);
    const badge = drawBadge(context ?? 'checks', state);
    const etag = `"${hash('sha256', badge)}"`;
    res.vary('Authorization, Cookie');
    res.set({
      'Cache-Control': isPublic ? 'no-cache' : 'private, no-cache',
      ETag: etag,
      'Content-Security-Policy': "default-src 'none'",
      'X-Content-Type-Options': 'nosniff',
    });
    if (etagMatches(req.headers['if-none-match'], etag)) return void res.status(304).end();
    res.type('image/svg+xml').send(badge);
  };
}

/** An empty value counts as absent. @throws AppError 400 */
function readQuery(query: Request['query'], name: string): string | undefined {
  const value = query[name];
  if (Array.isArray(value)) throw invalid(name, 'is given more than once');
  return typeof value === 'string' && value !== '' ? value : undefined;
}
