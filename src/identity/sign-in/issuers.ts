/**
 * What issuers of identities (OpenID Connect) say: who somebody is that they have sent here, and whose an access token is.
 *
 * Each is asked for what it can do when it is needed first, so that one that is away stops neither the start nor the others.
 */
import { createRemoteJWKSet, type JWTVerifyGetKey, errors as joseErrors, jwtVerify } from 'jose';
import * as oidc from 'openid-client';
import type { IssuerConfig } from '../../base/config/oidc.ts';
import { AppError, unauthenticated } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { open, seal } from '../../platform/crypto/keys.ts';

/** Of asking an issuer. */
const TIMEOUT_SECONDS = 10;
/** For how long what an issuer said of itself is believed. */
const METADATA_TTL_MS = 3_600_000;
/** From leaving for the issuer to coming back. */
const ATTEMPT_SECONDS = 600;
const CLOCK_TOLERANCE_SECONDS = 30;
/** None that shares a secret, and not `none`. */
const ALGORITHMS = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
];

/** Who somebody is. */
export type Claims = {
  issuer: string;
  subject: string;
  email?: string;
  /** Whether the issuer has seen that the address is theirs. Unset: it does not say, as Entra never does. */
  emailVerified?: boolean;
  /** What they call themselves. */
  username?: string;
  groups: string[];
};

/** What the browser keeps, sealed, while it is with the issuer. */
type Attempt = {
  state: string;
  nonce: string;
  verifier: string;
  to: string;
  expires: number;
  connecting: ConnectingSession | null;
};

/** The session that connects an identity to its user, instead of signing in. */
export type ConnectingSession = { userId: string; sessionId: string };

export type Issuer = {
  config: IssuerConfig;
  /** Where the browser is sent, and what it is to bring back within so many seconds. @throws AppError 500 when the issuer is away */
  begin(
    callback: string,
    to: string,
    connecting?: ConnectingSession | null,
  ): Promise<{ url: string; attempt: string; seconds: number }>;
  /**
   * Who has come back to `url`, with the attempt that the same browser began.
   * @throws AppError 401 for what is no answer of this issuer to it, 500 when the issuer is away
   */
  finish(
    url: URL,
    attempt: string,
  ): Promise<{ claims: Claims; to: string; connecting: ConnectingSession | null }>;
  /** What lets a session begin to connect an identity for ten minutes; no other session, and no other site. */
  ticket(session: ConnectingSession): string;
  /** @throws AppError 401 for what is none of this issuer, or too old */
  openTicket(ticket: string): ConnectingSession;
  /** What an access token says of its owner, and until when. @throws AppError 401, 503 when the issuer is away */
  verify(token: string): Promise<{ claims: Claims; expires: number }>;
};

type Metadata = { client: oidc.Configuration; keys: JWTVerifyGetKey; at: number };

export function openIssuer(
  config: IssuerConfig,
  key: Uint8Array,
  log: Pick<Logger, 'warn'>,
): Issuer {
  let known: Promise<Metadata> | undefined;

  async function discover(): Promise<Metadata> {
    const address = new URL(config.issuer);
    const client = await oidc.discovery(address, config.clientId, config.clientSecret, undefined, {
      timeout: TIMEOUT_SECONDS,
      execute: address.protocol === 'http:' ? [oidc.allowInsecureRequests] : [],
    });
    const { jwks_uri } = client.serverMetadata();
    if (!jwks_uri) throw new Error('the issuer names no keys');
    const keys = createRemoteJWKSet(new URL(jwks_uri), {
      timeoutDuration: TIMEOUT_SECONDS * 1_000,
    });
    return { client, keys, at: Date.now() };
  }

  async function getMetadata(): Promise<Metadata> {
    const last = await known?.catch(() => undefined);
    if (last && Date.now() - last.at < METADATA_TTL_MS) return last;
    known = discover();
    try {
      return await known;
    } catch (error) {
      // What it said before is better than nothing.
      if (last) {
        known = Promise.resolve({ ...last, at: Date.now() - METADATA_TTL_MS / 2 });
        return last;
      }
      known = undefined;
      throw unavailable(error);
    }
  }

  function unavailable(error: unknown): AppError {
    log.warn({ err: error, issuer: config.issuer }, 'an issuer of identities could not be asked');
    return new AppError('internal_error', `${config.label} cannot be asked just now; try again`, {
      status: 503,
      retryAfter: 5,
    });
  }

  return {
    config,
    async begin(callback, to, connecting = null) {
      const { client } = await getMetadata();
      const attempt: Attempt = {
        state: oidc.randomState(),
        nonce: oidc.randomNonce(),
        verifier: oidc.randomPKCECodeVerifier(),
        to,
        expires: Date.now() + ATTEMPT_SECONDS * 1_000,
        connecting,
      };
      const url = oidc.buildAuthorizationUrl(client, {
        redirect_uri: callback,
        scope: config.scopes,
        state: attempt.state,
        nonce: attempt.nonce,
        code_challenge: await oidc.calculatePKCECodeChallenge(attempt.verifier),
        code_challenge_method: 'S256',
      });
      const sealed = sealJson(key, attempt, config.name);
      return { url: url.href, attempt: sealed, seconds: ATTEMPT_SECONDS };
    },

    async finish(url, sealed) {
      const attempt = openSealedJson<Attempt>(key, sealed, config.name);
      const { client } = await getMetadata();
      try {
        const tokens = await oidc.authorizationCodeGrant(client, url, {
          pkceCodeVerifier: attempt.verifier,
          expectedState: attempt.state,
          expectedNonce: attempt.nonce,
          idTokenExpected: true,
        });
        const told = tokens.claims();
        if (!told) throw new Error('the issuer sent no ID token');
        const more = client.serverMetadata().userinfo_endpoint
          ? await oidc.fetchUserInfo(client, tokens.access_token, told.sub)
          : {};
        const claims = toClaims({ ...more, ...told }, config);
        return { claims, to: attempt.to, connecting: attempt.connecting ?? null };
      } catch (error) {
        if (isIssuerUnavailable(error)) throw unavailable(error);
        log.warn(
          { err: error, issuer: config.issuer },
          'somebody did not come back with an identity',
        );
        throw unauthenticated(`${config.label} did not confirm who you are; try again`);
      }
    },

    ticket({ userId, sessionId }) {
      const expires = Date.now() + ATTEMPT_SECONDS * 1_000;
      return sealJson(key, { userId, sessionId, expires }, `${config.name} ticket`);
    },

    openTicket(ticket) {
      const { userId, sessionId } = openSealedJson<ConnectingSession & { expires: number }>(
        key,
        ticket,
        `${config.name} ticket`,
      );
      return { userId, sessionId };
    },

    async verify(token) {
      const { keys, client } = await getMetadata();
      try {
        const { payload } = await jwtVerify(token, keys, {
          issuer: client.serverMetadata().issuer,
          audience: config.audience,
          algorithms: ALGORITHMS,
          requiredClaims: ['sub', 'exp'],
          clockTolerance: CLOCK_TOLERANCE_SECONDS,
        });
        return { claims: toClaims(payload, config), expires: Math.floor(Number(payload.exp)) };
      } catch (error) {
        if (error instanceof joseErrors.JWKSTimeout || !(error instanceof joseErrors.JOSEError))
          throw unavailable(error);
        throw unauthenticated('The access token is not valid or has expired');
      }
    },
  };
}

function sealJson(key: Uint8Array, value: object, context: string): string {
  return Buffer.from(seal(key, Buffer.from(JSON.stringify(value)), context)).toString('base64url');
}

/** @throws AppError 401 */
function openSealedJson<T extends { expires: number }>(
  key: Uint8Array,
  sealed: string,
  context: string,
): T {
  try {
    const value: T = JSON.parse(open(key, Buffer.from(sealed, 'base64url'), context).toString());
    if (value.expires > Date.now()) return value;
  } catch {
    // Of another issuer, or of another server.
  }
  throw unauthenticated('This browser did not begin to sign in, or too long ago; try again');
}

/** Of the network, or of an issuer with a fault; else its answer was a refusal. */
function isIssuerUnavailable(error: unknown): boolean {
  if (error instanceof TypeError && error.message === 'fetch failed') return true;
  const { name, cause } = error as { name?: string; cause?: unknown };
  if (name === 'TimeoutError') return true;
  return cause instanceof Response && cause.status >= 500;
}

function toClaims(told: Record<string, unknown>, { issuer, groupsClaim }: IssuerConfig): Claims {
  const text = (name: string) => (typeof told[name] === 'string' ? told[name] : undefined);
  const groups = told[groupsClaim];
  return {
    issuer: text('iss') ?? issuer,
    subject: text('sub') ?? '',
    email: text('email')?.toLowerCase(),
    ...(told.email_verified !== undefined && { emailVerified: told.email_verified === true }),
    username: text('preferred_username') ?? text('nickname'),
    groups: Array.isArray(groups) ? groups.filter((one) => typeof one === 'string') : [],
  };
}
