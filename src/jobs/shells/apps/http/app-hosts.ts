/**
 * The hosts on which programs of jobs are opened in browsers. They serve nothing of Loam but the path that accepts tickets and pages
 * for errors, and accept no credential of Loam.
 *
 * All these hosts are one site for browsers, so `SameSite` does not keep the program of one job from sending requests to that of
 * another one, with the visitor's cookie. Hence the check of where a request comes from.
 */
import type { IncomingMessage } from 'node:http';
import type { CookieOptions, Request, RequestHandler, Response } from 'express';
import type { Config } from '../../../../base/config/config.ts';
import { AppError, forbidden, invalid } from '../../../../base/errors.ts';
import type { Logger } from '../../../../base/log.ts';
import type { Urls } from '../../../../base/urls.ts';
import { readCookie, readText, SECRET } from '../../../../identity/http/session-cookie.ts';
import { originOf } from '../../../../identity/http/viewer.ts';
import {
  shouldLog,
  toClientError,
  toErrorResponse,
} from '../../../../platform/web/error-response.ts';
import { escapeHtml, sendPage } from '../../../../platform/web/page.ts';
import { isHandshake } from '../../../../platform/web/websockets.ts';
import { type Deps as AgentDeps, PortAgent } from '../agent.ts';
import { type AppPort, originOfApp, readAppHost } from '../hosts.ts';
import { type AppSession, findAppSession, redeemTicket, TICKET_PATH } from '../sessions.ts';
import { relayRequest } from './relay.ts';

type Deps = AgentDeps & {
  config: Pick<Config, 'appsDomain'>;
  urls: Pick<Urls, 'base'>;
  log: Logger;
};

/** Whether the request is for a host of a program, and not for Loam. */
export function isForApp(
  { appsDomain }: Pick<Config, 'appsDomain'>,
  req: IncomingMessage,
): boolean {
  // Most servers have no such hosts, and reading the headers again takes time.
  return (
    appsDomain !== undefined && hostsOf(req).some((host) => readAppHost(appsDomain, host) !== null)
  );
}

function hostsOf({ headersDistinct }: IncomingMessage): string[] {
  return headersDistinct.host ?? [];
}

/** Disposing of it closes all connections to programs, also WebSockets. */
export class AppHosts implements Disposable {
  readonly #services: Deps;
  /** By the id of the session. */
  readonly #agents = new Map<string, PortAgent>();

  constructor(services: Deps) {
    this.#services = services;
  }

  /**
   * Serves the requests for programs, and leaves the others to the next handler.
   * @param countRequest counts the requests of visitors without a session
   */
  handler(countRequest: RequestHandler): RequestHandler {
    return async (req, res, next) => {
      if (!isForApp(this.#services.config, req)) return next();
      // For the metrics.
      req.pattern = 'app';
      let app: AppPort | undefined;
      try {
        app = this.#readApp(req);
        await this.#serve(app, req, res, async () => {
          req.viewer = { kind: 'anonymous' };
          await countRequest(req, res, () => {});
        });
      } catch (error) {
        this.#refuse(req, res, app, error);
      }
    };
  }

  [Symbol.dispose](): void {
    for (const agent of this.#agents.values()) agent.destroy();
  }

  /** @throws AppError 400, 404 */
  #readApp(req: Request): AppPort {
    const [host = '', ...more] = hostsOf(req);
    if (more.length > 0) throw invalid(null, 'The header Host must be sent once');
    const app = readAppHost(this.#services.config.appsDomain, host);
    if (app === null || app === 'unknown')
      throw new AppError('not_found', 'No job has this address');
    return app;
  }

  async #serve(
    app: AppPort,
    req: Request,
    res: Response,
    count: () => Promise<void>,
  ): Promise<void> {
    const origin = originOfApp(this.#services, app);
    if (req.path === TICKET_PATH) return this.#redeem(app, req, res, count);
    const secret = readCookie(req, this.#cookieName);
    const session =
      secret && SECRET.test(secret) ? await findAppSession(this.#services, app, secret) : null;
    if (!session) {
      await count();
      throw new AppError(
        'authentication_failed',
        `Open port ${app.port} on the page of the job. A session here ends after 12 hours.`,
      );
    }
    if (!isFromOwnPage(req, origin))
      throw forbidden('This request is only accepted from pages of this host');
    const agent = this.#agentOf(session, req);
    try {
      await relayRequest(req, res, { agent, origin, address: originOf(req).address ?? '' });
    } finally {
      agent.checkUse();
    }
  }

  /** @throws AppError 401, 403, 405 */
  async #redeem(
    app: AppPort,
    req: Request,
    res: Response,
    count: () => Promise<void>,
  ): Promise<void> {
    if (req.method !== 'GET')
      throw new AppError('invalid_request', 'This path is only for GET', {
        status: 405,
        headers: { Allow: 'GET' },
      });
    const target = req.get('sec-fetch-dest');
    if (target !== undefined && target !== 'document')
      throw forbidden('A ticket is only accepted in a tab of its own');
    const ticket = readText(req.query.ticket);
    const secret = SECRET.test(ticket) ? await redeemTicket(this.#services, app, ticket) : null;
    if (secret === null) {
      await count();
      throw new AppError(
        'authentication_failed',
        'This ticket was used or has expired: open the port again on the page of the job',
      );
    }
    const options: CookieOptions = {
      httpOnly: true,
      sameSite: 'lax',
      path: '/',
      secure: this.#isSecure,
    };
    res.cookie(this.#cookieName, secret, options);
    res.set({ 'Cache-Control': 'no-store', 'Referrer-Policy': 'no-referrer' });
    res.redirect(303, '/');
  }

  #agentOf(session: AppSession, req: Request): PortAgent {
    return this.#agents.getOrInsertComputed(session.id, (id) => {
      const agent: PortAgent = new PortAgent(this.#services, session, originOf(req), () => {
        if (this.#agents.get(id) === agent) this.#agents.delete(id);
      });
      return agent;
    });
  }

  get #isSecure(): boolean {
    return this.#services.urls.base.startsWith('https:');
  }

  get #cookieName(): string {
    return this.#isSecure ? '__Host-loam-app' : 'loam-app';
  }

  #refuse(req: Request, res: Response, app: AppPort | undefined, error: unknown): void {
    const { log, urls } = this.#services;
    if (shouldLog(error) && !res.headersSent && !res.destroyed)
      log.error({ err: error, req: { id: req.id } }, 'a request for a program of a job failed');
    if (res.headersSent || res.destroyed) return void res.destroy();
    const shown = toClientError(error);
    const { headers, body, ...answer } = toErrorResponse(shown, req.id);
    // A job that does not run does not run again.
    const status = shown.code === 'conflict' ? 410 : answer.status;
    res.removeHeader('WWW-Authenticate');
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
    if (req.accepts(['json', 'html']) !== 'html') {
      res.set('Cache-Control', 'no-store').status(status).json(body);
      return;
    }
    const link = app && `${urls.base}/-/jobs/${app.jobId}`;
    sendPage(
      res,
      {
        title: TITLES[status] ?? 'The request was refused',
        body: `<p role="alert">${escapeHtml(shown.message)}</p>
${link ? `<p><a href="${escapeHtml(link)}">Page of the job</a></p>` : ''}`,
        hasIcon: false,
      },
      { status },
    );
  }
}

const TITLES: Record<number, string> = {
  401: 'You are not signed in here',
  403: 'You may not open this',
  404: 'Not found',
  410: 'The job has ended',
  429: 'Too many requests',
  500: 'Something went wrong',
  502: 'The program does not answer',
  503: 'Try again in a moment',
  504: 'The program does not answer',
};

/**
 * Whether the request is made by a page of the same host, by the visitor (a typed address or a link), or by a program that is not a
 * browser.
 */
function isFromOwnPage(req: Request, ownOrigin: string): boolean {
  const { origin, host } = req.headers;
  const { protocol } = new URL(ownOrigin);
  const isOwn = origin === undefined || origin === ownOrigin || origin === `${protocol}//${host}`;
  const site = req.get('sec-fetch-site');
  // Over plain HTTP, browsers name neither for a GET.
  if (site === undefined || isHandshake(req)) return isOwn;
  if (site === 'same-origin' || site === 'none') return true;
  const isLink =
    req.get('sec-fetch-mode') === 'navigate' && req.get('sec-fetch-dest') === 'document';
  return isLink && (req.method === 'GET' || req.method === 'HEAD');
}
