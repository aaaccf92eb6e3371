/**
 * Tokens for large files: what the answer to a batch and `git-lfs-authenticate` give a client, so that it need not send
 * its credential with each object, and so that a key of SSH opens HTTP.
 *
 * A token carries no rights of its own. It names a credential, whose rights are asked for at each use as they are then,
 * and it narrows them: to one repository, to downloads where it is for those, and to the routes of large files, which
 * alone know it. So deleting the credential or the membership ends it; else it ends by itself. It is signed and not
 * kept: a batch of a thousand objects writes nothing.
 */

import { createHmac, timingSafeEqual } from 'node:crypto';
import type pg from 'pg';
import { invalidCredentialsError, readAccountByCredentialId } from '../../identity/authenticate.ts';
import type { LastUsedRecorder } from '../../identity/last-used.ts';
import { type Account, type Scope, withImpliedScopes } from '../../identity/permissions.ts';

export type LfsOperation = 'download' | 'upload';

export type LfsGrant = {
  repositoryId: string;
  /** The id of the credential that it stands for. */
  credentialId: string;
  operation: LfsOperation;
};

/** The longest that a client needs between a batch and the last of its objects; then it asks again. */
export const TOKEN_SECONDS = 3_600;
/** So that a reader of a log, and a scanner of secrets, knows what it is. */
const PREFIX = 'loam_lfs_';

const SCOPES: Record<LfsOperation, readonly Scope[]> = {
  download: ['repo:read'],
  // With `admin`, so that who may end the locks of others can do so over SSH.
  upload: ['repo:admin'],
};

export type LfsTokens = {
  /** @returns the token, good for `seconds` */
  issue(grant: LfsGrant, seconds?: number): string;
  /** Null for what is none of ours, was changed, or has expired. Never throws. `seconds`: until it expires. */
  read(token: string): (LfsGrant & { seconds: number }) | null;
};

/** `now` is in milliseconds; a parameter so that tests can let time pass. */
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
        FORM.exec(token) ?? [];
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

/** Ids of credentials have dots where they are of an issuer's access token (`authenticate.ts`). */
const FORM = /^loam_lfs_((repo_\w+)\.(\w[\w.]*)\.(download|upload)\.(\d{1,12}))\.([\w-]{43})$/;

/** Whether a bearer token claims to be one of these. */
export function isLfsToken(token: string): boolean {
  return token.startsWith(PREFIX);
}

/** A token as its holder has it, for as many seconds more. */
export type LfsToken = { token: string; seconds: number };

/**
 * Who a token stands for, with the rights that the credential has now, narrowed.
 * @throws AppError 401 when the token or the credential is not valid any more
 */
export async function accountOfToken(
  services: { pool: pg.Pool; usage: LastUsedRecorder; lfs: { tokens: LfsTokens } },
  token: string,
): Promise<{ account: Account; held: LfsToken }> {
  const grant = services.lfs.tokens.read(token);
  if (!grant) throw invalidCredentialsError();
  const account = await readAccountByCredentialId(services, grant.credentialId);
  return { account: narrowed(account, grant), held: { token, seconds: grant.seconds } };
}

/** The account with nothing but what the grant is for. */
function narrowed(account: Account, { repositoryId, operation }: LfsGrant): Account {
  const { scopes, repositories } = account;
  const wanted = withImpliedScopes(SCOPES[operation]);
  return {
    ...account,
    scopes: scopes ? wanted.intersection(scopes) : wanted,
    repositories: new Set(!repositories || repositories.has(repositoryId) ? [repositoryId] : []),
  };
}
