/** The pages to sign in and out. They work without JavaScript. */

import express, {
  type ErrorRequestHandler,
  type Request,
  type Response,
  type Router,
} from 'express';
import type { Logger } from '../../base/log.ts';
import type { Urls } from '../../base/urls.ts';
import type { Db } from '../../platform/database/client.ts';
import { shouldLog, toClientError } from '../../platform/web/error-response.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { escapeHtml, sendPage } from '../../platform/web/page.ts';
import type { AuthenticateDeps } from '../authenticate.ts';
import { connectIdentity, openConnectTicket } from '../sign-in/connections.ts';
import { signInByIdentity } from '../sign-in/identities.ts';
import type { Issuer } from '../sign-in/issuers.ts';
import { findLinkUser, signInByLink } from '../sign-in/links.ts';
import { type Browser, deleteSession, SESSION_DAYS, signInByToken } from '../sign-in/sessions.ts';
import { deviceRouter } from './devices.ts';
import {
  clearSessionCookie,
  demandSameOrigin,
  readForm,
  readText,
  setAuthorizationCookie,
  setSessionCookie,
  takeAuthorizationCookie,
} from './session-cookie.ts';
import { originOf } from './viewer.ts';

export type Deps = AuthenticateDeps & {
  db: Db;
  urls: Urls;
  log: Logger;
};

export function signInRouter(services: Deps): Router {
  const { urls } = services;
  const router = express.Router({ caseSensitive: true, strict: true });

  router
    .route('/login')
    .get((req, res) => {
      if (req.viewer.kind === 'account')
        return void res.redirect(303, toLocalPath(req.query.to, urls));
      sendSignIn(services, req, res);
    })
    .post(async (req, res) => {
      demandSameOrigin(req, urls);
      const form = await readForm(req);
      const token = (form.get('token') ?? '').trim();
      await signIn(services, req, res, () => signInByToken(services, token, browserOf(req)));
    })
    .all(refuseOtherMethods(['GET', 'POST']));

  router
    .route('/login/link')
    // Opening the link does not use it up, because mail scanners open links too.
    .get(async (req, res) => {
      const secret = readText(req.query.secret);
      const username = await findLinkUser(services, secret);
      if (username === null)
        return sendSignIn(services, req, res, {
          problem: 'This sign-in link has been used or has expired. Ask for a new one.',
          status: 410,
        });
      sendPage(res, { title: 'Sign in to Loam', body: renderConfirmation(username, secret) });
    })
    .post(async (req, res) => {
      demandSameOrigin(req, urls);
      const form = await readForm(req);
      const secret = form.get('secret') ?? '';
      await signIn(services, req, res, () => signInByLink(services, secret, browserOf(req)));
    })
    .all(refuseOtherMethods(['GET', 'POST']));

  for (const issuer of services.issuers) addIssuerRoutes(router, services, issuer);
  router.use(deviceRouter(services));

  router
    .route('/logout')
    .post(async (req, res) => {
      demandSameOrigin(req, urls);
      await endCurrentSession(services, req);
      clearSessionCookie(res, urls);
      res.redirect(303, '/login');
    })
    .all(refuseOtherMethods(['POST']));

  router.use(/^\/log(?:in|out)(?=\/|$)/, createProblemHandler(services));
  return router;
}

/** Routes of one identity provider: the redirect to it, and its callback. */
function addIssuerRoutes(router: Router, services: Deps, issuer: Issuer): void {
  const { urls } = services;
  const path = `/login/${issuer.config.name}`;
  const callback = `${urls.base}${path}/callback`;
  router
    .route(path)
    .get(async (req, res) => {
      const ticket = readText(req.query.connect);
      const connecting = ticket ? openConnectTicket(issuer, req.viewer, ticket) : null;
      const to = toLocalPath(req.query.to, urls);
      const { url, sealed, seconds } = await issuer.begin(callback, to, connecting);
      setAuthorizationCookie(res, urls, sealed, seconds);
      res.set('Cache-Control', 'no-store').redirect(303, url);
    })
    .all(refuseOtherMethods(['GET']));
  router
    .route(`${path}/callback`)
    .get(async (req, res) => {
      const sealed = takeAuthorizationCookie(req, res, urls);
      const url = new URL(req.originalUrl, urls.base);
      const { claims, to, connecting } = await issuer.finish(url, sealed);
      if (connecting) {
        const { config } = issuer;
        await connectIdentity(services, req.viewer, { config, claims, connecting });
        return void res.redirect(303, toLocalPath(to, urls));
      }
      const begin = () => signInByIdentity(services, issuer.config, claims, browserOf(req));
      await signIn(services, req, res, begin, to);
    })
    .all(refuseOtherMethods(['GET']));
}

/** Starts a new session and ends the browser's previous one. */
async function signIn(
  services: Deps,
  req: Request,
  res: Response,
  begin: () => Promise<string>,
  to: unknown = req.query.to,
): Promise<void> {
  const secret = await begin();
  await endCurrentSession(services, req);
  setSessionCookie(res, services.urls, secret, SESSION_DAYS);
  res.redirect(303, toLocalPath(to, services.urls));
}

async function endCurrentSession(services: Deps, { viewer }: Request): Promise<void> {
  if (viewer.kind === 'account' && viewer.credential.kind === 'session')
    await deleteSession(services, viewer, viewer.credential.id).catch((error) => {
      // Another request may have ended the session.
      if (shouldLog(error)) throw error;
    });
}

function browserOf(req: Request): Browser {
  return { userAgent: req.get('user-agent') ?? '', ...originOf(req) };
}

/** Excludes `//host` and `/\host`, which browsers treat as URLs of other hosts. */
const LOCAL_PATH = /^\/(?![/\\])[\x21-\x7e]*$/;

/** The path to redirect to after sign-in; `/` for anything that is not a path of this server. */
function toLocalPath(to: unknown, { base }: Pick<Urls, 'base'>): string {
  const text = readText(to);
  if (!LOCAL_PATH.test(text) || !URL.canParse(text, base)) return '/';
  const { origin, pathname, search } = new URL(text, base);
  // Tested again, because the URL parser turns `/.//host` into `//host`.
  const place = `${pathname}${search}`;
  return origin === new URL(base).origin && LOCAL_PATH.test(place) ? place : '/';
}

type Shown = { problem?: string; status?: number; requestId?: string };

function sendSignIn(
  { issuers }: { issuers: readonly Issuer[] },
  req: Request,
  res: Response,
  { problem, status, requestId }: Shown = {},
): void {
  const to = readText(req.query.to);
  const on = to ? `?to=${encodeURIComponent(to)}` : '';
  // The first choice is the primary button: with identity providers, new users have no token yet.
  const primary = (isFirst: boolean) => (isFirst ? ' primary' : '');
  const choices = issuers.map(
    ({ config }, index) =>
      `<a class="button${primary(index === 0)}" href="${escapeHtml(`/login/${config.name}${on}`)}">Sign in with ${escapeHtml(config.label)}</a>`,
  );
  const body = `
  ${problem ? `<p class="problem" role="alert">${escapeHtml(problem)}</p>` : ''}
  ${requestId ? `<p>The request id is <code>${escapeHtml(requestId)}</code>.</p>` : ''}
  ${choices.length > 0 ? `<p class="choices">${choices.join('')}</p>` : ''}
  <form method="post" action="${escapeHtml(`/login${on}`)}">
    <label>Personal access token
      <input name="token" type="password" autocomplete="current-password" required autofocus spellcheck="false">
    </label>
    <button class="${primary(choices.length === 0).trim()}">Sign in</button>
  </form>
  <p>No account or token? Ask the people who run this server for a sign-in link.</p>
`;
  sendPage(res, { title: 'Sign in to Loam', body }, { status });
}

function renderConfirmation(username: string, secret: string): string {
  return `
  <p>This link signs you in as <b>${escapeHtml(username)}</b>. It works once.</p>
  <form method="post" action="/login/link">
    <input name="secret" type="hidden" value="${escapeHtml(secret)}">
    <button class="primary" autofocus>Sign in as ${escapeHtml(username)}</button>
  </form>
`;
}

/** Shows errors on the sign-in page, so that the user can try again. */
function createProblemHandler(services: Deps): ErrorRequestHandler {
  const { log } = services;
  return (error, req, res, next) => {
    if (res.headersSent || req.accepts(['json', 'html']) !== 'html') return next(error);
    const { status, message } = toClientError(error);
    if (shouldLog(error)) log.error({ err: error, req: { id: req.id } }, 'sign-in failed');
    const requestId = status >= 500 ? req.id : undefined;
    sendSignIn(services, req, res, { problem: message, status, requestId });
  };
}
