/**
 * What is answered from the moment that the port is taken until the server is ready: PostgreSQL may have to
 * recover first, or a migration take its time, and a health check must not hang meanwhile.
 */
import express, { type Express, type RequestHandler } from 'express';
import { AppError } from '../errors.ts';
import type { Logger } from '../log.ts';
import { cors, preflights } from './cors.ts';
import type { RateLimits } from './rate-limits.ts';
import { requestId } from './request-id.ts';
import { errorEdge } from './server.ts';

const RETRY_SECONDS = '1';

export function createStarting(limits: RateLimits, log: Logger): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(requestId, cors);
  app.get('/livez', (_req, res) => void res.type('text').send('ok'));
  const showRates: RequestHandler = async (req, res, next) => {
    res.set(asText(await limits.of(req.socket.remoteAddress ?? 'gone')));
    next();
  };
  app.use(preflights(showRates), showRates);
  app.use((_req, res, next) => {
    res.setHeader('Retry-After', RETRY_SECONDS);
    next();
  });
  app.get('/readyz', (_req, res) => void res.status(503).type('text').send('starting'));
  app.get('/auth/v1/health', (_req, res) => void res.status(503).json({ status: 'degraded' }));
  app.use(() => {
    throw new AppError('internal_error', 'The server is starting: try again in a moment', {
      status: 503,
    });
  });
  app.use(errorEdge(log));
  return app;
}

function asText(headers: Record<string, number>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, `${value}`]));
}
