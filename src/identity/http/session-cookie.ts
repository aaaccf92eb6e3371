/**
 * The cookie of a browser that is signed in, and which requests it counts for.
 *
 * A browser sends it along with requests that pages of other sites make, so it counts only for those that pages of this
 * server make, and for opening an address. REST and git never look at it: their clients send a header.
 */
import type { CookieOptions, Request, Response } from 'express';
import { forbidden, invalid } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import { wantsPage } from '../../platform/web/page.ts';
import { readBodyBytes } from '../../platform/web/request-body.ts';

/** Paths where somebody can be signed in, beside the pages of the dashboard. */
const PATHS = /^\/(?:graphql|artifacts|login|logout)(?:\/|$)/;
const SECRET = /^[0-9A-Za-z]{40}$/;

/** A name with `__Host-` is never taken from another host or path; browsers allow it over https alone. */
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

/** The secret of the session; null where there is none, or where it does not count. */
export function readSessionCookie(req: Request, urls: Pick<Urls, 'base'>): string | null {
  if (!req.headers.cookie || !(PATHS.test(req.path) || wantsPage(req)) || !isTrusted(req, urls))
    return null;
  const secret = readCookie(req, cookieName(urls));
  return secret !== null && SECRET.test(secret) ? secret : null;
}

function readCookie({ headers: { cookie = '' } }: Request, name: string): string | null {
  for (const pair of cookie.split(';')) {
    const at = pair.indexOf('=');
    if (at > 0 && pair.slice(0, at).trim() === name) return pair.slice(at + 1).trim();
  }
  return null;
}

/** What a browser keeps while it is with an issuer of identities; it is sent back from there. */
export function setAttemptCookie(
  res: Response,
  urls: Pick<Urls, 'base'>,
  attempt: string,
  seconds: number,
): void {
  res.cookie(`${cookieName(urls)}-attempt`, attempt, {
    ...cookieOptions(urls),
    maxAge: seconds * 1_000,
  });
}

/** Each is for one return. */
export function takeAttemptCookie(req: Request, res: Response, urls: Pick<Urls, 'base'>): string {
  const name = `${cookieName(urls)}-attempt`;
  res.clearCookie(name, cookieOptions(urls));
  return readCookie(req, name) ?? '';
}

function isTrusted(req: Request, urls: Pick<Urls, 'base'>): boolean {
  if (isSameOrigin(req, urls)) return true;
  // Opened from a bookmark, a mail or another site's link: shown to who is signed in. A query is no page.
  const reads = req.method === 'GET' || req.method === 'HEAD';
  const site = req.get('sec-fetch-site');
  const isOpened =
    site === undefined ? req.headers.origin === undefined : site === 'none' || isNavigation(req);
  return reads && isOpened && !req.path.startsWith('/graphql');
}

function isNavigation(req: Request): boolean {
  return req.get('sec-fetch-mode') === 'navigate' && req.get('sec-fetch-dest') === 'document';
}

/** Whether a page of this server makes the request. Browsers say so, over plain HTTP only of what may change something. */
export function isSameOrigin(req: Request, { base }: Pick<Urls, 'base'>): boolean {
  const site = req.get('sec-fetch-site');
  if (site !== undefined) return site === 'same-origin';
  const { origin, host } = req.headers;
  // Of a GET over plain HTTP nothing else tells. Scripts of other sites cannot send it: `cors.ts` does not allow it.
  if (origin === undefined) return req.headers['loam-page'] !== undefined;
  return origin === new URL(base).origin || origin === `${req.protocol}://${host}`;
}

/* What pages with forms have in common. */

/** Or a page of another site could sign its visitors in as somebody else, or out. @throws AppError 403 */
export function demandSameOrigin(req: Request, urls: Urls): void {
  if (!isSameOrigin(req, urls)) throw forbidden('Only the pages of this server may do this');
}

/** Of a field that is there twice the first counts. @throws AppError 400, 413 */
export async function readForm(req: Request): Promise<URLSearchParams> {
  if (!req.is('application/x-www-form-urlencoded'))
    throw invalid(null, 'The body must be application/x-www-form-urlencoded');
  return new URLSearchParams((await readBodyBytes(req)).toString('utf8'));
}

/** Of a parameter that is there twice, or is none: nothing. */
export function readText(value: unknown): string {
  return typeof value === 'string' ? value : '';
}
