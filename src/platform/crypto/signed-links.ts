/**
 * Signed URLs that work without an Authorization header for a limited time:
 * `?expires=<epoch seconds>&signature=<HMAC-SHA256>`.
 *
 * The signature covers the name of an object (`blob:repo_…:<sha>`), not the URL. So percent-encoding and proxies that
 * rewrite URLs do not break a link. Two kinds of objects never share a signature, because the name begins with the kind.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

/** A `download_url` is valid for at least 15 minutes. */
const LIFETIME_S = 15 * 60;
/** Expiry times are rounded up to a multiple of this, so that responses with a link keep their ETag for up to a minute. */
const EXPIRY_ROUNDING_S = 60;

export type Signer = {
  /** Returns `url` with a signature of `objectName` in its query, valid for 15 to 16 minutes. */
  signUrl(url: string, objectName: string): string;
  /** Whether `query` has an unexpired signature of `objectName`. Never throws, whatever `query` contains. */
  verify(objectName: string, query: Record<string, unknown>): boolean;
};

/** `now` is in milliseconds; tests pass their own clock. */
export function createSigner(key: Uint8Array, now: () => number = Date.now): Signer {
  const hmac = (objectName: string, expires: string) =>
    createHmac('sha256', key).update(`${expires}\n${objectName}`).digest();
  return {
    signUrl(url, objectName) {
      const earliest = now() / 1000 + LIFETIME_S;
      const expires = `${Math.ceil(earliest / EXPIRY_ROUNDING_S) * EXPIRY_ROUNDING_S}`;
      const signature = hmac(objectName, expires).toString('base64url');
      return `${url}${url.includes('?') ? '&' : '?'}expires=${expires}&signature=${signature}`;
    },
    verify(objectName, { expires, signature }) {
      if (typeof expires !== 'string' || typeof signature !== 'string') return false;
      if (!/^\d{1,12}$/.test(expires) || Number(expires) * 1000 <= now()) return false;
      const actual = Buffer.from(signature, 'base64url');
      const expected = hmac(objectName, expires);
      return actual.length === expected.length && timingSafeEqual(actual, expected);
    },
  };
}
