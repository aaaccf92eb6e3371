/**
 * The session cookie of browsers, and the check for cross-site request forgery.
 *
 * Browsers also send the cookie with requests from pages of other sites, so it is accepted only for requests from pages
 * of this server, and for navigation. REST and git ignore it: their clients send a header.
 */
import type { CookieOptions, Request, Response } from 'express';
import { forbidden, invalid } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import { wantsPage } from '../../platform/web/page.ts';
import { readBodyBytes } from '../../platform/web/request-body.ts';
import { isHandshake } from '../../platform/web/websockets.ts';

/**
 * Paths that accept the cookie, in addition to the pages of the dashboard. Badges do, because the dashboard shows them in
 * READMEs.
 */
const PATHS =
  /^\/(?:graphql|artifacts|login|logout|-\/shells)(?:\/|$)|^\/[^/]+\/[^/]+\/-\/badge\.svg$/;
/** What `randomSecret` returns. */
export const SECRET = /^[0-9A-Za-z]{40}$/;

/** The prefix `__Host-` protects the cookie against other hosts and paths; browsers allow it only over https. */
function cookieName(urls: Pick<Urls, 'base'>): string {
  return isSecure(urls) ? '__Host-loam' : 'loam-session';
}

function cookieOptions(urls: Pick<Urls, 'base'>): CookieOptions {
  return { httpOnly: true, sameSite: 'lax', path: '/', secure: isSecure(urls) };
}

function isSecure({ base }: Pick<Urls, 'base'>): boolean {
  return base.startsWith('https:');
}

export function setSessionCookie(
  res: Response,
  urls: Pick<Urls, 'base'>,
  secret: string,
  days: number,
): void {
  res.cookie(cookieName(urls), secret, { ...cookieOptions(urls), maxAge: days * 86_400_000 });
}

export function clearSessionCookie(res: Response, urls: Pick<Urls, 'base'>): void {
  res.clearCookie(cookieName(urls), cookieOptions(urls));
}

/** @returns the session secret; null without a cookie, or when the request must not use it */
export function readSessionCookie(req: Request, urls: Pick<Urls, 'base'>): string | null {
  if (!req.headers.cookie || !(PATHS.test(req.path) || wantsPage(req)) || !isTrusted(req, urls))
    return null;
  const secret = readCookie(req, cookieName(urls));
  return secret !== null && SECRET.test(secret) ? secret : null;
}

export function readCookie({ headers: { cookie = '' } }: Request, name: string): string | null {
  for (const pair of cookie.split(';')) {
    const at = pair.indexOf('=');
    if (at > 0 && pair.slice(0, at).trim() === name) return pair.slice(at + 1).trim();
  }
  return null;
}

/** Keeps the sealed authorization request while the browser is at the identity provider. */
export function setAuthorizationCookie(
  res: Response,
  urls: Pick<Urls, 'base'>,
  sealed: string,
  seconds: number,
): void {
  res.cookie(`${cookieName(urls)}-attempt`, sealed, {
    ...cookieOptions(urls),
    maxAge: seconds * 1_000,
  });
}

/** Reads and clears the cookie, because an authorization request is valid for one callback. */
export function takeAuthorizationCookie(
  req: Request,
  res: Response,
  urls: Pick<Urls, 'base'>,
): string {
  const name = `${cookieName(urls)}-attempt`;
  res.clearCookie(name, cookieOptions(urls));
  return readCookie(req, name) ?? '';
}

function isTrusted(req: Request, urls: Pick<Urls, 'base'>): boolean {
  // CORS does not keep pages of other sites from opening WebSockets, with the cookie. Browsers always name the page's origin.
  if (isHandshake(req)) return hasOwnOrigin(req, urls);
  if (isSameOrigin(req, urls)) return true;
  // Navigation from a bookmark, a mail or a link of another site is accepted. GraphQL queries are not navigation.
  const reads = req.method === 'GET' || req.method === 'HEAD';
  const site = req.get('sec-fetch-site');
  const isOpened =
    site === undefined ? req.headers.origin === undefined : site === 'none' || isNavigation(req);
  return reads && isOpened && !req.path.startsWith('/graphql');
}

function isNavigation(req: Request): boolean {
  return req.get('sec-fetch-mode') === 'navigate' && req.get('sec-fetch-dest') === 'document';
}

/**
 * Whether a page of this server makes the request. Over plain HTTP, browsers name the origin only of unsafe methods.
 */
function isSameOrigin(req: Request, { base }: Pick<Urls, 'base'>): boolean {
  const site = req.get('sec-fetch-site');
  if (site !== undefined) return site === 'same-origin';
  // A GET over plain HTTP has neither header, so the dashboard sends its own. CORS (`cors.ts`) denies it to other
  // sites.
  if (req.headers.origin === undefined) return req.headers['loam-page'] !== undefined;
  return hasOwnOrigin(req, { base });
}

function hasOwnOrigin(req: Request, { base }: Pick<Urls, 'base'>): boolean {
  const { origin, host } = req.headers;
  return origin === new URL(base).origin || origin === `${req.protocol}://${host}`;
}

/** Keeps pages of other sites from signing their visitors out, or in as another user. @throws AppError 403 */
export function demandSameOrigin(req: Request, urls: Urls): void {
  if (!isSameOrigin(req, urls))
    throw forbidden('This request is only accepted from pages of this server');
}

/** Parses a form. `get` returns the first value of a repeated field. @throws AppError 400, 413 */
export async function readForm(req: Request): Promise<URLSearchParams> {
  if (!req.is('application/x-www-form-urlencoded'))
    throw invalid(null, 'The body must be application/x-www-form-urlencoded');
  return new URLSearchParams((await readBodyBytes(req)).toString('utf8'));
}

/** @returns the empty string for a missing or repeated query parameter */
export function readText(value: unknown): string {
  return typeof value === 'string' ? value : '';
}
