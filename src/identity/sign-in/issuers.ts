/**
 * Client of an identity provider (OpenID Connect): signs users in, and verifies access tokens.
 *
 * Discovery happens on first use, so that an unavailable provider affects neither the start nor other providers.
 */
import { createRemoteJWKSet, type JWTVerifyGetKey, errors as joseErrors, jwtVerify } from 'jose';
import * as oidc from 'openid-client';
import type { IssuerConfig } from '../../base/config/oidc.ts';
import { AppError, unauthenticated } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import type { Sealer } from '../../platform/crypto/keys.ts';

/** Time limit per request to a provider. */
const TIMEOUT_SECONDS = 10;
/** How long provider metadata is cached. */
const METADATA_TTL_MS = 3_600_000;
/** Maximum time from the redirect to the provider until the callback. */
const REQUEST_SECONDS = 600;
const CLOCK_TOLERANCE_SECONDS = 30;
/** Only asymmetric algorithms, and not `none`. */
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

export type Claims = {
  issuer: string;
  subject: string;
  email?: string;
  /** Whether the provider has verified the address. Undefined if the provider does not say, as Entra. */
  emailVerified?: boolean;
  /** Preferred username. */
  username?: string;
  groups: string[];
};

/** State of a sign-in, which the browser keeps encrypted while it is at the provider. */
type AuthorizationRequest = {
  state: string;
  nonce: string;
  verifier: string;
  to: string;
  expires: number;
  connecting: ConnectingSession | null;
};

/** The session to whose user an identity is connected, instead of signing in. */
export type ConnectingSession = { userId: string; sessionId: string };

type Metadata = { client: oidc.Configuration; keys: JWTVerifyGetKey; at: number };

export class Issuer {
  readonly config: IssuerConfig;
  readonly #sealer: Sealer;
  readonly #log: Pick<Logger, 'warn'>;
  #metadata: Promise<Metadata> | undefined;

  constructor(config: IssuerConfig, sealer: Sealer, log: Pick<Logger, 'warn'>) {
    this.config = config;
    this.#sealer = sealer;
    this.#log = log;
  }

  /**
   * Starts a sign-in.
   * @returns the URL to redirect the browser to, and the sealed request that it must send back within `seconds`
   * @throws AppError 503 when the provider is unavailable
   */
  async begin(
    callback: string,
    to: string,
    connecting: ConnectingSession | null = null,
  ): Promise<{ url: string; sealed: string; seconds: number }> {
    const { client } = await this.#getMetadata();
    const request: AuthorizationRequest = {
      state: oidc.randomState(),
      nonce: oidc.randomNonce(),
      verifier: oidc.randomPKCECodeVerifier(),
      to,
      expires: Date.now() + REQUEST_SECONDS * 1_000,
      connecting,
    };
    const url = oidc.buildAuthorizationUrl(client, {
      redirect_uri: callback,
      scope: this.config.scopes,
      state: request.state,
      nonce: request.nonce,
      code_challenge: await oidc.calculatePKCECodeChallenge(request.verifier),
      code_challenge_method: 'S256',
    });
    const sealed = sealJson(this.#sealer, request, this.config.name);
    return { url: url.href, sealed, seconds: REQUEST_SECONDS };
  }

  /**
   * Completes the authorization request of the same browser with the callback URL.
   * @throws AppError 401 when the callback does not belong to the request, 503 when the provider is unavailable
   */
  async finish(
    url: URL,
    sealed: string,
  ): Promise<{ claims: Claims; to: string; connecting: ConnectingSession | null }> {
    const request = openSealedJson<AuthorizationRequest>(this.#sealer, sealed, this.config.name);
    const { client } = await this.#getMetadata();
    try {
      const tokens = await oidc.authorizationCodeGrant(client, url, {
        pkceCodeVerifier: request.verifier,
        expectedState: request.state,
        expectedNonce: request.nonce,
        idTokenExpected: true,
      });
      const idClaims = tokens.claims();
      if (!idClaims) throw new Error('the provider sent no ID token');
      const userInfo = client.serverMetadata().userinfo_endpoint
        ? await oidc.fetchUserInfo(client, tokens.access_token, idClaims.sub)
        : {};
      const claims = toClaims({ ...userInfo, ...idClaims }, this.config);
      return { claims, to: request.to, connecting: request.connecting ?? null };
    } catch (error) {
      if (isIssuerUnavailable(error)) throw this.#unavailable(error);
      const { issuer, label } = this.config;
      this.#log.warn({ err: error, issuer }, 'sign-in with an identity provider failed');
      throw unauthenticated(`Sign-in with ${label} failed; try again`);
    }
  }

  /** Creates a ticket with which only this session can start to connect an identity, for ten minutes. */
  createTicket({ userId, sessionId }: ConnectingSession): string {
    const expires = Date.now() + REQUEST_SECONDS * 1_000;
    return sealJson(this.#sealer, { userId, sessionId, expires }, this.#ticketContext);
  }

  /** @throws AppError 401 for an invalid or expired ticket */
  openTicket(ticket: string): ConnectingSession {
    const { userId, sessionId } = openSealedJson<ConnectingSession & { expires: number }>(
      this.#sealer,
      ticket,
      this.#ticketContext,
    );
    return { userId, sessionId };
  }

  /** Verifies an access token. @throws AppError 401, 503 when the provider is unavailable */
  async verify(token: string): Promise<{ claims: Claims; expires: number }> {
    const { keys, client } = await this.#getMetadata();
    try {
      const { payload } = await jwtVerify(token, keys, {
        issuer: client.serverMetadata().issuer,
        audience: this.config.audience,
        algorithms: ALGORITHMS,
        requiredClaims: ['sub', 'exp'],
        clockTolerance: CLOCK_TOLERANCE_SECONDS,
      });
      const expires = Math.floor(Number(payload.exp));
      return { claims: toClaims(payload, this.config), expires };
    } catch (error) {
      if (error instanceof joseErrors.JWKSTimeout || !(error instanceof joseErrors.JOSEError))
        throw this.#unavailable(error);
      throw unauthenticated('The access token is not valid or has expired');
    }
  }

  get #ticketContext(): string {
    return `${this.config.name} ticket`;
  }

  async #getMetadata(): Promise<Metadata> {
    const last = await this.#metadata?.catch(() => undefined);
    if (last && Date.now() - last.at < METADATA_TTL_MS) return last;
    const discovery = this.#discover();
    this.#metadata = discovery;
    try {
      return await discovery;
    } catch (error) {
      // Keep using the expired metadata; retry in half the cache time.
      if (last) {
        this.#metadata = Promise.resolve({ ...last, at: Date.now() - METADATA_TTL_MS / 2 });
        return last;
      }
      this.#metadata = undefined;
      throw this.#unavailable(error);
    }
  }

  async #discover(): Promise<Metadata> {
    const { issuer, clientId, clientSecret } = this.config;
    const address = new URL(issuer);
    const client = await oidc.discovery(address, clientId, clientSecret, undefined, {
      timeout: TIMEOUT_SECONDS,
      execute: address.protocol === 'http:' ? [oidc.allowInsecureRequests] : [],
    });
    const { jwks_uri } = client.serverMetadata();
    if (!jwks_uri) throw new Error('the provider metadata has no jwks_uri');
    const keys = createRemoteJWKSet(new URL(jwks_uri), {
      timeoutDuration: TIMEOUT_SECONDS * 1_000,
    });
    return { client, keys, at: Date.now() };
  }

  #unavailable(error: unknown): AppError {
    const { issuer, label } = this.config;
    this.#log.warn({ err: error, issuer }, 'an identity provider is unavailable');
    return new AppError('internal_error', `${label} is unavailable; try again later`, {
      status: 503,
      retryAfter: 5,
    });
  }
}

function sealJson(sealer: Sealer, value: object, context: string): string {
  return Buffer.from(sealer.seal(context, JSON.stringify(value))).toString('base64url');
}

/** @throws AppError 401 */
function openSealedJson<T extends { expires: number }>(
  sealer: Sealer,
  sealed: string,
  context: string,
): T {
  try {
    const value: T = JSON.parse(sealer.open(context, Buffer.from(sealed, 'base64url')));
    if (value.expires > Date.now()) return value;
  } catch {
    // Sealed for another provider, or by a server with another key.
  }
  throw unauthenticated(
    'This browser did not start this sign-in, or started it too long ago; try again',
  );
}

/** Network errors, timeouts and 5xx responses. Other errors mean that the provider rejected the request. */
function isIssuerUnavailable(error: unknown): boolean {
  if (error instanceof TypeError && error.message === 'fetch failed') return true;
  const { name, cause } = error as { name?: string; cause?: unknown };
  if (name === 'TimeoutError') return true;
  return cause instanceof Response && cause.status >= 500;
}

function toClaims(claims: Record<string, unknown>, { issuer, groupsClaim }: IssuerConfig): Claims {
  const text = (name: string) => (typeof claims[name] === 'string' ? claims[name] : undefined);
  const groups = claims[groupsClaim];
  return {
    issuer: text('iss') ?? issuer,
    subject: text('sub') ?? '',
    email: text('email')?.toLowerCase(),
    ...(claims.email_verified !== undefined && { emailVerified: claims.email_verified === true }),
    username: text('preferred_username') ?? text('nickname'),
    groups: Array.isArray(groups) ? groups.filter((one) => typeof one === 'string') : [],
  };
}
