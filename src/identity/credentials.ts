/**
 * What personal access tokens and API keys have in common.
 *
 * A credential can only ever do less than its user: scopes and narrowing take away, and the user's roles are
 * read at each use. Only a credential with full rights manages credentials, or a narrowed one could make
 * itself a wider twin. Deleting takes effect at once everywhere, because nothing caches credentials.
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
    'Credentials can be made, listed and deleted only with a credential of full rights; this one is limited',
  );
}

/** The viewer, who must be that user. @throws AppError 401, 403. */
export function demandOwn(viewer: Viewer, userId: string): Account {
  const account = demandFullRights(viewer);
  if (account.userId === userId) return account;
  throw forbidden("Another user's credentials are not shown");
}

/** Who gets what the viewer makes: the viewer, or, by the operator, the user named. @throws AppError 401, 403, 404 */
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
 * When a credential is created and when it expires: one clock for both, because they are exactly so many days apart.
 * @throws AppError 400 outside 1 to 365.
 */
export function computeLifetime(days: number): { createdAt: Date; expiresAt: Date } {
  if (!Number.isInteger(days) || days < 1 || days > MAX_DAYS)
    throw invalid('expiresInDays', `must be from 1 to ${MAX_DAYS}`);
  const createdAt = new Date();
  return { createdAt, expiresAt: new Date(createdAt.getTime() + days * DAY_MS) };
}

/** What a name in a search may be: PostgreSQL refuses text with a NUL in it; no name has one. */
export function toSearchableName(name: string): string {
  return name.includes('\0') ? '' : name;
}

/** What to throw for a failed write: 409 when the name was taken, else the error itself. */
export function toTakenError(error: unknown, message: string, field = 'name'): unknown {
  return violatesUnique(error) ? new AppError('already_exists', message, { field }) : error;
}

/**
 * The secrets of credentials. A token is `loam_pat_`, 40 base62 characters and 6 of their CRC32, so that
 * scanners find one in a text and can tell it from random text; only its SHA-256 is kept (decisions section 6).
 */
const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
export const TOKEN_PREFIX = 'loam_pat_';
/** Of an API key: `$` and, in Basic, `:` divide it from the secret. */
export const API_KEY_NAME = /^[A-Za-z0-9._-]{1,100}$/;

/** 40 base62 characters, 238 bits. */
export function randomSecret(): string {
  return Array.from({ length: 40 }, () => BASE62[randomInt(BASE62.length)]).join('');
}

export function newToken(): string {
  const secret = randomSecret();
  return TOKEN_PREFIX + secret + checksum(secret);
}

export function hashSecret(secret: string): Uint8Array<ArrayBuffer> {
  return new Uint8Array(hash('sha256', secret, 'buffer'));
}

/** Whether `secret` hashes to `hash`, in constant time. */
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
