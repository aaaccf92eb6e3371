/**
 * The handler of all requests until the server is ready: PostgreSQL may have to recover, or a migration may take long,
 * and health checks must not hang meanwhile. Also the handler of a process that only runs jobs.
 */
import type { Express, Request, RequestHandler } from 'express';
import express from 'express';
import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { sendPage, wantsPage } from '../../platform/web/page.ts';
import { answerPreflights, cors } from './cors.ts';
import type { RateLimits } from './rate-limits.ts';
import { requestId } from './request-log.ts';
import { errorEdge, readinessHandler } from './server.ts';

const RETRY_SECONDS = '1';

/** Browsers ignore `Retry-After`, so the page reloads itself. */
const PAGE = {
  title: 'Loam is starting',
  body: '<p role="status">This page reloads until the server is ready.</p>\n',
  reloadSeconds: 2,
};

export function createStartingApp(limits: RateLimits, log: Logger): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(requestId, cors);
  app.get('/livez', (_req, res) => void res.type('text').send('ok'));
  const showRates: RequestHandler = async (req, res, next) => {
    res.set(asText(await limits.headersFor(req.socket.remoteAddress ?? 'gone')));
    next();
  };
  app.use(answerPreflights(showRates), showRates);
  app.use((_req, res, next) => {
    res.setHeader('Retry-After', RETRY_SECONDS);
    next();
  });
  app.get('/readyz', (_req, res) => void res.status(503).type('text').send('starting'));
  app.get('/auth/v1/health', (_req, res) => void res.status(503).json({ status: 'degraded' }));
  app.use((req, res) => {
    if (wantsPage(req) || isSignIn(req)) return sendPage(res, PAGE, { status: 503 });
    throw new AppError('internal_error', 'The server is starting. Try again in a moment.', {
      status: 503,
    });
  });
  app.use(errorEdge(log));
  return app;
}

/** The sign-in pages: the only pages outside the dashboard that people open by address. */
function isSignIn(req: Request): boolean {
  return (
    req.method === 'GET' &&
    /^\/login(?:\/|$)/.test(req.path) &&
    req.accepts(['json', 'html']) === 'html'
  );
}

function asText(headers: Record<string, number>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, `${value}`]));
}

/**
 * The handler of a process that only runs jobs: liveness and readiness, and requests of agents on clusters.
 * @param isReady whether the process can take jobs; false until the start is done
 * @param agents the routes for agents; undefined until the start is done
 */
export function createWorkerApp({
  isReady,
  agents,
  log,
}: {
  isReady: () => Promise<boolean>;
  agents: () => RequestHandler | undefined;
  log: Logger;
}): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(requestId);
  app.get('/livez', (_req, res) => void res.type('text').send('ok'));
  app.get('/readyz', readinessHandler(isReady));
  app.use((req, res, next) => {
    const handler = agents();
    if (handler) handler(req, res, next);
    else next();
  });
  app.use(() => {
    throw new AppError('not_found', 'This process only runs jobs. Send requests to an API server.');
  });
  app.use(errorEdge(log));
  return app;
}
