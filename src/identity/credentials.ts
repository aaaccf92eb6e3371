/**
 * Common parts of personal access tokens, API keys and other credentials.
 *
 * A credential never has more rights than its user: scopes and restrictions remove rights, and the user's roles are
 * read at each use. Only a credential with full rights manages credentials, because a restricted one could otherwise
 * create an unrestricted one. Deletion takes effect immediately, because nothing caches credentials.
 */

import { hash, randomInt, timingSafeEqual } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { AppError, forbidden, invalid } from '../base/errors.ts';
import { type Db, violatesUnique } from '../platform/database/client.ts';
import { resolveUser } from './accounts.ts';
import {
  type Account,
  demandAccount,
  demandOperator,
  hasFullRights,
  type Viewer,
} from './permissions.ts';

const MAX_DAYS = 365;
const DAY_MS = 86_400_000;

/** @throws AppError 401, 403. */
export function demandFullRights(viewer: Viewer): Account {
  const account = demandAccount(viewer);
  if (hasFullRights(account)) return account;
  throw forbidden(
    'Managing credentials requires a credential with full rights; this one is limited to scopes, namespaces or repositories',
  );
}

/** @returns the viewer, who must be the given user. @throws AppError 401, 403. */
export function demandOwn(viewer: Viewer, userId: string): Account {
  const account = demandFullRights(viewer);
  if (account.userId === userId) return account;
  throw forbidden("You cannot list another user's credentials");
}

/**
 * Returns the owner of a new credential: the viewer, or the user that an operator names.
 * @throws AppError 401, 403, 404
 */
export async function resolveCredentialOwner(
  db: Db,
  viewer: Account,
  username: string | null | undefined,
): Promise<{ userId: string; namespaceId: string }> {
  const { userId, namespace } = viewer;
  if (username == null || username === viewer.username)
    return { userId, namespaceId: namespace.id };
  demandOperator(viewer);
  return resolveUser(db, username);
}

/**
 * Returns the times of creation and expiry of a credential, from one clock, so that they are exactly `days` apart.
 * @throws AppError 400 outside 1 to 365.
 */
export function computeLifetime(days: number): { createdAt: Date; expiresAt: Date } {
  if (!Number.isInteger(days) || days < 1 || days > MAX_DAYS)
    throw invalid('expiresInDays', `must be from 1 to ${MAX_DAYS}`);
  const createdAt = new Date();
  return { createdAt, expiresAt: new Date(createdAt.getTime() + days * DAY_MS) };
}

/** Prepares a name for a query: PostgreSQL rejects text with NUL, which no stored name contains. */
export function toSearchableName(name: string): string {
  return name.includes('\0') ? '' : name;
}

/** @returns 409 for a violated unique constraint, otherwise the error itself */
export function toTakenError(error: unknown, message: string, field = 'name'): unknown {
  return violatesUnique(error) ? new AppError('already_exists', message, { field }) : error;
}

/*
 * Secrets. A token is a prefix such as `loam_pat_`, 40 base62 characters, and their CRC32 in 6 characters, so that secret
 * scanners recognize it. Only its SHA-256 is stored.
 */

const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
export const TOKEN_PREFIX = 'loam_pat_';
/** Excludes `$` and `:`, which separate the name from the secret in the API-Key and Basic schemes. */
export const API_KEY_NAME = /^[A-Za-z0-9._-]{1,100}$/;

/** 40 base62 characters, 238 bits. */
export function randomSecret(): string {
  return Array.from({ length: 40 }, () => BASE62[randomInt(BASE62.length)]).join('');
}

export function newToken(prefix = TOKEN_PREFIX): string {
  const secret = randomSecret();
  return prefix + secret + checksum(secret);
}

export function hashSecret(secret: string): Uint8Array<ArrayBuffer> {
  return new Uint8Array(hash('sha256', secret, 'buffer'));
}

/** Compares in constant time. */
export function matchesHash(secret: string, hash: Uint8Array): boolean {
  const given = hashSecret(secret);
  return given.length === hash.length && timingSafeEqual(given, hash);
}

function checksum(text: string): string {
  let value = crc32(text);
  let digits = '';
  for (let i = 0; i < 6; i++) {
    digits = BASE62[value % 62] + digits;
    value = Math.floor(value / 62);
  }
  return digits;
}
