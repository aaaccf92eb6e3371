/** The Express app: the middleware of a request in order, and the one place where errors become responses. */
import express, { type ErrorRequestHandler, type Express, type RequestHandler } from 'express';
import { schemasRouter } from '../../automation/http.ts';
import { AppError, invalid } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import type { Deps as CallsDeps } from '../../cluster/http.ts';
import { acceptForwarded, createCallsRouter } from '../../cluster/http.ts';
import type { Deps as SignInDeps } from '../../identity/http/sign-in.ts';
import { signInRouter } from '../../identity/http/sign-in.ts';
import type { Deps as TokenIssuerDeps } from '../../identity/http/token-issuer.ts';
import { tokenIssuerRouter } from '../../identity/http/token-issuer.ts';
import { identify } from '../../identity/http/viewer.ts';
import type { Deps as JobsDeps } from '../../jobs/http.ts';
import { artifactsRouter, logsRouter, streamLogs } from '../../jobs/http.ts';
import { createJoinRouter } from '../../jobs/machines/http.ts';
import type { AppHosts } from '../../jobs/shells/apps/http/app-hosts.ts';
import type { Deps as ShellsDeps } from '../../jobs/shells/http.ts';
import { shellsRouter } from '../../jobs/shells/http.ts';
import type { ContextServices } from '../../platform/schema/context.ts';
import { wasAnsweredEarly } from '../../platform/web/connections.ts';
import { shouldLog, toClientError, toErrorResponse } from '../../platform/web/error-response.ts';
import type { Deps as RepositoriesDeps } from '../../repositories/http.ts';
import { badgeRouter, downloadsRouter, gitRouter } from '../../repositories/http.ts';
import type { Deps as LfsDeps } from '../../repositories/lfs/http.ts';
import { largeDownloadsRouter, lfsRouter } from '../../repositories/lfs/http.ts';
import { schema } from '../graphql/schema.ts';
import type { Deps as GraphQLDeps } from '../graphql/server.ts';
import { createGraphQLServer } from '../graphql/server.ts';
import { createRest } from '../rest/adapter.ts';
import { createEndpoints } from '../rest/endpoints.ts';
import { createApiReference } from '../rest/openapi/pages.ts';
import { routes } from '../rest/routes.ts';
import { createClientFiles } from './client-files.ts';
import { answerPreflights, cors } from './cors.ts';
import { createDashboard } from './dashboard.ts';
import { isDatabaseReachable } from './diagnostics.ts';
import { createDocs } from './docs.ts';
import { createHomePage } from './home.ts';
import { idempotency } from './idempotency.ts';
import type { RateLimits } from './rate-limits.ts';
import { requestId, requestLog } from './request-log.ts';
import { measureRequests, traceRequests } from './telemetry.ts';

/** The dependencies of all routers. */
type Deps = ContextServices &
  CallsDeps &
  GraphQLDeps &
  JobsDeps &
  LfsDeps &
  RepositoriesDeps &
  ShellsDeps &
  SignInDeps &
  TokenIssuerDeps;

/** Created once per process, because compiling the operations is slow and does not depend on the app. */
const endpoints = createEndpoints(schema, routes);

/** @param agents the routes for agents of clusters, and for machines that have joined */
export function createHttpApp(
  services: Deps & { appHosts: AppHosts },
  limits: RateLimits,
  agents: RequestHandler,
): Express {
  const app = express();
  app.disable('x-powered-by');
  // Files and REST responses have ETags of their own; hashing all other responses would cost time without use.
  app.set('etag', () => undefined);
  app.set('query parser', 'simple');
  app.set('trust proxy', services.config.trustedProxies);

  app.use(requestId);
  app.use(measureRequests(services.metrics));
  if (services.config.tracing) app.use(traceRequests);
  // Before all routes of Loam, and before the log of requests, where each failure of a program of a job would be an error.
  app.use(services.appHosts.handler(limits.countRequest));
  // Before the log of requests, where each refusal with 503, which agents repeat every few seconds, would be an error.
  app.use(agents);
  app.use(requestLog(services.log));
  app.use(createCallsRouter(services));
  app.use(acceptForwarded(services));
  app.get('/livez', (_req, res) => void res.type('text').send('ok'));
  app.get(
    '/readyz',
    readinessHandler(() => isDatabaseReachable(services.db)),
  );
  app.get('/health', (_req, res) => res.redirect('/auth/v1/health'));
  app.use(cors);
  app.use(identify(services));
  app.use(answerPreflights(limits.countRequest));
  const validHost = requireHost(limits.countRequest);
  const git = express.Router();
  git.use(gitRouter(services, [limits.refuseInvalidCredentials, validHost]));
  git.use(lfsRouter(services, [limits.refuseInvalidCredentials, validHost]));
  app.use(skipForApi(git));
  app.use(limits.refuseInvalidCredentials);
  app.use(validHost);
  const files = express.Router();
  files.use(createApiReference(services, endpoints));
  files.use(createDocs());
  files.use(createClientFiles(services));
  files.use(schemasRouter(services));
  files.use(artifactsRouter(services));
  files.use(logsRouter(services));
  files.use(downloadsRouter(services));
  files.use(largeDownloadsRouter(services));
  // Before the dashboard, so that a browser that opens the address gets the picture or document instead of a page.
  files.use(badgeRouter(services, limits.countRequest));
  files.use(shellsRouter(services, limits.countRequest));
  files.use(tokenIssuerRouter(services, limits.countRequest));
  const dashboard = createDashboard(services);
  if (dashboard) files.use(dashboard);
  files.use(createHomePage());
  app.use(skipForApi(files));
  // Routes above this line are not rate limited: git, large-file objects, downloads, static files.
  app.use(limits.countRequest);
  app.use(signInRouter(services));
  app.use(createJoinRouter(services));

  app.use(
    createRest(services, {
      endpoints,
      streams: { getJobLogs: streamLogs(services) },
      onPost: idempotency(services),
    }),
  );

  const graphql = createGraphQLServer(services);
  // Only these paths: Yoga responds to others with an empty 404, Express with the error envelope.
  app.all(/^\/graphql(?:\/|\/stream)?$/, (req, res) => {
    req.pattern = req.path === '/graphql/stream' ? '/graphql/stream' : '/graphql';
    return graphql(req, res);
  });

  app.use((req) => {
    throw new AppError(
      'not_found',
      `There is no route ${req.method} ${req.path}. See ${services.urls.base}/docs/api for all routes.`,
    );
  });
  app.use(errorEdge(services.log));
  return app;
}

/** Skips the routes of git and files for API requests: searching them took 5% of a read. */
function skipForApi(router: RequestHandler): RequestHandler {
  return (req, res, next) => {
    if (/^\/(?:auth\/v1|graphql)(?:\/|$)/.test(req.path)) return next();
    router(req, res, next);
  };
}

/**
 * Checks the Host header (RFC 9112 section 3.2). Node's own check is off, because its 400 has no body. The value must be
 * a valid host, because Yoga builds a URL from it, and responds to a failure by itself, with a stack trace.
 */
function requireHost(countRequest: RequestHandler): RequestHandler {
  return async (req, res, next) => {
    const { host } = req.headers;
    if (host === undefined ? req.httpVersion === '1.0' : isHost(host)) return next();
    await countRequest(req, res, () => {});
    throw invalid(
      null,
      host === undefined ? 'The header Host is required' : 'The header Host is not a valid host',
    );
  };
}

/** An empty value is allowed: HTTP requires it for addresses without a host. */
function isHost(host: string): boolean {
  if (host === '') return true;
  return /^(?:[\w.-]+|\[[\da-f:.]+\])(?::\d*)?$/i.test(host) && URL.canParse(`http://${host}/`);
}

/** Responds with 200 or 503. */
export function readinessHandler(isReady: () => Promise<boolean>): RequestHandler {
  return async (_req, res) => {
    const ready = await isReady();
    res
      .status(ready ? 200 : 503)
      .type('text')
      .send(ready ? 'ok' : 'degraded');
  };
}

const CONTENT_HEADERS = [
  'Content-Type',
  'Content-Disposition',
  'Cache-Control',
  'ETag',
  'Last-Modified',
];

export function errorEdge(log: Logger): ErrorRequestHandler {
  return (error, req, res, _next) => {
    const shown = toClientError(error);
    if (shouldLog(error) && !wasAnsweredEarly(req))
      log.error(
        { err: error, req: { id: req.id }, ...(req.traceId && { trace_id: req.traceId }) },
        'unexpected error',
      );
    // The response has begun, so only a broken connection can tell the client that it is incomplete.
    if (res.headersSent) return void res.destroy();
    // A download that fails late has already set the headers of its file.
    for (const name of CONTENT_HEADERS) res.removeHeader(name);
    const { status, headers, body } = toErrorResponse(shown, req.id);
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
    const { code, message } = body.error;
    // GraphQL clients read `errors`, also of requests refused before Yoga (401, 429).
    const errors = [{ message, extensions: { code: code.toUpperCase() } }];
    res.status(status).json(req.path.startsWith('/graphql') ? { ...body, errors } : body);
  };
}
