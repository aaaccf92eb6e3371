/** The public documents of the issuer of identity tokens (OpenID Connect Discovery 1.0). */
import { type RequestHandler, Router } from 'express';
import type { Urls } from '../../base/urls.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import type { TokenIssuer } from '../token-issuer.ts';

export type Deps = { urls: Urls; tokenIssuer: TokenIssuer };

const CONFIGURATION_PATH = '/.well-known/openid-configuration';
const KEYS_PATH = '/.well-known/jwks.json';

/** Short, so that relying parties soon stop to accept a key that an operator has removed. */
const CACHE_CONTROL = 'public, max-age=300';

/** The names of the claims, as `claims.ts` of the jobs sets them. */
const CLAIMS = [
  ...['iss', 'sub', 'aud', 'iat', 'nbf', 'exp', 'jti'],
  ...['namespace', 'namespace_id', 'repository', 'repository_id', 'ref', 'sha'],
  ...['job', 'job_id', 'run', 'run_id', 'actor', 'actor_id'],
];

/** @param countRequest applies the rate limit */
export function tokenIssuerRouter(
  { urls, tokenIssuer }: Deps,
  countRequest: RequestHandler,
): Router {
  const router = Router({ caseSensitive: true, strict: true });
  router
    .route(CONFIGURATION_PATH)
    .get(countRequest, (_req, res) => {
      res.set('Cache-Control', CACHE_CONTROL).json({
        issuer: urls.base,
        jwks_uri: `${urls.base}${KEYS_PATH}`,
        subject_types_supported: ['public'],
        response_types_supported: ['id_token'],
        id_token_signing_alg_values_supported: ['RS256'],
        scopes_supported: ['openid'],
        claims_supported: CLAIMS,
      });
    })
    .all(refuseOtherMethods(['GET']));
  router
    .route(KEYS_PATH)
    .get(countRequest, async (_req, res) => {
      const keys = await tokenIssuer.listPublicKeys();
      res.set('Cache-Control', CACHE_CONTROL).json({ keys });
    })
    .all(refuseOtherMethods(['GET']));
  return router;
}
