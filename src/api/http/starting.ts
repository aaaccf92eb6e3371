/**
 * What is answered from the moment that the port is taken until the server is ready: PostgreSQL may have to
 * recover first, or a migration take its time, and a health check must not hang meanwhile.
 */

import type { Express, Request, RequestHandler } from 'express';
import express from 'express';
import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { sendPage, wantsPage } from '../../platform/web/page.ts';
import { cors, preflights } from './cors.ts';
import type { RateLimits } from './rate-limits.ts';
import { requestId } from './request-log.ts';
import { errorEdge, readiness } from './server.ts';

const RETRY_SECONDS = '1';

/** Browsers do not follow `Retry-After`; this page loads its address again by itself. */
const PAGE = {
  title: 'Loam is starting',
  body: '<p role="status">This page opens by itself as soon as the server is ready.</p>\n',
  reloadSeconds: 2,
};

export function createStarting(limits: RateLimits, log: Logger): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(requestId, cors);
  app.get('/livez', (_req, res) => void res.type('text').send('ok'));
  const showRates: RequestHandler = async (req, res, next) => {
    res.set(asText(await limits.headersFor(req.socket.remoteAddress ?? 'gone')));
    next();
  };
  app.use(preflights(showRates), showRates);
  app.use((_req, res, next) => {
    res.setHeader('Retry-After', RETRY_SECONDS);
    next();
  });
  app.get('/readyz', (_req, res) => void res.status(503).type('text').send('starting'));
  app.get('/auth/v1/health', (_req, res) => void res.status(503).json({ status: 'degraded' }));
  app.use((req, res) => {
    if (wantsPage(req) || isSignIn(req)) return sendPage(res, PAGE, { status: 503 });
    throw new AppError('internal_error', 'The server is starting: try again in a moment', {
      status: 503,
    });
  });
  app.use(errorEdge(log));
  return app;
}

/** The only pages beside those of the dashboard that a person opens by address. */
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

/* What is answered by a process that runs jobs and nothing else: whether it lives, and whether it can work. */

/** `isReady`: whether jobs can be taken, which a start that is not done cannot. */
export function createWorking({
  isReady,
  log,
}: {
  isReady: () => Promise<boolean>;
  log: Logger;
}): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(requestId);
  app.get('/livez', (_req, res) => void res.type('text').send('ok'));
  app.get('/readyz', readiness(isReady));
  app.use(() => {
    throw new AppError('not_found', 'This process runs jobs alone: ask one that answers requests');
  });
  app.use(errorEdge(log));
  return app;
}
