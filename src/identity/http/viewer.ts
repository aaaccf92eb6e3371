/**
 * Express middleware for authentication: sets `req.viewer` from the `Authorization` header. It never rejects a request.
 */

import type { Request, RequestHandler } from 'express';
import { type AppError, unauthenticated } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import { toClientError } from '../../platform/web/error-response.ts';
import type { Origin } from '../audit.ts';
import { type AuthenticateDeps, authenticate, type Credential } from '../authenticate.ts';
import { TOKEN_PREFIX } from '../credentials.ts';
import type { Viewer } from '../permissions.ts';
import { readSessionCookie } from './session-cookie.ts';

declare global {
  namespace Express {
    interface Request {
      viewer: Viewer;
      /** The credential of the request; null without one. */
      credential: Credential | null;
    }
  }
}

/** Health and version need no credentials, so these routes ignore credentials and answer without the database. */
export function needsCredentials({ path }: Request): boolean {
  return !/^\/auth\/v1\/(?:health|version)\/?$/.test(path);
}

/** An error of authentication becomes the viewer's failure, so that a server error is reported where a 401 would be. */
export function identify(services: AuthenticateDeps & { urls: Urls }): RequestHandler {
  return async (req, _res, next) => {
    req.credential = null;
    try {
      const credential = needsCredentials(req) ? credentialOf(req, services.urls) : null;
      req.credential = credential;
      let viewer = await authenticate(services, credential);
      // Browsers keep sending the cookie of an ended session, also to the sign-in page, so it is not a failure.
      if (viewer.kind === 'anonymous' && credential?.kind === 'session')
        viewer = { kind: 'anonymous' };
      req.viewer = viewer.kind === 'account' ? { ...viewer, from: originOf(req) } : viewer;
    } catch (cause) {
      req.viewer = { kind: 'anonymous', failure: Object.assign(toClientError(cause), { cause }) };
    }
    next();
  };
}

/** Reads the credential in the header, otherwise in the session cookie. @throws AppError 401 as `readAuthorization` */
function credentialOf(req: Request, urls: Urls): Credential | null {
  const { authorization } = req.headers;
  if (authorization) return readAuthorization(authorization);
  const token = readSessionCookie(req, urls);
  return token === null ? null : { kind: 'session', token };
}

export function originOf({ ip, id }: Request): Origin {
  return { address: ip?.replace(/^::ffff:/, '') ?? null, requestId: id };
}

/**
 * Parses Bearer, API-Key, and Basic, which is all that git can send. Basic contains a token as password under any user
 * name, or an API key as user name and password.
 * @returns null without a header
 * @throws AppError 401 that says what is wrong with the format, without repeating a possible secret
 */
function readAuthorization(header: string | undefined): Credential | null {
  if (!header) return null;
  const [scheme = '', value = '', ...more] = header.trim().split(/[ \t]+/);
  switch (scheme.toLowerCase()) {
    case 'bearer':
      if (!value || more.length > 0)
        throw malformedHeader('a token, and nothing else, must follow "Bearer"');
      return { kind: 'pat', token: value };
    case 'api-key':
      if (more.length === 0 && value.includes('$')) return splitCredential('key', value, '$');
      throw malformedHeader(
        '<name>$<secret> must follow "API-Key"; for a token send "Bearer <token>"',
      );
    case 'basic': {
      const decoded = Buffer.from(value, 'base64').toString('utf8');
      if (more.length === 0 && decoded.includes(':')) return splitCredential('basic', decoded, ':');
      throw malformedHeader('<user>:<password> in base64 must follow "Basic"');
    }
  }
  if (value) throw malformedHeader('must begin with Bearer or API-Key (or Basic, for git)');
  throw malformedHeader(
    scheme.includes('$') && !scheme.startsWith(TOKEN_PREFIX)
      ? 'send "API-Key <name>$<secret>"; the word API-Key is missing'
      : 'send "Bearer <token>"; the word Bearer is missing',
  );
}

function malformedHeader(problem: string): AppError {
  return unauthenticated(`Authorization: ${problem}`);
}

function splitCredential(kind: 'key' | 'basic', text: string, separator: string): Credential {
  const at = text.indexOf(separator);
  return { kind, name: text.slice(0, at), secret: text.slice(at + 1) };
}
