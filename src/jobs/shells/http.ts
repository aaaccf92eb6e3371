/**
 * Shells in running jobs over WebSockets, for `loam shell` and the dashboard. The messages of both directions together are a
 * stream of frames (`platform/frames.ts`): `exec` with the command first, then as on all such connections.
 */
import { type Request, type RequestHandler, type Response, Router } from 'express';
import { AppError, invalid } from '../../base/errors.ts';
import { type Account, demandAccount } from '../../identity/permissions.ts';
import { readFirstFrame } from '../../platform/frames.ts';
import { shouldLog, toClientError } from '../../platform/web/error-response.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { wantsPage } from '../../platform/web/page.ts';
import type { AcceptedWebSocket, WebSockets } from '../../platform/web/websockets.ts';
import { refuseSession } from '../../runners/exec-stream.ts';
import { findJob } from '../requests/jobs.ts';
import { type Deps as AccessDeps, authorizeShell, type ShellTarget } from './access.ts';
import { type Deps as OpenDeps, openShell } from './open.ts';
import { parseSessionRequest, type SessionRequest } from './session-request.ts';

export type Deps = AccessDeps & OpenDeps & { webSockets: WebSockets };

const PATH = '/-/shells/';
/** Of one user, on this server. */
const MAX_SHELLS_OF_USER = 100;
/** Code for applications (RFC 6455 section 7.4.2): the right was withdrawn. */
const ACCESS_LOST = 4403;

/** Whether the path is of a shell. */
export function isShellPath(url = ''): boolean {
  return url.startsWith(PATH);
}

export function shellsRouter(services: Deps, countRequest: RequestHandler): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const shells = new Map<string, number>();
  /** Counts a shell of the user until its end. @throws AppError 429 */
  const count = ({ userId }: Account): Disposable => {
    const open = shells.get(userId) ?? 0;
    if (open >= MAX_SHELLS_OF_USER)
      throw new AppError('rate_limit_exceeded', `You have ${open} shells open; close some`, {
        retryAfter: 5,
      });
    shells.set(userId, open + 1);
    return {
      [Symbol.dispose]() {
        const left = (shells.get(userId) ?? 1) - 1;
        if (left > 0) shells.set(userId, left);
        else shells.delete(userId);
      },
    };
  };
  const serve = async (req: Request<{ namespace: string; name: string }>, res: Response) => {
    const viewer = demandAccount(req.viewer);
    const target = await authorizeShell(services, viewer, req.params);
    using _ = count(viewer);
    await serveShell(services, viewer, target, services.webSockets.accept(req, res), req.id);
  };
  // The hosts of programs (`apps/http/`) know the id of the job, and must not tell everyone its name.
  router.get('/-/jobs/:id', async (req, res, next) => {
    if (!wantsPage(req)) return next();
    if (req.viewer.kind === 'anonymous')
      return void res.redirect(303, `/login?${new URLSearchParams({ to: req.path })}`);
    const select = { name: true, namespace: { select: { name: true } } } as const;
    const job = await findJob(services, req.viewer, req.params.id, select);
    if (!job) return next();
    res.redirect(303, `/${job.namespace.name}/-/jobs/${job.name}`);
  });
  router
    .route(`${PATH}:namespace/:name`)
    .get(countRequest, serve as unknown as RequestHandler)
    .all(refuseOtherMethods(['GET']));
  return router;
}

/** Never rejects: the response has ended with the handshake. */
async function serveShell(
  services: Deps,
  viewer: Account,
  target: ShellTarget,
  { stream, close }: AcceptedWebSocket,
  requestId: string,
): Promise<void> {
  try {
    const request = await readRequest(stream);
    const cutOff = (reason: AppError) => close(ACCESS_LOST, reason.message);
    await openShell(services, { viewer, target, ...request, connection: stream, cutOff });
  } catch (error) {
    if (shouldLog(error))
      services.log.error({ err: error, req: { id: requestId } }, 'a shell failed');
    refuseSession(stream, toClientError(error).message);
  }
}

/** @throws AppError 400 */
async function readRequest(stream: AcceptedWebSocket['stream']): Promise<SessionRequest> {
  const first = await readFirstFrame(stream);
  if (first?.kind !== 'exec') throw invalid(null, 'The first frame must be of the kind exec');
  return parseSessionRequest(first.value);
}
