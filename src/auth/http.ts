/** Express's side of authentication: the `Authorization` header in, `req.viewer` out. It never refuses. */
import type { RequestHandler } from 'express';
import type { Services } from '../services.ts';
import type { Viewer } from './access.ts';
import { authenticate, type Credential } from './auth.ts';
import { TOKEN_PREFIX } from './tokens.ts';

declare global {
  namespace Express {
    interface Request {
      viewer: Viewer;
    }
  }
}

export function identify({ db }: Pick<Services, 'db'>): RequestHandler {
  return async (req, _res, next) => {
    req.viewer = await authenticate(db, readAuthorization(req.headers.authorization));
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
      return key(value, '$');
    case 'basic': {
      const text = Buffer.from(value, 'base64').toString('utf8');
      const password = text.slice(text.indexOf(':') + 1);
      return password.startsWith(TOKEN_PREFIX) ? { kind: 'pat', token: password } : key(text, ':');
    }
    default:
      return undefined;
  }
}

function key(text: string, separator: string): Credential | undefined {
  const at = text.indexOf(separator);
  return at > 0 ? { kind: 'key', name: text.slice(0, at), secret: text.slice(at + 1) } : undefined;
}
