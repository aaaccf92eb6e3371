/** What is answered by a process that runs jobs and nothing else: whether it lives, and whether it can work. */
import express, { type Express } from 'express';
import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { requestId } from './request-id.ts';
import { errorEdge, readiness } from './server.ts';

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
