/**
 * Git's smart protocol over HTTP, and downloads by signed link.
 *
 * Addresses work with and without `.git`. Errors are plain text, which git shows to its user.
 */

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
import { RequestLimit, RequestTooLong } from '../git/transport/requests.ts';
import { SERVICES, type Service, type Session } from '../git/transport/service.ts';
import { advertise, uploadPack } from '../git/transport/transport.ts';
import { withRequestSlot } from '../identity/http/request-slot.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import { OF_GIT } from '../platform/limits/fair-semaphore.ts';
import type { Ending } from '../platform/processes/git-started.ts';
import type { ByteRange } from '../platform/storage/storage.ts';
import { takesLong, wasCutOff } from '../platform/web/connections.ts';
import { answerOf, isUnexpected, toPublic } from '../platform/web/error-response.ts';
import { otherMethod } from '../platform/web/methods.ts';
import { neverAsPage, sendObject } from '../platform/web/send-object.ts';
import { ARCHIVE_PATH, demandArchiveLink, sendArchive } from './browsing/archives.ts';
import {
  DOWNLOAD_PATH,
  type DownloadLink,
  demandLink,
  findDownload,
} from './browsing/downloads.ts';
import { inFolder } from './folder.ts';
import { openForGit } from './repositories.ts';
import { actionOf, receiving, type Deps as TransferDeps, whileAllowed } from './transfers.ts';

export type Deps = TransferDeps & { rechecks: Rechecks; signer: Signer };

type Handler = (services: Deps, req: GitRequest, res: Response) => Promise<void>;
type GitRequest = Request<{ namespace: string; name: string }>;

const ROUTES = [
  ['get', 'info/refs', infoRefs],
  ['post', 'git-upload-pack', fetchRequest],
  ['post', 'git-receive-pack', pushRequest],
] as const satisfies readonly (readonly ['get' | 'post', string, Handler])[];

/** `before` refuses requests for reasons that are not git's, such as bad credentials; git gets those as plain text too. */
export function gitRouter(services: Deps, before: RequestHandler[]): Router {
  const router = Router();
  for (const [method, path, handle] of ROUTES) {
    const route = router.route(`/:namespace/:name/${path}`);
    route[method](...before, (req: Request, res: Response) =>
      handle(services, req as GitRequest, res),
    );
    route.all(otherMethod([method.toUpperCase()]));
  }
  router.use(plainErrors(services));
  return router;
}

export function downloadsRouter(services: Deps): Router {
  const router = Router();
  router
    .route(DOWNLOAD_PATH)
    .get(download(services) as RequestHandler)
    .all(otherMethod(['GET']));
  router
    .route(ARCHIVE_PATH)
    .get(archive(services) as RequestHandler)
    .all(otherMethod(['GET']));
  return router;
}

async function infoRefs(services: Deps, req: GitRequest, res: Response): Promise<void> {
  const service = SERVICES.find((one) => one === req.query.service);
  if (!service)
    throw forbidden('Only the smart protocol is served here; use git 1.6.6 or newer to clone');
  const id = await open(services, req, service);
  if (await sentOn(services, req, res, id)) return;
  begin(res, `application/x-${service}-advertisement`);
  await answer(services, req, res, id, (session) => advertise(service, session, res));
}

async function fetchRequest(services: Deps, req: GitRequest, res: Response): Promise<void> {
  const id = await open(services, req, 'git-upload-pack');
  if (await sentOn(services, req, res, id)) return;
  const input = body(req, 'git-upload-pack');
  using _ = whileAllowed(services, req, { id, action: 'repository.read', output: res });
  begin(res, 'application/x-git-upload-pack-result');
  await answer(services, req, res, id, (session) => uploadPack(session, input, res), input);
}

async function pushRequest(services: Deps, req: GitRequest, res: Response): Promise<void> {
  const id = await open(services, req, 'git-receive-pack');
  if (await sentOn(services, req, res, id)) return;
  const input = body(req, 'git-receive-pack');
  using right = whileAllowed(services, req, { id, action: 'repository.push', output: res });
  const push = { id, requestId: req.id, right, input, output: res };
  const receive = await receiving(services, req, push);
  begin(res, 'application/x-git-receive-pack-result');
  await answer(services, req, res, id, receive, input);
}

/** Sends the request to the server that has the repository, when that is another one. */
function sentOn(services: Deps, req: Request, res: Response, id: string): Promise<boolean> {
  if (req.forwarded) return Promise.resolve(false);
  takesLong(req);
  const { originalUrl: url } = req;
  const incoming = { req, url, address: req.ip ?? '', requestId: req.id };
  return forward(services, id, incoming, res);
}

function open(services: Deps, req: GitRequest, service: Service): Promise<string> {
  const { namespace, name } = req.params;
  const key = { namespace, name: name.replace(/\.git$/, '') };
  return openForGit(services, req.viewer, key, actionOf(service));
}

/**
 * Runs git's side of a request, which a stopping server waits for. What git could say to its client it has
 * said, also why it refused; what it could not, it says on standard error.
 */
async function answer(
  services: Deps,
  req: GitRequest,
  res: Response,
  id: string,
  talk: (session: Session) => Promise<Ending>,
  input?: Readable,
): Promise<void> {
  const protocol = req.get('git-protocol');
  const run = (dir: string) =>
    services.git.tasks.run(async (signal) => {
      const ending = await talk({ dir, protocol, signal });
      if (input?.errored && !res.headersSent) throw notReadable(input.errored);
      if (signal.aborted && !res.headersSent) throw busy('The server is being stopped');
      if (ending.code !== 0 && !res.headersSent)
        throw refusal(new GitError('over HTTP', ending), dir);
    });
  const fetchOrPush = () => inFolder(services, id, run);
  await withRequestSlot(services.git, OF_GIT, req, res, fetchOrPush);
  res.end();
}

function notReadable(error: Error): AppError {
  const isKnown = error instanceof RequestTooLong;
  return invalid(null, isKnown ? error.message : 'The body is not what it says');
}

/** A request that git cannot read is the client's fault; what names the server's folder, or was cut off, is the server's. */
function refusal(error: GitError, dir: string): Error {
  const { signal, stderr } = error;
  const impossible = 'The request is not one of git';
  if (signal === 'SIGABRT') return invalid(null, impossible);
  if (signal || stderr.includes(dir)) return error;
  return invalid(null, stderr.replace(/^fatal: /, '') || impossible);
}

/** The body, unpacked when the client packed it. @throws AppError 400. */
function body(req: Request, service: Service): Readable {
  const type = req.get('content-type');
  if (type !== `application/x-${service}-request`)
    throw invalid(null, `The body must be application/x-${service}-request`);
  takesLong(req);
  const encoding = req.get('content-encoding') ?? 'identity';
  const limit = new RequestLimit(service);
  if (encoding === 'identity') return through(req, [limit]);
  if (encoding !== 'gzip' && encoding !== 'x-gzip')
    throw invalid(null, 'The body may be sent plain or as gzip');
  return through(req, [createGunzip(), limit]);
}

/**
 * The request's body after these stages. One that fails leaves the request alone, unlike `pipeline`, which would take
 * the connection away from the answer; what is left of the body is then dropped as it comes.
 */
function through(req: Request, stages: [Duplex, ...Duplex[]]): Readable {
  let last: Readable = req;
  for (const stage of stages) {
    // A body that ends early or is no gzip ends the stream; git then says what it misses.
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
  // A client that leaves early, or has left already. Only an error goes on from one stage to the next.
  finished(req, { writable: false }, (error) => {
    if (error) first.destroy(error);
  });
  return last;
}

function begin(res: Response, type: string): void {
  res.status(200).setHeader('Content-Type', type);
  res.setHeader('Cache-Control', 'no-cache, max-age=0, must-revalidate');
}

function plainErrors({ log }: { log: Logger }): ErrorRequestHandler {
  return (error, req, res, _next) => {
    const shown = toPublic(error);
    if (isUnexpected(error) && !wasCutOff(req))
      log.error({ err: error, req: { id: req.id } }, 'git over HTTP failed');
    if (res.headersSent) return void res.destroy();
    // A body that nobody will read: the connection goes with it.
    if (!req.complete) res.setHeader('Connection', 'close');
    const { status, headers } = answerOf(shown, req.id);
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
    // Most git clients can do Basic alone, and give up where it is not offered. JGit reads the last of these headers only.
    if (status === 401)
      res.setHeader('WWW-Authenticate', ['Bearer realm="loam"', 'Basic realm="loam"']);
    res.removeHeader('Cache-Control');
    res.status(status).type('text/plain').send(`${shown.message}\n`);
  };
}

function download(services: Deps): RequestHandler<{ id: string; oid: string; name: string }> {
  return async (req, res) => {
    const { id, oid, name } = req.params;
    const link: DownloadLink = { id, oid, query: req.query };
    demandLink(services, link);
    if (await sentOn(services, req as unknown as Request, res, id)) return;
    const found = await findDownload(services, link);
    beginDownload(res, name, 'application/octet-stream');
    const contents = (range?: ByteRange) => found.open(range);
    const object = { size: found.size, etag: oid, open: contents };
    await sendObject(req, res, object, (send) =>
      withRequestSlot(services.git, OF_GIT, req, res, send),
    );
  };
}

function beginDownload(res: Response, name: string, type: string): void {
  res.attachment(name);
  res.setHeader('Content-Type', type);
  neverAsPage(res);
  res.setHeader('Cache-Control', 'private, max-age=900');
}

const ARCHIVE_TYPES = { 'tar.gz': 'application/gzip', zip: 'application/zip' } as const;

/** Made while it is sent, so it has no length and no ranges. */
function archive(services: Deps): RequestHandler<{ id: string; commit: string; name: string }> {
  return async (req, res) => {
    const { id, commit, name } = req.params;
    const { format, folder } = demandArchiveLink(services, { id, commit, name, query: req.query });
    if (await sentOn(services, req as unknown as Request, res, id)) return;
    takesLong(req as unknown as Request);
    const send = (dir: string) =>
      services.git.tasks.run(async (signal) => {
        if (signal.aborted) throw busy('The server is being stopped');
        beginDownload(res, name, ARCHIVE_TYPES[format]);
        if (req.method === 'HEAD') return void res.end();
        const of = { dir, commit, format, folder, signal };
        if (await sendArchive(services, id, of, res)) return void res.end();
        if (!res.headersSent) throw notFound('Commit');
        // The end of an archive that is not whole must not look like one.
        res.destroy();
      });
    await withRequestSlot(services.git, OF_GIT, req as unknown as Request, res, () =>
      inFolder(services, id, send),
    );
  };
}
