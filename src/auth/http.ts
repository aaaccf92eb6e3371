/** Express's side of authentication: the `Authorization` header in, `req.viewer` out. It never refuses. */
import type { Request, RequestHandler } from 'express';
import { toPublic } from '../errors.ts';
import type { Services } from '../services.ts';
import type { Viewer } from './access.ts';
import { authenticate, type Credential } from './auth.ts';

declare global {
  namespace Express {
    interface Request {
      viewer: Viewer;
    }
  }
}

/** Health and version need no credentials (spec section 5), so they answer whatever is given and without the database. */
export function needsCredentials({ path }: Request): boolean {
  return !/^\/auth\/v1\/(?:health|version)\/?$/.test(path);
}

/** What cannot be decided becomes the viewer's failure, so that its 500 is answered where a 401 would be. */
export function identify(services: Pick<Services, 'pool' | 'usage'>): RequestHandler {
  return async (req, _res, next) => {
    const credential = needsCredentials(req) ? readAuthorization(req.headers.authorization) : null;
    req.viewer = await authenticate(services, credential).catch((cause: unknown) => ({
      kind: 'anonymous' as const,
      failure: Object.assign(toPublic(cause), { cause }),
    }));
    next();
  };
}

/**
 * Bearer and API-Key (spec section 5), and Basic, which is all that git can send: a token as its password
 * under any user name, or an API key as name and secret.
 * @returns null without a header, undefined when it is of no known form.
 */
export function readAuthorization(header: string | undefined): Credential | null | undefined {
  if (!header) return null;
  const [scheme = '', value = ''] = header.trim().split(/ +/, 2);
  switch (scheme.toLowerCase()) {
    case 'bearer':
      return value ? { kind: 'pat', token: value } : undefined;
    case 'api-key':
      return named('key', value, '$');
    case 'basic':
      return named('basic', Buffer.from(value, 'base64').toString('utf8'), ':');
    default:
      return undefined;
  }
}

function named(kind: 'key' | 'basic', text: string, separator: string): Credential | undefined {
  const at = text.indexOf(separator);
  return at < 0 ? undefined : { kind, name: text.slice(0, at), secret: text.slice(at + 1) };
}
