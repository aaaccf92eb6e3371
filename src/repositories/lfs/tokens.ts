/**
 * LFS tokens: returned by batches and `git-lfs-authenticate`, so that a client need not send its credential with each
 * object, and so that an SSH key gives access over HTTP.
 *
 * A token refers to a credential, whose current rights are checked at each use, and restricts them to one repository,
 * to one operation, and to the large-file routes. Deleting the credential or the membership therefore ends the token.
 * Tokens are signed and not stored, so a batch of a thousand objects writes nothing.
 */

import { createHmac, timingSafeEqual } from 'node:crypto';
import type pg from 'pg';
import { invalidCredentialsError, readAccountByCredentialId } from '../../identity/authenticate.ts';
import type { LastUsedRecorder } from '../../identity/last-used.ts';
import { type Account, type Scope, withImpliedScopes } from '../../identity/permissions.ts';

export type LfsOperation = 'download' | 'upload';

type LfsGrant = {
  repositoryId: string;
  /** The credential whose rights the token has. */
  credentialId: string;
  operation: LfsOperation;
};

/** Enough for a client between a batch and the last of its objects. After that, the client sends a new batch. */
export const TOKEN_SECONDS = 3_600;
/** Identifies the token to readers of logs and to secret scanners. */
const PREFIX = 'loam_lfs_';

const SCOPES: Record<LfsOperation, readonly Scope[]> = {
  download: ['repo:read'],
  // Includes admin, so that administrators can remove locks of other users over SSH.
  upload: ['repo:admin'],
};

export type LfsTokens = {
  /** @returns the token, good for `seconds` */
  issue(grant: LfsGrant, seconds?: number): string;
  /** Returns null if the token is invalid or has expired. Never throws. `seconds`: until it expires. */
  read(token: string): (LfsGrant & { seconds: number }) | null;
};

/** @param now the time in ms; a parameter for tests */
export function createLfsTokens(key: Uint8Array, now: () => number = Date.now): LfsTokens {
  const sign = (claims: string) => createHmac('sha256', key).update(claims).digest();
  return {
    issue({ repositoryId, credentialId, operation }, seconds = TOKEN_SECONDS) {
      const expires = Math.floor(now() / 1_000) + seconds;
      const claims = [repositoryId, credentialId, operation, expires].join('.');
      return `${PREFIX}${claims}.${sign(claims).toString('base64url')}`;
    },
    read(token) {
      const [, claims, repositoryId, credentialId, operation, expires, signature] =
        TOKEN_PATTERN.exec(token) ?? [];
      if (!claims || !repositoryId || !credentialId || !signature) return null;
      const given = Buffer.from(signature, 'base64url');
      const right = sign(claims);
      if (given.length !== right.length || !timingSafeEqual(given, right)) return null;
      const seconds = Number(expires) - Math.floor(now() / 1_000);
      if (seconds <= 0) return null;
      return { repositoryId, credentialId, operation: operation as LfsOperation, seconds };
    },
  };
}

/** Ids of credentials that are access tokens of an external issuer contain dots (`authenticate.ts`). */
const TOKEN_PATTERN =
  /^loam_lfs_((repo_\w+)\.(\w[\w.]*)\.(download|upload)\.(\d{1,12}))\.([\w-]{43})$/;

/** Whether a bearer token looks like an LFS token. */
export function isLfsToken(token: string): boolean {
  return token.startsWith(PREFIX);
}

/** `seconds`: until the token expires. */
export type LfsToken = { token: string; seconds: number };

/**
 * Returns the account of the token's credential, with the credential's current rights restricted by the token.
 * @throws AppError 401 if the token or the credential is invalid
 */
export async function authenticateToken(
  services: { pool: pg.Pool; usage: LastUsedRecorder; lfs: { tokens: LfsTokens } },
  token: string,
): Promise<{ account: Account; lfsToken: LfsToken }> {
  const grant = services.lfs.tokens.read(token);
  if (!grant) throw invalidCredentialsError();
  const account = await readAccountByCredentialId(services, grant.credentialId);
  return { account: narrowToGrant(account, grant), lfsToken: { token, seconds: grant.seconds } };
}

/** Restricts the account to the rights of the grant. */
function narrowToGrant(account: Account, { repositoryId, operation }: LfsGrant): Account {
  const { scopes, repositories } = account;
  const wanted = withImpliedScopes(SCOPES[operation]);
  return {
    ...account,
    scopes: scopes ? wanted.intersection(scopes) : wanted,
    repositories: new Set(!repositories || repositories.has(repositoryId) ? [repositoryId] : []),
  };
}
